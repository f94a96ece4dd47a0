package external

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// A State says how a thing compares with what its object wants.
type State string

// The states. If Observe returns another one, such as "", that is an error.
const (
	Current   State = "Current"   // the thing is as the object wants it
	Different State = "Different" // it is not, and Update can change that
	Busy      State = "Busy"      // the service still creates, changes or deletes it
	Gone      State = "Gone"      // the service says that there is no such thing
)

// A Policy says what [Ensure] and [Delete] may do to a thing.
type Policy int

const (
	Manage      Policy = iota // all: create, update, replace, delete
	Orphan                    // all but delete: the thing outlives its object
	ObserveOnly               // nothing: neither the thing nor the object's annotation changes
)

// look is the time after which a Busy thing is observed again.
const look = 5 * time.Second

// Result is what [Ensure] did and saw.
type Result struct {
	ID           string        // "" if there is no thing yet, or Find does not show it yet
	State        State         // after the call; Busy also while Ensure waits for VisibleAfter, and only with an error
	RequeueAfter time.Duration // when to call Ensure again; 0 means with the next event
}

// Ensure makes sure that obj has exactly one r, as [Once] does, and that the thing is as obj wants
// it. It calls Observe, and then:
//
//   - Update if the thing is Different. If it is Different also after Update, the error is for the
//     caller's backoff: Observe asks for what Update does not do, or somebody else changes the
//     thing. A service whose reads lag by VisibleAfter is asked again after it.
//   - Replace, or Create, if the thing is Gone: somebody deleted it. The annotation keeps the id of
//     the former thing, so that a crash leads to no second one. A thing that Create made less
//     than VisibleAfter ago is Busy.
//   - nothing if it is Busy: RequeueAfter is then 5s.
//
// While the state is Busy, the error is a controllerkit.WaitingError with the time RequeueAfter, beside
// the Result. So a caller that returns the error does not report success before the thing is ready.
//
// Before Update and Replace, the API server confirms that obj is its newest version, as before
// Create: otherwise the error is a Conflict. So neither an old leader nor a stale cache changes
// the thing to what obj wanted once.
//
// With ObserveOnly, Ensure stores and changes nothing: Find says which thing it is, and the
// state is Gone if there is none. In a call of package preview, Update is not called either.
//
// If there is a Find, Ensure calls it for an id of the annotation, which somebody can edit: before each
// Update, and otherwise once an hour in the calls of one reconcile.Controller, and each time without one. If
// the thing does not carry the token, the error has a method Rejected() bool that returns true.
//
// The errors are those of Once. If obj is being deleted, the error is terminal: call Delete.
func Ensure[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) (Result, error) {
	err := r.validate(obj)
	if err == nil {
		err = r.validateLife()
	}
	if err == nil && obj.GetDeletionTimestamp() != nil {
		err = errors.New("the object is being deleted: call Delete in the cleanup of its finalizer")
	}
	if err != nil {
		return Result{}, fmt.Errorf("external: %w", kube.Terminal(err))
	}
	result, err := ensure(ctx, c, obj, r)
	if err == nil && result.State == Busy {
		err = &waiting{"the service has not finished with " + cmp.Or(result.ID, "the thing"), result.RequeueAfter}
	}
	if err != nil {
		return result, fmt.Errorf("external: %s of %s: %w", r.Annotation, kube.NameOf(obj), err)
	}
	return result, nil
}

// unborn returns the Result and the error of Ensure if there is no id.
func unborn(err error) (Result, error) {
	if wait := kube.Waits(err); wait > 0 {
		return Result{State: Busy, RequeueAfter: wait}, err
	}
	return Result{}, err
}

func ensure[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) (Result, error) {
	last, _, _ := stored(obj, r.Annotation)
	if r.Policy == ObserveOnly {
		return r.watch(ctx, last)
	}
	id, err := once(ctx, c, obj, r)
	if id == "" {
		return unborn(err)
	} else if err != nil {
		return Result{}, err // the id is not stored
	}
	state, err := r.observe(ctx, id)
	switch {
	case err != nil:
		return Result{}, err
	case state == Different && r.Update != nil && id != last.ID: // obj is not its newest version now
		return Result{id, Busy, look}, nil
	case state == Different && r.Update != nil:
		return update(ctx, c, obj, r, last)
	case state == Gone && id == last.ID:
		if wait, err := hidden(ctx, c, obj, r, last); err != nil {
			return Result{}, err
		} else if wait > 0 {
			return Result{id, Busy, wait}, nil
		}
		return renew(ctx, c, obj, r, last)
	case state == Gone: // made in this call
		return Result{id, Busy, max(look, r.VisibleAfter)}, nil
	}
	if id == last.ID {
		if err := r.own(ctx, last); state == Busy && kube.Waits(err) > 0 {
			return Result{id, Busy, look}, nil
		} else if err != nil {
			return unborn(err)
		}
	}
	return r.result(id, state), nil
}

