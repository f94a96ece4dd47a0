package managerkit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
)

type newInformerFunc = func(cache.ListerWatcher, runtime.Object, time.Duration, cache.Indexers) cache.SharedIndexInformer

// newInformer returns a Cache.NewInformer that calls next and adds its informers.
func (w *Writes) newInformer(next newInformerFunc) newInformerFunc {
	if next == nil {
		next = cache.NewSharedIndexInformer
	}
	return func(lw cache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		in := &watched{}
		marked := &listerWatcher{
			ListerWatcherWithContext: cache.ToListerWatcherWithContext(lw),
			w:                        w, in: in, noStream: watchlist.DoesClientNotSupportWatchListSemantics(lw),
		}
		informer := next(marked, obj, resync, indexers)
		if kube.IsNil(informer) {
			return refused{cache.NewSharedIndexInformer(lw, obj, resync, indexers), errors.New("managerkit: Writes: Cache.NewInformer returned nil")}
		}
		if err := w.add(in, informer, obj); err != nil {
			return refused{informer, fmt.Errorf("managerkit: Writes: %w", err)}
		}
		return informer
	}
}

// refused is an informer that the cache does not accept. NewInformer has no error of its
// own, and the cache calls SetTransform and returns its error.
type refused struct {
	cache.SharedIndexInformer
	err error
}

// SetTransform implements cache.SharedInformer.
func (r refused) SetTransform(cache.TransformFunc) error { return r.err }

// add adds the informer to the views of its resource.
func (w *Writes) add(in *watched, informer cache.SharedIndexInformer, obj runtime.Object) error {
	resource, err := w.resourceOf(obj)
	if err != nil {
		return err
	}
	in.store, in.stopped = informer.GetStore(), informer.IsStopped
	if _, err := informer.AddEventHandler(headers.Wake(func() { w.wake(in) })); err != nil {
		return fmt.Errorf("add a handler to the informer of %s: %w", resource, err)
	}
	w.setup.Lock()
	defer w.setup.Unlock()
	w.mu.Lock()
	list, known := w.informers[resource]
	list = slices.DeleteFunc(slices.Clone(list), func(in *watched) bool { return in.stopped() })
	w.informers[resource] = append(list, in)
	gates := w.gates
	w.mu.Unlock()
	if !known {
		for _, g := range gates {
			g.add(resource)
		}
	}
	return nil
}

// wake wakes the keys that an event of the informer made ready.
func (w *Writes) wake(in *watched) {
	w.mu.RLock()
	gates, namespaces := w.gates, w.namespaces // gates is only appended to
	w.mu.RUnlock()
	for _, g := range gates {
		for _, s := range g.stores {
			if in.covers(s.namespace, namespaces) {
				s.wake()
			}
		}
	}
}

// watched is an informer of the manager's cache.
type watched struct {
	store   cache.Store
	stopped func() bool
	scope   atomic.Pointer[scope] // nil until the first request of the informer
}

// scope has the namespaces whose objects an informer can show.
type scope struct {
	namespace string   // "" means all, except those in except
	except    []string // from the field selector of an informer for all other namespaces
}

// lists learns the scope from a request of the informer.
func (in *watched) lists(req *http.Request) {
	if in.scope.Load() != nil {
		return
	}
	_, namespace := requested(req.URL.Path)
	of := &scope{namespace: namespace}
	if selector, err := fields.ParseSelector(req.URL.Query().Get("fieldSelector")); err == nil {
		for _, r := range selector.Requirements() {
			if r.Field == "metadata.namespace" && r.Operator == selection.NotEquals {
				of.except = append(of.except, r.Value)
			}
		}
	}
	in.scope.Store(of)
}

// covers reports whether the informer can show objects of the namespace. The namespace ""
// stands for all that are not in namespaces. An informer with an unknown scope can show all.
func (in *watched) covers(namespace string, namespaces []string) bool {
	of := in.scope.Load()
	switch {
	case of == nil:
		return true
	case namespace == "":
		return of.namespace == "" || !slices.Contains(namespaces, of.namespace)
	}
	return of.namespace == namespace || of.namespace == "" && !slices.Contains(of.except, namespace)
}

// view is the store of a resource that a consistency.Store reads: all informers that can
// show objects of the namespace, as one store that is as old as the oldest of them.
type view struct {
	cache.Store // nil: consistency calls the methods below alone

	w         *Writes
	resource  schema.GroupResource
	namespace string
}

// beyond is higher than all versions of etcd, which has 63 bits.
const beyond = "18446744073709551615"

// LastStoreSyncResourceVersion returns the lowest version of the informers, "" if one of
// them has no version yet. If there is no informer, no cache can be behind.
func (v *view) LastStoreSyncResourceVersion() string {
	lowest := beyond
	v.each(func(store cache.Store) bool {
		lowest = older(lowest, store.LastStoreSyncResourceVersion())
		return lowest != ""
	})
	return lowest
}

// GetByKey returns the oldest copy of the object, so that a deletion counts if no informer
// holds the object, and a change if no informer holds the object before it.
func (v *view) GetByKey(key string) (item any, exists bool, err error) {
	lowest := beyond
	v.each(func(store cache.Store) bool {
		var held any
		var holds bool
		if held, holds, err = headers.Item(store, key); err != nil || !holds {
			return err == nil
		}
		version := ""
		if object, err := meta.Accessor(held); err == nil {
			version = object.GetResourceVersion()
		}
		if version = older(lowest, version); !exists || version != lowest {
			item, exists, lowest = held, true, version
		}
		return lowest != ""
	})
	return item, exists, err
}

