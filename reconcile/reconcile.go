package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile/internal/echoes"
	"github.com/controllerkit/controllerkit/reconcile/internal/triggers"
)

// Func brings the object named by key, and all that belongs to it, closer to its spec. It
// gets the key and no event, because the queue merges events. It must reach the same
// result if it runs twice.
//
// ctx has a logger (klog.FromContext) with the values controller and key, and the values
// of Run's context. It is done when the call returns, when Timeout is over, and when a
// stop cancels the call; context.Cause has the reason. A Func that ignores ctx delays the
// return of Run.
//
// Two calls with one key never overlap. Calls with different keys do. A Func must not
// call runtime.Goexit, nor testing.T.FailNow, because that ends the worker: Run stops as if
// its context were done, and returns an error with the key.
type Func[K comparable] func(ctx context.Context, key K) (Result, error)

// Result and the error of a [Func] decide when the key runs again. The error determines
// the class of the call, and RequeueAfter the delay. An event of another's write queues the key at
// once, whatever its row:
//
//	result        returned                             failures  runs again     with RequeueAfter > 0  log
//	success       nil, RequeueAfter 0                  reset     no             is requeue             V(4)
//	requeue       nil, RequeueAfter not 0              reset     RequeueAfter   RequeueAfter           V(4)
//	conflict      API conflict, first 5                kept      gate, or soon  RequeueAfter           V(4)
//	conflict      API conflict, others                 counted   rate limiter   RequeueAfter           error
//	server_delay  API error with Retry-After           kept      1x..1.2x       the longer             error
//	stale         Stale() bool is true, first 5        kept      gate, or soon  RequeueAfter           V(4)
//	stale         Stale() bool is true, others         kept      gate, or soon  RequeueAfter           error
//	terminal      ErrTerminal                          reset     no             RequeueAfter           error
//	not_found     API not found                        counted   rate limiter   RequeueAfter           error
//	rejected      API rejection, 1st of each 10        kept      1s to 15m      RequeueAfter           error
//	rejected      API rejection, others                kept      1s to 15m      RequeueAfter           V(4)
//	forbidden     API forbidden, 1st of each 10        kept      1s to 15m      RequeueAfter           error
//	forbidden     API forbidden, others                kept      1s to 15m      RequeueAfter           V(4)
//	timeout       deadline exceeded                    counted   rate limiter   RequeueAfter           error
//	panic         Func panicked                        counted   rate limiter   RequeueAfter           error
//	cancelled     any error of a call that Run ended   kept      at once        at once                V(4)
//	error         any other error                      counted   rate limiter   RequeueAfter           error
//
// The columns:
//
//   - result is the label for Metrics and the class in the log.
//   - failures is the count of the queue's rate limiter: reset is Forget, counted is
//     AddRateLimited. A RequeueAfter counts no failure, nor does a call that ended before the
//     deadline of an earlier failure.
//   - runs again is the delay, drawn at random from the range. The delays of counted failures,
//     and those of rejected, forbidden and server_delay, are deadlines: a call that ends before
//     one runs again at it, or later if the server asks for that.
//   - log is the level of the one line of log.
//
// A count begins again after a success or a terminal error, and with an event that shows a new
// generation of the object that the key names. Other classes do not reset it. Conflicts and stale
// results share a count. So do rejected and forbidden for the delay, but each has its own for the
// log.
//
// The classes:
//
//   - conflict is a Conflict of the API server, or a JSON patch whose test failed: another
//     client wrote first. If the Gate is not ready for the key, the key waits for the
//     Gate; otherwise the delay is 50ms to 250ms. A conflict of server-side apply lasts,
//     and has the class error.
//   - server_delay is an API error with Retry-After. The delay is at least 1s and at most
//     5m, and up to a fifth is added.
//   - stale is an error with a method Stale() bool that returns true: the cache is behind.
//     If the Gate is not ready for the key, the key waits for the Gate; otherwise the
//     delay doubles from 100ms to 5s, and up to half is added.
//   - terminal is an error that wraps [ErrTerminal], or has a method Terminal() bool that
//     returns true.
//   - rejected is an error that wraps [ErrRejected], or has a method Rejected() bool that
//     returns true, or is one of the API errors 400, 405, 406, 409 AlreadyExists, 413, 415
//     and 422, or the 403 of a quota, a LimitRange, PodSecurity, a policy, a webhook or a
//     namespace that is being deleted, or the 500 of an object that is too large for etcd or of
//     an apply that does not fit the schema. The delay doubles from 1s to 10m, and up to half is
//     added. If the only cause is the deletion of the
//     namespace, the 10th of each 10 is logged instead of the 1st.
//   - forbidden is the API error 401 or any other 403: a role or a token is missing, or will
//     arrive soon. The delays are as for rejected. The line of log has deniedGroup,
//     deniedResource and deniedName.
//   - timeout is context.DeadlineExceeded, or any other error of a call whose Timeout was
//     over and whose class would be error.
//   - panic is a [PanicError], or an error that panics when its text is read, such as a nil
//     pointer. The line of log has the stack.
//   - cancelled precedes all classes but panic, success and requeue.
//
// If one error wraps several with %w, the first of panic, terminal, stale, rejected, API
// error and timeout decides. So a Func can mark an API error as terminal. If errors are
// joined, by errors.Join or in an Aggregate, each part is classed, and the first of panic,
// server_delay, error, timeout, not_found, rejected, forbidden, conflict, stale and
// terminal decides. A controllerkit.WaitingError joined to failures decides nothing, but if all of them
// are terminal, the class is error, so that the key runs again.
type Result struct {
	// RequeueAfter runs the key again after this time, or earlier if an event queues it.
	// Next to an error it replaces the delay of the error's class. 0 means no run. A negative
	// time, such as that until a time that is over, means at once, or next to an error nothing.
	// A controllerkit.WaitingError is this field, and no error.
	RequeueAfter time.Duration

	// Priority is the priority of the key when it is queued again, if the queue has
	// AddWith. nil keeps the priority that the key had.
	Priority *int
}

