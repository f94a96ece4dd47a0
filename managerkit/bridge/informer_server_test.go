package bridge_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/bridge"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerSharedTerms: managers of several terms share a cache. Each operator sees all objects, and after its end
// the cache has no handler of it.
//
// Proves BR4.
func TestServerSharedTerms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "a"}}))
	handlers := &countedInformer{}
	shared, err := cluster.New(testserver.Config(t), func(o *cluster.Options) {
		o.Scheme, o.Cache = w.scheme, w.options().Cache
		o.Cache.NewInformer = handlers.new
	})
	must(t, err)
	start(t, shared.Start)
	// add is the set-up of a term. The index has the name of each object behind a prefix.
	add := func(mgr ctrl.Manager, prefix string, calls chan<- string) error {
		return bridge.Add(mgr, operator.Options{Name: "terms"}, func(op *operator.Operator) error {
			configMaps := corev1.SchemeGroupVersion.WithResource("configmaps")
			var byName *operator.Reader[*corev1.ConfigMap]
			c := operator.Kind(op, configMaps, operator.Reconciler[*corev1.ConfigMap]{
				Reconcile: func(ctx context.Context, cm *corev1.ConfigMap) (reconcile.Result, error) {
					found, err := byName.ByIndex(ctx, "name", prefix+cm.Name)
					if err != nil || len(found) != 1 || found[0].Name != cm.Name {
						t.Errorf("the index has %d objects for %s: %v", len(found), cm.Name, err)
					}
					calls <- cm.Name
					return reconcile.Result{}, nil
				},
			})
			byName = operator.Reads(c, configMaps, operator.Reading[*corev1.ConfigMap]{Indexes: map[string]func(*corev1.ConfigMap) []string{
				"name": func(cm *corev1.ConfigMap) []string {
					values := map[string]bool{prefix + cm.Name: true}
					for n := range 8 {
						values[fmt.Sprint(n)] = true
					}
					return slices.Collect(maps.Keys(values)) // in another order each time
				},
			}})
			return nil
		})
	}
	for term := range 4 {
		options := w.options()
		must(t, managerkit.Share(&options, shared))
		mgr := w.manager(t, testserver.Config(t), options)
		calls := make(chan string, 100)
		if term == 3 {
			err := add(mgr, "other-", calls)
			if err == nil {
				err = mgr.Start(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), `an index "name" of a former term: it has other values for `) {
				t.Errorf("the error of another index is %v", err)
			}
			break
		}
		must(t, add(mgr, "own-", calls))
		stop := start(t, mgr.Start)
		if name := receive(t, calls, "call"); name != "a" && name != "kube-root-ca.crt" {
			t.Errorf("a call of %s", name)
		}
		must(t, stop())
		if n := handlers.handlers.Load(); n != 0 {
			t.Errorf("%d handlers are left", n)
		}
	}
}

// TestServerSharedTermsIndex: an operator of each term of managerkit.Run has an index. It runs another informer of the
// kind than the one that it indexes by. The first term is lost before the cache has filled, so its operator never runs.
func TestServerSharedTermsIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "a"}}))
	shared, err := cluster.New(testserver.Config(t), func(o *cluster.Options) { o.Scheme, o.Cache = w.scheme, w.options().Cache })
	must(t, err)
	calls := make(chan string, 100)
	setUp := func(mgr ctrl.Manager, op *operator.Operator) error {
		configMaps := corev1.SchemeGroupVersion.WithResource("configmaps")
		own, err := bridge.Informer(mgr, &corev1.ConfigMap{})
		if err != nil {
			return err
		}
		var byName *operator.Reader[*corev1.ConfigMap]
		c := op.Controller("terms", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
			found, err := byName.ByIndex(ctx, "name", key.Name)
			if err != nil || len(found) != 1 || found[0].Name != key.Name {
				t.Errorf("the index has %d objects for %s: %v", len(found), key.Name, err)
			}
			calls <- key.Name
			return reconcile.Result{}, nil
		})
		operator.For(c, configMaps.GroupResource(), informer.With(own, corelisters.NewConfigMapLister))
		byName = operator.Reads(c, configMaps, operator.Reading[*corev1.ConfigMap]{Indexes: map[string]func(*corev1.ConfigMap) []string{
			"name": func(cm *corev1.ConfigMap) []string { return []string{cm.Name} },
		}})
		return nil
	}
	leases := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoordinationV1().Leases(w.namespace)
	lose := func() {
		_, err := leases.Patch(t.Context(), "terms", types.MergePatchType, []byte(`{"spec":{"holderIdentity":"","leaseDurationSeconds":1}}`), metav1.PatchOptions{})
		must(t, err)
	}
	terms := make(chan int, 10)
	term := 0
	stop := start(t, func(ctx context.Context) error {
		return managerkit.Run(ctx, &leader.Elector{Leases: leases, Namespace: w.namespace, Name: "terms"}, func(options manager.Options) (manager.Manager, error) {
			options.Scheme, options.Metrics, options.HealthProbeBindAddress = w.scheme, w.options().Metrics, "0"
			if err := managerkit.Share(&options, shared); err != nil {
				return nil, err
			}
			mgr, err := ctrl.NewManager(testserver.Config(t), options)
			if err != nil {
				return nil, err
			}
			terms <- term
			term++
			return mgr, bridge.Add(mgr, operator.Options{Name: "terms"}, func(op *operator.Operator) error { return setUp(mgr, op) })
		})
	})
	for want := range 3 {
		if got := receive(t, terms, "term"); got != want {
			t.Fatalf("the term is %d, want %d", got, want)
		}
		switch want {
		case 0: // nothing fills the cache
			lose()
			continue
		case 1:
			start(t, shared.Start)
		}
		receive(t, calls, "call")
		for len(calls) > 0 {
			<-calls
		}
		if want == 1 {
			lose()
		}
	}
	must(t, stop())
}

