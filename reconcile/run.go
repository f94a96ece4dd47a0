package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile/internal/echoes"
	"github.com/controllerkit/controllerkit/reconcile/internal/failing"
	"github.com/controllerkit/controllerkit/reconcile/internal/hot"
	"github.com/controllerkit/controllerkit/reconcile/internal/queues"
	"github.com/controllerkit/controllerkit/reconcile/internal/streaks"
)

// maxText bounds the text of an error in a line of log. Services and authors of objects
// write such texts: a newline would begin a line of their own.
const maxText = 16 << 10

// slowSync is how long Run waits for the caches before it logs their names.
const slowSync = 10 * time.Second

// run is the state of one Run.
type run[K comparable] struct {
	*Controller[K]
	logger klog.Logger

	// timeoutCause wraps context.DeadlineExceeded, because net/http returns the cause of a
	// context instead of its error.
	timeoutCause error

	// Gate and Metrics of the Controller. A nil pointer in one of them is nil here.
	gate    controllerkit.Gate[K]
	metrics Metrics

	// The optional methods of the queue, or nil.
	adder       controllerkit.OptionAdder[K]
	prioritized controllerkit.PriorityGetter[K]
	restartable controllerkit.ContextGetter[K]
	pending     controllerkit.PendingLister[K]
	limiter     workqueue.TypedRateLimiter[K]

	began  time.Time     // where the guard's clock starts
	synced atomic.Bool   // HasSynced is done, and the keys of the first list are marked
	waits  chan struct{} // has a value when a key began to wait for the gate
	checks calls.Memory  // of package external

	mu       sync.Mutex   // guards the fields below
	guard    hot.Guard[K] // bounds how often a key runs
	slots    []slot[K]    // by worker
	busy     int          // slots with a call
	progress time.Time    // when a call ended, or began while no other ran
	streaks  streaks.Keys[K]
	failing  failing.Keys[K]
	gated    map[K]waiting  // keys that wait for the gate
	waiting  int            // those of them whose gate was not ready
	parked   map[K]struct{} // keys that MaxAttempts parked, until they run again
	left     map[K]struct{} // keys that are in no queue when Run returns
	exited   error          // the first call that ended its worker by runtime.Goexit, or nil
}

// slot is the call of one worker.
type slot[K comparable] struct {
	busy  bool
	key   K
	since time.Time
}

// Run waits for HasSynced, then calls Reconcile with keys of the queue until ctx is done. It
// returns when its calls and goroutines have ended: nil if ctx is done, also while it
// waited for HasSynced, or an error if it could not start or the queue was shut down before
// ctx was done. If a call calls runtime.Goexit, Run stops and returns an error with the key.
//
// When ctx is done, Run starts no call, unless DrainReady is set. Running calls have
// GracePeriod, then Run cancels their context. If the cause of ctx has a method
// LeadershipLost() bool that returns true, or the leader's lease in ctx is over, Run cancels
// them at once. Run waits for calls that ignore their context, and logs their keys.
//
// Only one Run can be active. If the queue has GetContext, Run can be called again after it
// returned. A queue without it is shut down by Run, and cannot be used again.
func (c *Controller[K]) Run(ctx context.Context) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.Queue.ShuttingDown() {
		return fmt.Errorf("reconcile: controller %q: Queue is shut down already: give each Run a new queue, or a queue with GetContext, which Run does not shut down", c.Name)
	}

	r := &run[K]{
		Controller:   c,
		logger:       klog.FromContext(ctx).WithValues("controller", c.Name),
		timeoutCause: fmt.Errorf("reconcile: timeout of %v is over: %w", c.Timeout, context.DeadlineExceeded),
		began:        time.Now(),
		waits:        make(chan struct{}, 1),
		slots:        make([]slot[K], cmp.Or(c.Workers, defaultWorkers)),
		streaks:      streaks.Keys[K]{},
		gated:        map[K]waiting{},
		parked:       map[K]struct{}{},
		left:         map[K]struct{}{},
	}
	if !kube.IsNil(c.Gate) {
		r.gate = c.Gate
	}
	if !kube.IsNil(c.Metrics) {
		r.metrics = c.Metrics
	}
	r.adder, _ = c.Queue.(controllerkit.OptionAdder[K])
	r.prioritized, _ = c.Queue.(controllerkit.PriorityGetter[K])
	r.restartable, _ = c.Queue.(controllerkit.ContextGetter[K])
	r.pending, _ = c.Queue.(controllerkit.PendingLister[K])
	r.limiter, _ = c.Queue.(workqueue.TypedRateLimiter[K])
	if !c.current.CompareAndSwap(nil, r) {
		return fmt.Errorf("reconcile: controller %q: Run is already running: wait for it to return, or use another Controller", c.Name)
	}
	defer c.current.Store(nil)
	return r.run(klog.NewContext(ctx, r.logger))
}

