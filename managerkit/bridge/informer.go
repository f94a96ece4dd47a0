package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
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
// of the result does not run the informer: it waits for the end of its context, and then removes the
// event handlers that were added to the result. So an informer.Set and an Operator can run it. The
// transform and the WatchErrorHandler are those of the manager's cache.
//
// Informer returns an error for a cache with an informer for each namespace.
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
	if part, ok := found.(interface{ Unwrap() crcache.Informer }); ok { // of managerkit.Share
		found = part.Unwrap()
	}
	whole, ok := found.(cache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("bridge: Informer of %T: the manager's cache has it as %T, one informer for each namespace: leave Cache.DefaultNamespaces and Namespaces of ByObject empty, or select one namespace by a field selector metadata.namespace", obj, found)
	}
	return &informer{SharedIndexInformer: whole}, nil
}

// informer is an informer of a manager's cache, with the event handlers of one user.
type informer struct {
	cache.SharedIndexInformer

	mu       sync.Mutex // guards the rest
	handlers []cache.ResourceEventHandlerRegistration
	ended    bool
}

// RunWithContext removes the handlers when ctx is done.
func (i *informer) RunWithContext(ctx context.Context) {
	alive.From(ctx).Compose() // its requests are the manager's
	<-ctx.Done()
	i.end()
}

// Run is RunWithContext with a channel.
func (i *informer) Run(stop <-chan struct{}) {
	<-stop
	i.end()
}

func (i *informer) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	for _, h := range i.handlers {
		_ = i.SharedIndexInformer.RemoveEventHandler(h) // which fails only for a handler of another informer
	}
	i.handlers = nil
}

// add adds a handler by a function of the manager's informer.
func (i *informer) add(add func() (cache.ResourceEventHandlerRegistration, error)) (cache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return nil, errors.New("bridge: add a handler: the informer has ended with its context: call Informer again")
	}
	h, err := add()
	if err == nil {
		i.handlers = append(i.handlers, h)
	}
	return h, err
}

// AddEventHandler implements cache.SharedInformer.
func (i *informer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.add(func() (cache.ResourceEventHandlerRegistration, error) {
		return i.SharedIndexInformer.AddEventHandler(handler)
	})
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (i *informer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.add(func() (cache.ResourceEventHandlerRegistration, error) {
		return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler, period)
	})
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i *informer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.add(func() (cache.ResourceEventHandlerRegistration, error) {
		return i.SharedIndexInformer.AddEventHandlerWithOptions(handler, options)
	})
}

// AddIndexers adds indexers. Those of this library are the same for all users of the manager's informer.
func (i *informer) AddIndexers(indexers cache.Indexers) error {
	known, added := i.GetIndexer().GetIndexers(), cache.Indexers{}
	for name, index := range indexers {
		if known[name] == nil || !strings.HasPrefix(name, headers.Index) {
			added[name] = index
		}
	}
	return i.SharedIndexInformer.AddIndexers(added)
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
