package managerkit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientfeatures "k8s.io/client-go/features"
	featuretest "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/managerkit"
)

// gated is a Writes with the gate of one controller.
type gated struct {
	*managerkit.Writes
	controllerkit.Gate[ctrl.Request]
}

var request = ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "a", Name: "x"}}

// fakeInformer has a version and objects that the test sets.
type fakeInformer struct {
	toolscache.SharedIndexInformer
	store   *fakeStore
	stopped atomic.Bool
}

func newFake() *fakeInformer {
	return &fakeInformer{store: &fakeStore{Store: toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)}}
}

func (f *fakeInformer) GetStore() toolscache.Store { return f.store }
func (f *fakeInformer) IsStopped() bool            { return f.stopped.Load() }
func (f *fakeInformer) AddEventHandler(toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return nil, nil
}

type fakeStore struct {
	toolscache.Store
	version atomic.Value // a string
}

func (f *fakeStore) LastStoreSyncResourceVersion() string {
	version, _ := f.version.Load().(string)
	return version
}

func (f *fakeInformer) holds(t *testing.T, version string, objects ...any) {
	t.Helper()
	if err := f.store.Replace(objects, version); err != nil {
		t.Fatal(err)
	}
	f.store.version.Store(version)
}

// listOptions is a ListerWatcher that notes its lists, and cannot stream them.
type listOptions struct {
	toolscache.ListerWatcher
	got []metav1.ListOptions
}

func (l *listOptions) List(opts metav1.ListOptions) (runtime.Object, error) {
	l.got = append(l.got, opts)
	return &corev1.ConfigMapList{}, nil
}

func (*listOptions) IsWatchListSemanticsUnSupported() bool { return true }

// An informer's list never comes from the API server's cache, so that an informer which
// starts after a write shows it. Later lists and the kind of watch are those of the informer.
//
// Proves MK2.
func TestWritesConsistentLists(t *testing.T) {
	for _, tt := range []struct{ sent, want metav1.ListOptions }{
		{metav1.ListOptions{ResourceVersion: "0", Limit: 5}, metav1.ListOptions{Limit: 5}},
		{metav1.ListOptions{ResourceVersion: "0", ResourceVersionMatch: "NotOlderThan"}, metav1.ListOptions{}},
		{metav1.ListOptions{ResourceVersion: "7"}, metav1.ListOptions{ResourceVersion: "7"}},
	} {
		lists := &listOptions{}
		lw := listerOf(t, lists)
		if _, err := toolscache.ToListerWatcherWithContext(lw).ListWithContext(t.Context(), tt.sent); err != nil {
			t.Fatal(err)
		}
		if got := lists.got; len(got) != 1 || got[0] != tt.want {
			t.Errorf("List(%+v) sends %+v, want %+v", tt.sent, got, tt.want)
		}
		if !watchlist.DoesClientNotSupportWatchListSemantics(lw) {
			t.Error("the informer streams its list although its client cannot")
		}
		if watchlist.DoesClientNotSupportWatchListSemantics(listerOf(t, &toolscache.ListWatch{})) {
			t.Error("the informer does not stream its list although its client can")
		}
	}
}

// listerOf returns what the informer gets for the ListerWatcher of the cache.
func listerOf(t *testing.T, inner toolscache.ListerWatcher) (got toolscache.ListerWatcher) {
	t.Helper()
	config, options := &rest.Config{}, &manager.Options{NewCache: func(_ *rest.Config, opts cache.Options) (cache.Cache, error) {
		_ = opts.NewInformer(inner, &corev1.ConfigMap{}, 0, nil)
		return nil, nil
	}}
	if err := managerkit.NewWrites(consistency.Config{}).Install(config, options); err != nil {
		t.Fatal(err)
	}
	if _, err := rest.HTTPClientFor(config); err != nil {
		t.Fatal(err)
	}
	_, err := options.NewCache(config, cache.Options{Scheme: scheme.Scheme, Mapper: mapper(), NewInformer: func(lw toolscache.ListerWatcher, _ runtime.Object, _ time.Duration, _ toolscache.Indexers) toolscache.SharedIndexInformer {
		got = lw
		return newFake()
	}})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	return mapper
}