// Every returns a Result that runs the key again after the interval or up to a tenth of it earlier,
// at random, so that keys that began together spread. If the interval is 0 or negative, the key does
// not run again.
func Every(interval time.Duration) Result {
	if interval <= 0 {
		return Result{}
	}
	return Result{RequeueAfter: interval - rand.N(interval/10+1)}
}

// ErrTerminal marks an error that no retry can cure, such as an invalid spec:
//
//	return reconcile.Result{}, fmt.Errorf("spec.size %d: %w", size, reconcile.ErrTerminal)
//
// The key is not queued again. The next event of another's write runs it, with a fresh count of
// failures, and the event of a write of the call itself does after 10 to 15 minutes. To mark another error, wrap both. A package that does not import this one
// returns an error with a method Terminal() bool that returns true.
var ErrTerminal = errors.New("reconcile: terminal error")

// ErrRejected marks an error that the same call gets again until something else changes,
// such as a request that the API server rejects as invalid. The key runs again after 1s to
// 1.5s, in the end after 10 to 15 minutes, and at once when an event comes for it. A Func
// can wrap ErrRejected. If the class of an error is rejected or forbidden, the error that
// Hook gets is ErrRejected by errors.Is.
var ErrRejected = errors.New("reconcile: rejected")

// PanicError is the error of a call that panicked. The loop logs it and passes it to Hook.
// A Func that recovers a panic of its own goroutine can return one.
type PanicError struct {
	Value any    // the value given to panic
	Stack []byte // the stack of the goroutine that panicked, as of debug.Stack
}

// Error returns the value as text. The stack has its own key in the log.
func (e *PanicError) Error() string { return fmt.Sprintf("reconcile: panic: %v", e.Value) }

