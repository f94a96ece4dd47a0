package finalizer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrDeleting is returned by [Add] for an object that is being deleted and does
// not carry the finalizer. The API server would refuse it too: it is too late.
var ErrDeleting = errors.New("finalizer: the object is being deleted")

// Patcher is the one method of a client that this package calls. The typed
// clients, the dynamic client and the metadata client of client-go have it. The
// client of a namespaced resource is the one of the object's namespace.
type Patcher[T any] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// Held is the proof that an object carries a finalizer. Only [Ensure] and [Add]
// make one, so a function that takes a Held cannot be called before the
// finalizer is stored. It says nothing about later: use it in the reconcile that
// received it and do not keep it.
//
// The zero Held proves nothing, and Valid tells it apart.
type Held[T metav1.Object] struct {
	object T
	name   string     // "" in the zero Held, never in a made one
	client Patcher[T] // whose answers a Plan believes
}

// Object returns the object that carries the finalizer: the server's answer if
// the finalizer was added just now, otherwise the object given to Ensure or Add.
// That one may belong to an informer's cache: read it, do not write to it. The
// zero Held returns the zero T.
func (h Held[T]) Object() T { return h.object }

// Valid reports whether h comes from [Ensure] or [Add]. It is false for the zero
// Held. Functions with effects outside the cluster that are called from code they
// do not know should check it.
func (h Held[T]) Valid() bool { return h.name != "" }

// Has reports whether obj carries the finalizer name.
func Has(obj metav1.Object, name string) bool {
	return slices.Contains(obj.GetFinalizers(), name)
}

// Ensure makes sure that work on obj is guarded by the finalizer name, or, once
// obj is being deleted, that cleanup succeeds before the finalizer goes. The
// package comment has a table of the cases.
//
// name is a domain, a slash and a word: "example.com/bucket". live reports
// whether to go on: the object is not being deleted and held is valid. Once it is
// being deleted, live is false and there is nothing more to do, whether
// err is nil or not.
//
// cleanup must be idempotent, and must read what it is about to delete from its
// source: the object it gets can be an older copy. It gets ctx as it is; bound it
// there. Ensure neither retries it nor recovers its panics.
//
// Errors wrap their cause. A Conflict means that obj was stale; a NotFound, that
// it is gone before the finalizer was stored.
func Ensure[T metav1.Object](ctx context.Context, c Patcher[T], obj T, name string, cleanup func(context.Context, Held[T]) error) (held Held[T], live bool, err error) {
	if err := check(c, obj, name); err != nil {
		return Held[T]{}, false, err
	}
	if cleanup == nil {
		return Held[T]{}, false, fmt.Errorf("finalizer %s: cleanup is nil: without it nothing can remove the finalizer again", name)
	}
	if obj.GetDeletionTimestamp() == nil {
		held, err := Add(ctx, c, obj, name)
		return held, err == nil, err
	}
	if !Has(obj, name) {
		return Held[T]{}, false, nil
	}
	if err := cleanup(ctx, Held[T]{object: obj, name: name, client: c}); err != nil {
		return Held[T]{}, false, fmt.Errorf("finalizer %s: cleanup: %w", name, err)
	}
	_, err = Remove(ctx, c, obj, name)
	return Held[T]{}, false, err
}

// Add stores the finalizer name on obj unless it is there already, which costs no
// request. It fails with [ErrDeleting] when obj is being deleted without it, and
// with a Conflict when obj is stale: the object in the server has another
// finalizer list, is being deleted, or is another object of that name. Read it
// again and decide again; Add does not do so itself, because a copy too old for
// its finalizers is too old for the work that follows. obj is not changed.
func Add[T metav1.Object](ctx context.Context, c Patcher[T], obj T, name string) (Held[T], error) {
	if err := check(c, obj, name); err != nil {
		return Held[T]{}, err
	}
	if Has(obj, name) {
		return Held[T]{object: obj, name: name, client: c}, nil
	}
	if obj.GetDeletionTimestamp() != nil {
		return Held[T]{}, fmt.Errorf("finalizer %s: add: %w", name, ErrDeleting)
	}
	answer, err := patch(ctx, c, obj, addition(obj, name))
	if err != nil {
		return Held[T]{}, fmt.Errorf("finalizer %s: add: %w", name, err)
	}
	// A mutating webhook can take it out again. Then nothing is guarded.
	if !Has(answer, name) {
		return Held[T]{}, fmt.Errorf("finalizer %s: add: the server accepted the patch and answered with an object that does not carry the finalizer; look for an admission webhook", name)
	}
	return Held[T]{object: answer, name: name, client: c}, nil
}