// opened returns a Writes with an open cache, and the NewInformer of that cache. The
// informers are the given ones.
func opened(t *testing.T, cfg consistency.Config, opts cache.Options, fakes ...toolscache.SharedIndexInformer) (gated, *rest.Config, func(runtime.Object) toolscache.SharedIndexInformer) {
	t.Helper()
	w := managerkit.NewWrites(cfg)
	config := &rest.Config{Host: "http://server.invalid"}
	var made cache.Options
	options := manager.Options{NewCache: func(_ *rest.Config, opts cache.Options) (cache.Cache, error) {
		made = opts
		return nil, nil
	}}
	if err := w.Install(config, &options); err != nil {
		t.Fatal(err)
	}
	if _, err := rest.HTTPClientFor(config); err != nil { // as ctrl.NewManager does
		t.Fatal(err)
	}
	opts.Scheme = scheme.Scheme
	opts.Mapper = mapper()
	opts.NewInformer = func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer {
		next := fakes[0]
		fakes = fakes[1:]
		return next
	}
	if _, err := options.NewCache(config, opts); err != nil {
		t.Fatal(err)
	}
	return gated{w, w.Gate()}, config, func(obj runtime.Object) toolscache.SharedIndexInformer {
		return made.NewInformer(&toolscache.ListWatch{}, obj, 0, nil)
	}
}

func configMap(name, uid, version string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(uid), ResourceVersion: version}}
}

// wrote is a run that makes a write at the version.
func wrote(t *testing.T, w gated, version string) {
	t.Helper()
	ctx := w.Begin(t.Context(), request)
	defer w.End(request)
	if err := w.WroteAt(ctx, configMap("child", "1", version)); err != nil {
		t.Fatal(err)
	}
}

// A key is ready when the last of the informers of a resource shows its write. A stopped
// informer does not count.
//
// Proves MK2.
func TestWritesSeveralInformers(t *testing.T) {
	one, two, three := newFake(), newFake(), newFake()
	w, _, newInformer := opened(t, consistency.Config{MaxWait: -1}, cache.Options{}, one, two, three)
	typed := &corev1.ConfigMap{}
	if got := newInformer(typed); got != toolscache.SharedIndexInformer(one) {
		t.Errorf("NewInformer() = %v, want the one of the options", got)
	}
	if !w.Ready(request, nil) {
		t.Error("Ready() = false before any write")
	}
	one.holds(t, "10")
	newInformer(kindOf(&metav1.PartialObjectMetadata{})) // two, with no version yet
	wrote(t, w, "10")
	is := func(when string, want bool) {
		t.Helper()
		if got := w.Ready(request, nil); got != want {
			t.Errorf("%s: Ready() = %t, want %t", when, got, want)
		}
	}
	is("the second informer has no version", false)
	two.holds(t, "9")
	is("the second informer is behind", false)
	two.holds(t, "10")
	is("both informers show the write", true)
	wrote(t, w, "12")
	one.holds(t, "12")
	is("the second informer is behind", false)
	two.stopped.Store(true)
	is("the second informer has stopped", true)
	newInformer(typed)
	wrote(t, w, "13")
	one.holds(t, "13")
	is("the third informer has no version", false)
	one.stopped.Store(true)
	three.stopped.Store(true)
	is("all have stopped", true)
}

