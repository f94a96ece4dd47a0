package scope

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrStopped is wrapped by the errors of an Informer that has stopped.
var ErrStopped = errors.New("scope: stopped")

// Watch is the open informer of a [Part]. An *ondemand.Watch is one.
type Watch interface {
	cache.SharedIndexInformer
	// WaitForSync waits until the informer and the handlers that were added through the Watch
	// are synced. The error has the reason why they are not.
	WaitForSync(ctx context.Context) error
	// Close removes the handlers of the Watch, and stops the informer if it has no other
	// user. It begins the end of the Watch also if ctx is done.
	Close(ctx context.Context) error
}

// Informer is a cache.SharedIndexInformer over several namespaces. Its indexer, listers and
// handlers see the objects of the [Selection] that [Informer.Select] has set last, and no
// object before the first. [New] makes one. Its methods may be called concurrently.
//
// It differs from client-go's informers:
//
//   - Its indexer is read-only, and reads the caches of the parts.
//   - If a handler panics, the panic is logged.
//   - It has no resync: handlers with a resync period are rejected.
//   - SetTransform and SetWatchErrorHandler return an error: set them for the informers of the
//     parts. SetWatchErrorHandlerWithContext is a no-op, so that an informer.Set can run it.
type Informer struct {
	open      func(Part) (Watch, error)
	selecting chan struct{} // is full while a Select runs
	synced    chan struct{} // closed by the first successful Select
	stopping  chan struct{} // closed when the Informer stops
	view      atomic.Pointer[view]

	mu        sync.Mutex // guards the fields below and the fields of parts, and orders the events
	began     bool
	stopped   bool
	logger    klog.Logger
	parts     map[Part]*part // the selected ones
	staged    []*part        // opened by the running Select
	listeners map[*listener]struct{}
	indexers  cache.Indexers
	wait      sync.WaitGroup // of the listeners
}

var _ cache.SharedIndexInformer = (*Informer)(nil)

// New returns an Informer that opens the informer of each [Part] with open, which must return
// at once. It is the Open method of an ondemand.Informers with Part as its key.
func New[W Watch](open func(Part) (W, error)) *Informer {
	s := &Informer{
		selecting: make(chan struct{}, 1),
		synced:    make(chan struct{}),
		stopping:  make(chan struct{}),
		parts:     map[Part]*part{},
		listeners: map[*listener]struct{}{},
		indexers:  cache.Indexers{},
	}
	s.view.Store(&view{})
	if open != nil {
		s.open = func(p Part) (Watch, error) { return open(p) }
	}
	return s
}

// RunWithContext calls the handlers until ctx is done, and returns when they have ended. It
// then has closed its Watches, and a running Select returns an [ErrStopped]. It runs once;
// an informer.Set can run it.
func (s *Informer) RunWithContext(ctx context.Context) {
	s.mu.Lock()
	if s.began {
		s.mu.Unlock()
		klog.FromContext(ctx).Error(errors.New("scope: an informer runs once: create a new one"), "A scope was run twice")
		return
	}
	s.began, s.logger = true, klog.FromContext(ctx)
	for l := range s.listeners {
		s.startLocked(l)
	}
	s.mu.Unlock()

	<-ctx.Done()
	s.mu.Lock()
	s.stopped = true
	close(s.stopping)
	for l := range s.listeners {
		l.stop()
	}
	s.mu.Unlock()
	s.selecting <- struct{}{} // a running Select ends because of stopping
	s.mu.Lock()
	for _, p := range s.parts {
		p.closeLocked()
	}
	s.mu.Unlock()
	<-s.selecting
	s.wait.Wait()
}

// Run is RunWithContext with a channel instead of a context.
func (s *Informer) Run(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	s.RunWithContext(ctx)
}

// startLocked starts the goroutine of a handler.
func (s *Informer) startLocked(l *listener) {
	l.started = true
	s.wait.Go(func() { l.run(s.logger) })
}