func (r *run[K]) run(ctx context.Context) error {
	if r.metrics != nil {
		r.metrics.ReconcileWorkers(r.Name, len(r.slots))
		defer r.metrics.ReconcileWorkers(r.Name, 0)
	}
	defer r.explored(ctx)()
	stop := newStop(ctx)
	defer stop.cancelIntake(nil)
	defer stop.cancelCalls(nil)

	r.echoes.Clear()
	finished := make(chan struct{})
	var beside, workers sync.WaitGroup
	beside.Go(func() { r.supervise(stop, finished) })
	if r.waitForSync(stop.intake, r.openFeed(stop.intake)) {
		r.triggers.Begin()
		r.synced.Store(true)
		r.logger.Info("Starting controller", "workers", len(r.slots))
		if r.Resync > 0 {
			beside.Go(func() { r.resync(stop.intake, finished) })
		}
		if r.gate != nil {
			beside.Go(func() { r.logWaiting(stop.intake, finished) })
		}
		for i := range r.slots {
			workers.Go(func() { r.work(stop, &r.slots[i]) })
		}
		workers.Wait()
	}
	close(finished)
	beside.Wait()

	r.echoes.Clear()
	r.ungate()
	asked := stop.ended()
	r.shutDownQueue()
	r.report()
	r.closeFeed()
	if r.exited != nil { // no lock: all workers have ended
		return r.exited
	}
	if !asked {
		return fmt.Errorf("reconcile: controller %q: Queue was shut down before the context was done: to stop a controller cancel the context of Run", r.Name)
	}
	return nil
}

// waitForSync waits for HasSynced and the handlers. If they need long, one line names the rest.
func (r *run[K]) waitForSync(ctx context.Context, handlers []cache.DoneChecker) bool {
	left := slices.Concat(r.HasSynced, handlers)
	slow := time.NewTimer(slowSync)
	defer slow.Stop()
	for len(left) > 0 {
		select {
		case <-left[0].Done():
			left = left[1:]
		case <-slow.C:
			r.logUnsynced("Waiting for the caches", left)
		case <-ctx.Done():
			r.logUnsynced("Stopped before the caches were synced", left)
			return false
		}
	}
	return ctx.Err() == nil
}

func (r *run[K]) logUnsynced(text string, all []cache.DoneChecker) {
	var names []string
	for _, c := range all {
		if !cache.IsDone(c) && len(names) < maxKeysLogged {
			names = append(names, kube.Printable(c.Name(), snapshotText))
		}
	}
	if len(names) > 0 {
		r.logger.Info(text, "caches", names)
	}
}

// work takes keys until the intake ends or the queue is shut down, and then drains the
// ready keys if DrainReady is set.
func (r *run[K]) work(stop *stop, s *slot[K]) {
	for {
		intake := stop.intake
		if r.restartable != nil && stop.ended() {
			intake = stop.drain.Context(stop.ctx)
			if !r.drains(stop) || r.Queue.Len() == 0 {
				stop.drain.End() // another worker may wait for a key that was taken
				return           // a key that comes from a running call is its worker's
			}
		}
		key, priority, ok := r.get(intake)
		switch {
		case !ok && r.restartable != nil && intake.Err() != nil:
			// The queue can still have ready keys.
		case !ok:
			return
		case stop.ended() && !r.drains(stop):
			// The queue returned the key while the intake ended, or it is client-go's,
			// which returns its ready keys after it was shut down.
			r.putBack(key, priority)
			r.Queue.Done(key)
		default:
			r.handle(stop, s, key, priority)
		}
	}
}