// A conflict is over when all informers that hold the object show a newer one. A deletion
// is visible when none holds the object. LiveRead is false after each of them.
//
// Proves MK2.
func TestWritesConflictsAndDeletions(t *testing.T) {
	one, two := newFake(), newFake()
	w, config, newInformer := opened(t, consistency.Config{MaxWait: -1}, cache.Options{}, one, two)
	newInformer(&corev1.ConfigMap{})
	newInformer(kindOf(&metav1.PartialObjectMetadata{}))
	old, changed := configMap("child", "1", "10"), configMap("child", "1", "20")
	one.holds(t, "20", changed)
	two.holds(t, "11", old)

	var status int
	var body string
	next := roundTripper(func(*http.Request) (*http.Response, error) {
		recorded := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(body))}
		recorded.Body = http.NoBody
		if body != "" {
			recorded.Body = readCloser{strings.NewReader(body)}
		}
		return recorded, nil
	})
	send := func(method, sent string) {
		t.Helper()
		ctx := w.Begin(t.Context(), request)
		defer w.End(request)
		req, err := http.NewRequestWithContext(ctx, method, "http://server.invalid/api/v1/namespaces/a/configmaps/child", strings.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := config.WrapTransport(next).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	is := func(when string, want bool) {
		t.Helper()
		if got := w.Ready(request, nil); got != want {
			t.Errorf("%s: Ready() = %t, want %t", when, got, want)
		} else if got && consistency.LiveRead(w.Begin(t.Context(), request)) {
			t.Errorf("%s: LiveRead() = true", when)
		}
	}
	status, body = 409, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409,"details":{"name":"child","kind":"configmaps"}}`
	send(http.MethodPut, `{"metadata":{"namespace":"a","name":"child","uid":"1","resourceVersion":"10"}}`)
	is("one informer shows the old object", false)
	two.holds(t, "20", changed)
	is("both show the new object", true)

	status, body = 200, `{"kind":"Status","apiVersion":"v1","status":"Success","details":{"name":"child","kind":"configmaps","uid":"1"}}`
	send(http.MethodDelete, "")
	is("both hold the deleted object", false)
	one.holds(t, "30")
	is("one holds the deleted object", false)
	two.holds(t, "30", configMap("child", "2", "30"))
	is("none holds it", true)
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// The errors name what is wrong and its cure.

func TestWritesErrors(t *testing.T) {
	installed := managerkit.NewWrites(consistency.Config{})
	if err := installed.Install(&rest.Config{}, &manager.Options{}); err != nil {
		t.Fatal(err)
	}
	withStores := managerkit.NewWrites(consistency.Config{Stores: map[schema.GroupResource]interface{ LastStoreSyncResourceVersion() string }{{Resource: "pods"}: nil}})
	for _, tt := range []struct {
		name    string
		writes  *managerkit.Writes
		config  *rest.Config
		options *manager.Options
		want    string
	}{
		{"nil", nil, &rest.Config{}, &manager.Options{}, "use NewWrites"},
		{"zero", &managerkit.Writes{}, &rest.Config{}, &manager.Options{}, "use NewWrites"},
		{"no config", managerkit.NewWrites(consistency.Config{}), nil, &manager.Options{}, "config is nil"},
		{"no options", managerkit.NewWrites(consistency.Config{}), &rest.Config{}, nil, "options is nil"},
		{"stores", withStores, &rest.Config{}, &manager.Options{}, "Config.Stores"},
		{"client", managerkit.NewWrites(consistency.Config{}), &rest.Config{}, &manager.Options{Client: client.Options{HTTPClient: &http.Client{}}}, "options.Client.HTTPClient"},
		{"cache client", managerkit.NewWrites(consistency.Config{}), &rest.Config{}, &manager.Options{Cache: cache.Options{HTTPClient: &http.Client{}}}, "options.Cache.HTTPClient"},
		{"twice", installed, &rest.Config{}, &manager.Options{}, "twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wantError(t, tt.writes.Install(tt.config, tt.options), tt.want)
		})
	}

	t.Run("no versions", func(t *testing.T) {
		featuretest.SetFeatureDuringTest(t, clientfeatures.AtomicFIFO, false)
		wantError(t, managerkit.NewWrites(consistency.Config{}).Install(&rest.Config{}, &manager.Options{}), "remove KUBE_FEATURE_AtomicFIFO=false")
	})
	t.Run("another config", func(t *testing.T) {
		w, options := managerkit.NewWrites(consistency.Config{}), &manager.Options{}
		if err := w.Install(&rest.Config{}, options); err != nil {
			t.Fatal(err)
		}
		_, err := ctrl.NewManager(&rest.Config{Host: "http://server.invalid"}, *options)
		wantError(t, err, "is not the one that Install got")
	})
	t.Run("two caches", func(t *testing.T) {
		w, config, options := managerkit.NewWrites(consistency.Config{}), &rest.Config{}, &manager.Options{}
		if err := w.Install(config, options); err != nil {
			t.Fatal(err)
		}
		if _, err := rest.HTTPClientFor(config); err != nil {
			t.Fatal(err)
		}
		opts := cache.Options{Scheme: scheme.Scheme, Mapper: meta.NewDefaultRESTMapper(nil)}
		if _, err := options.NewCache(config, cache.Options{}); err == nil || !strings.Contains(err.Error(), "no Mapper") {
			t.Errorf("NewCache() without a Mapper = %v, want an error", err)
		}
		if _, err := options.NewCache(config, opts); err != nil {
			t.Fatal(err)
		}
		_, err := options.NewCache(config, opts)
		wantError(t, err, "second cache")
	})
	t.Run("unknown kind", func(t *testing.T) {
		_, _, newInformer := opened(t, consistency.Config{}, cache.Options{}, newFake())
		wantError(t, newInformer(&corev1.Pod{}).SetTransform(nil), "find the resource of /v1, Kind=Pod")
	})
	t.Run("nil informer", func(t *testing.T) {
		_, _, newInformer := opened(t, consistency.Config{}, cache.Options{}, (*fakeInformer)(nil))
		wantError(t, newInformer(&corev1.ConfigMap{}).SetTransform(nil), "NewInformer returned nil")
	})
	for _, tt := range []struct {
		name   string
		writes *managerkit.Writes
		want   string
	}{
		{"nil", nil, "use NewWrites"},
		{"zero", &managerkit.Writes{}, "use NewWrites"},
		{"not installed", managerkit.NewWrites(consistency.Config{}), "call Install before ctrl.NewManager"},
		{"no manager", installed, "call Install before ctrl.NewManager"},
	} {
		t.Run("run: "+tt.name, func(t *testing.T) {
			next := crreconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
				t.Error("the reconcile ran")
				return ctrl.Result{}, nil
			})
			_, err := tt.writes.Reconciler(next).Reconcile(t.Context(), request)
			wantError(t, err, tt.want)
			if !errors.Is(err, crreconcile.TerminalError(nil)) {
				t.Errorf("Reconcile() = %v, want a terminal error", err)
			}
			gate := tt.writes.Gate()
			if !gate.Ready(request, nil) {
				t.Error("Ready() = false, so that Begin never logs the error")
			}
			ctx := gate.Begin(klog.NewContext(t.Context(), klog.Logger{}), request)
			if ctx.Err() == nil {
				t.Error("the context of Begin is not done")
			}
			wantError(t, context.Cause(ctx), tt.want)
			wantError(t, tt.writes.WroteAt(ctx, configMap("child", "1", "1")), tt.want)
			gate.End(request)
		})
	}
	w, _, _ := opened(t, consistency.Config{}, cache.Options{})
	_, err := w.Reconciler(crreconcile.Func(nil)).Reconcile(t.Context(), request)
	wantError(t, err, "next is nil")
	ctx := w.Begin(t.Context(), request)
	wantError(t, w.WroteAt(t.Context(), configMap("child", "1", "1")), "ctx is not that of a run")
	wantError(t, w.WroteAt(ctx, nil), "obj is nil")
	wantError(t, w.WroteAt(ctx, (*corev1.ConfigMap)(nil)), "obj is nil")
	wantError(t, w.WroteAt(ctx, configMap("child", "1", "")), "no resource version")
	wantError(t, w.WroteAt(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}), "find the resource of /v1, Kind=Pod")
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "managerkit: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want one line of managerkit with %q", err, text)
	}
}

// A key that waits is checked after 20ms, later at most once a second, and at once when it
// is added by an event. A failed key waits for its backoff, which grows with each failure.

func TestWritesDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newFake()
		w, _, newInformer := opened(t, consistency.Config{MaxWait: -1}, cache.Options{}, one)
		newInformer(&corev1.ConfigMap{})
		one.holds(t, "1")
		var runs int
		var fails error
		r := w.Reconciler(crreconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
			runs++
			if err := w.WroteAt(ctx, configMap("child", "1", "100")); err != nil {
				t.Fatal(err)
			}
			return ctrl.Result{}, fails
		}))
		run := func() time.Duration {
			t.Helper()
			result, err := r.Reconcile(t.Context(), request)
			if err != nil && !errors.Is(err, fails) || result.Priority != nil {
				t.Fatalf("Reconcile() = %+v, %v", result, err)
			}
			return result.RequeueAfter
		}
		if got := run(); got != 0 || runs != 1 {
			t.Fatalf("the first call: RequeueAfter %v, %d runs", got, runs)
		}
		for _, want := range []time.Duration{20, 20, 40, 80, 160, 320, 640, 1000, 1000} {
			if got := run(); got != want*time.Millisecond || runs != 1 {
				t.Errorf("RequeueAfter %v after %d runs, want %v after 1", got, runs, want*time.Millisecond)
			}
			time.Sleep(want * time.Millisecond)
		}
		fails = errors.New("failed")
		one.holds(t, "100")
		time.Sleep(time.Second) // the store's own check
		one.holds(t, "50")      // the next write is not visible again
		for failures, want := range []time.Duration{20, 20, 20, 40, 80, 160} {
			if run(); runs != failures+2 {
				t.Fatalf("%d runs, want %d: the key did not run when its write was visible", runs, failures+2)
			}
			if got := run(); got != want*time.Millisecond {
				t.Errorf("RequeueAfter %v after %d failures, want %v", got, failures+1, want*time.Millisecond)
			}
			one.holds(t, "100")
			time.Sleep(time.Second)
			one.holds(t, "50")
		}
		fails = nil
		run()
		if got := run(); got != 20*time.Millisecond {
			t.Errorf("RequeueAfter %v after a success, want 20ms", got)
		}
		fails = crreconcile.TerminalError(errors.New("failed for good"))
		for range 15 {
			one.holds(t, "100")
			time.Sleep(time.Second)
			one.holds(t, "50")
			run()
		}
		if got := run(); got != 20*time.Millisecond {
			t.Errorf("RequeueAfter %v after terminal errors, want 20ms", got)
		}
		one.holds(t, "100")
		time.Sleep(time.Second)
	})
}

// The first write of a resource without an informer is logged. WroteAt of its kind is an
// error. Both name the resource and the cure. A write to another API server is an error.
func TestWritesUnwatched(t *testing.T) {
	one, logs := newFake(), testlog.New()
	w, config, newInformer := opened(t, consistency.Config{}, cache.Options{}, one)
	ctx := w.Begin(logs.Context(t.Context()), request)
	defer w.End(request)
	transport := config.WrapTransport(roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody}, nil
	}))
	send := func(host, path string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete, host+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	write := func(path string) {
		t.Helper()
		if err := send("http://server.invalid", path); err != nil {
			t.Fatal(err)
		}
	}
	logged := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, line := range logs.Find("Later runs do not wait for this write") {
			got = append(got, fmt.Sprint(line.Values["reason"]))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: logged %q, want %q", when, got, want)
		}
	}
	const maps, deployments = "/api/v1/namespaces/a/configmaps/x", "/clusters/c/apis/apps/v1/namespaces/a/deployments/x/scale"
	of := func(resource string) string {
		return "the manager's cache does not watch " + resource + ": add Owns or Watches to the builder, or read it with mgr.GetAPIReader()"
	}
	write("/healthz") // no resource
	write(deployments)
	write(deployments)
	logged("two writes", of("deployments.apps"))
	wantError(t, w.WroteAt(ctx, configMap("child", "1", "1")), of("configmaps"))

	newInformer(&corev1.ConfigMap{})
	write(maps)
	logged("a watched resource", of("deployments.apps"))
	if err := w.WroteAt(ctx, configMap("child", "1", "1")); err != nil {
		t.Error(err)
	}
	one.stopped.Store(true)
	write(maps)
	write("/api/v1/namespaces/a/finalize")
	logged("a stopped informer", of("deployments.apps"), of("configmaps"), of("namespaces"))

	wantError(t, send("http://other.invalid", maps), "a reconcile writes to other.invalid, and the manager's cache is of server.invalid: make this client from a configuration without Install")
}
