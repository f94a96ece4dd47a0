package scope

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/scope/internal/versions"
	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrStopped is wrapped by the errors of an Informer that has stopped.
var ErrStopped = errors.New("scope: stopped")

// Informer is a cache.SharedIndexInformer over several namespaces. Its indexer, listers and
// handlers see the objects of the [Selection] of [Informer.Select] or [Informer.Follow], and no
// object before the first. [New] makes one. Its methods may be called concurrently.
//
// It differs from client-go's informers:
//
//   - Its indexer is read-only, and reads the caches of the parts.
//   - If a handler panics, the panic is logged.
//   - It has no resync: handlers with a resync period are rejected.
//   - SetTransform returns an error: set it for the informers of the parts. The watch error
//     handler gets the errors of all parts.
type Informer struct {
	selection *selection
	index     int // in the selection
	make      func(Part) (cache.SharedIndexInformer, error)
	synced    chan struct{}  // closed when a selection was made
	wait      sync.WaitGroup // of the listeners and of the informers of parts

	// The lock of the selection guards the fields below.
	run         context.Context // of RunWithContext; nil before
	ended       bool            // the context of RunWithContext is done
	watchErrors cache.WatchErrorHandlerWithContext
	listeners   map[*listener]struct{}
	indexers    cache.Indexers
}

var _ cache.SharedIndexInformer = (*Informer)(nil)

// New returns an Informer that makes the informer of each [Part] with the function. The function
// must use the Namespace and the Options of the Part, and return a new informer at once, which the
// Informer runs. That may have indexers and a transform. The function is called again for a Part
// that comes back or changes its selector, and may be called concurrently.
func New(informer func(Part) (cache.SharedIndexInformer, error)) *Informer {
	s := &selection{
		selecting: make(chan struct{}, 1),
		stopping:  make(chan struct{}),
		shown:     map[Part]*region{},
		pending:   map[Part]*region{},
		running:   map[*swap]struct{}{},
		reason:    errNotSelected,
	}
	s.view.Store(&view{})
	return s.add(informer)
}

// With returns an Informer of another resource with the selection of i. Select and Follow of
// either are for both. A namespace is shown in both at once, so that a handler of one finds the
// objects of the other. Both must run. Call With before the first Select.
func (i *Informer) With(informer func(Part) (cache.SharedIndexInformer, error)) *Informer {
	return i.selection.add(informer)
}

