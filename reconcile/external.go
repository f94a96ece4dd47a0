package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// External is something outside of the cluster, such as a bucket or an account,
// of which each object has exactly one. See [ExternalOnce].
type External struct {
	// Annotation is where the object remembers the intent and then the id, such as
	// "example.com/bucket". Nobody else may write it. Required.
	Annotation string

	// Find returns the id of the one that carries token; found is false if there is
	// none. More than one is an error. Required.
	Find func(ctx context.Context, token string) (id string, found bool, err error)

	// Create makes one that carries token, as its name, its idempotency token or a
	// tag, and returns its id. Required.
	Create func(ctx context.Context, token string) (id string, err error)

	// Settle is how long after an intent was stored Find may still miss what the
	// Create after it made. It has to cover how long the call of ExternalOnce goes on
	// (bound it by the Timeout of the Controller), how long the service goes on with a
	// request whose caller is gone, how far its reads lag, and how far the clocks of
	// the controller's replicas differ.
	//
	// 0 means that it is safe to call Create again at once: the service refuses or
	// recognises a second Create with one token, or does nothing more once Create
	// returned or its process died, and reads show it.
	Settle time.Duration
}

// intent is the value of the annotation. Token ties it to one object: manifests
// are copied and restored together with their annotations.
type intent struct {
	Token string    `json:"token"`
	Since time.Time `json:"since,omitzero"` // when it was stored, unless the id is known
	ID    string    `json:"id,omitempty"`
}

// ExternalToken returns the token that obj has under this annotation: 32
// hexadecimal digits made from the object's UID and the annotation's name. It is
// the same in every process, and never that of another object, not even of a later
// one with the same name. Cleanup looks for it when a crash kept the id from being
// stored.
func ExternalToken(obj metav1.Object, annotation string) string {
	sum := sha256.Sum256([]byte(string(obj.GetUID()) + "/" + annotation))
	return hex.EncodeToString(sum[:16])
}

// ExternalOnce makes sure that obj has the one thing outside of the cluster that e
// describes, and returns its id. Neither a crash or a lost response at any point
// nor a stale cache makes it create a second one, and after any of them it goes on
// by itself:
//
//   - The id is in the annotation: it is returned, with no request of any kind.
//     Whether the thing is still there is for the caller to see.
//   - Nothing is in the annotation: the intent is stored, then Find and Create are
//     called, then the id is stored.
//   - The intent is in the annotation, and what became of a Create is not known:
//     Find tells. If it finds nothing, Create is called again once Settle is over.
//
// Before each Create the API server confirms that obj is its newest version, and
// so not being deleted: an old leader or an old cache creates nothing for an
// object that is gone. A stale obj is a Conflict.
//
// id is empty when there is none yet: then err says why, or res asks to be called
// again when Settle is over. So most callers go on with
//
//	if id == "" {
//		return res, err
//	}
//
// If this call stored something, the API server has a newer version than obj. obj
// itself is not changed. Errors of Find and Create are wrapped. With a Settle, a
// Create that failed is repeated only after it, since a failure does not mean that
// nothing was made.
//
// The annotation of another object, as in a copied manifest, counts as none; one
// that cannot be read, or is from the future, as an intent of now. ErrTerminal is
// the answer for an object that is being deleted and has no id, an obj without UID
// or resourceVersion, an e with a field missing, and an empty id from Find or
// Create. Put a finalizer on the object first: nothing else removes what was made.
//
// What it cannot prevent: a process that is stopped right before Create for longer
// than Settle, and then calls it. Only a service that knows tokens can.
func ExternalOnce[T metav1.Object](ctx context.Context, c Patcher[T], obj metav1.Object, e External) (id string, res Result, err error) {
	if err := e.validate(obj); err != nil {
		return "", Result{}, fmt.Errorf("external %s: %w", e.Annotation, err)
	}
	id, res, err = once(ctx, c, obj, e)
	if err != nil {
		return "", res, fmt.Errorf("external %s of %s: %w", e.Annotation, nameOf(obj), err)
	}
	return id, res, nil
}