// result returns the Result of a thing that nothing is done to.
func (r Resource) result(id string, state State) Result {
	if state == Busy {
		return Result{id, state, look}
	}
	if r.Interval <= 0 {
		return Result{id, state, 0}
	}
	return Result{id, state, r.Interval - rand.N(r.Interval/10+1)}
}

// watch is Ensure of a thing that is only observed.
func (r Resource) watch(ctx context.Context, last intent) (Result, error) {
	id := last.ID
	if id == "" {
		found, ok, err := r.find(ctx, last)
		if err != nil {
			return Result{}, err
		} else if !ok {
			return r.result("", Gone), nil
		}
		id = found
	}
	state, err := r.observe(ctx, id)
	if err == nil && id == last.ID && state != Gone {
		err = r.own(ctx, last)
	}
	if err != nil {
		return unborn(err)
	}
	return r.result(id, state), nil
}

// update makes a thing that is Different as obj wants it.
func update[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, last intent) (Result, error) {
	id := last.ID
	if err := r.carries(ctx, last); err != nil {
		return unborn(err)
	}
	if note, on := calls.InPreview(ctx); on {
		note("update " + r.Annotation)
		return r.result(id, Different), nil
	}
	if err := fresh(ctx, c, obj, r); err != nil {
		return Result{}, err
	}
	if err := r.Update(ctx, id); err != nil {
		return Result{}, fmt.Errorf("update: %w", err)
	}
	state, err := r.observe(ctx, id)
	switch {
	case err != nil:
		return Result{}, err
	case state == Gone || state == Different && r.VisibleAfter > 0:
		return Result{id, Busy, max(look, r.VisibleAfter)}, nil
	case state == Different:
		return Result{}, errors.New("the thing is Different also after Update: look whether Observe asks for what Update does not do, and who else changes the thing")
	}
	return r.result(id, state), nil
}

// own is carries for a thing that does not change. In the calls of one reconcile.Controller, it calls Find once an hour.
func (r Resource) own(ctx context.Context, last intent) error {
	if calls.HasPassed(ctx, last.Token, last.ID) {
		return nil
	}
	return r.carries(ctx, last)
}

// carries makes sure that the thing carries the token: who may edit obj can edit the id.
func (r Resource) carries(ctx context.Context, last intent) error {
	if r.Find == nil {
		return nil
	}
	id, found, err := r.Find(ctx, last.Token)
	if err != nil {
		return fmt.Errorf("find: %w", err)
	}
	if found && id == last.ID {
		calls.Passed(ctx, last.Token, id)
		return nil
	}
	// A time that is more than VisibleAfter ahead is edited, or of a wrong clock.
	if wait := r.VisibleAfter - time.Since(last.Since); wait > 0 && wait <= 2*r.VisibleAfter {
		return unseen(min(wait, r.VisibleAfter))
	}
	if found {
		return edited(fmt.Sprintf("the thing that carries the token %s is %s, so %s is not used: somebody edited the annotation: remove it", last.Token, id, last.ID))
	}
	switch state, err := r.observe(ctx, last.ID); {
	case err != nil:
		return err
	case state == Gone:
		return &waiting{"the thing has just gone", time.Second}
	case state == Busy: // Find need not show it
		return &waiting{"the service has not finished with " + last.ID, look}
	}
	return edited(fmt.Sprintf("no thing carries the token %s, so %s is not used: somebody edited the annotation or the thing", last.Token, last.ID))
}

// edited is the error of an id that the object may not have. No retry cures it.
type edited string

func (e edited) Error() string { return string(e) }

// Rejected makes the reconcile loop class the error as rejected.
func (edited) Rejected() bool { return true }