// add returns another Informer of the selection.
func (s *selection) add(informer func(Part) (cache.SharedIndexInformer, error)) *Informer {
	i := &Informer{
		selection: s,
		make:      informer,
		synced:    make(chan struct{}),
		listeners: map[*listener]struct{}{},
		indexers:  cache.Indexers{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case informer == nil:
		s.misuse = errors.New("scope: New or With got a nil function: pass one that returns a new informer")
	case s.selected:
		s.misuse = errors.New("scope: With was called after Select: call it before")
		own := New(informer) // the caches of the others stay
		own.selection.misuse = s.misuse
		return own
	}
	i.index = len(s.informers)
	s.informers = append(s.informers, i)
	s.view.Store(&view{of: append(s.view.Load().of, &versions.Floor{})})
	return i
}

// RunWithContext runs the informers of the parts and calls the handlers until ctx is done, and
// returns when they have ended. A running Select then returns an [ErrStopped]. It runs once; an
// informer.Set can run it.
func (i *Informer) RunWithContext(ctx context.Context) {
	s := i.selection
	alive.From(ctx).Compose()
	s.mu.Lock()
	if i.run != nil {
		s.mu.Unlock()
		klog.FromContext(ctx).Error(errors.New("scope: an informer runs once: create a new one"), "A scope was run twice")
		return
	}
	i.run = ctx
	alive.From(ctx).Block(s.blocked)
	for l := range i.listeners {
		i.startLocked(l)
	}
	if f := s.follower; f != nil && f.of == i {
		i.wait.Go(func() { f.run(ctx) })
	}
	s.startLocked()
	s.mu.Unlock()

	<-ctx.Done()
	s.mu.Lock()
	i.ended = true
	for l := range i.listeners {
		l.stop()
	}
	s.mu.Unlock()
	s.stop()
	i.wait.Wait()
}

// Run is RunWithContext with a channel instead of a context.
func (i *Informer) Run(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	i.RunWithContext(ctx)
}

// startLocked starts the goroutine of a handler.
func (i *Informer) startLocked(l *listener) {
	l.started = true
	logger := klog.FromContext(i.run)
	i.wait.Go(func() { l.run(logger) })
}

// sendLocked sends events to the handlers.
func (i *Informer) sendLocked(events ...event) {
	if len(events) == 0 {
		return
	}
	for l := range i.listeners {
		l.add(events)
	}
}

// AddEventHandler adds a handler. It first gets the objects of the current selection.
func (i *Informer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if kube.IsNil(handler) {
		return nil, errors.New("scope: add a handler: the handler is nil: pass one")
	}
	i.selection.mu.Lock()
	defer i.selection.mu.Unlock()
	if i.ended {
		return nil, errStopped("add a handler")
	}
	l := newListener(i, handler)
	var events []event
	for _, r := range i.selection.shown {
		p := r.parts[i.index]
		for _, obj := range p.objects {
			events = append(events, event{kind: onAdd, new: object{p, obj}, initial: true})
		}
	}
	if i.selection.synced {
		events = append(events, event{kind: onSynced})
	}
	l.add(events)
	i.listeners[l] = struct{}{}
	if i.run != nil {
		i.startLocked(l)
	}
	return l, nil
}

// AddEventHandlerWithResyncPeriod is AddEventHandler. The period must be 0.
func (i *Informer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	if period != 0 {
		return nil, fmt.Errorf("scope: add a handler: the resync period is %v: set it to 0, a scope has no resync", period)
	}
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions is AddEventHandler. The resync period must be nil or 0, and the
// logger is not used.
func (i *Informer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if options.ResyncPeriod != nil {
		return i.AddEventHandlerWithResyncPeriod(handler, *options.ResyncPeriod)
	}
	return i.AddEventHandler(handler)
}

// RemoveEventHandler removes a handler. It does not wait for the handler's running call:
// cache.ShutDownEventHandler does, which client-go has since 0.37. It is a no-op for a handler that is already removed.
func (i *Informer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	l, ok := handle.(*listener)
	if !ok || l == nil {
		return fmt.Errorf("scope: remove a handler: the handle is a %T: pass the result of AddEventHandler", handle)
	}
	i.selection.mu.Lock()
	defer i.selection.mu.Unlock()
	if _, ok := i.listeners[l]; !ok {
		return nil
	}
	delete(i.listeners, l)
	l.stop()
	if !l.started {
		close(l.ended)
	}
	return nil
}

// HasSynced reports whether a selection was made: all of its parts are shown, except those whose
// lists fail, and a part is shown, unless the selection is empty.
func (i *Informer) HasSynced() bool { return cache.IsDone(i) }

// HasSyncedChecker returns a checker that is done when HasSynced is true.
func (i *Informer) HasSyncedChecker() cache.DoneChecker { return i }

// Name implements cache.DoneChecker.
func (i *Informer) Name() string { return "scope" }

// Done implements cache.DoneChecker.
func (i *Informer) Done() <-chan struct{} { return i.synced }

// IsStopped reports whether the context of RunWithContext is done.
func (i *Informer) IsStopped() bool {
	i.selection.mu.Lock()
	defer i.selection.mu.Unlock()
	return i.ended
}

// GetStore returns GetIndexer.
func (i *Informer) GetStore() cache.Store { return i.GetIndexer() }

// GetIndexer returns a read-only view of the shown objects.
func (i *Informer) GetIndexer() cache.Indexer { return indexer{i} }

// GetController returns the Informer.
func (i *Informer) GetController() cache.Controller { return i }

// LastSyncResourceVersion returns the lowest version of the shown parts. It is "" without a
// part, and after a change until the parts have reached the version of before.
func (i *Informer) LastSyncResourceVersion() string { return i.selection.version(i.index) }

// AddIndexers adds indexers to the selected parts and to all later parts.
func (i *Informer) AddIndexers(indexers cache.Indexers) error {
	i.selection.mu.Lock()
	defer i.selection.mu.Unlock()
	if i.ended {
		return errStopped("add indexers")
	}
	for name := range indexers {
		if i.indexers[name] != nil {
			return fmt.Errorf("scope: add indexers: the index %q exists: choose another name", name)
		}
	}
	for _, regions := range []map[Part]*region{i.selection.pending, i.selection.shown} {
		for _, r := range regions {
			if err := r.parts[i.index].addIndexers(indexers); err != nil {
				return err
			}
		}
	}
	for name, f := range indexers {
		i.indexers[name] = f
	}
	return nil
}

// SetTransform returns an error: set the transform where the informers of the parts are made.
func (i *Informer) SetTransform(cache.TransformFunc) error {
	return errors.New("scope: the Informer has no transform: set it where the informers of the parts are made")
}

// SetWatchErrorHandler is SetWatchErrorHandlerWithContext without the context.
func (i *Informer) SetWatchErrorHandler(handler cache.WatchErrorHandler) error {
	return i.SetWatchErrorHandlerWithContext(func(_ context.Context, r *cache.Reflector, err error) { handler(r, err) })
}

// SetWatchErrorHandlerWithContext sets the function that is called with each error that ends a
// list or watch of a part. nil means cache.DefaultWatchErrorHandler. It returns an error after
// the Informer was run.
func (i *Informer) SetWatchErrorHandlerWithContext(handler cache.WatchErrorHandlerWithContext) error {
	i.selection.mu.Lock()
	defer i.selection.mu.Unlock()
	if i.run != nil {
		return errors.New("scope: the Informer has been run")
	}
	i.watchErrors = handler
	return nil
}

// watchError returns the function for the errors of lists and watches.
func (i *Informer) watchError() cache.WatchErrorHandlerWithContext {
	i.selection.mu.Lock()
	defer i.selection.mu.Unlock()
	if i.watchErrors == nil {
		return cache.DefaultWatchErrorHandler
	}
	return i.watchErrors
}
