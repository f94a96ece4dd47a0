package outcome

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Writing returns the context of the status write after a call with ctx. If ctx is over by its Timeout,
// the write has the limit as its time. If a stop or the loss of leadership cancels the call, ok is false
// or the write is cancelled.
func Writing(ctx context.Context, limit time.Duration) (_ context.Context, cancel context.CancelFunc, ok bool) {
	if err := ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, nil, false
	}
	term, _ := ctx.Value(calls.Validity{}).(context.Context)
	if term != nil && term.Err() != nil {
		return nil, nil, false
	}
	write, cancelWrite := context.WithTimeoutCause(context.WithoutCancel(ctx), limit,
		errors.New("operator: the time of the status write is over"))
	stops := []func() bool{context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancelWrite()
		}
	})}
	if term != nil {
		stops = append(stops, context.AfterFunc(term, cancelWrite))
	}
	return write, func() {
		for _, stop := range stops {
			stop()
		}
		cancelWrite()
	}, true
}

// lasting is the time after which an error that is not final makes the condition Ready false.
const lasting = 10 * time.Second

// Failing knows since when the objects of keys fail. The zero value knows none.
type Failing struct {
	mu    sync.Mutex
	since map[types.NamespacedName]failure
}

type failure struct {
	uid   types.UID
	since time.Time
}

// Judge completes c, the call with ctx for the object uid, by the rules of the loop: the error as Classify replaces it, its class, and
// whether it lasts.
func (f *Failing) Judge(ctx context.Context, key types.NamespacedName, uid types.UID, loop *reconcile.Controller[types.NamespacedName], c *Call) {
	c.raw = c.Err
	if _, alone := Blocked(c.Err); loop.Classify != nil && c.Err != nil && kube.Waits(c.Err) == 0 && !(alone && c.Deleting) {
		c.Err = classify(loop.Classify, c.Err)
	}
	c.Class = reconcile.Class(c.Err)
	if c.Class == controllerkit.ResultError && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.Class = controllerkit.ResultTimeout
	}
	// The loop parks the key after this call, or soon. MaxAttempts does not count a delay that the server asks for.
	parks := loop.MaxAttempts > 0 && reconcile.Attempt(ctx) >= loop.MaxAttempts && c.Class != controllerkit.ResultServerDelay
	c.Lasting = f.lasts(ctx, key, uid, c.Err) || parks
}

// classify calls a Classify. A panic in it counts as a panic of the call, and a panic of the call is not classified.
func classify(f func(error) error, err error) (classified error) {
	if _, panicked := errors.AsType[*reconcile.PanicError](err); panicked {
		return err
	}
	defer func() {
		if value := recover(); value != nil {
			classified = &reconcile.PanicError{Value: value}
		}
	}()
	return f(err)
}

// lasts reports whether the calls for the object have failed for a while. It notes the failure.
func (f *Failing) lasts(ctx context.Context, key types.NamespacedName, uid types.UID, err error) bool {
	if err == nil {
		f.Forget(key)
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	last, known := f.since[key]
	if !known || last.uid != uid || reconcile.Attempt(ctx) <= 1 {
		last = failure{uid, time.Now()}
		if f.since == nil {
			f.since = map[types.NamespacedName]failure{}
		}
		f.since[key] = last
	}
	return time.Since(last.since) >= lasting
}

// Forget forgets the failures of a key.
func (f *Failing) Forget(key types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.since, key)
}

// Panics is deferred. If the function panics, report gets the panic as an error, before the panic goes on. What the
// function has changed must not be reported.
func Panics(report func(err error)) {
	if value := recover(); value != nil {
		report(&reconcile.PanicError{Value: value})
		panic(value) // its stack still has the frames of the first one
	}
}