// each calls do with the stores of the informers until it returns false.
func (v *view) each(do func(cache.Store) bool) {
	v.w.mu.RLock()
	defer v.w.mu.RUnlock()
	for _, in := range v.w.informers[v.resource] {
		if !in.stopped() && in.covers(v.namespace, v.w.namespaces) && !do(in.store) {
			return
		}
	}
}

// older returns the lower of two versions, "" if they cannot be compared.
func older(a, b string) string {
	switch order, err := resourceversion.CompareResourceVersion(a, b); {
	case err != nil:
		return ""
	case order <= 0:
		return a
	}
	return b
}

// viewInformer is a view in the form of Store.AddInformer. Each informer of the view has a
// handler of its own.
type viewInformer struct {
	cache.SharedInformer // nil: AddInformer calls the methods below alone

	view *view
}

func (v viewInformer) GetStore() cache.Store { return v.view }

func (viewInformer) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}

// watchedKey is the key of the context value of an informer's requests, a *watched.
type watchedKey struct{ w *Writes }

// listerWatcher marks the requests of an informer, and makes its lists consistent: a list
// from the API server's cache can be older than a write that no store awaits any more.
type listerWatcher struct {
	cache.ListerWatcherWithContext

	w        *Writes
	in       *watched
	noStream bool // the client has no streaming lists, as in a test
}

// ListWithContext implements cache.ListerWatcherWithContext.
func (l *listerWatcher) ListWithContext(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	if opts.ResourceVersion == "0" {
		opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
	}
	return l.ListerWatcherWithContext.ListWithContext(context.WithValue(ctx, watchedKey{l.w}, l.in), opts)
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (l *listerWatcher) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return l.ListerWatcherWithContext.WatchWithContext(context.WithValue(ctx, watchedKey{l.w}, l.in), opts)
}

// List implements cache.ListerWatcher.
func (l *listerWatcher) List(opts metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), opts)
}

// Watch implements cache.ListerWatcher.
func (l *listerWatcher) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), opts)
}

// IsWatchListSemanticsUnSupported is called by client-go.
func (l *listerWatcher) IsWatchListSemanticsUnSupported() bool { return l.noStream }

// wrap returns the transport that records the writes of the runs.
func (w *Writes) wrap(next http.RoundTripper) http.RoundTripper {
	if kube.IsNil(next) {
		next = http.DefaultTransport
	}
	w.mu.Lock()
	w.wrapped = true
	w.mu.Unlock()
	return &transport{w: w, next: next}
}

// transport passes the writes of a run to the transport of its store, and finds out what an
// informer lists.
type transport struct {
	w         *Writes
	next      http.RoundTripper
	recorders sync.Map // *store to http.RoundTripper
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if in, ok := req.Context().Value(watchedKey{t.w}).(*watched); ok {
		in.lists(req)
		return t.next.RoundTrip(req)
	}
	running, ok := req.Context().Value(runKey{t.w}).(run)
	if !ok || req.Method == http.MethodGet {
		return t.next.RoundTrip(req)
	}
	resource, namespace := requested(req.URL.Path)
	if err := t.w.check(req, resource); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	s := running.gate.store(namespace)
	recorder, ok := t.recorders.Load(s)
	if !ok {
		recorder, _ = t.recorders.LoadOrStore(s, s.Wrap(t.next))
	}
	return recorder.(http.RoundTripper).RoundTrip(req)
}

// check rejects a run's write to another API server. It logs once for each resource that
// runs write and no informer shows.
func (w *Writes) check(req *http.Request, resource schema.GroupResource) error {
	w.mu.RLock()
	host := w.host
	w.mu.RUnlock()
	if req.URL.Host != host {
		return fmt.Errorf("managerkit: Writes: a reconcile writes to %s, and the manager's cache is of %s: make this client from a configuration without Install", req.URL.Host, host)
	}
	if resource.Resource == "" || w.watches(resource) {
		return nil
	}
	if _, logged := w.unwatched.LoadOrStore(resource, true); !logged {
		klog.FromContext(req.Context()).Info("Later runs do not wait for this write", "reason", unwatchedError(resource).Error())
	}
	return nil
}

// watches reports whether the cache has an informer of the resource.
func (w *Writes) watches(resource schema.GroupResource) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return slices.ContainsFunc(w.informers[resource], func(in *watched) bool { return !in.stopped() })
}

func unwatchedError(resource schema.GroupResource) error {
	return fmt.Errorf("the manager's cache does not watch %s: add Owns or Watches to the builder, or read it with mgr.GetAPIReader()", resource)
}

// requested returns the resource and the namespace of a path of the Kubernetes API, which
// can follow a prefix. A namespace and its subresources are in no namespace.
func requested(path string) (resource schema.GroupResource, namespace string) {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	for i, s := range segments {
		rest := segments[i+1:]
		switch {
		case s == "api" && len(rest) > 1 && rest[0] == "v1":
			rest = rest[1:]
		case s == "apis" && len(rest) > 2:
			resource.Group, rest = rest[0], rest[2:]
		default:
			continue
		}
		if len(rest) > 2 && rest[0] == "namespaces" && (s == "apis" || len(rest) > 3 || rest[2] != "status" && rest[2] != "finalize") {
			namespace, rest = rest[1], rest[2:]
		}
		resource.Resource = rest[0]
		return resource, namespace
	}
	return resource, ""
}
