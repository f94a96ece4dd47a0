package external

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Resource describes something outside of the cluster, of which each object has exactly
// one. See [Once].
type Resource struct {
	// Annotation is the annotation of the object that holds the intent and later the
	// id, such as example.com/bucket. No other controller may write it: a name without a
	// domain can meet another program's. Required.
	Annotation string

	// Find returns the id of the thing that carries token, or found = false if there is
	// no such thing. More than one is an error. Required.
	Find func(ctx context.Context, token string) (id string, found bool, err error)

	// Create creates a thing that carries token as its name, idempotency token or tag,
	// and returns its id. Required.
	Create func(ctx context.Context, token string) (id string, err error)

	// VisibleAfter is the time after which Find sees a thing that Create made, counted
	// from the intent. It is the sum of four times: the longest call of Once (the Timeout
	// of the reconcile.Controller), the service's work on a request without a client, the
	// lag of its reads, and the clock skew between replicas.
	//
	// 0 means that Create can be called again at once, because the service rejects or
	// recognises a second Create with the same token. 0 is also right if the service is
	// idle after Create returned or its process died, and its reads do not lag.
	VisibleAfter time.Duration
}

// intent is the value of the annotation. Token names the object, because manifests are
// copied and restored together with their annotations.
type intent struct {
	Token string    `json:"token"`
	Since time.Time `json:"since,omitzero"` // when it was stored, unless the id is known
	ID    string    `json:"id,omitempty"`
}

// Token returns the token of obj for the annotation: 32 hexadecimal digits, a hash of the
// object's UID and the annotation. It is the same in every process and every version of
// this package. It differs between objects, also between an object and an earlier one of
// the same name.
func Token(obj metav1.Object, annotation string) string {
	sum := sha256.Sum256([]byte(string(obj.GetUID()) + "/" + annotation))
	return hex.EncodeToString(sum[:16])
}

// ID returns the id that [Once] stored in obj under the annotation, and "" if there is none. It
// sends no request. An id in a copied manifest, which is of another object, does not count.
func ID(obj metav1.Object, annotation string) string {
	last, _, _ := stored(obj, annotation)
	return last.ID
}

// stored returns what the annotation of obj has. pending means that it is an intent or an id of
// this object, or not readable.
func stored(obj metav1.Object, annotation string) (last intent, pending, unreadable bool) {
	token := Token(obj, annotation)
	value, pending := obj.GetAnnotations()[annotation]
	unreadable = pending && (json.Unmarshal([]byte(value), &last) != nil || last.Token == "")
	switch {
	case unreadable:
		last = intent{Token: token}
	case last.Token != token:
		pending, last = false, intent{}
	}
	return last, pending, unreadable
}

// Once makes sure that obj has exactly one r, and returns its id. If a call crashes or
// fails, the next call continues, also in another process and from a stale cache.
//
// Once calls Create only after the API server confirmed that obj is its newest version
// and is not being deleted; if obj is stale, the error is a Conflict. So an old leader
// does not create a thing for an object that is gone.
//
// If there is no id yet, id is empty. Then err is the reason, or err is nil and
// requeueAfter is the time after which the caller must call Once again. If Once stored
// the intent or the id, the API server has a newer version than obj. obj is not changed.
//
// Errors of Find and Create are wrapped. If VisibleAfter is not 0, Once repeats a failed
// Create only after it, because a failed call may have created something. An annotation
// with the token of another object, as in a copied manifest, is ignored. An annotation
// that cannot be parsed or has a time in the future counts as an intent of now.
//
// In a call of package preview, Once does not call Create. The report names it, and requeueAfter is 1s.
//
// The error has a method Terminal() bool that returns true in these cases: obj is being
// deleted and has no id; obj has no UID or resource version; a field of r is invalid; Find
// or Create returns an empty id.
func Once[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) (id string, requeueAfter time.Duration, err error) {
	if err := r.validate(obj); err != nil {
		return "", 0, fmt.Errorf("external: %w", kube.Terminal(err))
	}
	id, requeueAfter, err = once(ctx, c, obj, r)
	if err != nil {
		return "", 0, fmt.Errorf("external: %s of %s: %w", r.Annotation, kube.NameOf(obj), err)
	}
	return id, requeueAfter, nil
}

