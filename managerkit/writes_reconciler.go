package managerkit

import (
	"context"
	"errors"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	minDelay = 20 * time.Millisecond // the first check of a key that waits
	maxDelay = time.Second           // between checks of a key that waits

	// The limiter of controller-runtime begins and ends with these delays.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 1000 * time.Second
)

// Reconciler returns a Reconciler that calls next with the keys that may run. It is for a
// controller with controller-runtime's own workers. Each controller needs only its own: a
// key that must wait is returned with a RequeueAfter, which keeps its priority and leaves
// the worker to other keys. The key is checked again after 20ms, at intervals that grow
// with the wait to 1s, and at each of its events. A failed key keeps its backoff. The
// metric controller_runtime_reconcile_total counts a check that found the key not ready as
// requeue_after.
//
// If next is nil, or no manager was made with the options of Install, the result is a
// terminal error.
func (w *Writes) Reconciler(next reconcile.Reconciler) reconcile.Reconciler {
	r := &reconciler{w: w, next: next, waiting: map[ctrl.Request]time.Time{}, failures: map[ctrl.Request]int{}}
	if !w.zero() {
		r.gate = w.newGate()
	}
	return r
}

type reconciler struct {
	w    *Writes
	gate *gate
	next reconcile.Reconciler

	mu       sync.Mutex
	waiting  map[ctrl.Request]time.Time // the beginning of the wait
	failures map[ctrl.Request]int       // in a row
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	if err := r.w.usable(); err != nil {
		return ctrl.Result{}, reconcile.TerminalError(err)
	}
	if kube.IsNil(r.next) {
		return ctrl.Result{}, reconcile.TerminalError(errors.New("managerkit: Writes.Reconciler: next is nil: pass the Reconciler of the controller"))
	}
	if delay := r.delay(req); delay > 0 {
		return ctrl.Result{RequeueAfter: delay}, nil
	}
	ctx = r.gate.begin(ctx, req.NamespacedName)
	failed := true // if next panics
	defer func() {
		r.gate.end(req.NamespacedName)
		r.ran(req, failed)
	}()
	result, err = r.next.Reconcile(ctx, req)
	failed = err != nil && !errors.Is(err, reconcile.TerminalError(nil)) // which has no backoff
	return result, err
}

// delay returns 0 if the key may run, or the time until the next check.
func (r *reconciler) delay(req ctrl.Request) time.Duration {
	now := time.Now()
	r.mu.Lock()
	since, waits := r.waiting[req]
	if !waits {
		since = now
		r.waiting[req] = now // before the wake, which can come at once
	}
	failures := r.failures[req]
	r.mu.Unlock()

	ended := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.waiting, req)
	}
	if !waits && r.gate.ready(req.NamespacedName, ended) {
		ended()
		return 0
	}
	delay := min(max(now.Sub(since), minDelay), maxDelay)
	if failures > 0 {
		// A RequeueAfter resets the failures that controller-runtime counts.
		delay = max(delay, min(minBackoff<<min(failures-1, 20), maxBackoff))
	}
	return delay
}

// ran counts the failures of the key.
func (r *reconciler) ran(req ctrl.Request, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if failed {
		r.failures[req]++
	} else {
		delete(r.failures, req)
	}
}
