package managerkit_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

const (
	turn      = "turn"       // the annotation of an owner that counts its events
	ownerName = "owner-name" // the label of its children
	patience  = time.Minute
)

// site is a manager on the real API server with one controller of ServiceAccounts, the
// owners. The test changes an owner to cause an event.
type site struct {
	t       *testing.T
	ns      string
	admin   kubernetes.Interface
	process *fault.Incarnation
	writes  *managerkit.Writes // nil means none
	mgr     ctrl.Manager
	stop    func()

	mu     sync.Mutex
	seen   map[string]int // the last event of each owner that has reached the manager
	began  map[string]int // the event that the last run of each owner saw
	ended  map[string]int
	runs   map[string]int
	cached map[types.UID]bool // the objects that the informers of watch have shown
	news   chan struct{}      // closed and replaced at each change of the maps
}

// siteOptions are what differs between the tests.
type siteOptions struct {
	gated  bool                        // with Writes
	loop   bool                        // with the loop of package reconcile
	native bool                        // with the option of controller-runtime
	on     func(*fault.Op) fault.Fault // nil means none
	wrap   func(http.RoundTripper) http.RoundTripper
	outer  func(http.RoundTripper) http.RoundTripper // wraps after Install; nil means none
	client client.NewClientFunc                      // nil means the manager's default
	cache  func(ns string, opts *cache.Options)      // nil means none
	// reconcile runs for each event. The turn is that of the owner's event.
	reconcile func(ctx context.Context, s *site, owner *corev1.ServiceAccount, turn int) (ctrl.Result, error)
}

func newSite(t *testing.T, o siteOptions) *site {
	t.Helper()
	s := &site{
		t: t, ns: testserver.Namespace(t), admin: kubernetes.NewForConfigOrDie(testserver.Config(t)),
		seen: map[string]int{}, began: map[string]int{}, ended: map[string]int{}, runs: map[string]int{}, cached: map[types.UID]bool{}, news: make(chan struct{}),
	}
	process, err := fault.New(testserver.Config(t), o.on, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.process = process
	t.Cleanup(process.Kill)
	restConfig, isTrue := process.Config(), true
	if o.wrap != nil {
		restConfig.Wrap(o.wrap)
	}
	options := manager.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Logger:     logr.Discard(),
		Controller: config.Controller{SkipNameValidation: &isTrue},
		Client:     client.Options{Cache: &client.CacheOptions{Unstructured: true, EnableReadYourWritesConsistency: &o.native}},
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{s.ns: {}}},
	}
	options.Cache.NewInformer = newInformer
	if o.cache != nil {
		o.cache(s.ns, &options.Cache)
	}
	if o.gated {
		s.writes = managerkit.NewWrites(consistency.Config{MaxWait: -1})
		if err := s.writes.Install(restConfig, &options); err != nil {
			t.Fatal(err)
		}
	}
	options.NewClient = o.client
	if o.outer != nil {
		restConfig.Wrap(o.outer)
	}
	if s.mgr, err = ctrl.NewManager(restConfig, options); err != nil {
		t.Fatal(err)
	}
	var r crreconcile.Reconciler = crreconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		owner := &corev1.ServiceAccount{}
		if req.Namespace != s.ns {
			return ctrl.Result{}, nil
		}
		if err := s.mgr.GetCache().Get(ctx, req.NamespacedName, owner); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		n, err := strconv.Atoi(owner.Annotations[turn])
		if err != nil {
			return ctrl.Result{}, nil // not one of the test's
		}
		s.note(func() { s.began[req.Name] = n; s.runs[req.Name]++ })
		defer s.note(func() { s.ended[req.Name] = n })
		return o.reconcile(ctx, s, owner, n)
	})
	b := ctrl.NewControllerManagedBy(s.mgr).For(&corev1.ServiceAccount{})
	switch {
	case o.loop:
		err = managerkit.Complete(b, r, &reconcile.Controller[ctrl.Request]{Gate: s.writes.Gate()}, controller.Options{})
	case o.gated:
		err = b.Complete(s.writes.Reconciler(r))
	default:
		err = b.Complete(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.mgr.Start(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start() = %v, want nil", err)
		}
	})
	t.Cleanup(s.stop)
	if !s.mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the cache did not start")
	}
	informer, err := s.mgr.GetCache().GetInformer(ctx, &corev1.ServiceAccount{})
	if err != nil {
		t.Fatal(err)
	}
	see := func(obj any) {
		owner := obj.(*corev1.ServiceAccount)
		if n, err := strconv.Atoi(owner.Annotations[turn]); err == nil && owner.Namespace == s.ns {
			s.note(func() { s.seen[owner.Name] = n })
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }}); err != nil {
		t.Fatal(err)
	}
	return s
}

// newInformer is an own Cache.NewInformer. Its watches are read to their end: the watch of a
// metadata informer otherwise leaves a goroutine.
func newInformer(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(drainedWatches{toolscache.ToListerWatcherWithContext(lw)}, obj, resync, indexers)
}

