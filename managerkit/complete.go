package managerkit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/managerkit/internal/generations"
	"github.com/controllerkit/controllerkit/managerkit/internal/hidden"
	"github.com/controllerkit/controllerkit/managerkit/internal/loops"
	"github.com/controllerkit/controllerkit/managerkit/internal/requestlog"
	"github.com/controllerkit/controllerkit/managerkit/internal/results"
	"github.com/controllerkit/controllerkit/managerkit/internal/standby"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Complete is the builder's Complete with the loop of package reconcile in place of
// controller-runtime's workers:
//
//	loop := &reconcile.Controller[ctrl.Request]{Workers: 4, Timeout: 15 * time.Second}
//	err := managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&v1.Website{}), r, loop, controller.Options{})
//
// The sources, event handlers and predicates of the builder fill the queue. The loop takes
// the keys from it: with its classes of errors, its check of hot loops, its Gate and its
// drain. When the manager stops, the running calls have the loop's GracePeriod, which must be
// shorter than the manager's GracefulShutdownTimeout.
//
// [reconcile.Triggers] has "watch event" or "watch unchanged": an event handler of
// controller-runtime gives the queue a key, and not the resource or the event. A handler of
// your own can add its keys with a Source of the loop in place of the queue that it gets.
//
// The fields of the loop replace the fields of controller.Options with the same meaning.
// Complete sets Reconcile, and sets these fields if they are nil or empty:
//
//   - Name: the name that the builder gives the controller
//   - Queue: a [queue.Queue] with the rate limiter of options, or with controller-runtime's
//     default. The keys of each namespace are a group. A Queue of your own needs a Name and a
//     MetricsProvider: otherwise the controller has no workqueue metrics.
//   - Metrics: the metrics of [NewMetrics]
//
// A TerminalError of controller-runtime has the class terminal. A Result with Requeue runs the
// key again after 5ms, then after twice as long, up to 5m.
//
// While this process waits to lead, the informers of the builder's For, Owns and Watches run, and
// the queue is empty. The sources fill it when the process leads, and the loop also gets the keys
// of objects that were deleted shortly before: see [reconcile.Source.Keep]. For this, Complete
// adds a second controller to the manager, which only sees deletions. Those that its event handlers, for
// example a slow map function, have not handled when the loop begins add no keys. Complete adds no second
// controller if EnableWarmup of options is false, or if the builder has a WatchesRawSource other than that of package
// remember: then these informers start when the process leads.
//
// options replaces the builder's WithOptions. Complete returns an error if
// options has a field that the loop has too: MaxConcurrentReconciles, NewQueue,
// UsePriorityQueue, ReconciliationTimeout, RecoverPanic or Reconciler. It returns one if the
// loop is not valid or was given to Complete before. The fields MaxConcurrentReconciles,
// GroupKindConcurrency, ReconciliationTimeout, RecoverPanic, UsePriorityQueue and EnableWarmup of
// the manager's own Controller options have no effect on the loop. After an error of the builder, make a
// new manager: this one can have a part of the controller.
//
// A controller for several clusters has requests that name the cluster, and a source for the
// cache of each.
//
// If the loop ends before the manager stops, for example because its Queue is shut down, that is logged, and
// [Run] returns the error. A manager whose loop has such a Queue at the start does not start. A Queue with
// GetContext can be used by a loop after this one.
//
// If the manager was started before, the controller starts at once. Unlike with
// controller-runtime's workers, a panic is always recovered. The logger of a call, which also
// writes the loop's line about it, is that of LogConstructor for the request, with reconcileID and
// triggers. A Hook of the loop gets it too. The lines of the loop itself have the logger of
// LogConstructor for nil, which should have the key controller: the loop adds none. The line "Starting workers" of controller-runtime
// says 1: its worker runs the loop, whose own line has the number of workers.
func Complete[request comparable](b *builder.TypedBuilder[request], r crreconcile.TypedReconciler[request], loop *reconcile.Controller[request], options controller.TypedOptions[request]) error {
	switch {
	case b == nil:
		return errors.New("managerkit: Complete got a nil builder: use ctrl.NewControllerManagedBy")
	case kube.IsNil(r):
		return errors.New("managerkit: Complete got a nil reconciler")
	case loop == nil:
		return errors.New("managerkit: Complete got a nil loop: use &reconcile.Controller[ctrl.Request]{}")
	case loop.Reconcile != nil:
		return errors.New("managerkit: Complete sets Reconcile of the loop: leave it nil, and use one loop for each controller")
	}
	for _, both := range []struct {
		set  bool
		name string
		cure string
	}{
		{options.MaxConcurrentReconciles != 0, "MaxConcurrentReconciles", "set Workers of the loop"},
		{options.NewQueue != nil, "NewQueue", "set Queue of the loop"},
		{options.UsePriorityQueue != nil, "UsePriorityQueue", "the loop's queue always has priorities"},
		{options.ReconciliationTimeout != 0, "ReconciliationTimeout", "set Timeout of the loop"},
		{options.RecoverPanic != nil, "RecoverPanic", "the loop always recovers a panic"},
		{options.Reconciler != nil, "Reconciler", "pass it to Complete"},
		{hidden.IsSet(b, "ctrlOptions"), "a value of the builder's WithOptions", "pass it to Complete"},
	} {
		if both.set {
			return fmt.Errorf("managerkit: Complete cannot use %s: %s", both.name, both.cure)
		}
	}
	d := &dispatch[request]{loop: loop, started: make(chan struct{})}
	hook := loop.Hook
	loop.Reconcile, loop.Hook = results.Of(r), d.hook(hook)
	if err := d.complete(b, r, options); err != nil {
		loop.Reconcile, loop.Hook = nil, hook // so that the loop can be given to Complete again
		return err
	}
	return nil
}