// Metrics receives the counts of a Controller. Its methods are called concurrently and
// must not block.
type Metrics interface {
	// ReconcileWorkers is called with the number of workers when Run begins, and with 0
	// when it ends.
	ReconcileWorkers(controller string, workers int)
	// ReconcileStarted is called before each call of the Func.
	ReconcileStarted(controller string)
	// ReconcileFinished is called after each call of the Func, with a result of the table
	// at Result and the duration of the call. ctx is the context that the Func got, with
	// the values of Hook, before end of Hook is called.
	//
	// If the result is success or requeue and the call settles events, latency is the time
	// from the first of them to the end of the call, and otherwise it is negative. It
	// includes the time in the queue, at the Gate, and of calls that failed. A call settles
	// the events of its key that Sources reported before it began if its result is success,
	// requeue or terminal, or if MaxAttempts parks the key after it. After Handle, an event
	// that came before the former leader's last renewal counts from that renewal. The objects
	// of a first list and resyncs are no events: the time of a change is unknown.
	ReconcileFinished(ctx context.Context, controller, result string, took, latency time.Duration)
	// ReconcileHeld is called each time that the loop begins to delay a key that ran too
	// often.
	ReconcileHeld(controller string)
	// ReconcileKeys is called when a number changes: waiting is the number of keys that wait
	// for the Gate, parked the number of those that MaxAttempts parked. The calls are in
	// order, and with a lock held: the method must not call the Controller.
	ReconcileKeys(controller string, waiting, parked int)
	// ReconcileFailing is called when a number changes: keys is the number of keys whose last
	// call ended with the result, which is none of success, requeue and cancelled. It includes
	// parked keys and keys with a terminal error. At the end of Run all numbers become 0. Of
	// more than 65,536 keys the rest is not counted. The calls are as those of ReconcileKeys.
	ReconcileFailing(controller, result string, keys int)
	// ReconcileWrote is called when a call of the Func used package ssa or status to write
	// with the context that it got. kind is apply or status. sent is false if no request was
	// needed.
	ReconcileWrote(controller, kind string, sent bool)
}

// Controller takes keys from a queue and calls Reconcile with each, in several workers. Its
// fields must not change while Run runs, and it must not be copied after first use.
type Controller[K comparable] struct {
	// Name labels logs and metrics. Required.
	Name string

	// Queue is the queue that event handlers fill. Required. Any client-go queue can be
	// used. The loop also uses the queue as a ContextGetter, PriorityGetter, PendingLister,
	// OptionAdder and Clearer of the root package if it is one. If it is a TypedRateLimiter, as
	// a queue.Queue is, the loop calls When in place of AddRateLimited, and so knows the deadline
	// of a key. Without ContextGetter, Run shuts the queue down when it stops.
	Queue workqueue.TypedRateLimitingInterface[K]

	// Reconcile is called with each key. Required.
	Reconcile Func[K]

	// Workers is the number of keys that can run at once. 0 means 1.
	Workers int

	// Timeout bounds the context of each call. 0 means none.
	Timeout time.Duration

	// GracePeriod is the time that running calls have after Run's context is done, before
	// Run cancels their contexts. 0 means 20s.
	GracePeriod time.Duration

	// DrainReady makes Run call the ready keys after its context is done, within
	// GracePeriod, instead of leaving them to the next Run or process. Keys that wait for
	// a delay or for the Gate stay in the queue. If leadership is lost, Run starts no call.
	DrainReady bool

	// MaxAttempts parks a key after this number of failures since its last success. A parked
	// key runs again at its next event, and is parked again if that call fails. Calls of class
	// rejected count, and calls that use the rate limiter, but one for each deadline only. A 403
	// does not count, because its cure is no event: a role arrives, or a quota has room. An
	// event with a new generation of the key's object resets the count. The last line of log
	// has parkedAfter. 0 means no limit.
	MaxAttempts int

	// Classify can replace an error of Reconcile before it is classed and logged, for
	// errors that the table does not know:
	//
	//	if errors.Is(err, billing.ErrCardExpired) {
	//		return fmt.Errorf("%w: %w", reconcile.ErrTerminal, err)
	//	}
	//	return err
	//
	// It is called concurrently, with errors that are not nil. If it returns nil, the call
	// had no error. A panic in it counts as a panic of the call. nil means none.
	Classify func(error) error

	// HasSynced must be done before the first key runs. Add the HasSyncedChecker() of each
	// informer that Reconcile reads, and of each handler registration that fills the
	// queue, except those of Handle. nil means none.
	HasSynced []cache.DoneChecker

	// Resync adds each key of Keys once in this time, each at its own moment and with
	// priority -100, to find changes without events, for example outside of the cluster.
	// It must be at least 1s. 0 means never.
	Resync time.Duration

	// Keys returns the keys to resync, such as the keys of all objects in an
	// informer's store. One goroutine calls it once in each Resync. Required with Resync.
	Keys func() []K

	// StallTimeout is the time without the end of a call after which Check returns an
	// error. 0 means 5m, or twice Timeout if that is longer.
	StallTimeout time.Duration

	// Gate delays keys until the caches show their writes. nil means none.
	Gate controllerkit.Gate[K]

	// Hook is called before each call of Reconcile, with the context of the call, and
	// returns that context or one derived from it. If end is not nil, it is called after
	// the call, with the result that Metrics gets and the error. A tracer can begin a span
	// in Hook and end it in end. The call's line of log is written by the logger of the
	// returned context. Hook is called concurrently. nil means none.
	Hook func(ctx context.Context, key K) (_ context.Context, end func(result string, err error))

	// Metrics receives counts. nil means none.
	Metrics Metrics

	current  atomic.Pointer[run[K]] // the active Run, or nil
	triggers triggers.Memory[K]
	echoes   echoes.Memory[K]
	feed     feed[K]
}

