package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Func brings the world one step closer to what the object named by key asks
// for. It is level-triggered: it learns the key only, never the event, and must
// come to the same end when it runs twice or when events were merged.
//
// ctx carries a logger (klog.FromContext) with the values controller and key,
// and all values of the context given to Run. It ends when the call returns,
// when Timeout is over, and when a stop needs the call to end; context.Cause
// tells which. A Func that ignores ctx holds up Run.
//
// Two calls with one key never overlap; calls with different keys do. A Func
// must not call runtime.Goexit, and so neither testing.T.FailNow: that would
// end the worker.
type Func[K comparable] func(ctx context.Context, key K) (Result, error)

// Result says when the key runs again, beside what the error says. The zero
// Result asks for nothing. The package comment has the table of every
// combination of Result and error.
type Result struct {
	// RequeueAfter runs the key again after this time, or earlier if an event
	// adds it. Next to an error it replaces the delay of the error's class.
	// 0 and less mean that the Result asks for no run.
	RequeueAfter time.Duration

	// Priority is the priority with which the key is queued again, if it is and
	// if the queue has AddWith. nil means the priority with which it was taken.
	Priority *int
}

// ErrTerminal marks an error that no retry can cure, such as an invalid spec:
//
//	return reconcile.Result{}, fmt.Errorf("spec.size %d: %w", size, reconcile.ErrTerminal)
//
// The key is not queued again; the next event for it runs it with a fresh
// failure count. An error of another kind is marked with a second %w. An error with a
// method Terminal() bool that returns true is terminal too.
var ErrTerminal = errors.New("reconcile: terminal error")

// ErrRejected marks an error that the same call gets again until somebody changes
// something else, such as a request that the API server rejects as invalid. The key is
// retried, first after 1s to 1.5s and in the end after 10 to 15 minutes; an event for it
// runs it at once. A Func can wrap ErrRejected, as it wraps [ErrTerminal]. The error that
// Hook gets is ErrRejected by errors.Is if its class is rejected or forbidden.
var ErrRejected = errors.New("reconcile: rejected")

// PanicError is the error of a call whose Func panicked. It is found in the log
// only, since the loop is what handles it. A Func that recovers panics of its
// own goroutines can return one to have it treated alike.
type PanicError struct {
	Value any    // the value given to panic
	Stack []byte // the stack of the goroutine that panicked, as of debug.Stack
}

// Error names the value; it leaves out the stack, which has its own log key.
func (e *PanicError) Error() string { return fmt.Sprintf("reconcile: panic: %v", e.Value) }

// Gate holds a key back until the caches have seen what an earlier call with
// that key wrote. Its methods are called from several goroutines at once, never
// with a lock held, but not concurrently for one key.
type Gate[K comparable] interface {
	// Begin is called before each call of the Func; the Func gets the context
	// that it returns, which must be ctx or derived from it.
	Begin(ctx context.Context, key K) context.Context

	// Ready reports whether key may run. After false, the gate calls wake once
	// the key may run: from any goroutine, from inside Ready too, and with its
	// own locks held if it likes, since wake only adds to the queue. The
	// controller does not ask again before that, whatever events come, so a gate
	// that loses a wake loses the key until the next Run.
	Ready(key K, wake func()) bool

	// End is called after each call of the Func, also one that panicked.
	End(key K)
}

// Metrics receives what the controller counts. Implementations must be safe for
// concurrent use and must not block.
type Metrics interface {
	// ReconcileWorkers is called with the number of workers when Run starts, and
	// with 0 when it ends.
	ReconcileWorkers(controller string, workers int)
	// ReconcileStarted is called before each call of the Func.
	ReconcileStarted(controller string)
	// ReconcileFinished is called after it with one of the results of the table
	// in the package comment, and the time that the call took.
	ReconcileFinished(controller, result string, d time.Duration)
	// ReconcileHeld is called each time that the loop begins to delay a key that ran too
	// often.
	ReconcileHeld(controller string)
}