// drains reports whether ready keys are called although the intake has ended.
func (r *run[K]) drains(s *stop) bool {
	return r.DrainReady && s.calls.Err() == nil && s.leadershipOver() == nil
}

func (r *run[K]) get(ctx context.Context) (key K, priority int, ok bool) {
	switch {
	case r.restartable != nil:
		return r.restartable.GetContext(ctx)
	case r.prioritized != nil:
		key, priority, shutdown := r.prioritized.GetWithPriority()
		return key, priority, !shutdown
	default:
		key, shutdown := r.Queue.Get()
		return key, 0, !shutdown
	}
}

// handle calls Reconcile with key, unless the gate or the guard delays it, and gives the key
// back to the queue by the table.
func (r *run[K]) handle(stop *stop, s *slot[K], key K, priority int) {
	defer r.Queue.Done(key)
	r.echoes.Take(key)
	if !r.ready(key, priority) {
		r.echoes.Release(key)
		r.logger.V(4).Info("Waiting for the cache", "key", loggable(key))
		return
	}
	start, why := time.Now(), r.triggers.Take(key)
	r.mu.Lock()
	wait, held, name := r.guard.Take(key, start.Sub(r.began))
	if wait == 0 {
		*s = slot[K]{busy: true, key: key, since: start}
		if r.busy++; r.busy == 1 {
			r.progress = start
		}
	}
	attempt := r.streaks[key].Attempts + 1
	anew := why.Anew && wait == 0 && r.streaks.Anew(key)
	r.parkLocked(key, false)
	r.mu.Unlock()
	if anew {
		r.Queue.Forget(key)
	}
	if wait > 0 {
		r.echoes.Release(key)
		if name {
			r.logger.Info("Slowed down a key that runs too often", "key", loggable(key), "triggers", r.triggers.Text(why.Mask, attempt > 1), "limit", fmt.Sprintf("%d at once, then one every %v", hot.Burst, hot.Interval))
		}
		if held && r.metrics != nil {
			r.metrics.ReconcileHeld(r.Name)
		}
		r.triggers.Restore(why, key)
		r.settle(stop, verdict{again: after, delay: wait}, key, priority)
		return
	}
	if r.metrics != nil {
		r.metrics.ReconcileStarted(r.Name)
	}

	c := r.call(stop, s, key, priority, start, why.Mask, attempt)
	took := c.ended.Sub(start)
	cl, err := classOf(c.result, c.err, stop.calls.Err() != nil, c.timedOut)
	r.triggers.Called(why)
	r.mu.Lock()
	s.busy = false
	r.busy--
	r.progress = c.ended
	st := r.streaks.Note(key, string(cl), why.Event, c.ended.Sub(r.began))
	r.failingLocked(key, cl)
	r.mu.Unlock()
	if r.metrics != nil {
		latency := time.Duration(-1)
		if st.Event != 0 && (cl == success || cl == requeue) {
			latency = r.triggers.Age(st.Event, c.ended)
		}
		r.metrics.ReconcileFinished(c.ctx, r.Name, string(cl), took, latency)
	}
	if c.end != nil {
		c.end(string(cl), err)
	}
	v := judge(cl, &st, c.result, err)
	r.count(&v, key, c.ended)
	r.log(c.ctx, cl, v, err, st.Attempts, took)
	if c.result.Priority != nil {
		priority = *c.result.Priority
	}
	r.settle(stop, v, key, priority)
	switch {
	case cl == success || cl == requeue:
		r.endEchoes(stop, key, priority, echoes.Confirm)
	case v.again == never:
		r.endEchoes(stop, key, priority, echoes.Late)
	default:
		r.endEchoes(stop, key, priority, echoes.Wait)
	}
}

