package metrics_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/crd/migrate"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shard"
)

// ofOthers are the alerts about a shard.Group and a migrate.Migrator, which an operator need not have.
func ofOthers() []string {
	return []string{"ControllerShardsOwnerless", "ControllerShardsUnbalanced", "ControllerMigrationBlocked"}
}

// TestServerOperatorSeries: in the operator that docs/start.md copies, with default options, all
// series exist that an alert reads, before something goes wrong. Those of a finalizer exist once
// it has blocked an object.
func TestServerOperatorSeries(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	zone := new(dns.Server)
	_, reg, sites := website(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete && broken.Load() {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		zone.ServeHTTP(w, r)
	}))
	awaitEvent(t, sites, "gone", func() { createWebsite(t, sites, "gone") }, func(e watch.Event) bool {
		return len(e.Object.(metav1.Object).GetFinalizers()) > 0
	})
	if err := sites.Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts() {
		if !slices.Contains(ofOthers(), a.name) {
			awaitSeries(t, reg, a.expr)
		}
	}
	awaitEvent(t, sites, "gone", func() { broken.Store(false) }, isDeleted)
}

func isDeleted(e watch.Event) bool { return e.Type == watch.Deleted }

// TestServerScopeSeries: the alerts about informers and objects have their series for a scope,
// whose namespaces come from a ConfigMap as in docs/namespaces.md.
func TestServerScopeSeries(t *testing.T) {
	config, system, namespace := testserver.Config(t), testserver.Namespace(t), testserver.Namespace(t)
	m, reg := newMetrics(t)
	op, err := operator.New(config, operator.Options{Name: "scoped", Metrics: m})
	if err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(op.Config)
	services := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		return coreinformers.NewFilteredServiceInformer(kube, p.Namespace, 0, byNamespace, p.Options), nil
	})
	settings := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(system)).Core().V1().ConfigMaps()
	operator.Follow(op, corev1.Resource("configmaps"), settings, services, func(corelisters.ConfigMapLister) (scope.Selection, error) {
		return scope.Selection{Namespaces: []string{namespace}}, nil
	})
	c := op.Controller("scoped", func(context.Context, types.NamespacedName) (reconcile.Result, error) {
		return reconcile.Result{}, nil
	})
	operator.For(c, corev1.Resource("services"), informer.With(services, corelisters.NewServiceLister))
	run(t, op)
	for _, query := range []string{
		`controller_informer_last_event_age_seconds{name="services"}`, `controller_informer_last_event_age_seconds{name="configmaps (settings)"}`,
		`controller_informer_mutations_total{name="services"}`, `controller_informer_malformed_objects{name="services"}`,
		`controller_objects{controller="scoped"}`, `controller_failing_keys{controller="scoped",result="rejected"}`,
	} {
		awaitSeries(t, reg, query)
	}
}

// run runs an operator until the end of the test.
func run(t *testing.T, op *operator.Operator) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // until the cleanups
	ended := make(chan error, 1)
	go func() { ended <- op.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// awaitEvent acts, and returns after an event of the object for which is returns true.
func awaitEvent(t *testing.T, c interface {
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}, name string, act func(), is func(watch.Event) bool,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := c.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	act()
	for e := range w.ResultChan() {
		if is(e) {
			return
		}
	}
	t.Fatalf("%s has not changed as expected after %v", name, patience)
}

// TestServerPlanAndShardsSeries: the alerts about a finalizer.Plan without Metrics, and about a
// shard.Group and a migrate.Migrator with those of the operator, have their series, also if the
// definition of the Migrator cannot be read.
func TestServerPlanAndShardsSeries(t *testing.T) {
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	m, reg := newMetrics(t)
	op, err := operator.New(config, operator.Options{Name: "planned", Metrics: m})
	if err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(op.Config)
	var open atomic.Bool
	var maps corelisters.ConfigMapLister
	c := op.Controller("planned", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		cm, err := maps.ConfigMaps(key.Namespace).Get(key.Name)
		if err != nil {
			return reconcile.Result{}, nil //nolint:nilerr // it is gone
		}
		plan := finalizer.Plan[*corev1.ConfigMap]{Client: kube.CoreV1().ConfigMaps(namespace), Steps: []finalizer.Step[*corev1.ConfigMap]{{
			Name: "volume", Run: func(context.Context, finalizer.Held[*corev1.ConfigMap]) (finalizer.Progress, error) {
				return finalizer.Progress{Done: open.Load(), After: time.Second}, nil
			},
		}}}
		_, _, err = finalizer.Ensure(ctx, kube.CoreV1().ConfigMaps(namespace), cm, "example.com/volume", plan.Run)
		return reconcile.Result{}, err
	})
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "planned=true" }))
	maps = operator.For(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
	group := &shard.Group{Leases: kubernetes.NewForConfigOrDie(config).CoordinationV1().Leases(namespace), Namespace: namespace, Name: "shop", Ranges: shard.Ranges{N: 4}, Metrics: op.Metrics}
	op.Group.Add("shards", func(ctx context.Context) error {
		return group.Run(ctx, func(ctx context.Context, _ shard.Shard) error {
			<-ctx.Done()
			return nil
		})
	})
	migrator := &migrate.Migrator{Client: dynamic.NewForConfigOrDie(op.Config), Definition: "missing.example.com", Metrics: op.Metrics}
	op.Group.Add("migration", migrator.Run)
	run(t, op)
	for _, a := range alerts() {
		if slices.Contains(ofOthers(), a.name) {
			awaitSeries(t, reg, a.expr)
		}
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"planned": "true"}, Finalizers: []string{"example.com/volume"}}}
	client := kube.CoreV1().ConfigMaps(namespace)
	if _, err := client.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitSeries(t, reg, `controller_finalizer_blocked_oldest_seconds{finalizer="example.com/volume",step="volume"}`)
	awaitEvent(t, client, "one", func() { open.Store(true) }, isDeleted)
}