// Remove takes the finalizer name off obj, and is for callers that know its
// cleanup is done; [Ensure] calls it after cleanup. It does nothing, without a
// request, when obj does not carry the finalizer: pass the newest copy there is.
// obj is not changed.
//
// Unlike Add, Remove looks at the live object when obj turns out to be stale: that
// another controller's finalizer went meanwhile is no reason to repeat a cleanup.
// It is done if the finalizer is gone or the object is gone or is another one, and
// tries once more otherwise. So Remove makes at most three requests, and returns a
// Conflict when the list changed again between the last two.
//
// Remove returns the server's answer, or obj if there was nothing to do. It
// returns the zero T, and no error, if there is no object with that UID any more.
// The answer to the last removal is peculiar; see the Caveats of the package.
func Remove[T metav1.Object](ctx context.Context, c Patcher[T], obj T, name string) (T, error) {
	var gone T
	if err := check(c, obj, name); err != nil {
		return gone, err
	}
	if !Has(obj, name) {
		return obj, nil
	}
	answer, err := patch(ctx, c, obj, removal(obj, name))
	if kube.IsFailedTest(err) {
		// Which test failed, the answer does not say.
		var live T
		live, err = look(ctx, c, obj)
		switch {
		case kube.IsFailedTest(err):
			return gone, nil
		case err == nil && !Has(live, name):
			return live, nil
		case err == nil:
			answer, err = patch(ctx, c, live, removal(live, name))
		}
	}
	switch {
	case kube.IsGone(err, obj.GetName()):
		return gone, nil
	case err != nil:
		return gone, fmt.Errorf("finalizer %s: remove: %w", name, err)
	}
	return answer, nil
}

// check refuses what can only be a mistake in the program, before any request.
func check(client any, obj metav1.Object, name string) error {
	if !strings.Contains(name, "/") || len(validation.IsQualifiedName(name)) > 0 {
		return fmt.Errorf("finalizer %q: not a finalizer name: use a domain, a slash and a word, such as example.com/bucket", name)
	}
	switch {
	case kube.IsNil(obj):
		return fmt.Errorf("finalizer %s: the object is nil: pass one that the API server returned", name)
	case obj.GetName() == "":
		return fmt.Errorf("finalizer %s: the object has no metadata.name: pass one that the API server returned", name)
	case obj.GetUID() == "":
		return fmt.Errorf("finalizer %s: object %q has no metadata.uid: pass one that the API server returned", name, obj.GetName())
	case kube.IsNil(client):
		return fmt.Errorf("finalizer %s: the client is nil: pass one of the object's resource and namespace", name)
	}
	return nil
}

const (
	deletionPath   = "/metadata/deletionTimestamp"
	finalizersPath = "/metadata/finalizers"
)

// addition appends name to the list of obj if the live list is still that one.
func addition(obj metav1.Object, name string) []kube.Operation {
	tests := []kube.Operation{
		kube.TestUID(obj),
		// If the live object is being deleted and the copy does not show it, the API
		// server rejects the addition as Invalid, which reads like a bug. It is staleness.
		kube.Test(deletionPath, nil),
		testList(obj),
	}
	if len(obj.GetFinalizers()) == 0 {
		// There is no list to append to. Without the test for null this operation
		// would replace a list that the copy does not show.
		return append(tests, kube.Operation{Op: "add", Path: finalizersPath, Value: []string{name}})
	}
	return append(tests, kube.Operation{Op: "add", Path: finalizersPath + "/-", Value: name})
}

// removal takes name, which obj carries, out of the list if the live list is still that
// of obj. Behind that test an index is safe, and so is a whole list. The API server
// stores a name as often as somebody asks it to, but a patch of 10,000 operations is
// refused: so a name that is there more than once goes with the list.
func removal(obj metav1.Object, name string) []kube.Operation {
	operations := []kube.Operation{kube.TestUID(obj), testList(obj)}
	list := obj.GetFinalizers()
	others := slices.DeleteFunc(slices.Clone(list), func(other string) bool { return other == name })
	if len(others) == len(list)-1 {
		return append(operations, kube.Operation{Op: "remove", Path: fmt.Sprintf("%s/%d", finalizersPath, slices.Index(list, name))})
	}
	return append(operations, kube.Operation{Op: "replace", Path: finalizersPath, Value: others})
}

// testList holds for the finalizer list of obj exactly. The API server omits an empty
// list, so the test for one is a test for null, which an absent field passes.
func testList(obj metav1.Object) kube.Operation {
	if list := obj.GetFinalizers(); len(list) > 0 {
		return kube.Test(finalizersPath, list)
	}
	return kube.Test(finalizersPath, nil)
}

// look returns the live object of the UID of obj. It is a patch that only tests
// the UID, and fails for that reason alone. So it is a read, of what is stored and
// not of a cache, for identities that have no verb but patch. It is a dry run:
// admission may change the object at every update, and then each look would be a
// write, whose event brings the next look at once.
func look[T metav1.Object](ctx context.Context, c Patcher[T], obj T) (T, error) {
	return patch(ctx, c, obj, []kube.Operation{kube.TestUID(obj)}, metav1.DryRunAll)
}

func patch[T metav1.Object](ctx context.Context, c Patcher[T], obj T, operations []kube.Operation, dryRun ...string) (T, error) {
	patched, err := kube.Patch[T](ctx, c, obj.GetName(), operations, metav1.PatchOptions{DryRun: dryRun})
	return patched, notServed(err, obj.GetName())
}

// notServed says more about a 404 that is not about the object. The client of all
// namespaces gets one for each object that is in a namespace.
func notServed(err error, name string) error {
	if !apierrors.IsNotFound(err) || kube.IsGone(err, name) {
		return err
	}
	return fmt.Errorf("%w: the client must be one of the object's namespace, and of a resource that is served", err)
}