// count counts a failure that has a deadline, and ends the retries of a key after MaxAttempts of
// them.
func (r *run[K]) count(v *verdict, key K, ended time.Time) {
	if !v.attempt && !v.counted {
		return
	}
	r.mu.Lock()
	if v.attempt && r.streaks.Fail(key) >= r.MaxAttempts && r.MaxAttempts > 0 {
		*v = verdict{again: never, parked: true}
		r.streaks.Park(key)
		r.parkLocked(key, true)
	}
	r.mu.Unlock()
	if v.again == limited && r.limiter != nil {
		v.again, v.delay = after, r.limiter.When(key) // no lock: it can be the caller's code
	}
	if v.again == after {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.streaks.Retry(key, ended.Add(v.delay).Sub(r.began))
	}
}

// endEchoes adds the key for the events of others that came while its call wrote, and for those of
// its own writes by the verdict.
func (r *run[K]) endEchoes(stop *stop, key K, priority int, verdict echoes.Verdict) {
	foreign, verdict := r.echoes.End(key, verdict)
	if len(foreign) == 0 && verdict == echoes.Seen {
		return
	}
	for _, e := range foreign {
		r.triggers.Put(e.Why, key)
		r.add(e.Options, key)
	}
	r.addEcho(verdict, priority, key)
	if stop.ended() && r.restartable == nil {
		r.keepLeft(key) // the queue is shut down, and drops the key silently
	}
}

// exit stops Run after a call that called runtime.Goexit, which ends the worker. With the
// other workers alone, Run would go on with a part of its Workers, or with none.
func (r *run[K]) exit(stop *stop, s *slot[K], key K, priority int) {
	err := fmt.Errorf("reconcile: controller %q: the call of key %s called runtime.Goexit, as testing.T.FailNow does: return an error instead", r.Name, kube.Printable(fmt.Sprint(key), snapshotText))
	r.mu.Lock()
	s.busy = false
	r.busy--
	if r.exited == nil {
		r.exited = err
	}
	r.mu.Unlock()
	stop.cancelIntake(err)
	r.putBack(key, priority)
	r.endEchoes(stop, key, priority, echoes.Wait)
}

// An outcome is what a call of Reconcile left.
type outcome struct {
	ctx      context.Context // that Reconcile got
	result   Result
	err      error
	ended    time.Time
	timedOut bool                // it used up Timeout
	end      func(string, error) // of Hook; nil without one
}

// call calls Reconcile with a context of its own, which ends with the call, so that every
// context that Reconcile derived from it ends too.
func (r *run[K]) call(stop *stop, s *slot[K], key K, priority int, start time.Time, why uint64, attempt int) (c outcome) {
	own := r.newCallContext(stop.calls, key, start, why, attempt)
	returned := false
	defer func() {
		c.ended = time.Now()
		c.timedOut = own.end(c.ended)
		if !returned { // a panic of the Func is recovered, and one of the Hook ends the process
			r.exit(stop, s, key, priority)
		}
	}()
	c.ctx = own
	if r.gate != nil {
		c.ctx = r.gate.Begin(c.ctx, key)
		defer r.gate.End(key)
		if r.echoes.Used() {
			live, _ := c.ctx.Value(calls.LiveRead{}).(bool)
			r.echoes.Begin(key, !live)
		}
	}
	if r.Hook != nil {
		c.ctx, c.end = r.Hook(c.ctx, key)
	}
	c.result, c.err = r.protect(c.ctx, key)
	returned = true
	return c
}

// protect is the only place that recovers a panic: one object that makes the Func panic
// must not stop the work on all others.
func (r *run[K]) protect(ctx context.Context, key K) (res Result, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	res, err = r.Reconcile(ctx, key)
	if err != nil && r.Classify != nil && kube.Waits(err) == 0 {
		err = r.Classify(err)
	}
	if wait := kube.Waits(err); wait > 0 {
		res.RequeueAfter, err = wait, nil
	}
	return res, err
}