// A selector is a family with conditions on its labels, and the labels that a query keeps.
type selector struct {
	name     string
	matchers [][]string // label, operator, value
	by       []string
}

var (
	recorded  = regexp.MustCompile(`controller:\w+:\w+`)
	aggregate = regexp.MustCompile(`by \(([\w, ]+)\)`)
	vector    = regexp.MustCompile(`\b((?:controller|workqueue|leader_election)_\w+)(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"`)
)

// selectors returns the series that a query reads, also by recordings.
func selectors(query string) (all []selector) {
	query = recorded.ReplaceAllStringFunc(query, func(name string) string {
		for _, r := range recordings() {
			if r.name == name {
				return r.expr
			}
		}
		return name
	})
	var by []string
	for _, labels := range aggregate.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(labels[1], ", ") {
			if label != "job" && label != "instance" && !slices.Contains(by, label) { // Prometheus adds these
				by = append(by, label)
			}
		}
	}
	for _, v := range vector.FindAllStringSubmatch(query, -1) {
		s := selector{name: v[1], by: by}
		for _, m := range matcher.FindAllStringSubmatch(v[2], -1) {
			s.matchers = append(s.matchers, []string{m[1], m[2], strings.ReplaceAll(m[3], `\\`, `\`)})
		}
		all = append(all, s)
	}
	return all
}

// TestSelectors: the series of a query are found with their labels.
func TestSelectors(t *testing.T) {
	for _, a := range alerts() {
		if all := selectors(a.expr); len(all) == 0 || strings.Contains(fmt.Sprint(all), "controller:") {
			t.Errorf("%s reads %v", a.name, all)
		}
	}
	family := &dto.MetricFamily{Metric: []*dto.Metric{{Label: []*dto.LabelPair{{Name: new("name"), Value: new("a.b")}}}}}
	for text, want := range map[string]bool{
		`workqueue_depth`:                                  true,
		`sum by (job, name) (workqueue_depth)`:             true,
		`sum by (job, other) (workqueue_depth)`:            false,
		`workqueue_depth{name="a.b"}`:                      true,
		`workqueue_depth{name="a"}`:                        false,
		`workqueue_depth{name!="a"}`:                       true,
		`workqueue_depth{name=~"a\\.b|c"}`:                 true,
		`workqueue_depth{name=~"a"}`:                       false,
		`workqueue_depth{name!~"a.*"}`:                     false,
		`workqueue_depth{name="a.b",other="x"}`:            false,
		`rate(workqueue_depth{name="a.b"}[5m]) > 0 or foo`: true,
	} {
		if got := selectors(text)[0].in(family); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
}

// in reports whether a series of the family fits.
func (s selector) in(family *dto.MetricFamily) bool {
	return slices.ContainsFunc(family.GetMetric(), func(m *dto.Metric) bool {
		labels := map[string]string{}
		if h := m.GetHistogram(); h != nil && strings.HasSuffix(s.name, "_bucket") {
			for _, b := range h.GetBucket() {
				if b.GetUpperBound() == 60 {
					labels["le"] = "60"
				}
			}
		}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		for _, label := range s.by {
			if labels[label] == "" {
				return false
			}
		}
		for _, m := range s.matchers {
			equal := labels[m[0]] == m[2]
			if strings.HasSuffix(m[1], "~") {
				equal = regexp.MustCompile("^(?:" + m[2] + ")$").MatchString(labels[m[0]])
			}
			if equal == strings.HasPrefix(m[1], "!") {
				return false
			}
		}
		return true
	})
}

// awaitSeries waits until all series that a query reads are in a scrape.
func awaitSeries(t *testing.T, reg prometheus.Gatherer, query string) {
	t.Helper()
	var missing []selector
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(100 * time.Millisecond) {
		missing = nil
		gathered, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		families := map[string]*dto.MetricFamily{}
		for _, f := range gathered {
			families[f.GetName()] = f
		}
		for _, s := range selectors(query) {
			name := s.name
			for _, suffix := range []string{"_bucket", "_count"} {
				if base, ok := strings.CutSuffix(name, suffix); ok && families[base] != nil {
					name = base
				}
			}
			if !s.in(families[name]) {
				missing = append(missing, s)
			}
		}
		if len(missing) == 0 {
			return
		}
	}
	t.Errorf("no series for %v of %s", missing, query)
}
