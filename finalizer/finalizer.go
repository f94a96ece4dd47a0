package finalizer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Held is the proof that an object carries a finalizer. Only [Ensure] and [Add] make a
// valid one, so a function that takes a Held is not called before the finalizer is stored, unless
// the caller makes a zero Held or ignores an error: see Valid. The proof does not last: use a Held
// only in the reconcile that received it.
//
// The zero Held is not valid.
type Held[T metav1.Object] struct {
	object T
	name   string                   // "" in the zero Held, never in a made one
	client controllerkit.Patcher[T] // the client of Ensure or Add
	plans  *observers               // of the cleanup; nil in one of Add
}

// observers has the Metrics of their own of the plans that a cleanup has run to the end, and what reports those ends.
type observers struct {
	mu    sync.Mutex // guards the rest
	all   []Metrics
	ended []func()
}

// finish calls f once the cleanup of Ensure, which can have more work than a Plan, is done.
func (o *observers) finish(f func()) {
	if o == nil {
		f()
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = append(o.ended, f)
}

func (o *observers) add(m Metrics) {
	if o != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.all = append(o.all, m)
	}
}

// Object returns the object that carries the finalizer: the API server's response if
// Ensure or Add just added or confirmed the finalizer, otherwise their argument. That can
// belong to an informer's cache, so do not modify it. The zero Held returns the zero T.
func (h Held[T]) Object() T { return h.object }

// Valid reports whether h comes from [Ensure] or [Add]. A function with effects outside
// the cluster should check it if unknown code can call it.
func (h Held[T]) Valid() bool { return h.name != "" }

// Has reports whether obj carries the finalizer name.
func Has(obj metav1.Object, name string) bool {
	return slices.Contains(obj.GetFinalizers(), name)
}

// Ensure guards the work on obj by the finalizer name. Once obj is being deleted, it runs
// cleanup and then removes the finalizer.
//
//	object                      Ensure                                  live
//	live, finalizer missing     adds it                                 true
//	live, finalizer present     sends no request, or confirms it        true
//	deleting, present           runs cleanup, then removes it           false
//	deleting, missing           sends no request                        false
//
// It confirms the finalizer by a dry run if consistency.LiveRead is true, also before cleanup.
//
// name should be a domain, a slash and a word, such as example.com/bucket. See the
// Caveats of the package for other names. If live is true, held is valid and the caller
// goes on. If live is false, the reconcile is over, with or without an error.
//
// cleanup must be idempotent, and must read the things that it deletes from their source,
// because its object can be an older copy. Find them by the object's UID: a new object can have its name. It gets ctx as it is. Ensure does not retry
// cleanup and does not recover its panics. If its error is a controllerkit.WaitingError, the error of
// Ensure is a [BlockedError] of one step, cleanup.
//
// In a call of package preview, Ensure does not run cleanup, and the report names it.
//
// Errors wrap their cause. A Conflict means that obj is stale. A NotFound means that obj
// was gone before the finalizer was stored, and also has the class stale. Calling again with a newer copy is always
// right.
func Ensure[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, name string, cleanup func(context.Context, Held[T]) error) (held Held[T], live bool, err error) {
	if err := checkGuard(c, obj, name); err != nil {
		return Held[T]{}, false, err
	}
	if cleanup == nil {
		return Held[T]{}, false, fmt.Errorf("finalizer %s: cleanup is nil: pass the function that cleans up", name)
	}
	if obj.GetDeletionTimestamp() == nil {
		held, err := Add(ctx, c, obj, name)
		return held, err == nil, err
	}
	if !Has(obj, name) {
		return Held[T]{}, false, nil
	}
	if note, on := calls.InPreview(ctx); on {
		note("run the cleanup of the finalizer " + name + ", and remove it")
		return Held[T]{}, false, nil
	}
	if live, _ := ctx.Value(calls.LiveRead{}).(bool); live { // an earlier leader can have finished, and another object can have the name
		now, err := look(ctx, c, obj)
		if kube.IsGone(err, obj.GetName()) || kube.IsFailedTest(err) || err == nil && !Has(now, name) {
			noteRemoval(ctx, name, obj, nil, nil)
			return Held[T]{}, false, nil
		}
		if err != nil {
			return Held[T]{}, false, fmt.Errorf("finalizer %s: read the live object: %w", name, err)
		}
		if now.GetDeletionTimestamp() == nil { // etcd was restored from a backup
			return Held[T]{}, false, fmt.Errorf("finalizer %s: %w: it is not being deleted", name, kube.ErrChanged)
		}
		obj = now
	}
	plans, returned := &observers{}, false
	defer func() {
		if !returned { // a panic, which goes on
			noteBlocked(ctx, name, obj, nil)
		}
	}()
	err = cleanup(ctx, Held[T]{object: obj, name: name, client: c, plans: plans})
	returned = true
	if err != nil {
		noteBlocked(ctx, name, obj, err)
		err = asBlocked(err, obj.GetDeletionTimestamp().Time)
		return Held[T]{}, false, fmt.Errorf("finalizer %s: cleanup: %w", name, err)
	}
	plans.mu.Lock()
	ended := plans.ended
	plans.mu.Unlock()
	for _, finished := range ended {
		finished()
	}
	_, err = Remove(ctx, c, obj, name)
	noteRemoval(ctx, name, obj, plans, err)
	return Held[T]{}, false, err
}