// Controller takes keys from a queue and calls Reconcile with each, in several
// workers. It is configured by its fields, which must not change while Run
// runs, and must not be copied after first use.
type Controller[K comparable] struct {
	// Name labels logs and metrics. Required.
	Name string

	// Queue is where keys come from and go back to. Required. Any client-go
	// queue does; see "Queues" in the package comment for what more a queue
	// can offer.
	Queue workqueue.TypedRateLimitingInterface[K]

	// Reconcile is called with each key. Required.
	Reconcile Func[K]

	// Workers is the number of keys that may run at once. 0 means 1.
	Workers int

	// Timeout ends the context of a call after this time. 0 means none.
	Timeout time.Duration

	// GracePeriod is how long running calls may go on after Run's context is
	// done, before theirs is cancelled. 0 means 20s.
	GracePeriod time.Duration

	// DrainReady works off the keys that are ready when Run's context is done, until
	// GracePeriod is over, instead of leaving them to the next Run or process. Keys
	// that wait for a delay, or for the Gate, are left. It has no effect when
	// leadership is lost: then nothing is started.
	DrainReady bool

	// MaxAttempts parks a key after that many calls since its last success that
	// the queue's rate limiter counts as failures (see the table). Parked like a
	// terminal error, it runs again, with a fresh count, at its next event. The last
	// line of log has parkedAfter. 0 means no limit.
	MaxAttempts int

	// Classify may replace an error of Reconcile before it is classed and logged,
	// to tell what the table cannot know:
	//
	//	if errors.Is(err, billing.ErrCardExpired) {
	//		return fmt.Errorf("%w: %w", reconcile.ErrTerminal, err)
	//	}
	//	return err
	//
	// It is called with each error that is not nil, by several goroutines at once;
	// nil as its result means that there was none. A panic in it is one of the
	// call. nil means that errors stay as they are.
	Classify func(error) error

	// HasSynced is what must be done before the first key runs: give it the
	// HasSyncedChecker() of every informer that Reconcile reads from, and of every
	// handler registration that fills the queue. nil means nothing to wait for.
	HasSynced []cache.DoneChecker

	// Resync adds every key of Keys once in this time, at a moment of its own each, so
	// that what no event tells of is found and mended: changes outside of the cluster,
	// say. The keys are added at priority -100. 0 means never; else it must be 1s or more.
	Resync time.Duration

	// Keys returns the keys to resync, such as those of all objects in an informer's
	// store. It is called once in each Resync, by one goroutine. Required with Resync.
	Keys func() []K

	// StallTimeout is the time after which Check fails if calls run and none has ended. 0
	// means 5 minutes, or twice Timeout if that is longer.
	StallTimeout time.Duration

	// Gate holds keys back until caches have seen their own writes. nil means none.
	Gate Gate[K]

	// Hook is called before each call of Reconcile, with the context that the call is to
	// get, and returns the one that it gets: ctx or one derived from it. What it returns
	// beside that is called after the call, with the result that Metrics gets and the
	// error, unless it is nil. A tracer can begin a span and end it so; [Triggers] tells
	// what led to the call. It is called by several goroutines at once. nil means none.
	Hook func(ctx context.Context, key K) (_ context.Context, end func(result string, err error))

	// Metrics receives counts. nil means none.
	Metrics Metrics

	current  atomic.Pointer[run[K]] // nil unless Run runs
	triggers triggers[K]
}

const (
	defaultWorkers     = 1
	defaultGracePeriod = 20 * time.Second
)

// validate returns one error that names every field in need of a cure.
func (c *Controller[K]) validate() error {
	var errs []error
	bad := func(field, cure string) {
		errs = append(errs, fmt.Errorf("reconcile: Controller.%s %s", field, cure))
	}
	if c.Name == "" {
		bad("Name", "is empty: set it, it labels logs and metrics")
	}
	if c.Queue == nil {
		bad("Queue", "is nil: set it to a queue that event handlers fill")
	}
	if c.Reconcile == nil {
		bad("Reconcile", "is nil: set it to the function that handles a key")
	}
	if c.Workers < 0 {
		bad("Workers", fmt.Sprintf("is %d: set it to 1 or more, or 0 for %d", c.Workers, defaultWorkers))
	}
	if c.Timeout < 0 {
		bad("Timeout", fmt.Sprintf("is %v: set it to more than 0, or 0 for none", c.Timeout))
	}
	if c.GracePeriod < 0 {
		bad("GracePeriod", fmt.Sprintf("is %v: set it to more than 0, or 0 for %v", c.GracePeriod, defaultGracePeriod))
	}
	if c.StallTimeout < 0 {
		bad("StallTimeout", fmt.Sprintf("is %v: set it to more than 0, or 0 for %v", c.StallTimeout, leastStall))
	}
	if c.MaxAttempts < 0 {
		bad("MaxAttempts", fmt.Sprintf("is %d: set it to 1 or more, or 0 for no limit", c.MaxAttempts))
	}
	switch {
	case c.Resync != 0 && c.Resync < time.Second:
		bad("Resync", fmt.Sprintf("is %v: set it to 1s or more, or 0 for never", c.Resync))
	case c.Resync > 0 && c.Keys == nil:
		bad("Keys", fmt.Sprintf("is nil although Resync is %v: set it to the function that returns all keys", c.Resync))
	case c.Resync == 0 && c.Keys != nil:
		bad("Resync", "is 0 although Keys is set: set both, or none")
	}
	for i, checker := range c.HasSynced {
		if checker == nil {
			bad(fmt.Sprintf("HasSynced[%d]", i), "is nil: set it to what HasSyncedChecker() returned")
		}
	}
	return errors.Join(errs...)
}