// complete builds the controller.
func (d *dispatch[request]) complete(b *builder.TypedBuilder[request], r crreconcile.TypedReconciler[request], options controller.TypedOptions[request]) error {
	loop := d.loop
	if err := loops.Valid(loop); err != nil {
		return err
	}
	warm := ptr.Deref(options.EnableWarmup, true) && ptr.Deref(options.NeedLeaderElection, true) && !standby.Cold(b)
	if warm {
		d.beside = make(chan struct{})
	}
	options.MaxConcurrentReconciles = 1 // the worker that runs the loop
	options.NewQueue = d.newQueue
	options.EnableWarmup = new(false) // a standby would queue each name that it ever sees
	if kube.IsNil(loop.Metrics) {
		var err error
		if loop.Metrics, err = NewMetrics(); err != nil {
			return err
		}
	}
	if loop.Name != "" {
		b.Named(loop.Name)
	}
	c, err := b.WithOptions(options).WithEventFilter(d.generations.Filter()).Build(r)
	if err != nil {
		return err
	}
	d.logger = requestlog.Constructor(c)
	err = c.Watch(source.TypedFunc[request](func(ctx context.Context, _ workqueue.TypedRateLimitingInterface[request]) error {
		if loop.Queue.ShuttingDown() && ctx.Err() == nil { // not by end, at a stop before the loop has begun
			return loops.ErrShutDown
		}
		// The sources of the manager fill the queue before the loop runs.
		d.ctx = context.WithValue(klog.NewContext(ctx, requestlog.Without(d.logger(nil))), calls.Fed{}, true)
		close(d.started)
		return nil
	}))
	if err != nil || !warm {
		return err
	}
	return d.standby(b, r, options, c.GetLogger())
}

// standby builds the controller that keeps the informers of a standby running and notes
// deletions. Its sources are those of the builder again.
func (d *dispatch[request]) standby(b *builder.TypedBuilder[request], r crreconcile.TypedReconciler[request], options controller.TypedOptions[request], logger logr.Logger) error {
	options.NeedLeaderElection = new(false)
	options.SkipNameValidation = new(true)
	options.LogConstructor = func(*request) logr.Logger { return logger.WithValues("standby", true) }
	options.NewQueue = func(name string, _ workqueue.TypedRateLimiter[request]) workqueue.TypedRateLimitingInterface[request] {
		defer close(d.beside)
		d.loop.Metrics.ReconcileKeys(name, 0, 0) // as in newQueue
		return &keeper[request]{standby.Queue{}, newPriorityQueue(queue.Config[request]{}), d.loop.Source("watch")}
	}
	_, err := b.WithOptions(options).WithEventFilter(predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(event.UpdateEvent) bool { return false },
		// The controller that runs the loop calls the same handlers, which may count deletions.
		DeleteFunc:  func(event.DeleteEvent) bool { return !d.led.Load() },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}).Build(r)
	return err
}

// A dispatch runs a loop inside a controller of controller-runtime: the only worker of that
// asks for a key, and gets its first one after the loop has ended.
type dispatch[request comparable] struct {
	loop    *reconcile.Controller[request]
	ctx     context.Context // of the controller's sources: done when the manager stops the controller
	started chan struct{}   // closed when ctx is set
	beside  chan struct{}   // closed when the standby's controller has begun, which resets the gauges of the workers; nil without one
	made    bool            // the queue, which others do not use
	led     atomic.Bool     // the loop has begun or never will, so its controller gets the events; a late one of the standby can come after its end
	logger  func(*request) logr.Logger

	generations generations.Names
}

// newQueue is a controller.Options.NewQueue.
func (d *dispatch[request]) newQueue(name string, limiter workqueue.TypedRateLimiter[request]) workqueue.TypedRateLimitingInterface[request] {
	if d.loop.Name == "" {
		d.loop.Name = name
	}
	// Makes the series of the loop: its sources may never sync, and then it never runs.
	d.loop.Metrics.ReconcileKeys(d.loop.Name, 0, 0)
	if d.loop.Queue == nil {
		provider, _ := d.loop.Metrics.(workqueue.MetricsProvider)
		d.loop.Queue, d.made = NewQueue(queue.Config[request]{MetricsProvider: provider})(name, limiter), true
	}
	return &intake[request]{TypedRateLimitingInterface: d.loop.Queue, dispatch: d, source: d.loop.Source("watch")}
}

// namespaces returns the function that groups requests by namespace, or nil for requests of
// another type.
func namespaces[request comparable]() func(request) string {
	group, _ := any(func(r crreconcile.Request) string { return r.Namespace }).(func(request) string)
	return group
}

// run runs the loop until the manager stops the controller.
func (d *dispatch[request]) run() {
	<-d.started
	if d.beside != nil {
		select {
		case <-d.beside:
		case <-d.ctx.Done():
		}
	}
	if !d.led.CompareAndSwap(false, true) {
		return
	}
	if err := d.loop.Run(d.ctx); err != nil {
		klog.FromContext(d.ctx).Error(kube.PrintableError(err, 4<<10), "The controller ended")
		fail(d.ctx, err)
	}
	if d.made {
		d.loop.Queue.ShutDown()
	}
}

// end empties the queue of a loop that has not begun when its controller ends. The depth would
// otherwise stay that of the controller's sources.
func (d *dispatch[request]) end() {
	if d.made && d.led.CompareAndSwap(false, true) {
		d.loop.Queue.ShutDown()
	}
}