const (
	// wholeCleanup is the step in metrics of a cleanup that is not a Plan.
	wholeCleanup = "cleanup"
	// removalStep is the step in metrics of a finalizer that the API server does not remove after the cleanup.
	removalStep = "removal"
	// cleanupDelay is the longest delay until the next pass of a cleanup that failed, unless its
	// error is terminal.
	cleanupDelay = 15 * time.Minute
)

// noteBlocked reports to the observers of ctx, package debug and Metrics, that a cleanup was not
// done. err is nil after a panic. A Plan has reported its steps itself.
func noteBlocked(ctx context.Context, name string, obj metav1.Object, err error) {
	var steps []string
	blocked, ok := errors.AsType[*BlockedError](err)
	if ok {
		for _, step := range blocked.Steps {
			steps = append(steps, step.Name)
		}
	}
	if m := metricsOf(ctx); m != nil && !(ok && blocked.planned) {
		noted, age := steps, since(obj.GetDeletionTimestamp().Time)
		for _, step := range steps {
			m.FinalizerBlocked(name, step, age)
		}
		if len(noted) == 0 {
			noted = []string{wholeCleanup}
		}
		blocks(ctx, m, name, obj.GetUID(), noted, age, max(cleanupDelay, kube.Waits(err)))
	}
	calls.NoteCleanup(ctx, name, steps, obj.GetDeletionTimestamp().Time)
}

// noteRemoval reports to the same observers, and to the Metrics of plans, whether the finalizer was removed after the
// cleanup. A role, a webhook or the validation of the object can forbid that for good.
func noteRemoval(ctx context.Context, name string, obj metav1.Object, plans *observers, err error) {
	deleted := obj.GetDeletionTimestamp().Time
	m := metricsOf(ctx)
	if err == nil {
		if m != nil { // the plans have reported their end
			m.FinalizerObject(name, obj.GetUID(), nil, since(deleted), 0)
		}
		return
	}
	if m != nil {
		plans.add(m)
	}
	plans.mu.Lock()
	defer plans.mu.Unlock()
	for _, m := range plans.all {
		blocks(ctx, m, name, obj.GetUID(), []string{removalStep}, since(deleted), cleanupDelay)
	}
	calls.NoteCleanup(ctx, name, []string{removalStep}, deleted)
}

// Add stores the finalizer name on obj. If obj carries it, Add sends no request, also if obj is
// being deleted, or confirms it as [Ensure] does. It returns an error if obj is being deleted
// without it, and a Conflict if obj is stale: the live object has another finalizer list, is being
// deleted, or has another UID. Add does not retry, because a copy that is too old for its finalizers is too
// old for the work that follows. It does not modify obj.
func Add[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, name string) (Held[T], error) {
	if err := checkGuard(c, obj, name); err != nil {
		return Held[T]{}, err
	}
	operations, dryRun := addition(obj, name), []string(nil)
	if Has(obj, name) {
		if live, _ := ctx.Value(calls.LiveRead{}).(bool); !live || obj.GetDeletionTimestamp() != nil {
			return Held[T]{object: obj, name: name, client: c}, nil
		}
		operations, dryRun = unchanged(obj), []string{metav1.DryRunAll}
	} else if obj.GetDeletionTimestamp() != nil { // the API server rejects the addition
		return Held[T]{}, fmt.Errorf("finalizer %s: add: the object is being deleted", name)
	}
	stored, err := patch(ctx, c, obj, operations, dryRun...)
	if kube.IsGone(err, obj.GetName()) { // no failure: the event of its deletion is on the way
		err = fmt.Errorf("%w: %w", kube.ErrGone, err)
	}
	if err != nil {
		return Held[T]{}, fmt.Errorf("finalizer %s: add: %w", name, err)
	}
	// A mutating webhook can remove it again. Then the work is not guarded.
	if !Has(stored, name) {
		return Held[T]{}, fmt.Errorf("finalizer %s: add: the API server accepted the patch, but the object does not carry the finalizer: look for an admission webhook", name)
	}
	return Held[T]{object: stored, name: name, client: c}, nil
}