// AddEventHandler adds a handler. It first gets the objects of the current selection.
func (s *Informer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if kube.IsNil(handler) {
		return nil, errors.New("scope: add a handler: the handler is nil: pass one")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, fmt.Errorf("%w: add a handler: create a new Informer", ErrStopped)
	}
	l := newListener(handler)
	select {
	case <-s.synced:
		var events []event
		for _, p := range s.parts {
			for _, obj := range p.objects {
				events = append(events, event{kind: added, new: obj, initial: true})
			}
		}
		l.add(append(events, event{kind: synced}))
	default:
	}
	s.listeners[l] = struct{}{}
	if s.began {
		s.startLocked(l)
	}
	return l, nil
}

// AddEventHandlerWithResyncPeriod is AddEventHandler. The period must be 0.
func (s *Informer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	if period != 0 {
		return nil, fmt.Errorf("scope: add a handler: the resync period is %v: set it to 0, a scope has no resync", period)
	}
	return s.AddEventHandler(handler)
}

// AddEventHandlerWithOptions is AddEventHandler. The resync period must be nil or 0, and the
// logger is not used.
func (s *Informer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if options.ResyncPeriod != nil {
		return s.AddEventHandlerWithResyncPeriod(handler, *options.ResyncPeriod)
	}
	return s.AddEventHandler(handler)
}

// RemoveEventHandler removes a handler. It does not wait for the handler's running call:
// cache.ShutDownEventHandler does. It is a no-op for a handler that is already removed.
func (s *Informer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	l, ok := handle.(*listener)
	if !ok || l == nil {
		return fmt.Errorf("scope: remove a handler: the handle is a %T: pass the result of AddEventHandler", handle)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.listeners[l]; !ok {
		return nil
	}
	delete(s.listeners, l)
	l.stop()
	if !l.started {
		close(l.ended)
	}
	return nil
}

// HasSynced reports whether a Select has succeeded.
func (s *Informer) HasSynced() bool { return cache.IsDone(s) }

// HasSyncedChecker returns a checker that is done after the first successful Select.
func (s *Informer) HasSyncedChecker() cache.DoneChecker { return s }

// Name implements cache.DoneChecker.
func (s *Informer) Name() string { return "scope" }

// Done implements cache.DoneChecker.
func (s *Informer) Done() <-chan struct{} { return s.synced }

// IsStopped reports whether the context of RunWithContext is done.
func (s *Informer) IsStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// GetStore returns GetIndexer.
func (s *Informer) GetStore() cache.Store { return s.GetIndexer() }

// GetIndexer returns a read-only view of the selected objects.
func (s *Informer) GetIndexer() cache.Indexer { return indexer{s} }

// GetController returns the Informer.
func (s *Informer) GetController() cache.Controller { return s }

// LastSyncResourceVersion returns the lowest version of the selected parts. It is "" without a
// part, and after a Select until the parts have reached the version of before.
func (s *Informer) LastSyncResourceVersion() string { return s.view.Load().version() }

// AddIndexers adds indexers to the selected parts and to all later parts.
func (s *Informer) AddIndexers(indexers cache.Indexers) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("%w: add indexers: create a new Informer", ErrStopped)
	}
	for name := range indexers {
		if s.indexers[name] != nil {
			return fmt.Errorf("scope: add indexers: the index %q exists: choose another name", name)
		}
	}
	for _, p := range s.staged {
		if err := p.addIndexers(indexers); err != nil {
			return err
		}
	}
	for _, p := range s.parts {
		if err := p.addIndexers(indexers); err != nil {
			return err
		}
	}
	for name, f := range indexers {
		s.indexers[name] = f
	}
	return nil
}

var errOwned = errors.New("scope: the informers of the parts are not the scope's: set it where they are made")

// SetTransform returns an error: set the transform where the informers of the parts are made.
func (s *Informer) SetTransform(cache.TransformFunc) error { return errOwned }

// SetWatchErrorHandler returns an error: use that of the informers of the parts.
func (s *Informer) SetWatchErrorHandler(cache.WatchErrorHandler) error { return errOwned }

// SetWatchErrorHandlerWithContext is a no-op: use that of the informers of the parts. It
// returns an error after the Informer was run.
func (s *Informer) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began {
		return errors.New("scope: the Informer has been run")
	}
	return nil
}
