package remember

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/managerkit/internal/standby"
)

// Source returns the source of the events of all kinds of [New], for WatchesRawSource of the builder or Watch of
// a controller that was not started. It adds the requests whose last call has read what changed. It works in one
// controller: a second one gets an error when the manager starts.
//
// The predicates of WithEventFilter have no effect on it. An update of the same resource version, such as a
// resync, adds nothing. Requests of the initial list have handler.LowPriority.
func (r *Reader) Source() source.SyncingSource { return &events{r} }

type syncing = source.SyncingSource

// events is the source of a Reader.
type events struct{ r *Reader }

var _ standby.Source = (*events)(nil)

// Standby implements standby.Source.
func (*events) Standby() {}

func (e *events) String() string {
	kinds := make([]string, len(e.r.kinds))
	for i, k := range e.r.kinds {
		kinds[i] = k.id.Kind
	}
	return "remembered reads of " + strings.Join(kinds, ", ")
}

// Start implements source.Source.
func (e *events) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	r := e.r
	r.mu.Lock()
	defer r.mu.Unlock()
	watch := func(*kind) handler.EventHandler { return handler.Funcs{} }
	if !standby.Is(queue) {
		if r.started {
			return errors.New("remember: another controller uses the Source of the Reader: call New for each controller")
		}
		r.started = true
		watch = (*kind).handler
	}
	for _, k := range r.kinds {
		src := source.Kind(r.cluster.GetCache(), k.obj, watch(k))
		if err := src.Start(ctx, queue); err != nil {
			return fmt.Errorf("remember: watch %s: %w", k.id.Kind, err)
		}
		r.sources = append(r.sources, src)
	}
	return nil
}

// WaitForSync implements source.SyncingSource.
func (e *events) WaitForSync(ctx context.Context) error {
	r := e.r
	r.mu.Lock()
	started, sources := r.started, r.sources[:len(r.sources):len(r.sources)]
	r.mu.Unlock()
	for _, src := range sources {
		if err := src.WaitForSync(ctx); err != nil {
			return err
		}
	}
	if started && ctx.Err() == nil {
		r.ready.Store(true)
	}
	return nil
}

// A kind is one that a Reader reads.
type kind struct {
	id      id
	obj     client.Object
	reader  *Reader
	reads   *reads.Reader[client.Object, ctrl.Request]
	extract map[string]client.IndexerFunc // by the field

	namespaced atomic.Pointer[bool] // nil before it is known
}

// handler returns the handler of the events of the kind. handler.Funcs adds to the queue at a low priority what belongs there.
func (k *kind) handler() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { k.add(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if version := e.ObjectNew.GetResourceVersion(); version == "" || version != e.ObjectOld.GetResourceVersion() {
				k.add(q, e.ObjectOld, e.ObjectNew)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { k.add(q, e.Object) },
	}
}

// add adds each request that has read an object in one of these states.
func (k *kind) add(q workqueue.TypedRateLimitingInterface[ctrl.Request], states ...client.Object) {
	requests := map[ctrl.Request]struct{}{}
	for _, obj := range states {
		for _, request := range k.reads.Keys(k.view(obj)) {
			requests[request] = struct{}{}
		}
	}
	for request := range requests {
		q.Add(request)
	}
}

// view returns the metadata of obj, with a label for each value of an indexed field.
func (k *kind) view(obj client.Object) metav1.Object {
	if len(k.extract) == 0 {
		return obj
	}
	set := maps.Clone(obj.GetLabels())
	if set == nil {
		set = map[string]string{}
	}
	for field, extract := range k.extract {
		for _, value := range extract(obj) {
			set[k.label(field, value)] = ""
		}
	}
	return labelled{obj, set}
}

type labelled struct {
	metav1.Object
	labels map[string]string
}

func (l labelled) GetLabels() map[string]string { return l.labels }

// namespace returns the namespace of the object that the cache returns for a key. For a cluster-scoped kind the
// cache ignores that of the key.
func (k *kind) namespace(key client.ObjectKey) (string, error) {
	if key.Namespace == "" {
		return "", nil
	}
	namespaced := k.namespaced.Load()
	if namespaced == nil {
		is, err := apiutil.IsGVKNamespaced(k.id.GroupVersionKind, k.reader.cluster.GetRESTMapper())
		if err != nil {
			return "", err
		}
		namespaced = &is
		k.namespaced.Store(namespaced)
	}
	if *namespaced {
		return key.Namespace, nil
	}
	return "", nil
}

// uncached is an informer for From of package reads: the objects are read from the manager's cache.
type uncached struct{ toolscache.SharedIndexInformer }

func (uncached) GetIndexer() toolscache.Indexer        { return nil }
func (uncached) AddIndexers(toolscache.Indexers) error { return nil }
