package operator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/operator/internal/churn"
)

// callKey is the key of the *call in its context.
type callKey struct{}

// A call is one call of a function of a Reconciler, and its context.
type call struct {
	context.Context //nolint:containedctx // it is that context

	c              *Controller
	owner          metav1.Object // which the function does not get
	kind           schema.GroupVersionKind
	lent           any         // the copy that the function got, nil without a finalizer
	proof          any         // its finalizer.Held
	reads, applied atomic.Bool // a Reader was used, or Apply with valid objects

	mu      sync.Mutex // guards the rest: the function may call Apply in several goroutines
	ended   bool
	failed  bool // an Apply or a read has failed
	claimed map[childID]struct{}
	order   []childID // of the children that were tried
	found   map[childID]Child
	churn   churn.Call // has a lock of its own
}

// begin returns a call about an object.
func (c *Controller) begin(ctx context.Context, owner metav1.Object, kind schema.GroupVersionKind) *call {
	return &call{Context: ctx, c: c, owner: owner, kind: kind}
}

// Value implements context.Context.
func (call *call) Value(key any) any {
	if key == (callKey{}) {
		return call
	}
	return call.Context.Value(key)
}

// lend notes the copy that the function gets, and the proof that it carries the finalizer.
func (call *call) lend(obj, held any) { call.lent, call.proof = obj, held }

// callOf returns the call of a context.
func callOf(ctx context.Context) (*call, error) {
	call, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return nil, reject(errors.New("the context is not that of a call of Kind's functions: pass on the one that Reconcile got"))
	}
	call.mu.Lock()
	defer call.mu.Unlock()
	if call.ended {
		return nil, reject(errors.New("the call of the context has returned: wait for goroutines before Reconcile returns"))
	}
	return call, nil
}

// end notes that the function has returned. The call has no effect any more.
func (call *call) end() {
	call.mu.Lock()
	defer call.mu.Unlock()
	call.ended = true
}

// claim notes that the call names a child. It may do so once.
func (call *call) claim(id childID) error {
	call.mu.Lock()
	defer call.mu.Unlock()
	if _, ok := call.claimed[id]; ok {
		return fmt.Errorf("%s is applied twice in one call: apply it once, with all its fields", id)
	}
	if call.claimed == nil {
		call.claimed = map[childID]struct{}{}
	}
	call.claimed[id] = struct{}{}
	return nil
}

// note keeps the result for a child.
func (call *call) note(id childID, c Child) {
	call.mu.Lock()
	defer call.mu.Unlock()
	if call.found == nil {
		call.found = map[childID]Child{}
	}
	call.order = append(call.order, id)
	call.found[id] = c
	call.failed = call.failed || c.Err != nil
}

// read returns the error of a read, and notes it, so that nothing is pruned.
func (call *call) read(err error) error {
	if err != nil && call != nil {
		call.mu.Lock()
		defer call.mu.Unlock()
		call.failed = true
	}
	return err
}

// ofKind returns the names of the children of a kind whose objects are known.
func (call *call) ofKind(kind schema.GroupKind) (names []types.NamespacedName) {
	call.mu.Lock()
	defer call.mu.Unlock()
	for _, id := range call.order {
		if id.GroupKind == kind && call.found[id].Object != nil {
			names = append(names, id.NamespacedName)
		}
	}
	return names
}

// get returns the result for a child.
func (call *call) get(id childID) (Child, bool) {
	call.mu.Lock()
	defer call.mu.Unlock()
	c, ok := call.found[id]
	return c, ok
}

// objects returns the children, nil for those that are not known or not as configured.
func (call *call) objects() []metav1.Object {
	call.mu.Lock()
	defer call.mu.Unlock()
	if len(call.order) == 0 {
		return nil
	}
	objects := make([]metav1.Object, len(call.order))
	for i, id := range call.order {
		if c := call.found[id]; c.Err == nil {
			objects[i] = c.Object
		}
	}
	return objects
}

// mayPrune reports whether the call has named all its children.
func (call *call) mayPrune(all bool) bool {
	call.mu.Lock()
	defer call.mu.Unlock()
	return call.applied.Load() && !call.failed && (len(call.claimed) > 0 || all)
}

// checkNames logs a line if the function, whose error is err, has created a child that exists under another name.
func (call *call) checkNames(err error) {
	if err == nil {
		call.churn.End(call, &call.c.op.churn, func(kind schema.GroupKind) churn.Kind { return call.c.children[kind] },
			func(kind schema.GroupKind, name types.NamespacedName) bool {
				_, named := call.get(childID{GroupKind: kind, NamespacedName: name})
				return named
			})
	}
}

// Held returns the proof that the object of the call carries the finalizer, for functions that ask for one.
// obj is the object that the function of the call got. Without a Finalizer, and for another object
// or context, Held returns an error.
func Held[T controllerkit.Object](ctx context.Context, obj T) (finalizer.Held[T], error) {
	call, err := callOf(ctx)
	if err != nil {
		return finalizer.Held[T]{}, fmt.Errorf("operator: Held: %w", err)
	}
	held, ok := call.proof.(finalizer.Held[T])
	if lent, same := call.lent.(T); !ok || !same || any(lent) != any(obj) {
		return finalizer.Held[T]{}, fmt.Errorf("operator: Held: %w", reject(errors.New("the object is not that of the call, or its Reconciler has no Finalizer")))
	}
	return held, nil
}