// fresh makes sure that obj is its newest version. It does not change the object.
func fresh[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) error {
	value := obj.GetAnnotations()[r.Annotation]
	return store(ctx, c, obj, r, value, "confirm the object", kube.TestUID(obj), testVersion(obj))
}

// renew makes another thing in the place of the one that is gone.
func renew[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, last intent) (Result, error) {
	next := intent{Token: last.Token, Gone: last.ID}
	value, err := stamp(ctx, c, obj, r, next)
	if err != nil {
		return Result{}, err
	}
	id, err := obtain(ctx, c, obj, r, next, value, false)
	if err != nil {
		return unborn(err)
	}
	if r.VisibleAfter > 0 && id == last.ID && id == last.Gone {
		return Result{}, fmt.Errorf("create: the service returned the id %s of the thing that is gone for the second time: unless somebody deleted two things of this name, set Resource.Replace, which gets another idempotency key", id)
	}
	return Result{id, Busy, max(look, r.VisibleAfter)}, nil
}

// hidden returns how long reads may still not show the thing. The clock that the time of the id is
// from may have been wrong: if the time is ahead, hidden stores the present one.
func hidden[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, last intent) (time.Duration, error) {
	if r.VisibleAfter == 0 {
		return 0, nil
	}
	if !last.Since.After(time.Now().Add(r.VisibleAfter)) {
		return r.VisibleAfter - time.Since(last.Since), nil
	}
	last.Since = time.Now().UTC()
	return r.VisibleAfter, exchange(ctx, c, obj, r, obj.GetAnnotations()[r.Annotation], last, "store the time")
}

// observe calls Observe.
func (r Resource) observe(ctx context.Context, id string) (State, error) {
	state, err := r.Observe(ctx, id)
	if err != nil {
		return "", fmt.Errorf("observe: %w", err)
	}
	switch state {
	case Current, Different, Busy, Gone:
		return state, nil
	}
	return "", kube.Terminal(fmt.Errorf("the state of Observe is %q: return Current, Different, Busy or Gone", state))
}

// Delete deletes the thing of obj, whether or not a crash kept its id from being stored. If it
// returns nil, there is no thing, and there will be none by an earlier call of Once or Ensure. With
// the policies Orphan and ObserveOnly, it does nothing and returns nil.
//
// While the service deletes the thing, or may still show one, the error is a
// controllerkit.WaitingError. So an Ensure of package finalizer, whose cleanup returns it, keeps
// the finalizer, and the object is looked at again in time.
//
// Delete is also for an object that is not being deleted and no longer wants the thing, such as one
// that its spec turned off. Then the API server confirms that obj is its newest version, also if
// there is no thing: otherwise the error is a Conflict. Ensure can make a thing again later.
//
// If the thing of the stored id is gone, Delete calls Find before it returns nil: somebody may have
// edited the id, or restored the object from a time before [Ensure] replaced the thing. Then it
// deletes the thing that carries the token.
//
// Without a Find, Delete learns an id that a crash kept from being stored by one more Create with
// the same token, and then deletes that thing. In a call of package preview, it deletes nothing.
//
// If the thing of the stored id does not carry the token, the error is as that of Ensure.
//
// Errors are wrapped. Terminal ones are those of [Once] for an invalid r or obj, and an intent that
// is too old for KeysLast.
func Delete[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) error {
	err := r.validate(obj)
	if err == nil {
		err = r.validateLife()
	}
	if err == nil && r.Policy == Manage && r.Delete == nil {
		err = errors.New("Resource.Delete is nil: set it to a function that deletes the thing, or set Policy to Orphan")
	}
	if err != nil {
		return fmt.Errorf("external: %w", kube.Terminal(err))
	}
	if r.Policy != Manage {
		return nil
	}
	if err := remove(ctx, c, obj, r); err != nil {
		return fmt.Errorf("external: delete %s of %s: %w", r.Annotation, kube.NameOf(obj), err)
	}
	return nil
}

// waiting is a controllerkit.WaitingError.
type waiting struct {
	text  string
	after time.Duration
}

func (w *waiting) Error() string        { return w.text }
func (w *waiting) Waits() time.Duration { return w.after }

// unseen is the error while the service may not show a thing yet.
func unseen(wait time.Duration) error {
	return &waiting{"reads of the service may not show the thing yet", wait}
}