const (
	defaultWorkers     = 1
	defaultGracePeriod = 20 * time.Second
)

// validate returns one error that names each invalid field.
func (c *Controller[K]) validate() error {
	var errs []error
	bad := func(field, cure string) {
		errs = append(errs, fmt.Errorf("reconcile: Controller.%s %s", field, cure))
	}
	if c.Name == "" {
		bad("Name", "is empty: set it to a name for logs and metrics")
	}
	if kube.IsNil(c.Queue) {
		bad("Queue", "is nil: set it to a queue that event handlers fill")
	}
	if c.Reconcile == nil {
		bad("Reconcile", "is nil: set it to the function that handles a key")
	}
	if c.Workers < 0 {
		bad("Workers", fmt.Sprintf("is %d: set it to 1 or more, or to 0 for %d", c.Workers, defaultWorkers))
	}
	if c.Timeout < 0 {
		bad("Timeout", fmt.Sprintf("is %v: set it to a positive duration, or to 0 for none", c.Timeout))
	}
	if c.GracePeriod < 0 {
		bad("GracePeriod", fmt.Sprintf("is %v: set it to a positive duration, or to 0 for %v", c.GracePeriod, defaultGracePeriod))
	}
	if c.StallTimeout < 0 {
		bad("StallTimeout", fmt.Sprintf("is %v: set it to a positive duration, or to 0 for %v", c.StallTimeout, leastStall))
	}
	if c.MaxAttempts < 0 {
		bad("MaxAttempts", fmt.Sprintf("is %d: set it to 1 or more, or to 0 for no limit", c.MaxAttempts))
	}
	switch {
	case c.Resync != 0 && c.Resync < time.Second:
		bad("Resync", fmt.Sprintf("is %v: set it to 1s or more, or to 0 for never", c.Resync))
	case c.Resync > 0 && c.Keys == nil:
		bad("Keys", fmt.Sprintf("is nil although Resync is %v: set it to the function that returns all keys", c.Resync))
	case c.Resync == 0 && c.Keys != nil:
		bad("Resync", "is 0 although Keys is set: set both or none")
	}
	for i, checker := range c.HasSynced {
		if kube.IsNil(checker) {
			bad(fmt.Sprintf("HasSynced[%d]", i), "is nil: set it to the result of HasSyncedChecker()")
		}
	}
	return errors.Join(errs...)
}
