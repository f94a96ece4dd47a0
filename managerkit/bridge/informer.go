package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Informer returns the informer that the cache of mgr has for the kind of obj, as an informer of client-go:
//
//	pods, err := bridge.Informer(mgr, &corev1.Pod{})
//	...
//	lister := operator.For(c, corev1.Resource("pods"), informer.With(pods, corelisters.NewPodLister))
//
// mgr is a manager or another cluster, which runs the informer. obj chooses among the caches of
// controller-runtime as in its Get: typed objects, unstructured ones and those of metadata only. RunWithContext
// of the result does not run the manager's informer. It gives the handlers of the result the objects in the
// cache and then the events, and removes them when its context is done. So an informer.Set and an Operator can run it, once.
// The transform and the WatchErrorHandler are those of the manager's cache.
//
// For a cache with an informer for each of several namespaces, call [Prepare] before.
func Informer(mgr cluster.Cluster, obj client.Object) (cache.SharedIndexInformer, error) {
	switch {
	case kube.IsNil(mgr):
		return nil, errors.New("bridge: Informer: mgr is nil: pass the manager of ctrl.NewManager")
	case kube.IsNil(obj):
		return nil, errors.New("bridge: Informer: obj is nil: pass an object of the kind, such as &corev1.Pod{}")
	}
	found, err := mgr.GetCache().GetInformer(context.Background(), obj, crcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("bridge: Informer of %T: %w", obj, err)
	}
	var over func() bool
	if part, ok := found.(interface { // of managerkit.Share
		Unwrap() crcache.Informer
		Over() bool
	}); ok {
		found, over = part.Unwrap(), part.Over
	}
	if whole, ok := found.(cache.SharedIndexInformer); ok {
		return &informer{SharedIndexInformer: whole, over: over}, nil
	}
	p := partsOf(mgr.GetCache())
	if p == nil {
		return nil, fmt.Errorf("bridge: Informer of %T: the manager's cache has it as %T, an informer for each namespace: call Prepare before ctrl.NewManager", obj, found)
	}
	all, err := p.informer(obj)
	if err != nil {
		return nil, fmt.Errorf("bridge: Informer of %T: %w", obj, err)
	}
	return all, nil
}

// informer is an informer of a manager's cache, with the event handlers of one user. They get events while
// RunWithContext runs, as those of any informer, although the manager's cache can run for longer.
type informer struct {
	cache.SharedIndexInformer
	over func() bool // the manager's part of a shared cache has ended; nil means that it has all of the cache

	mu       sync.Mutex // guards the rest
	handlers []*registration
	run      context.Context // of RunWithContext; nil before
	wait     sync.WaitGroup  // of the goroutines of the handlers; only RunWithContext waits
}

// RunWithContext gives the handlers the events, until ctx is done. It runs once.
func (i *informer) RunWithContext(ctx context.Context) {
	alive.From(ctx).Compose() // its requests are the manager's
	i.mu.Lock()
	if i.run != nil {
		i.mu.Unlock()
		klog.FromContext(ctx).Error(errors.New("bridge: an informer runs once: call Informer again"), "An informer was run twice")
		return
	}
	i.run = ctx
	for _, r := range i.handlers {
		if err := i.addLocked(r); err != nil {
			klog.FromContext(ctx).Error(err, "The manager's cache takes no event handler")
		}
	}
	i.mu.Unlock()

	<-ctx.Done()
	i.mu.Lock()
	for _, r := range i.handlers {
		i.removeLocked(r)
	}
	i.handlers = nil
	i.mu.Unlock()
	i.wait.Wait()
}

// inCache reports whether the manager's cache has the objects.
func (i *informer) inCache() bool { return i.HasSynced() }

// Run is RunWithContext with a channel.
func (i *informer) Run(stop <-chan struct{}) { i.RunWithContext(wait.ContextForChannel(stop)) }

