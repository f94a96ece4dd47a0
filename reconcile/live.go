package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Getter is the one method of a client that reads. The clients made by
// client-gen have it; those of a namespaced resource are of one namespace. The
// dynamic and the metadata client take subresources too and need a type around
// them that leaves these out.
type Getter[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
}

// Patcher is the one method of a client that writes a part of an object. The
// typed clients, the dynamic client and the metadata client of client-go have it.
type Patcher[T any] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// What a live read finds when the cached copy is not the newest. All of them have
// a method Stale() bool that returns true, so a Func that returns one is called
// again once the cache had time to catch up, which counts as no failure; see
// the row stale of the table in the package comment.
var (
	// ErrGone says that there is no object of that name any more.
	ErrGone error = staleness("the object is gone")
	// ErrReplaced says that the name belongs to another object now, with another UID.
	ErrReplaced error = staleness("another object has its name now")
	// ErrChanged says that the object was written after the cached copy.
	ErrChanged error = staleness("the object changed")
)

// staleness is an error that says that a cache is behind.
type staleness string

func (s staleness) Error() string { return "the cached copy is old: " + string(s) }

// Stale makes the loop wait for the cache.
func (staleness) Stale() bool { return true }

// ConfirmLive reads the object of which cached is a copy from the API server, and
// succeeds if it is that object, in that version. It is for the moment before a
// destructive act that was decided on by looking into a cache, which may be
// minutes behind, and after a restart may even go back in time. It costs one GET
// that the server answers from etcd.
//
// A mismatch is an error that wraps one of [ErrGone], next to the API's NotFound;
// [ErrReplaced]; and [ErrChanged]. To return it is the right thing for most: the
// Func decides again when the cache has caught up. With ErrReplaced and ErrChanged
// live is what the server has, for callers who can tell that the change does not
// matter to them; with other errors it is the zero T. That a write to status
// counts as a change too keeps objects with a heartbeat from being confirmed.
//
// What is true when the server answers need not be true a moment later. So the
// act itself should carry the same conditions: a delete takes live's UID and
// resourceVersion as Preconditions, an update carries both anyway.
//
// A 404 that is not about the object, as from a resource that is not served, is
// not ErrGone. A client of the wrong namespace does make it look gone. A cached copy
// without UID or resourceVersion fails with [ErrTerminal] before any request. cached
// is not changed.
func ConfirmLive[T metav1.Object](ctx context.Context, c Getter[T], cached metav1.Object) (live T, err error) {
	if err := checkRead(cached); err != nil {
		return live, fmt.Errorf("confirm live: %w", err)
	}
	live, err = getSame(ctx, c, cached)
	if err == nil && live.GetResourceVersion() != cached.GetResourceVersion() {
		err = fmt.Errorf("%w from resource version %s to %s", ErrChanged, cached.GetResourceVersion(), live.GetResourceVersion())
	}
	if err != nil {
		return live, fmt.Errorf("confirm %s live: %w", nameOf(cached), err)
	}
	return live, nil
}

// isGone reports whether err says that the object of that name does not exist. A proxy
// that knows nothing of the resource answers 404 as well, and so does an API server
// that has the group but not the resource; those name no object. Taken for an absence
// they would be proof of nothing.
func isGone(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || apierrors.IsUnexpectedServerError(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Name == name
}

// getSame reads the object that cached is a copy of, in whatever version. With
// ErrReplaced it returns the other object.
func getSame[T metav1.Object](ctx context.Context, c Getter[T], cached metav1.Object) (live T, err error) {
	var none T
	live, err = c.Get(ctx, cached.GetName(), metav1.GetOptions{})
	switch {
	case isGone(err, cached.GetName()):
		return none, fmt.Errorf("%w: %w", ErrGone, err)
	case err != nil:
		return none, err
	case live.GetUID() != cached.GetUID():
		return live, fmt.Errorf("%w: uid %s, not %s", ErrReplaced, live.GetUID(), cached.GetUID())
	}
	return live, nil
}

// checkRead refuses an object that no API server returned.
func checkRead(obj metav1.Object) error {
	field := ""
	switch {
	case obj.GetName() == "":
		field = "name"
	case obj.GetUID() == "":
		field = "uid"
	case obj.GetResourceVersion() == "":
		field = "resourceVersion"
	default:
		return nil
	}
	return fmt.Errorf("object %q has no metadata.%s: pass one that the API server returned: %w", nameOf(obj), field, ErrTerminal)
}

func nameOf(obj metav1.Object) string {
	if obj.GetNamespace() == "" {
		return obj.GetName()
	}
	return obj.GetNamespace() + "/" + obj.GetName()
}

// operation is one step of a JSON patch (RFC 6902). Value has no omitempty: a
// test for null must say null, which an absent member passes.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func test(path string, value any) operation {
	return operation{Op: "test", Path: path, Value: value}
}

// patch sends a JSON patch. A test in it that fails is a Conflict.
func patch[T metav1.Object](ctx context.Context, c Patcher[T], obj metav1.Object, operations ...operation) (T, error) {
	var none T
	data, err := json.Marshal(operations)
	if err != nil {
		return none, err
	}
	answer, err := c.Patch(ctx, obj.GetName(), types.JSONPatchType, data, metav1.PatchOptions{})
	if err != nil {
		return none, asConflict(err)
	}
	return answer, nil
}

// asConflict puts a Conflict in front of the API server's answer to a patch that
// does not apply, which is 422 Invalid. That is also the answer of validation and
// of webhooks, which say more: a kind, a name, a field, or words of their own. None
// of these may be taken for a failed test, since that is retried quietly.
func asConflict(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	s := status.Status()
	if s.Code != http.StatusUnprocessableEntity || s.Reason != metav1.StatusReasonInvalid ||
		!strings.HasPrefix(s.Message, "the server rejected our request due to an error in our request") {
		return err
	}
	if d := s.Details; d != nil && (d.Kind != "" || d.Name != "" || len(d.Causes) > 0) {
		return err
	}
	return fmt.Errorf("%w: %w", &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusConflict,
		Reason:  metav1.StatusReasonConflict,
		Message: "the object is not in the state that was read",
	}}, err)
}
