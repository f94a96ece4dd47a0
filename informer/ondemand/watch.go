package ondemand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/guard"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Watch is one user's part of a shared informer. It has the methods of the informer, with
// these differences:
//
//   - Handlers that are added through the Watch end with it. If such a handler panics, the
//     panic is logged, and the handler gets its next event.
//   - RemoveEventHandler removes only the handlers of the Watch. To wait for the end of a
//     handler, use cache.ShutDownEventHandler, which client-go has since 0.37.
//   - Run, RunWithContext, SetTransform and the methods that set a watch error handler are
//     no-ops, because Informers runs the informer. If they can return an error, they do.
//
// Indexers that are added stay until the informer stops. The methods of a Watch may be called
// concurrently. [Informers.Open] makes a Watch.
type Watch struct {
	cache.SharedIndexInformer

	shared  *shared
	release func() // begins the end
	once    sync.Once
	closing chan struct{} // closed by the first Close
	closed  chan struct{} // closed when the Watch has ended
	adding  sync.WaitGroup

	mu       sync.Mutex // guards the fields below, and the start of adding
	handlers []*listener
	removed  []*listener // may still run
}

// Close ends the Watch: it removes the Watch's handlers and waits for them. If no other Watch
// of the key is open, it stops the informer and waits for it. The first call ends the Watch,
// also if ctx is done; each call waits for the end. A handler that closes its own Watch must
// not wait: it calls Close with a context that is done, and ignores the error.
//
// The error wraps the cause of ctx if it is done first. The Watch then ends by itself.
func (w *Watch) Close(ctx context.Context) error {
	w.once.Do(func() {
		w.mu.Lock()
		close(w.closing)
		w.mu.Unlock()
		w.release()
	})
	select {
	case <-w.closed:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-w.closed:
		return nil
	default:
		return fmt.Errorf("ondemand: close %s: %w: %s", w.shared.name, context.Cause(ctx), lateReason)
	}
}

// end waits until no handler of the Watch runs, and if it is the last Watch, until the
// informer has stopped.
func (w *Watch) end(last bool) {
	defer close(w.closed)
	w.adding.Wait()
	if last {
		<-w.shared.done // after all handlers
		return
	}
	w.mu.Lock()
	all := slices.Concat(w.handlers, w.removed)
	w.mu.Unlock()
	for _, h := range all {
		h.remove()
		_ = w.SharedIndexInformer.RemoveEventHandler(h.handle) // fails only for an unknown type
	}
	for _, h := range all {
		h.wait()
	}
}

// WaitForSync waits until the informer is synced and the handlers that were added through the
// Watch have received the initial list. It does not wait for a removed handler. If ctx is done
// before, the error wraps the cause of ctx and the last error of the informer's lists and watches,
// for apierrors.IsForbidden and the like. If the Watch is closed or the informer stops, the error
// wraps ErrClosed.
func (w *Watch) WaitForSync(ctx context.Context) error {
	w.mu.Lock()
	handlers := slices.Clone(w.handlers)
	w.mu.Unlock()
	if err := w.waitFor(ctx, w.HasSyncedChecker(), nil); err != nil {
		return err
	}
	for _, h := range handlers {
		if err := w.waitFor(ctx, h.handle.HasSyncedChecker(), h.removed); err != nil {
			return err
		}
	}
	return nil
}

// waitFor waits until synced is done or removed is closed: a removed handler is never synced.
func (w *Watch) waitFor(ctx context.Context, synced cache.DoneChecker, removed <-chan struct{}) error {
	select {
	case <-w.closing:
		return w.errClosed()
	case <-w.shared.done:
		return w.errClosed()
	default:
	}
	select {
	case <-synced.Done():
		return nil
	case <-removed:
		return nil
	case <-w.closing:
		return w.errClosed()
	case <-w.shared.done:
		return w.errClosed()
	case <-ctx.Done():
	}
	if cache.IsDone(synced) {
		return nil
	}
	cause := context.Cause(ctx)
	w.shared.mu.Lock()
	last := w.shared.last
	w.shared.mu.Unlock()
	switch {
	case w.HasSynced():
		return fmt.Errorf("ondemand: %s is not synced: %w: the informer is synced, but %s has not handled the initial list", w.shared.name, cause, synced.Name())
	case last != nil:
		return fmt.Errorf("ondemand: %s is not synced: %w: the last attempt failed: %w", w.shared.name, cause, kube.PrintableError(last, maxText))
	}
	return fmt.Errorf("ondemand: %s is not synced: %w: no list or watch has failed or is complete: Run was not called, the API server cannot be reached, or the list is long", w.shared.name, cause)
}