func once[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) (string, time.Duration, error) {
	token, value := Token(obj, r.Annotation), obj.GetAnnotations()[r.Annotation]
	last, pending, unreadable := stored(obj, r.Annotation)
	if pending && !unreadable {
		// Otherwise a clock that was a year ahead would delay the object by a year.
		unreadable = last.Since.After(time.Now().Add(r.VisibleAfter))
	}
	if last.ID != "" {
		return last.ID, 0, nil
	}
	if obj.GetDeletionTimestamp() != nil {
		return "", 0, kube.Terminal(errors.New("the object is being deleted: no thing is created for it"))
	}
	if !pending || unreadable {
		var err error
		if value, err = stamp(ctx, c, obj, r, token); err != nil {
			return "", 0, err
		}
		if unreadable && r.VisibleAfter > 0 {
			return "", r.VisibleAfter, nil
		}
	}
	// Also for a new intent, because the annotation may have been removed.
	id, found, err := r.Find(ctx, token)
	if err != nil {
		return "", 0, fmt.Errorf("find: %w", err)
	}
	if note, on := calls.InPreview(ctx); on {
		if !found {
			note("create " + r.Annotation)
			return "", time.Second, nil
		}
		return id, 0, nil // the intent is not stored, so the id cannot be
	}
	if !found {
		if pending && !unreadable {
			if wait := r.VisibleAfter - time.Since(last.Since); wait > 0 {
				return "", wait, nil
			}
			if value, err = confirm(ctx, c, obj, r, token, value); err != nil {
				return "", 0, err
			}
		}
		if id, err = r.Create(ctx, token); err != nil {
			return "", 0, fmt.Errorf("create: %w", err)
		}
	}
	if id == "" {
		return "", 0, kube.Terminal(errors.New("the id that Find or Create returned is empty: return the id of the thing"))
	}
	return id, 0, save(ctx, c, obj, r, value, intent{Token: token, ID: id})
}

// testVersion fails a patch unless obj is the newest version.
func testVersion(obj metav1.Object) kube.Operation {
	return kube.Test("/metadata/resourceVersion", obj.GetResourceVersion())
}

// stamp stores the intent on the newest version of obj, and returns its value.
func stamp[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, token string) (string, error) {
	value := intent{Token: token, Since: time.Now().UTC()}.String()
	add := kube.Operation{Op: "add", Path: annotationPath(r.Annotation), Value: value}
	if len(obj.GetAnnotations()) == 0 {
		add.Path, add.Value = annotationsPath, map[string]string{r.Annotation: value}
	}
	return value, store(ctx, c, obj, r, value, "store the intent", kube.TestUID(obj), testVersion(obj), add)
}

// confirm makes sure that obj, whose intent is stored, is the newest version. If the time
// of the intent does not matter, it does not write: a write is an event, and an event
// would repeat a failing Create at once instead of after its backoff.
func confirm[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, token, value string) (string, error) {
	if r.VisibleAfter > 0 {
		return stamp(ctx, c, obj, r, token)
	}
	return value, store(ctx, c, obj, r, value, "confirm the intent", kube.TestUID(obj), testVersion(obj))
}

// save stores the id. It tests the intent alone, because the object may have changed
// while Create ran.
func save[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, value string, done intent) error {
	path, id := annotationPath(r.Annotation), done.String()
	return store(ctx, c, obj, r, id, "store the id", kube.TestUID(obj), kube.Test(path, value), kube.Operation{Op: "replace", Path: path, Value: id})
}

// store patches obj and checks that it has the value then: a mutating webhook can remove
// the value again.
func store[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, value, step string, operations ...kube.Operation) error {
	patched, err := kube.Patch(ctx, c, obj.GetName(), operations, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	if patched.GetAnnotations()[r.Annotation] != value {
		return fmt.Errorf("%s: the API server accepted the patch and returned an object without the annotation: look for a mutating webhook", step)
	}
	return nil
}

func (i intent) String() string {
	data, _ := json.Marshal(i) // cannot fail: two strings and a time of this century
	return string(data)
}

const annotationsPath = "/metadata/annotations"

// annotationPath is the path of an annotation, escaped as in RFC 6901.
func annotationPath(name string) string {
	return annotationsPath + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func (r Resource) validate(obj metav1.Object) error {
	switch {
	case len(validation.IsQualifiedName(strings.ToLower(r.Annotation))) > 0: // as the API server checks it
		return fmt.Errorf("Resource.Annotation %q is not valid: use a domain, a slash and a word, such as example.com/bucket", r.Annotation)
	case r.Find == nil:
		return errors.New("Resource.Find is nil: set it to a function that finds the thing that carries a token")
	case r.Create == nil:
		return errors.New("Resource.Create is nil: set it to a function that creates the thing")
	case r.VisibleAfter < 0:
		return fmt.Errorf("Resource.VisibleAfter is %v: set it to a positive duration, or to 0", r.VisibleAfter)
	}
	return kube.CheckRead(obj)
}