// A registration is that of a handler before and after it is added to the manager's informer.
type registration struct {
	add    func() (cache.ResourceEventHandlerRegistration, error)
	name   string
	synced chan struct{}

	added cache.ResourceEventHandlerRegistration // guarded by the informer's mu; nil before
	gone  context.CancelFunc
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSynced() bool { return cache.IsDone(r) }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSyncedChecker() cache.DoneChecker { return r }

// Name implements cache.DoneChecker.
func (r *registration) Name() string { return r.name }

// Done implements cache.DoneChecker.
func (r *registration) Done() <-chan struct{} { return r.synced }

func (i *informer) addLocked(r *registration) error {
	var err error
	if r.added, err = r.add(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(i.run)
	r.gone = cancel
	done := r.added.HasSyncedChecker().Done()
	i.wait.Go(func() {
		select {
		case <-done:
			close(r.synced)
		case <-ctx.Done():
		}
	})
	return nil
}

func (i *informer) removeLocked(r *registration) {
	if r.added != nil {
		_ = i.SharedIndexInformer.RemoveEventHandler(r.added) // which fails only for a handler of another informer
		r.gone()
		r.added = nil
	}
}

// handler adds a handler by a function of the manager's informer, or keeps it until RunWithContext.
func (i *informer) handler(handler cache.ResourceEventHandler, add func() (cache.ResourceEventHandlerRegistration, error)) (cache.ResourceEventHandlerRegistration, error) {
	if kube.IsNil(handler) {
		return nil, errors.New("bridge: add a handler: the handler is nil: pass one")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	r := &registration{add: add, name: fmt.Sprintf("a handler %T of the manager's cache", handler), synced: make(chan struct{})}
	switch {
	case i.run == nil:
	case i.run.Err() != nil:
		return nil, errors.New("bridge: add a handler: the informer has ended with its context: call Informer again")
	default:
		if err := i.addLocked(r); err != nil {
			return nil, err
		}
	}
	i.handlers = append(i.handlers, r)
	return r, nil
}

// AddEventHandler implements cache.SharedInformer.
func (i *informer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.handler(handler, func() (cache.ResourceEventHandlerRegistration, error) {
		return i.SharedIndexInformer.AddEventHandler(handler)
	})
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (i *informer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.handler(handler, func() (cache.ResourceEventHandlerRegistration, error) {
		return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler, period)
	})
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i *informer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.handler(handler, func() (cache.ResourceEventHandlerRegistration, error) {
		return i.SharedIndexInformer.AddEventHandlerWithOptions(handler, options)
	})
}

// RemoveEventHandler implements cache.SharedInformer.
func (i *informer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	r, ok := handle.(*registration)
	if !ok {
		return fmt.Errorf("bridge: remove a handler: the handle is a %T: pass the result of AddEventHandler", handle)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if n := slices.Index(i.handlers, r); n >= 0 {
		i.removeLocked(r)
		i.handlers = slices.Delete(i.handlers, n, n+1)
	}
	return nil
}

// AddIndexers adds indexers. Those of this library are the same for all users of the manager's informer. Those of a
// user that has ended, in a former term of a shared cache, are used again, because a cache cannot remove them. Then it
// returns an error if the function returns other values for an object of the cache.
func (i *informer) AddIndexers(indexers cache.Indexers) error {
	objects := i.GetIndexer()
	known, added, again := objects.GetIndexers(), cache.Indexers{}, map[*index]cache.IndexFunc{}
	for name, f := range indexers {
		former := indexOf(known[name])
		switch {
		case f == nil:
			return fmt.Errorf("bridge: the index %q has no function", name)
		case known[name] != nil && strings.HasPrefix(name, headers.Index):
		case former != nil && former.user.Load().of.hasEnded():
			if err := former.compare(f, objects); err != nil {
				return fmt.Errorf("bridge: the manager's cache has an index %q of a former term: %w: use another name", name, err)
			}
			again[former] = f
		default:
			x := &index{}
			x.user.Store(&user{i, f})
			added[name] = x.values
		}
	}
	if err := i.SharedIndexInformer.AddIndexers(added); err != nil {
		return err
	}
	for former, f := range again {
		former.user.Store(&user{i, f})
	}
	return nil
}

// hasEnded reports whether the user of i has ended. If it indexes by i and runs another informer of the kind, or has
// never begun, that is the end of its manager.
func (i *informer) hasEnded() bool {
	if i.over != nil && i.over() {
		return true
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.run != nil && i.run.Err() != nil
}

// An index belongs to one user after the other.
type index struct{ user atomic.Pointer[user] }

type user struct {
	of *informer
	f  cache.IndexFunc
}

// values is the function in the cache.
func (x *index) values(obj any) ([]string, error) {
	if q, ok := obj.(*question); ok {
		q.index = x
		return nil, nil
	}
	return x.user.Load().f(obj)
}

// compare returns an error if f has other values for an object, in any order.
func (x *index) compare(f cache.IndexFunc, objects cache.Indexer) error {
	for _, key := range objects.ListKeys() {
		obj, ok, err := objects.GetByKey(key)
		if err != nil || !ok {
			continue // it does not decode, or has gone
		}
		was, _ := x.values(obj)
		if now, _ := f(obj); !sets.New(was...).Equal(sets.New(now...)) {
			return fmt.Errorf("it has other values for %s", kube.Printable(key, 600))
		}
	}
	return nil
}

// A question asks the function of a cache for its index.
type question struct{ index *index }

// indexOf returns the index of a function in the cache, or nil if it is another one's.
func indexOf(f cache.IndexFunc) *index {
	var q question
	defer func() { _ = recover() }() // of another one's function
	if f != nil {
		_, _ = f(&q)
	}
	return q.index
}

// SetTransform returns an error.
func (i *informer) SetTransform(cache.TransformFunc) error {
	return errors.New("bridge: the informer is that of the manager's cache: set the transform in cache.Options")
}

// SetWatchErrorHandler has no effect: cache.Options has the one of the manager's cache.
func (i *informer) SetWatchErrorHandler(cache.WatchErrorHandler) error { return nil }

// SetWatchErrorHandlerWithContext has no effect.
func (i *informer) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return nil
}