func (w *Watch) errClosed() error {
	select {
	case <-w.closing:
		return fmt.Errorf("%w: the Watch of %s: open another one", ErrClosed, w.shared.name)
	default:
		return fmt.Errorf("%w: the informer of %s has stopped", ErrClosed, w.shared.name)
	}
}

// AddEventHandler adds a handler until the Watch is closed. A handler that is added to a
// running informer first gets the objects of its cache.
func (w *Watch) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return w.AddEventHandlerWithOptions(handler, cache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod is AddEventHandler with a resync period.
func (w *Watch) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resyncPeriod time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return w.AddEventHandlerWithOptions(handler, cache.HandlerOptions{ResyncPeriod: &resyncPeriod})
}

// AddEventHandlerWithOptions is AddEventHandler with options.
func (w *Watch) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if kube.IsNil(handler) {
		return nil, fmt.Errorf("ondemand: add a handler to %s: the handler is nil: pass one", w.shared.name)
	}
	w.mu.Lock()
	select {
	case <-w.closing:
		w.mu.Unlock()
		return nil, w.errClosed()
	case <-w.shared.done:
		w.mu.Unlock()
		return nil, w.errClosed()
	default:
	}
	w.adding.Add(1) // before end waits for it
	w.mu.Unlock()
	defer w.adding.Done()
	h := &listener{removed: make(chan struct{}), turn: make(chan struct{}, 1), Handler: guard.Handler{
		ResourceEventHandler: handler,
		Logger:               func() klog.Logger { return w.shared.logger.WithValues("informer", w.shared.name) },
	}}
	handle, err := w.SharedIndexInformer.AddEventHandlerWithOptions(h, options)
	switch {
	case err != nil && w.IsStopped():
		return nil, fmt.Errorf("%w: the informer of %s has stopped", ErrClosed, w.shared.name)
	case err != nil:
		return nil, fmt.Errorf("ondemand: add a handler to %s: %w", w.shared.name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	h.handle = handle
	w.handlers = append(w.handlers, h)
	return handle, nil
}

// RemoveEventHandler removes a handler of the Watch. It is a no-op for other handlers and for
// a handler that is already removed. It does not wait for the handler's running call, after which
// the handler gets no event.
func (w *Watch) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	if kube.IsNil(handle) {
		return fmt.Errorf("ondemand: remove a handler from %s: the handle is nil: pass the result of AddEventHandler", w.shared.name)
	}
	w.mu.Lock()
	// The channel of a checker does not identify its handler: package context shares one channel
	// among all contexts that were canceled before the first call of Done.
	n := slices.IndexFunc(w.handlers, func(h *listener) bool { return kube.IsSame(h.handle, handle) })
	if n < 0 {
		w.mu.Unlock()
		return nil
	}
	h := w.handlers[n]
	h.remove()
	w.handlers = slices.Delete(w.handlers, n, n+1)
	w.removed = append(slices.DeleteFunc(w.removed, (*listener).ended), h)
	w.mu.Unlock()
	return w.SharedIndexInformer.RemoveEventHandler(handle)
}

var errOwned = errors.New("ondemand: Informers runs the informer: set it in Informers.New, or use Informers.WatchErrorHandler")

// Run is a no-op: Informers runs the informer.
func (w *Watch) Run(<-chan struct{}) {}

// RunWithContext is a no-op: Informers runs the informer.
func (w *Watch) RunWithContext(context.Context) {}

// SetTransform returns an error: set the transform in Informers.New.
func (w *Watch) SetTransform(cache.TransformFunc) error { return errOwned }

// SetWatchErrorHandler returns an error: use Informers.WatchErrorHandler.
func (w *Watch) SetWatchErrorHandler(cache.WatchErrorHandler) error { return errOwned }

// SetWatchErrorHandlerWithContext returns an error: use Informers.WatchErrorHandler.
func (w *Watch) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return errOwned
}