func once[T metav1.Object](ctx context.Context, c Patcher[T], obj metav1.Object, e External) (string, Result, error) {
	token := ExternalToken(obj, e.Annotation)
	value, pending := obj.GetAnnotations()[e.Annotation]
	var last intent
	unreadable := pending && (json.Unmarshal([]byte(value), &last) != nil || last.Token == "")
	switch now := time.Now(); {
	case unreadable:
		last = intent{Token: token}
	case last.Token != token:
		pending, last = false, intent{}
	default:
		// Else a clock that was a year ahead would hold the object up for a year.
		unreadable = last.Since.After(now.Add(e.Settle))
	}
	if last.ID != "" {
		return last.ID, Result{}, nil
	}
	if obj.GetDeletionTimestamp() != nil {
		return "", Result{}, fmt.Errorf("the object is being deleted: nothing is created any more: %w", ErrTerminal)
	}
	if !pending || unreadable {
		var err error
		if value, err = stamp(ctx, c, obj, e, token); err != nil {
			return "", Result{}, err
		}
		if unreadable && e.Settle > 0 {
			return "", Result{RequeueAfter: e.Settle}, nil
		}
	}
	// Also for a new intent, as somebody may have removed the annotation.
	id, found, err := e.Find(ctx, token)
	if err != nil {
		return "", Result{}, fmt.Errorf("find: %w", err)
	}
	if !found {
		if pending && !unreadable {
			if wait := e.Settle - time.Since(last.Since); wait > 0 {
				return "", Result{RequeueAfter: wait}, nil
			}
			if value, err = confirm(ctx, c, obj, e, token, value); err != nil {
				return "", Result{}, err
			}
		}
		if id, err = e.Create(ctx, token); err != nil {
			return "", Result{}, fmt.Errorf("create: %w", err)
		}
	}
	if id == "" {
		return "", Result{}, fmt.Errorf("empty id: let External.Find and External.Create return what names the resource: %w", ErrTerminal)
	}
	return id, Result{}, save(ctx, c, obj, e, value, intent{Token: token, ID: id})
}

// stamp stores the intent on the newest version of obj, and returns its value.
func stamp[T metav1.Object](ctx context.Context, c Patcher[T], obj metav1.Object, e External, token string) (string, error) {
	value := intent{Token: token, Since: time.Now().UTC()}.String()
	add := operation{Op: "add", Path: annotationPath(e.Annotation), Value: value}
	if len(obj.GetAnnotations()) == 0 {
		add.Path, add.Value = annotationsPath, map[string]string{e.Annotation: value}
	}
	return value, store(ctx, c, obj, e, value, "store the intent", test(uidPath, obj.GetUID()), test(versionPath, obj.GetResourceVersion()), add)
}

// confirm makes sure that obj, whose intent is stored, is the newest version. Where
// the time of the intent does not matter it writes nothing: a write is an event,
// which would repeat a failing Create at once instead of after its backoff.
func confirm[T metav1.Object](ctx context.Context, c Patcher[T], obj metav1.Object, e External, token, value string) (string, error) {
	if e.Settle > 0 {
		return stamp(ctx, c, obj, e, token)
	}
	return value, store(ctx, c, obj, e, value, "confirm the intent", test(uidPath, obj.GetUID()), test(versionPath, obj.GetResourceVersion()))
}

// save stores the id. Only the intent must be what it was: the object may have
// changed while Create ran.
func save[T metav1.Object](ctx context.Context, c Patcher[T], obj metav1.Object, e External, value string, done intent) error {
	path := annotationPath(e.Annotation)
	id := done.String()
	return store(ctx, c, obj, e, id, "store the id", test(uidPath, obj.GetUID()), test(path, value),
		operation{Op: "replace", Path: path, Value: id})
}

// store patches obj, and looks whether value is there after it: a mutating
// webhook can take it out again.
func store[T metav1.Object](ctx context.Context, c Patcher[T], obj metav1.Object, e External, value, step string, operations ...operation) error {
	answer, err := patch(ctx, c, obj, operations...)
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	if answer.GetAnnotations()[e.Annotation] != value {
		return fmt.Errorf("%s: the server accepted the patch and answered with an object that has not got it; look for an admission webhook", step)
	}
	return nil
}

func (i intent) String() string {
	data, _ := json.Marshal(i) // cannot fail: strings, and a time of this century
	return string(data)
}

const annotationsPath = "/metadata/annotations"

// annotationPath is the path of an annotation, as RFC 6901 escapes it.
func annotationPath(name string) string {
	return annotationsPath + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func (e External) validate(obj metav1.Object) error {
	switch {
	case !strings.Contains(e.Annotation, "/") || len(validation.IsQualifiedName(e.Annotation)) > 0:
		return fmt.Errorf("External.Annotation is no name of one's own: use a domain, a slash and a word, such as example.com/bucket: %w", ErrTerminal)
	case e.Find == nil:
		return fmt.Errorf("External.Find is nil: set it to what looks for a token: %w", ErrTerminal)
	case e.Create == nil:
		return fmt.Errorf("External.Create is nil: set it to what makes the resource: %w", ErrTerminal)
	case e.Settle < 0:
		return fmt.Errorf("External.Settle is %v: set it to more than 0, or 0 for none: %w", e.Settle, ErrTerminal)
	}
	return checkRead(obj)
}