func remove[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource) error {
	last, pending, unreadable := stored(obj, r.Annotation)
	traced := last.ID == ""
	if traced {
		id, err := trace(ctx, c, obj, r, last, pending, unreadable)
		if err != nil {
			return err
		}
		if id == "" {
			if _, preview := calls.InPreview(ctx); preview || obj.GetDeletionTimestamp() != nil {
				return nil
			}
			return fresh(ctx, c, obj, r) // a newer version may have an intent
		}
		last.ID = id
	}
	state, err := r.observe(ctx, last.ID)
	if err == nil && state == Gone && !traced { // the stored id may be edited, or older than the thing
		last.ID, state, err = r.successor(ctx, last)
		traced = true
	}
	if err != nil {
		return err
	}
	if note, on := calls.InPreview(ctx); on {
		if state != Gone {
			note("delete " + r.Annotation)
		}
		return nil
	}
	if state == Current || state == Different {
		if !traced {
			if err := r.carries(ctx, last); err != nil {
				return err
			}
		}
		if obj.GetDeletionTimestamp() == nil {
			if err := fresh(ctx, c, obj, r); err != nil {
				return err
			}
		}
		if err := r.Delete(ctx, last.ID); err != nil {
			return err
		}
		if state, err = r.observe(ctx, last.ID); err != nil {
			return err
		}
	}
	if state != Gone {
		return &waiting{"the service has not yet deleted " + last.ID, look}
	}
	if wait, err := hidden(ctx, c, obj, r, last); err != nil {
		return err
	} else if wait > 0 {
		return unseen(wait)
	}
	if obj.GetDeletionTimestamp() != nil {
		return nil
	}
	if value := obj.GetAnnotations()[r.Annotation]; value != "" {
		return exchange(ctx, c, obj, r, value, intent{Token: last.Token, Gone: last.ID}, "store that the thing is gone")
	}
	return fresh(ctx, c, obj, r)
}

// successor returns the thing that carries the token in place of the one that is gone, and its
// state. Without one, it returns the id that is stored, and Gone.
func (r Resource) successor(ctx context.Context, last intent) (string, State, error) {
	id, found, err := r.find(ctx, intent{Token: last.Token, Gone: last.ID})
	if err != nil || !found {
		return last.ID, Gone, err
	}
	state, err := r.observe(ctx, id)
	return id, state, err
}

// trace returns the id of a thing whose id is not stored, and "" if there is none.
func trace[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, r Resource, last intent, pending, unreadable bool) (id string, err error) {
	id, found, err := r.find(ctx, last)
	if err != nil || found {
		return id, err
	}
	_, preview := calls.InPreview(ctx)
	if !pending || preview {
		return "", nil
	}
	if unreadable || r.ahead(last) {
		if r.KeysLast > 0 {
			return "", forgotten(ctx, c, obj, r)
		}
		if r.VisibleAfter == 0 {
			return "", nil
		}
		if _, err := stamp(ctx, c, obj, r, last); err != nil {
			return "", err
		}
		return "", unseen(r.VisibleAfter)
	}
	switch wait := r.VisibleAfter - time.Since(last.Since); {
	case wait > 0:
		return "", unseen(wait)
	case r.KeysLast == 0:
		return "", nil
	}
	if r.tooOld(last) {
		return "", forgotten(ctx, c, obj, r)
	}
	value, err := confirm(ctx, c, obj, r, last, obj.GetAnnotations()[r.Annotation])
	if err != nil {
		return "", err
	}
	if id, err = r.create(ctx, last); err != nil {
		return "", err
	}
	// Also if it is the id of the thing that is gone: where an id is a name, the next thing has it.
	if err := save(ctx, c, obj, r, value, last, id); err != nil {
		return "", err
	}
	return "", &waiting{"the thing is " + id + ", as another Create said", time.Second}
}

// validateLife checks the fields that Once does not need.
func (r Resource) validateLife() error {
	switch {
	case r.Observe == nil:
		return errors.New("Resource.Observe is nil: set it to a function that compares the thing with the object")
	case r.Interval < 0:
		return fmt.Errorf("Resource.Interval is %v: set it to a positive duration, or to 0", r.Interval)
	case r.Policy != Manage && r.Policy != Orphan && r.Policy != ObserveOnly:
		return fmt.Errorf("Resource.Policy is %d: use Manage, Orphan or ObserveOnly", r.Policy)
	}
	return nil
}