type drainedWatches struct {
	toolscache.ListerWatcherWithContext
}

func (d drainedWatches) List(opts metav1.ListOptions) (runtime.Object, error) {
	return d.ListWithContext(context.Background(), opts)
}

func (d drainedWatches) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	return d.WatchWithContext(context.Background(), opts)
}

func (d drainedWatches) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	w, err := d.ListerWatcherWithContext.WatchWithContext(ctx, opts)
	if err != nil {
		return nil, err
	}
	return drainedWatch{w}, nil
}

type drainedWatch struct{ watch.Interface }

func (d drainedWatch) Stop() {
	d.Interface.Stop()
	go func() {
		for range d.ResultChan() {
		}
	}()
}

// note changes the maps.
func (s *site) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.news)
	s.news = make(chan struct{})
}

// until waits for a state of the maps, and reports whether it came within the time.
func (s *site) until(within time.Duration, state func() bool) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		s.mu.Lock()
		ok, news := state(), s.news
		s.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-news:
		case <-timer.C:
			return false
		}
	}
}

func (s *site) mustUntil(what string, state func() bool) {
	s.t.Helper()
	if !s.until(patience, state) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.t.Fatalf("after %v: not %s; seen %v, began %v, ended %v", patience, what, s.seen, s.began, s.ended)
	}
}

// event causes the n-th event of an owner, and returns when it has reached the manager.
func (s *site) event(owner string, n int) {
	s.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, turn, n)
	var err error
	if n == 1 {
		_, err = s.admin.CoreV1().ServiceAccounts(s.ns).Create(s.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Name: owner, Annotations: map[string]string{turn: "1"},
		}}, metav1.CreateOptions{})
	} else {
		_, err = s.admin.CoreV1().ServiceAccounts(s.ns).Patch(s.t.Context(), owner, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.mustUntil("seen the event", func() bool { return s.seen[owner] >= n })
}

// pass returns when the worker has taken all keys that were queued before: another
// owner runs.
func (s *site) pass(owner string, n int) {
	s.t.Helper()
	s.event(owner, n)
	s.mustUntil("run another owner", func() bool { return s.ended[owner] >= n })
}

func (s *site) children(owner string) int {
	s.t.Helper()
	list, err := s.admin.CoreV1().ConfigMaps(s.ns).List(s.t.Context(), metav1.ListOptions{LabelSelector: ownerName + "=" + owner})
	if err != nil {
		s.t.Fatal(err)
	}
	return len(list.Items)
}

// heldWatches holds the events of the watches that match, until release is called.
type heldWatches struct {
	match   func(*http.Request) bool
	mu      sync.Mutex
	release chan struct{} // nil means not held
}

func (h *heldWatches) hold() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := make(chan struct{})
	h.release = ch
	return sync.OnceFunc(func() { close(ch) })
}

func (h *heldWatches) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && req.URL.Query().Get("watch") == "true" && h.match(req) {
			resp.Body = &heldBody{resp.Body, h, req.Context()}
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

type heldBody struct {
	io.ReadCloser
	of  *heldWatches
	ctx context.Context
}

func (b *heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.of.mu.Lock()
	release := b.of.release
	b.of.mu.Unlock()
	if release != nil {
		select {
		case <-release:
		case <-b.ctx.Done():
		}
	}
	return n, err
}

// reading is a way to read the children.
type reading struct {
	name  string
	cache func(other string, opts *cache.Options)
	count func(ctx context.Context, s *site, owner string) (int, error)
	kind  client.Object // of the informer; nil means none
	busy  bool          // the other namespace, whose watch is not held, has events
}

func listed[L client.ObjectList](reader func(*site) client.Reader, newList func() L, count func(L) int) func(context.Context, *site, string) (int, error) {
	return func(ctx context.Context, s *site, owner string) (int, error) {
		list := newList()
		err := reader(s).List(ctx, list, client.InNamespace(s.ns), client.MatchingLabels{ownerName: owner})
		return count(list), err
	}
}

func cached(s *site) client.Reader { return s.mgr.GetClient() }
func live(s *site) client.Reader   { return s.mgr.GetAPIReader() }

var typedChildren = listed(cached, func() *corev1.ConfigMapList { return &corev1.ConfigMapList{} }, func(l *corev1.ConfigMapList) int { return len(l.Items) })

func unstructuredMaps() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	return list
}

func metadataMaps() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	return list
}

func kindOf(obj client.Object) client.Object {
	obj.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	return obj
}