// countedInformer counts the handlers of informers.
type countedInformer struct{ handlers atomic.Int64 }

func (c *countedInformer) new(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return counted{toolscache.NewSharedIndexInformer(lw, obj, resync, indexers), c}
}

type counted struct {
	toolscache.SharedIndexInformer
	*countedInformer
}

func (c counted) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	c.handlers.Add(1)
	return c.SharedIndexInformer.AddEventHandler(handler)
}

func (c counted) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	c.handlers.Add(-1)
	return c.SharedIndexInformer.RemoveEventHandler(handle)
}

// TestServerInformer: an Informer gives its handlers the objects of a running cache, in a Set that stops before the
// cache. Then it takes no handler, and another Informer of the kind works.
//
// Proves BR4.
func TestServerInformer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.Create(t.Context(), w.secret("first", "")))
	shared, err := cluster.New(testserver.Config(t), func(o *cluster.Options) { o.Scheme, o.Cache = w.scheme, w.options().Cache })
	must(t, err)
	start(t, shared.Start)
	for n := range 2 {
		secrets, err := bridge.Informer(shared, &corev1.Secret{})
		must(t, err)
		names := make(chan string, 10)
		handler := toolscache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { names <- obj.(*corev1.Secret).Name }}
		kept, err := secrets.AddEventHandler(handler)
		must(t, err)
		removed, err := secrets.AddEventHandlerWithResyncPeriod(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { t.Error("a removed handler was called") }}, 0)
		must(t, err)
		must(t, secrets.RemoveEventHandler(removed))
		var set informer.Set
		set.Add("secrets", secrets, kept)
		stop := start(t, set.Run)
		receive(t, set.HasSyncedChecker().Done(), "sync")
		if name := receive(t, names, "event"); name != "first" && n == 0 {
			t.Errorf("an event of %s", name)
		}
		late, err := secrets.AddEventHandlerWithOptions(handler, toolscache.HandlerOptions{})
		must(t, err)
		receive(t, late.HasSyncedChecker().Done(), "sync of a late handler")
		if !late.HasSynced() || late.HasSyncedChecker().Name() == "" {
			t.Error("a handler that has synced has not synced")
		}
		must(t, secrets.RemoveEventHandler(late))
		must(t, stop())
		for len(names) > 0 {
			<-names
		}
		if _, err := secrets.AddEventHandler(handler); err == nil || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("a handler after the end: %v", err)
		}
		secret := w.secret("late", "")
		must(t, w.Create(t.Context(), secret))
		await(t, w, &corev1.SecretList{}, "late", func(client.Object) bool { return true })
		must(t, w.Delete(t.Context(), secret))
		if len(names) > 0 {
			t.Errorf("an event of %s after the end", <-names)
		}
		secrets.RunWithContext(t.Context()) // a second time: it returns at once
	}
}

