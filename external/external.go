package external

import (
	"cmp"
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
// one. [Once] needs Annotation, Create, and Find or KeysLast. [Ensure] and [Delete] need
// Observe too.
type Resource struct {
	// Annotation is the annotation of the object that holds the intent and later the
	// id, such as example.com/bucket. No other controller may write it: a name without a
	// domain can meet another program's. Required.
	Annotation string

	// Find returns the id of the thing that carries token, or found = false if there is
	// no such thing. More than one is an error. A thing that the service still deletes may
	// count or not. Required, unless the service cannot look for things: then KeysLast is.
	Find func(ctx context.Context, token string) (id string, found bool, err error)

	// Create creates a thing that carries token as its name, idempotency key or tag,
	// and returns its id. Required.
	Create func(ctx context.Context, token string) (id string, err error)

	// VisibleAfter is the time after which Find and Observe see a thing that Create made,
	// counted from the intent. It is the sum of four times: the longest call of Once (the
	// Timeout of the reconcile.Controller), the service's work on a request whose client has
	// gone, the lag of its reads, and the clock skew between replicas.
	//
	// 0 means that Create can be called again at once, because the service rejects or
	// recognises a second Create with the same token. 0 is also right if the service does
	// nothing after Create has returned or the calling process has died, and its reads do not
	// lag. For Ensure and Delete, 0 means in each case that reads do not lag.
	VisibleAfter time.Duration

	// KeysLast is the time for which a service without Find recognises a second Create with one
	// token. If the outcome of a Create is unknown for three quarters of it, counted from the intent
	// of the first try, Once, Ensure and Delete return an error that asks a human to look for the
	// thing, and call Create no more. The last quarter is for the call and the clock skew. 0 means
	// that there is a Find.
	KeysLast time.Duration

	// Observe compares the thing with what the object wants. [Gone] is the answer only if
	// the service says that there is no such thing; all else that keeps it from an answer is
	// an error. Once does not call it.
	Observe func(ctx context.Context, id string) (State, error)

	// Update makes the thing as the object wants it. If it is nil, a thing that is
	// [Different] stays as it is.
	Update func(ctx context.Context, id string) error

	// Delete deletes the thing, or begins to. A thing that does not exist is no error.
	// Required for the function Delete, unless Policy keeps the thing.
	Delete func(ctx context.Context, id string) error

	// Replace is Create for a thing in the place of one that is gone. It is for services that
	// remember the idempotency key of the former thing: key is another one for each
	// replacement, the same when one is tried again, and token is still what Find looks for. If it
	// is nil, Create is called, and for a service that remembers the key, Ensure returns an error: with
	// VisibleAfter when Create has returned the former id twice.
	Replace func(ctx context.Context, token, key string) (id string, err error)

	// Policy says what Ensure and Delete may do to the thing. The zero value is Manage.
	Policy Policy

	// Interval is the time between two looks at a thing that nothing else asks for: the
	// RequeueAfter of Ensure, or up to a tenth less, at random, so that the
	// calls of many objects spread. 0 means that only the object's events lead to a look.
	Interval time.Duration
}

// intent is the value of the annotation. Token names the object, because manifests are
// copied and restored together with their annotations.
type intent struct {
	Token string    `json:"token"`
	Since time.Time `json:"since,omitzero"` // when it was stored; with an id only if VisibleAfter is set
	First time.Time `json:"first,omitzero"` // when it was stored first, if KeysLast is set and Since is of a later try
	ID    string    `json:"id,omitempty"`
	Gone  string    `json:"gone,omitempty"` // the id of the thing before this one
}

// Token returns the token of obj for the annotation: 32 hexadecimal digits, a hash of the
// object's UID and the annotation. It is the same in every process and every version of
// this package. It differs between objects, also between an object and an earlier one of
// the same name.
func Token(obj metav1.Object, annotation string) string {
	return digest(string(obj.GetUID()) + "/" + annotation)
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
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
		pending, last = false, intent{Token: token}
	case last.ID == "" && last.Gone != "" && last.Since.IsZero():
		pending = false // Delete ended, and nothing began since
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
// If there is no id yet, id is empty, and err is the reason. It is a controllerkit.WaitingError if the
// caller must only call Once again after its time. If Once stored
// the intent or the id, the API server has a newer version than obj. obj is not changed.
//
// Errors of Find and Create are wrapped. If VisibleAfter is not 0, Once repeats a failed
// Create only after it, because a failed call may have created something. Until then the error is a
// WaitingError without the cause of the failure, which the failed call returned. An annotation
// with the token of another object, as in a copied manifest, is ignored. An annotation
// that cannot be parsed or has a time in the future counts as an intent of now.
//
// In a call of package preview, Once does not call Create. The report names it, and the error is a WaitingError.
//
// The error has a method Terminal() bool that returns true in these cases: obj is being
// deleted and has no id; obj has no UID or resource version; a field of r is invalid; Find
// or Create returns an empty id.
func Once[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) (id string, err error) {
	if err := r.validate(obj); err != nil {
		return "", fmt.Errorf("external: %w", kube.Terminal(err))
	}
	id, err = once(ctx, c, obj, r)
	if err != nil {
		return "", fmt.Errorf("external: %s of %s: %w", r.Annotation, kube.NameOf(obj), err)
	}
	return id, nil
}

func once[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) (string, error) {
	last, pending, unreadable := stored(obj, r.Annotation)
	if last.ID != "" {
		return last.ID, nil
	}
	if obj.GetDeletionTimestamp() != nil {
		return "", kube.Terminal(errors.New("the object is being deleted: no thing is created for it"))
	}
	if pending && !unreadable {
		// Otherwise a clock that was a year ahead would delay the object by a year.
		unreadable = r.ahead(last)
	}
	value := obj.GetAnnotations()[r.Annotation]
	if !pending || unreadable {
		if unreadable && r.KeysLast > 0 {
			return "", forgotten(ctx, c, obj, r)
		}
		var err error
		if value, err = stamp(ctx, c, obj, r, last); err != nil {
			return "", err
		}
		if unreadable && r.VisibleAfter > 0 {
			return "", unseen(r.VisibleAfter)
		}
	}
	return obtain(ctx, c, obj, r, last, value, pending && !unreadable)
}

// obtain finds or creates the thing of an intent, whose value is stored, and stores its id. old
// means that an earlier call stored the intent, and perhaps called Create.
func obtain[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, last intent, value string, old bool) (string, error) {
	// Also for a new intent, because the annotation may have been removed.
	id, found, err := r.find(ctx, last)
	if err != nil {
		return "", err
	}
	if note, on := calls.InPreview(ctx); on {
		if !found {
			note("create " + r.Annotation)
			return "", &waiting{"a preview does not call Create", time.Second}
		}
		return id, nil // the intent is not stored, so the id cannot be
	}
	if !found {
		if old {
			if wait := r.VisibleAfter - time.Since(last.Since); wait > 0 {
				return "", &waiting{"an earlier Create made no thing that the service shows: Create is called again after VisibleAfter", wait}
			}
			if r.tooOld(last) {
				return "", forgotten(ctx, c, obj, r)
			}
			if value, err = confirm(ctx, c, obj, r, last, value); err != nil {
				return "", err
			}
		}
		if id, err = r.create(ctx, last); err != nil {
			return "", err
		}
		if id == last.Gone && r.VisibleAfter == 0 {
			if gone, err := r.stillGone(ctx, last); err != nil {
				return "", err
			} else if gone {
				return "", fmt.Errorf("create: the service returned the id %s of the thing that is gone: set Resource.Replace, which gets another idempotency key", id)
			}
		}
	}
	calls.Passed(ctx, last.Token, id)
	return id, save(ctx, c, obj, r, value, last, id)
}

// find returns the id of the thing of the intent. The one that is gone does not count, also if
// Find still shows it.
func (r Resource) find(ctx context.Context, last intent) (id string, found bool, err error) {
	if r.Find == nil {
		return "", false, nil
	}
	id, found, err = r.Find(ctx, last.Token)
	switch {
	case err != nil:
		return "", false, fmt.Errorf("find: %w", err)
	case found && id == "":
		return "", false, errNoID
	case found && id == last.Gone:
		gone, err := r.stillGone(ctx, last)
		return id, !gone, err
	}
	return id, found, nil
}

// stillGone reports whether the thing that was gone is. Where an id is a name, the next thing has
// the same one.
func (r Resource) stillGone(ctx context.Context, last intent) (bool, error) {
	if r.Observe == nil {
		return false, nil
	}
	state, err := r.observe(ctx, last.Gone)
	return state == Gone, err
}

// create calls Create or Replace.
func (r Resource) create(ctx context.Context, last intent) (id string, err error) {
	if last.Gone != "" && r.Replace != nil {
		id, err = r.Replace(ctx, last.Token, digest(last.Token+"/"+last.Gone))
	} else {
		id, err = r.Create(ctx, last.Token)
	}
	if err != nil {
		return "", fmt.Errorf("create: %w", err)
	}
	if id == "" {
		return "", errNoID
	}
	return id, nil
}

var errNoID = kube.Terminal(errors.New("the id that Find or Create returned is empty: return the id of the thing"))

// ahead reports whether the intent is from the future, by more than clocks differ.
func (r Resource) ahead(last intent) bool {
	return last.Since.After(time.Now().Add(r.VisibleAfter + r.KeysLast/4))
}

// tooOld reports whether the service may have forgotten the Create of the intent.
func (r Resource) tooOld(last intent) bool {
	return r.KeysLast > 0 && time.Since(cmp.Or(last.First, last.Since)) > r.KeysLast-r.KeysLast/4
}

// forgotten is the error for an intent that is too old, unless obj is.
func forgotten[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) error {
	if err := fresh(ctx, c, obj, r); err != nil {
		return err
	}
	return kube.Terminal(fmt.Errorf("an earlier Create may have made a thing, and the service may have forgotten its token %s since: look for the thing, delete it, and remove the annotation", Token(obj, r.Annotation)))
}

// testVersion fails a patch unless obj is the newest version.
func testVersion(obj metav1.Object) kube.Operation {
	return kube.Test("/metadata/resourceVersion", obj.GetResourceVersion())
}

// stamp stores the intent on the newest version of obj, and returns its value.
func stamp[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, last intent) (string, error) {
	value := intent{Token: last.Token, Since: time.Now().UTC(), First: last.First, Gone: last.Gone}.String()
	add := kube.Operation{Op: "add", Path: annotationPath(r.Annotation), Value: value}
	if len(obj.GetAnnotations()) == 0 {
		add.Path, add.Value = annotationsPath, map[string]string{r.Annotation: value}
	}
	return value, store(ctx, c, obj, r, value, "store the intent", kube.TestUID(obj), testVersion(obj), add)
}

// confirm makes sure that obj, whose annotation has the value, is the newest version. With
// VisibleAfter, which counts from the last try, it stores the time. Otherwise it does not write: a
// write is an event, and an event would repeat a failing Create at once instead of after its
// backoff. KeysLast counts from the first try, which may be the one that the service knows.
func confirm[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, last intent, value string) (string, error) {
	if r.VisibleAfter > 0 {
		if r.KeysLast > 0 {
			last.First = cmp.Or(last.First, last.Since)
		}
		return stamp(ctx, c, obj, r, last)
	}
	return value, store(ctx, c, obj, r, value, "confirm the intent", kube.TestUID(obj), testVersion(obj))
}

// save stores the id. It tests the intent alone, because the object may have changed
// while Create ran.
func save[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, value string, last intent, id string) error {
	done := intent{Token: last.Token, ID: id, Gone: last.Gone}
	if r.VisibleAfter > 0 {
		done.Since = time.Now().UTC() // for Observe, whose reads lag
	}
	return exchange(ctx, c, obj, r, value, done, "store the id")
}

// exchange stores the next value in the place of value.
func exchange[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, value string, next intent, step string) error {
	path := annotationPath(r.Annotation)
	return store(ctx, c, obj, r, next.String(), step, kube.TestUID(obj), kube.Test(path, value), kube.Operation{Op: "replace", Path: path, Value: next.String()})
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
	data, _ := json.Marshal(i) // cannot fail: strings and a time of this century
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
	case r.Find == nil && r.KeysLast == 0:
		return errors.New("Resource.Find is nil: set it to a function that finds the thing that carries a token, or set KeysLast")
	case r.Find != nil && r.KeysLast > 0:
		return errors.New("Resource.KeysLast is for a service without Find: omit it, because Find sees all things")
	case r.Create == nil:
		return errors.New("Resource.Create is nil: set it to a function that creates the thing")
	case r.VisibleAfter < 0:
		return fmt.Errorf("Resource.VisibleAfter is %v: set it to a positive duration, or to 0", r.VisibleAfter)
	case r.KeysLast < 0:
		return fmt.Errorf("Resource.KeysLast is %v: set it to a positive duration, or to 0", r.KeysLast)
	case r.KeysLast > 0 && r.KeysLast <= 2*r.VisibleAfter:
		return fmt.Errorf("Resource.KeysLast is %v: the service must recognise tokens for more than twice VisibleAfter, which is %v", r.KeysLast, r.VisibleAfter)
	}
	return kube.CheckRead(obj)
}