var readings = []reading{
	{name: "typed", kind: &corev1.ConfigMap{}, count: typedChildren},
	{name: "unstructured", kind: kindOf(&unstructured.Unstructured{}), count: listed(cached, unstructuredMaps, func(l *unstructured.UnstructuredList) int { return len(l.Items) })},
	{name: "metadata", kind: kindOf(&metav1.PartialObjectMetadata{}), count: listed(cached, metadataMaps, func(l *metav1.PartialObjectMetadataList) int { return len(l.Items) })},
	{name: "uncached", count: listed(live, func() *corev1.ConfigMapList { return &corev1.ConfigMapList{} }, func(l *corev1.ConfigMapList) int { return len(l.Items) })},
	{name: "several namespaces", kind: &corev1.ConfigMap{}, count: typedChildren, cache: withOther},
	{name: "several namespaces, one busy", kind: &corev1.ConfigMap{}, count: typedChildren, cache: withOther, busy: true},
	{name: "all namespaces", kind: &corev1.ConfigMap{}, count: typedChildren, cache: func(_ string, opts *cache.Options) { opts.DefaultNamespaces = nil }},
}

func withOther(other string, opts *cache.Options) { opts.DefaultNamespaces[other] = cache.Config{} }

// busy creates a ConfigMap in another namespace, and returns when the manager's cache shows it.
func (s *site) busy(namespace string) {
	s.t.Helper()
	made, err := s.admin.CoreV1().ConfigMaps(namespace).Create(s.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "busy-"}}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.mustUntil("cached the object", func() bool { return s.cached[made.UID] })
}

// watch makes the cache's informer of the kind and notes the objects that it shows.
func (s *site) watch(kind client.Object) {
	s.t.Helper()
	informer, err := s.mgr.GetCache().GetInformer(s.t.Context(), kind)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		s.note(func() { s.cached[obj.(client.Object).GetUID()] = true })
	}}); err != nil {
		s.t.Fatal(err)
	}
}

// A reconcile creates a child with generateName if its list shows none. While the watches
// of the children are held, it has ten events. Only with Writes it creates one child,
// however it reads them. The other rows are the facts of the guide's table.
//
// Proves MK2.
func TestServerNoDuplicates(t *testing.T) {
	const events = 10
	for _, tt := range []struct {
		name    string
		options siteOptions
		want    map[string]int // children, by reading; 1 if absent
	}{
		{"plain", siteOptions{}, map[string]int{"typed": events, "unstructured": events, "metadata": events, "several namespaces": events, "several namespaces, one busy": events, "all namespaces": events}},
		{"option", siteOptions{native: true}, map[string]int{"unstructured": events, "metadata": events, "several namespaces, one busy": events}},
		{"writes", siteOptions{gated: true}, nil},
		{"writes and loop", siteOptions{gated: true, loop: true}, nil},
	} {
		for _, r := range readings {
			t.Run(tt.name+"/"+r.name, func(t *testing.T) {
				t.Parallel() // most of the time each of them waits for its server
				o := tt.options
				other := testserver.Namespace(t)
				if r.cache != nil {
					o.cache = func(_ string, opts *cache.Options) { r.cache(other, opts) }
				}
				o.reconcile = func(ctx context.Context, s *site, owner *corev1.ServiceAccount, _ int) (ctrl.Result, error) {
					if n, err := r.count(ctx, s, owner.Name); n > 0 || err != nil {
						return ctrl.Result{}, err
					}
					return ctrl.Result{}, s.mgr.GetClient().Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
						Namespace: s.ns, GenerateName: owner.Name + "-", Labels: map[string]string{ownerName: owner.Name},
					}})
				}
				held := &heldWatches{match: func(req *http.Request) bool {
					return strings.HasSuffix(req.URL.Path, "/configmaps") && !strings.Contains(req.URL.Path, "/namespaces/"+other+"/")
				}}
				o.wrap = held.wrap
				s := newSite(t, o)
				if r.kind != nil {
					s.watch(r.kind)
				}
				if o.native {
					s.watch(&corev1.ConfigMap{}) // or the first typed write makes it, and waits for it
				}
				release := held.hold()
				defer release()
				want := max(1, tt.want[r.name])
				blocked := false
				for n := 1; n <= events; n++ {
					if r.busy {
						s.busy(other)
					}
					s.event("owner", n)
					switch {
					case n == 1 || !o.gated && !o.native || want == events:
						s.mustUntil("run", func() bool { return s.ended["owner"] >= n })
					case o.gated:
						// Another owner's child is not shown either: its key runs once.
						s.pass(fmt.Sprint("other-", n), 1)
					case !blocked: // the worker waits in the read, or reads live
						blocked = !s.until(3*time.Second, func() bool { return s.ended["owner"] >= n })
					}
				}
				s.mu.Lock()
				runs := s.runs["owner"]
				s.mu.Unlock()
				release()
				s.mustUntil("run the last event", func() bool { return s.ended["owner"] >= events })
				if got := s.children("owner"); got != want {
					t.Errorf("%d children, want %d", got, want)
				}
				if o.gated && r.name != "uncached" && runs != 1 {
					t.Errorf("the key ran %d times while its write was not visible, want 1", runs)
				}
				t.Logf("%d children; %d runs while the watch was held", s.children("owner"), runs)
			})
		}
	}
}