// TestServerBad: what cannot work is an error that names the cure.
func TestServerBad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	setUp := func(*operator.Operator) error { return nil }
	mgr := w.manager(t, testserver.Config(t), w.options())
	several := w.options()
	several.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}}}
	split := w.manager(t, testserver.Config(t), several)
	_, noManager := bridge.Informer(nil, &corev1.Pod{})
	_, noObject := bridge.Informer(mgr, nil)
	_, noKind := bridge.Informer(mgr, &unknown{})
	_, namespaces := bridge.Informer(split, &corev1.Pod{})
	prepare := func(config *rest.Config, namespaces ...string) error {
		options := w.options()
		options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{}}
		for _, ns := range namespaces {
			options.Cache.DefaultNamespaces[ns] = cache.Config{}
		}
		must(t, bridge.Prepare(config, &options))
		_, err := bridge.Informer(w.manager(t, rest.CopyConfig(testserver.Config(t)), options), &corev1.Pod{})
		return err
	}
	otherConfig := prepare(rest.CopyConfig(testserver.Config(t)), w.namespace)
	own := rest.CopyConfig(testserver.Config(t))
	options := w.options()
	options.Cache = cache.Options{DefaultNamespaces: map[string]cache.Config{w.namespace: {}, "": {}}}
	must(t, bridge.Prepare(own, &options))
	_, others := bridge.Informer(w.manager(t, own, options), &corev1.Pod{})
	pods, err := bridge.Informer(mgr, &corev1.Pod{})
	must(t, err)
	_, noHandler := pods.AddEventHandler(nil)
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"no manager", bridge.Add(nil, operator.Options{Name: "bad"}, setUp), "mgr is nil"},
		{"no function", bridge.Add(mgr, operator.Options{Name: "bad"}, nil), "setup is nil"},
		{"a Lease", bridge.Add(mgr, operator.Options{Name: "bad", LeaseNamespace: "shop"}, setUp), "the manager elects"},
		{"a listener", bridge.Add(mgr, operator.Options{Name: "bad", Listen: ":8080"}, setUp), "the manager serves"},
		{"a namespace", bridge.Add(mgr, operator.Options{Name: "bad", Namespace: "shop"}, setUp), "DefaultNamespaces"},
		{"no name", bridge.Add(mgr, operator.Options{}, setUp), "Options.Name is empty"},
		{"setup fails", bridge.Add(mgr, operator.Options{Name: "bad"}, func(*operator.Operator) error { return context.Canceled }), "setup: context canceled"},
		{"no manager for an informer", noManager, "mgr is nil"},
		{"no object", noObject, "obj is nil"},
		{"a kind that the scheme lacks", noKind, "no kind is registered"},
		{"a cache of namespaces", namespaces, "call Prepare"},
		{"Prepare without a config", bridge.Prepare(nil, &several), "config is nil"},
		{"Prepare without options", bridge.Prepare(&rest.Config{}, nil), "options is nil"},
		{"Prepare with a client", bridge.Prepare(&rest.Config{}, &ctrl.Options{Cache: cache.Options{HTTPClient: http.DefaultClient}}), "HTTPClient is set"},
		{"another config", otherConfig, "the same to both"},
		{"all other namespaces", others, "name each namespace"},
		{"no handler", noHandler, "handler is nil"},
		{"a transform", pods.SetTransform(nil), "cache.Options"},
		{"another's handle", pods.RemoveEventHandler(nil), "pass the result of AddEventHandler"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) || !strings.HasPrefix(tt.err.Error(), "bridge: ") {
			t.Errorf("%s: %v, want %q", tt.name, tt.err, tt.want)
		}
	}
	// A wrong registration ends the start of the manager.
	for want, mgr := range map[string]ctrl.Manager{"call Prepare": split, "no kind is registered": w.bare(t)} {
		must(t, bridge.Add(mgr, operator.Options{Name: "bad"}, new(app).setUp))
		if err := mgr.Start(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Start = %v, want %q", err, want)
		}
	}
	stop := start(t, mgr.Start)
	receive(t, mgr.Elected(), "start")
	if err := bridge.Add(mgr, operator.Options{Name: "bad"}, new(app).setUp); err == nil || !strings.Contains(err.Error(), "before the manager starts") {
		t.Errorf("Add after Start = %v", err)
	}
	must(t, stop())
}

// bare returns a manager without the kind Memcached.
func (w world) bare(t *testing.T) ctrl.Manager {
	options := w.options()
	options.Scheme = nil
	return w.manager(t, rest.CopyConfig(testserver.Config(t)), options)
}

type unknown struct{ corev1.Pod }
