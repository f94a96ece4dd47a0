package remember_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit/remember"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testserver.Main(m)
}

// world is a cluster with a cache of controller-runtime, whose objects the test makes.
type world struct {
	cluster.Cluster
	t      *testing.T
	ctx    context.Context
	mapper meta.RESTMapper
	cache  cache.Cache
	onRead func()

	mu      sync.Mutex
	handler toolscache.ResourceEventHandler // that was added last
	sources map[string]*fcache.FakeControllerSource
}

// inWorld runs a test in a bubble with a world.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		mapper := meta.NewDefaultRESTMapper(nil)
		for kind, scope := range map[string]meta.RESTScope{"Secret": meta.RESTScopeNamespace, "ConfigMap": meta.RESTScopeNamespace, "Node": meta.RESTScopeRoot} {
			mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), scope)
		}
		w := &world{t: t, ctx: ctx, mapper: mapper, sources: map[string]*fcache.FakeControllerSource{}}
		var err error
		w.cache, err = cache.New(&rest.Config{Host: "fake.example"}, cache.Options{Scheme: scheme.Scheme, Mapper: mapper, NewInformer: w.newInformer})
		must(t, err)
		done := make(chan struct{})
		go func() { defer close(done); _ = w.cache.Start(ctx) }()
		synctest.Wait()
		f(t, w)
		cancel()
		<-done
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, s := range w.sources {
			s.Shutdown()
		}
	})
}

func (w *world) newInformer(_ toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(w.of(obj), obj, 0, indexers)
}

// of returns the source of the objects of a Go type.
func (w *world) of(obj runtime.Object) *fcache.FakeControllerSource {
	w.mu.Lock()
	defer w.mu.Unlock()
	kind := reflect.TypeOf(obj).String()
	if w.sources[kind] == nil {
		w.sources[kind] = fcache.NewFakeControllerSource()
	}
	return w.sources[kind]
}

func (w *world) GetScheme() *runtime.Scheme           { return scheme.Scheme }
func (w *world) GetRESTMapper() meta.RESTMapper       { return w.mapper }
func (w *world) GetCache() cache.Cache                { return reading{w.cache, w} }
func (w *world) GetFieldIndexer() client.FieldIndexer { return w.cache }

// reading calls onRead before each read.
type reading struct {
	cache.Cache
	w *world
}

func (r reading) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if r.w.onRead != nil {
		r.w.onRead()
	}
	return r.Cache.Get(ctx, key, obj, opts...)
}

func (r reading) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if r.w.onRead != nil {
		r.w.onRead()
	}
	return r.Cache.List(ctx, list, opts...)
}

func (r reading) GetInformer(ctx context.Context, obj client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	informer, err := r.Cache.GetInformer(ctx, obj, opts...)
	return noting{informer, r.w}, err
}

// noting keeps the handler that is added.
type noting struct {
	cache.Informer
	w *world
}

func (n noting) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, o toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	n.w.mu.Lock()
	n.w.handler = h
	n.w.mu.Unlock()
	return n.Informer.AddEventHandlerWithOptions(h, o)
}

// A unit is a Reader with its source and its queue.
type unit struct {
	*remember.Reader
	w     *world
	queue *fakeQueue
	next  func(ctx context.Context) error
	r     reconcile.Reconciler
}

// unit returns a Reader of kinds whose source runs. prepare can add indexes.
func (w *world) unit(prepare func(*remember.Reader), kinds ...client.Object) *unit {
	w.t.Helper()
	r, err := remember.New(w, kinds...)
	must(w.t, err)
	if prepare != nil {
		prepare(r)
	}
	u := &unit{Reader: r, w: w, queue: &fakeQueue{}}
	u.r = r.Reconciler(reconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
		return ctrl.Result{}, u.next(ctx)
	}))
	must(w.t, start(w.ctx, r.Source(), u.queue))
	return u
}

func start(ctx context.Context, src source.SyncingSource, q workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
	if err := src.Start(ctx, q); err != nil {
		return err
	}
	return src.WaitForSync(ctx)
}

// call runs a call of a request.
func (u *unit) call(name string, next func(ctx context.Context) error) {
	u.w.t.Helper()
	u.next = next
	if _, err := u.r.Reconcile(u.w.t.Context(), request(name)); err != nil {
		u.w.t.Fatal(err)
	}
}

// get is a call that reads a Secret, which may be absent.
func (u *unit) get(name string, key client.ObjectKey) {
	u.w.t.Helper()
	u.call(name, func(ctx context.Context) error {
		return client.IgnoreNotFound(u.Get(ctx, key, &corev1.Secret{}))
	})
}

// list is a call that lists Secrets.
func (u *unit) list(name string, opts ...client.ListOption) {
	u.w.t.Helper()
	u.call(name, func(ctx context.Context) error { return u.List(ctx, &corev1.SecretList{}, opts...) })
}

// want holds that the names of the requests which were added since the last want are these.
func (u *unit) want(what string, names ...string) {
	u.w.t.Helper()
	synctest.Wait()
	if got := u.queue.take(); !slices.Equal(got, names) {
		u.w.t.Errorf("%s adds %q, want %q", what, got, names)
	}
}

func request(name string) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "requests", Name: name}}
}

// fakeQueue keeps what is added.
type fakeQueue struct {
	priorityqueue.PriorityQueue[ctrl.Request]
	mu    sync.Mutex
	added []string
}

func (q *fakeQueue) Add(r ctrl.Request) { q.AddWithOpts(priorityqueue.AddOpts{}, r) }

func (q *fakeQueue) AddWithOpts(o priorityqueue.AddOpts, all ...ctrl.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range all {
		name := r.Name
		if o.Priority != nil && *o.Priority < 0 {
			name += " (low)"
		}
		q.added = append(q.added, name)
	}
}

func (q *fakeQueue) take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.added
	q.added = nil
	slices.Sort(taken)
	return taken
}

func secret(namespace, name string, labels ...string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}}}
	for _, label := range labels {
		k, v, _ := strings.Cut(label, "=")
		s.Labels[k] = v
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