// classOf is classify for any error, also one whose methods panic, such as a nil pointer of an
// error type. Such an error is a mistake of the Func, and is classed as its panic.
func classOf(res Result, err error, stopped, timedOut bool) (cl class, out error) {
	defer func() {
		if value := recover(); value != nil {
			cl, out = panicked, &PanicError{Value: fmt.Sprintf("the error of type %T that was returned panics: %v", err, value), Stack: debug.Stack()}
		}
	}()
	if err != nil {
		_ = err.Error()
	}
	cl = classify(res, err, stopped, timedOut)
	return cl, asClassed(cl, err)
}

// parkLocked notes that MaxAttempts parked the key, or that it runs again.
func (r *run[K]) parkLocked(key K, parked bool) {
	before := len(r.parked)
	if parked {
		r.parked[key] = struct{}{}
	} else if before > 0 {
		delete(r.parked, key)
	}
	if len(r.parked) != before {
		r.keysLocked()
	}
}

// keysLocked reports the numbers of keys that wait for the gate and that are parked.
func (r *run[K]) keysLocked() {
	if r.metrics != nil {
		r.metrics.ReconcileKeys(r.Name, r.waiting, len(r.parked))
	}
}

// settle gives the key back to the queue by the verdict.
func (r *run[K]) settle(stop *stop, v verdict, key K, priority int) {
	if v.reset {
		r.Queue.Forget(key)
	}
	if v.again == gated && r.gate != nil && !r.ready(key, priority) {
		return
	}
	if v.again != never && stop.ended() && r.restartable == nil {
		// The queue is shut down, and drops the key silently.
		r.keepLeft(key)
		return
	}
	switch v.again {
	case now:
		r.add(controllerkit.AddOptions{Priority: priority}, key)
	case after, gated:
		r.add(controllerkit.AddOptions{Priority: priority, After: v.delay}, key)
	case limited:
		r.add(controllerkit.AddOptions{Priority: priority, RateLimited: true}, key)
	}
}

func (r *run[K]) add(opts controllerkit.AddOptions, keys ...K) {
	queues.Add(r.Queue, r.adder, opts, keys...)
}

// putBack keeps a key that this Run no longer calls.
func (r *run[K]) putBack(key K, priority int) {
	if r.restartable == nil {
		r.keepLeft(key)
		return
	}
	r.add(controllerkit.AddOptions{Priority: priority}, key)
}

func (r *run[K]) keepLeft(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left[key] = struct{}{}
}

// log writes the line of log of a call. The error is logged only here. The logger of the
// call's context has the controller, the key, the triggers and the values of Hook.
func (r *run[K]) log(ctx context.Context, cl class, v verdict, err error, attempts int, took time.Duration) {
	if v.quiet && !r.logger.V(4).Enabled() {
		return
	}
	logger, values := klog.FromContext(ctx), []any{"class", cl, "attempts", attempts, "took", took}
	if v.quiet {
		logger = logger.V(4)
	}
	if v.again == after || v.again == gated && r.gate == nil {
		values = append(values, "retryAfter", v.delay)
	}
	if v.parked {
		values = append(values, "parkedAfter", r.MaxAttempts)
	}
	switch {
	case err == nil:
		logger.Info("Reconciled", values...)
		return
	case v.quiet:
		logger.Info("Reconcile did not succeed", append(values, "err", kube.PrintableError(err, maxText))...)
		return
	}
	if p, ok := errors.AsType[*PanicError](err); ok {
		values = append(values, "stack", string(p.Stack))
	}
	if status := apierrors.APIStatus(nil); cl == forbidden && errors.As(err, &status) {
		if d := status.Status().Details; d != nil {
			values = append(values, "deniedGroup", kube.Printable(d.Group, maxText), "deniedResource", kube.Printable(d.Kind, maxText), "deniedName", kube.Printable(d.Name, maxText))
		}
	}
	logger.Error(kube.PrintableError(err, maxText), "Reconcile failed", values...)
}