// Remove removes the finalizer name from obj, for callers whose cleanup is done; [Ensure]
// calls it after cleanup. If obj does not carry the finalizer, Remove sends no request,
// so pass the newest copy. It does not modify obj. It removes every name that obj carries.
//
// If obj is stale, Remove reads the live object, because another controller's finalizer is
// no reason to repeat the cleanup. It succeeds if the finalizer or the object is gone, or
// another object has the name. Otherwise it tries a second time, and returns a Conflict if
// the list changed again. It sends at most three requests.
//
// Remove returns the API server's response, or obj if it sent no request. If no object
// with that UID is left, it returns the zero T and no error. See the Caveats of the
// package for the response to the last removal.
func Remove[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, name string) (T, error) {
	var gone T
	if err := check(c, obj, name); err != nil {
		return gone, err
	}
	if !Has(obj, name) {
		return obj, nil
	}
	stored, err := patch(ctx, c, obj, removal(obj, name))
	if kube.IsFailedTest(err) {
		// The response does not name the failed test.
		var live T
		live, err = look(ctx, c, obj)
		switch {
		case kube.IsFailedTest(err):
			return gone, nil
		case err == nil && !Has(live, name):
			return live, nil
		case err == nil:
			stored, err = patch(ctx, c, live, removal(live, name))
		}
	}
	switch {
	case kube.IsGone(err, obj.GetName()):
		return gone, nil
	case err != nil:
		return gone, fmt.Errorf("finalizer %s: remove: %w", name, err)
	}
	return stored, nil
}

// check rejects mistakes of the program before any request.
func check(client any, obj metav1.Object, name string) error {
	switch {
	case kube.IsNil(obj):
		return fmt.Errorf("finalizer %s: the object is nil: pass one that the API server returned", name)
	case len(validation.IsQualifiedName(name)) > 0 && (name == "" || !Has(obj, name)):
		return fmt.Errorf("finalizer %q: not a finalizer name: use a domain, a slash and a word, such as example.com/bucket", name)
	case obj.GetName() == "":
		return fmt.Errorf("finalizer %s: the object has no metadata.name: pass one that the API server returned", name)
	case obj.GetUID() == "":
		return fmt.Errorf("finalizer %s: object %q has no metadata.uid: pass one that the API server returned", name, obj.GetName())
	case kube.IsNil(client):
		return fmt.Errorf("finalizer %s: the client is nil: pass one of the object's resource and namespace", name)
	}
	return nil
}

// checkGuard is check for a name that guards work.
func checkGuard(client any, obj metav1.Object, name string) error {
	if name == metav1.FinalizerOrphanDependents || name == metav1.FinalizerDeleteDependents {
		return fmt.Errorf("finalizer %s: the API server and the garbage collector add and remove this name themselves: use one of your own, such as example.com/bucket", name)
	}
	return check(client, obj, name)
}

const (
	deletionPath   = "/metadata/deletionTimestamp"
	finalizersPath = "/metadata/finalizers"
)

// unchanged tests that the live object is not being deleted and has the list of obj.
func unchanged(obj metav1.Object) []kube.Operation {
	return []kube.Operation{
		kube.TestUID(obj),
		// If the live object is being deleted and the copy does not show it, the API
		// server rejects an addition as Invalid, which reads like a bug. It is staleness.
		kube.Test(deletionPath, nil),
		testList(obj),
	}
}

// addition appends name to the list of obj if the live list is still the same.
func addition(obj metav1.Object, name string) []kube.Operation {
	tests := unchanged(obj)
	if len(obj.GetFinalizers()) == 0 {
		// There is no list to append to. Without the test for null this operation
		// would replace a list that the copy does not show.
		return append(tests, kube.Operation{Op: "add", Path: finalizersPath, Value: []string{name}})
	}
	return append(tests, kube.Operation{Op: "add", Path: finalizersPath + "/-", Value: name})
}

// removal removes name, which obj carries, from the list if the live list is still
// obj's. That test makes an index safe, and also a whole list. The API server stores a
// name repeatedly if a client asks for it, and rejects a patch of 10,000 operations. So a
// repeated name is removed by a new list.
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

// look returns the live object with the UID of obj. It sends a patch that only tests the
// UID. That is a consistent read for an identity that has only the verb patch. It is a
// dry run, because admission could otherwise turn each look into a write.
func look[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T) (T, error) {
	return patch(ctx, c, obj, []kube.Operation{kube.TestUID(obj)}, metav1.DryRunAll)
}

func patch[T metav1.Object](ctx context.Context, c controllerkit.Patcher[T], obj T, operations []kube.Operation, dryRun ...string) (T, error) {
	patched, err := kube.Patch[T](ctx, c, obj.GetName(), operations, metav1.PatchOptions{DryRun: dryRun})
	return patched, notServed(err, obj.GetName())
}

// notServed explains a 404 that does not name the object. The client of all namespaces
// gets one for each namespaced object.
func notServed(err error, name string) error {
	if !apierrors.IsNotFound(err) || kube.IsGone(err, name) {
		return err
	}
	return fmt.Errorf("%w: the client must be one of the object's namespace, and of a resource that is served", err)
}
