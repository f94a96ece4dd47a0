package operator_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

func nothing(context.Context, types.NamespacedName) (reconcile.Result, error) {
	return reconcile.Result{}, nil
}

func newFactory() informers.SharedInformerFactory {
	return informers.NewSharedInformerFactory(fake.NewClientset(), 0)
}

// nowhere is the address of no API server.
func nowhere() *rest.Config { return &rest.Config{Host: "http://127.0.0.1:1"} }

func TestNewInput(t *testing.T) {
	for _, tc := range []struct {
		name    string
		config  *rest.Config
		options operator.Options
		want    string
	}{
		{name: "no config", options: operator.Options{Name: "x"}, want: "operator: config is nil"},
		{name: "no name", config: nowhere(), want: "operator: Options.Name is empty"},
		{name: "a name of no Event", config: nowhere(), options: operator.Options{Name: "a b"}, want: `operator: Options.Name is "a b", which an Event`},
		{name: "a name of no Lease", config: nowhere(), options: operator.Options{Name: "example.com/x", LeaseNamespace: "y"}, want: `operator: Options.Name is "example.com/x", which a Lease`},
		{name: "a namespace that cannot be", config: nowhere(), options: operator.Options{Name: "x", LeaseNamespace: "Y"}, want: `operator: Options.LeaseNamespace is "Y"`},
		{name: "a prefix of no annotation", config: nowhere(), options: operator.Options{Name: "x", AnnotationPrefix: "a/b"}, want: `operator: Options.AnnotationPrefix is "a/b"`},
		{name: "negative time", config: nowhere(), options: operator.Options{Name: "x", GracePeriod: -1}, want: "must not be negative"},
		{name: "negative start", config: nowhere(), options: operator.Options{Name: "x", StartTimeout: -1}, want: "must not be negative"},
		{name: "short time", config: nowhere(), options: operator.Options{Name: "x", GracePeriod: time.Millisecond}, want: "Options.GracePeriod 1ms is too short"},
		{name: "shortest time", config: nowhere(), options: operator.Options{Name: "x", GracePeriod: 1}, want: "Options.GracePeriod 1ns is too short"},
		{name: "no host", config: &rest.Config{}, options: operator.Options{Name: "x", LeaseNamespace: "y"}, want: "config.Host is empty"},
		{name: "bad host", config: &rest.Config{Host: "http://%"}, options: operator.Options{Name: "x"}, want: "operator: "},
	} {
		op, err := operator.New(tc.config, tc.options)
		if op != nil || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: New() = %v, want an error with %q", tc.name, err, tc.want)
		}
	}
	config := nowhere()
	op, err := operator.New(config, operator.Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if op.Config == config || config.WrapTransport != nil || config.UserAgent != "" || config.QPS != 0 {
		t.Errorf("New changed the caller's configuration: %+v", config)
	}
	if op.Config.QPS != -1 || !strings.HasSuffix(op.Config.UserAgent, "/x") {
		t.Errorf("Config has QPS %v and user agent %q", op.Config.QPS, op.Config.UserAgent)
	}
}

// TestRegistrations proves CK2.
func TestRegistrations(t *testing.T) {
	configMaps, secrets := corev1.Resource("configmaps"), corev1.Resource("secrets")
	for _, tc := range []struct {
		name     string
		register func(op *operator.Operator)
		want     string
	}{
		{name: "no controller", register: func(*operator.Operator) {}, want: "operator: no controller: call Operator.Controller"},
		{name: "no For", register: func(op *operator.Operator) { op.Controller("a", nothing) }, want: `operator: controller "a" reconciles nothing: call operator.For`},
		{name: "no function", register: func(op *operator.Operator) {
			operator.For(op.Controller("a", nil), configMaps, newFactory().Core().V1().ConfigMaps())
		}, want: `operator: controller "a": reconcile is nil`},
		{name: "no name", register: func(op *operator.Operator) {
			operator.For(op.Controller("", nothing), configMaps, newFactory().Core().V1().ConfigMaps())
		}, want: "operator: a controller has an empty name"},
		{name: "a name twice", register: func(op *operator.Operator) {
			f := newFactory()
			operator.For(op.Controller("a", nothing), configMaps, f.Core().V1().ConfigMaps())
			operator.For(op.Controller("a", nothing), configMaps, f.Core().V1().ConfigMaps())
		}, want: `operator: two controllers have the name "a"`},
		{name: "For twice", register: func(op *operator.Operator) {
			c, f := op.Controller("a", nothing), newFactory()
			operator.For(c, configMaps, f.Core().V1().ConfigMaps())
			operator.For(c, secrets, f.Core().V1().Secrets())
		}, want: `operator: controller "a": For was called for configmaps and for secrets`},
		{name: "no informer", register: func(op *operator.Operator) {
			operator.For(op.Controller("a", nothing), configMaps, coreinformers.ConfigMapInformer(nil))
		}, want: `operator: controller "a": the informer of configmaps is nil`},
		{name: "no resource", register: func(op *operator.Operator) {
			operator.For(op.Controller("a", nothing), schema.GroupResource{}, newFactory().Core().V1().ConfigMaps())
		}, want: `operator: controller "a": a resource is empty`},
		{name: "no keys", register: func(op *operator.Operator) {
			c, f := op.Controller("a", nothing), newFactory()
			operator.For(c, configMaps, f.Core().V1().ConfigMaps())
			operator.Watches[*corev1.Secret](c, secrets, f.Core().V1().Secrets(), nil)
		}, want: `operator: controller "a": the function of Watches for secrets is nil`},
		{name: "no predicate", register: func(op *operator.Operator) {
			operator.For(op.Controller("a", nothing), configMaps, newFactory().Core().V1().ConfigMaps(), enqueue.Predicate[*corev1.ConfigMap](nil))
		}, want: `operator: controller "a": a predicate for configmaps is nil`},
		{name: "two informers in a controller", register: func(op *operator.Operator) {
			c := op.Controller("a", nothing)
			operator.For(c, configMaps, newFactory().Core().V1().ConfigMaps())
			operator.Owns(c, configMaps, newFactory().Core().V1().ConfigMaps())
		}, want: "operator: configmaps has two informers"},
		{name: "two informers in two controllers", register: func(op *operator.Operator) {
			operator.For(op.Controller("a", nothing), configMaps, newFactory().Core().V1().ConfigMaps())
			operator.For(op.Controller("b", nothing), configMaps, newFactory().Core().V1().ConfigMaps())
		}, want: `operator: configmaps has two informers, in controller "a" and controller "b"`},
		{name: "one informer of two resources", register: func(op *operator.Operator) {
			c, f := op.Controller("a", nothing), newFactory()
			operator.For(c, configMaps, f.Core().V1().ConfigMaps())
			operator.Owns(c, secrets, f.Core().V1().ConfigMaps())
		}, want: "operator: configmaps and secrets have the same informer"},
		{name: "two mistakes", register: func(op *operator.Operator) {
			c, f := op.Controller("", nothing), newFactory()
			operator.For(c, configMaps, f.Core().V1().ConfigMaps())
			operator.Owns(c, secrets, f.Core().V1().ConfigMaps())
		}, want: "operator: a controller has an empty name\noperator: configmaps and secrets have the same informer"},
		{name: "long grace period", register: func(op *operator.Operator) {
			c := op.Controller("a", nothing)
			operator.For(c, configMaps, newFactory().Core().V1().ConfigMaps())
			c.Loop.GracePeriod = time.Minute
		}, want: `operator: controller "a": Loop.GracePeriod 1m0s does not fit into the operator's GracePeriod 28s: use at most 21s`},
		{name: "long call", register: func(op *operator.Operator) {
			c := op.Controller("a", nothing)
			operator.For(c, configMaps, newFactory().Core().V1().ConfigMaps())
			c.Loop.Timeout = 21 * time.Second
		}, want: `operator: controller "a": Loop.Timeout 21s is longer than Loop.GracePeriod 20s`},
		{name: "writes without verbs", register: func(op *operator.Operator) {
			operator.For(op.Controller("a", nothing), configMaps, newFactory().Core().V1().ConfigMaps())
			op.Writes(secrets)
		}, want: `operator: Writes("secrets", []): name a resource and its verbs`},
		{name: "a misspelt verb", register: func(op *operator.Operator) {
			op.Writes(secrets, "create", "updte")
		}, want: `operator: Writes("secrets", ["create" "updte"]): no request has the verb "updte": use some of ["get" "list"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			op, err := operator.New(nowhere(), operator.Options{Name: "x"})
			if err != nil {
				t.Fatal(err)
			}
			tc.register(op)
			err = op.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("Run() = %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// TestRulesAreSorted tests that the rules, which a program can print as its manifest, are the
// same each time.
func TestRulesAreSorted(t *testing.T) {
	op, err := operator.New(nowhere(), operator.Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a", "b", "c", "d", "e", "f"}
	verbs := []string{"get", "list", "watch", "create", "update", "delete"} // so that each has a rule of its own
	for i, resource := range []string{"d", "f", "a", "c", "e", "b"} {
		op.Writes(corev1.Resource(resource), "patch")
		op.Writes(schema.GroupResource{Group: "z", Resource: resource}, verbs[i])
	}
	rules, _ := op.Rules()
	if got := rules[0].Resources; !slices.Equal(got, want) {
		t.Errorf("resources of a rule: got %v, want %v", got, want)
	}
	var got []string
	for _, rule := range rules[2:] { // after the one of Events
		got = append(got, rule.Resources...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("resources of rules of a group: got %v, want %v", got, want)
	}
}

// TestRulesOfAnotherLease tests that the rules of leases name the Lease of Elector, such as that of the
// manager that the operator replaces.
func TestRulesOfAnotherLease(t *testing.T) {
	op, err := operator.New(nowhere(), operator.Options{Name: "x", LeaseNamespace: "y"})
	if err != nil {
		t.Fatal(err)
	}
	op.Elector.Name = "80807133.example.com"
	_, leases := op.Rules()
	if got, want := leases[0].ResourceNames, []string{op.Elector.Name}; !slices.Equal(got, want) {
		t.Errorf("the rules name the Leases %q, want %q", got, want)
	}
}

// TestTurns tests that namespaces take turns in the queue: an object of one does not wait for the many
// of another.
func TestTurns(t *testing.T) {
	op, err := operator.New(nowhere(), operator.Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	c := op.Controller("a", nothing)
	operator.For(c, corev1.Resource("configmaps"), newFactory().Core().V1().ConfigMaps())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = op.Run(ctx) // it makes the queue; there is no API server
	for i := range 100 {
		c.Loop.Queue.Add(types.NamespacedName{Namespace: "red", Name: strconv.Itoa(i)})
	}
	c.Loop.Queue.Add(types.NamespacedName{Namespace: "blue", Name: "home"})
	var got []string
	for range 2 {
		key, _ := c.Loop.Queue.Get()
		got = append(got, key.Namespace)
		c.Loop.Queue.Done(key)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"blue", "red"}) {
		t.Errorf("the first two keys are of %v, want one of each namespace", got)
	}
}

// TestEndpoints tests that the Mux has the endpoints once Run was called, and that the
// caller's own handler stays.
func TestEndpoints(t *testing.T) {
	op, err := operator.New(nowhere(), operator.Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	op.Mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	operator.For(op.Controller("a", nothing), corev1.Resource("configmaps"), newFactory().Core().V1().ConfigMaps())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = op.Run(ctx) // there is no API server
	for path, want := range map[string]int{
		"/metrics": http.StatusOK,
		"/readyz":  http.StatusServiceUnavailable, // it has stopped
		"/livez":   http.StatusTeapot,
		"/other":   http.StatusNotFound,
	} {
		w := httptest.NewRecorder()
		op.Mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s: status %d with %q, want %d", path, w.Code, w.Body, want)
		}
	}
}

// TestListsAreConsistent tests that lists of informers do not come from the cache of the
// API server, which can be older than what an earlier process saw.
func TestListsAreConsistent(t *testing.T) {
	queries := make(chan url.Values, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		queries <- r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	}))
	defer server.Close()
	op, err := operator.New(&rest.Config{Host: server.URL}, operator.Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(op.Config)
	if _, err := client.CoreV1().ConfigMaps("a").List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		t.Fatal(err)
	}
	if q := <-queries; q.Has("resourceVersion") {
		t.Errorf("the list has the query %v, want no resourceVersion", q)
	}
}

// object is a type of a kind with another name and no status.
type object struct{ corev1.ConfigMap }

func (o *object) DeepCopy() *object { return &object{*o.ConfigMap.DeepCopy()} }

// TestMarkedByOthers: the marks of children in other namespaces run no key without Elsewhere, and with it only that of the
// owner that has the UID. Anyone who may edit an object can mark it.
func TestMarkedByOthers(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		op, err := operator.New(nowhere(), operator.Options{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		c := operator.Kind(op, boxVersion.WithResource("boxes"), operator.Reconciler[*Box]{
			Reconcile: func(context.Context, *Box) (reconcile.Result, error) { return reconcile.Result{}, nil },
			Cleanup:   func(context.Context, *Box) error { return nil }, Finalizer: "a.example.com/b", Elsewhere: elsewhere,
		})
		operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
		if err := operator.CacheOwner(c, &Box{ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: "a", UID: "1"}}); err != nil {
			t.Fatal(err)
		}
		for uid, runs := range map[string]bool{"1": elsewhere, "x": false} {
			child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: "mine", Name: "c", Labels: map[string]string{"controllerkit.github.io/owner-uid": uid},
				Annotations: map[string]string{"controllerkit.github.io/owner": "boxes." + boxVersion.Group + "/theirs/a"},
			}}
			if keys := operator.ChildKeys(c, child); len(keys) > 0 != runs {
				t.Errorf("Elsewhere %t, the uid %s: the keys are %v", elsewhere, uid, keys)
			}
		}
	}
}

// TestKindInput: Run returns the mistakes of Kind, Children, Reads and Inform.
func TestKindInput(t *testing.T) {
	works := func(context.Context, *Box) (reconcile.Result, error) { return reconcile.Result{}, nil }
	cleanup := func(context.Context, *Box) error { return nil }
	boxes, configMaps := boxVersion.WithResource("boxes"), corev1.SchemeGroupVersion.WithResource("configmaps")
	kind := func(r operator.Reconciler[*Box]) func(op *operator.Operator) {
		return func(op *operator.Operator) { operator.Kind(op, boxes, r) }
	}
	reads := func(r operator.Reading[*corev1.Secret]) func(op *operator.Operator) {
		return func(op *operator.Operator) {
			c := op.Controller("x", nothing)
			operator.For(c, corev1.Resource("configmaps"), newFactory().Core().V1().ConfigMaps())
			operator.Reads(c, secretsVersion, r)
		}
	}
	for want, register := range map[string]func(op *operator.Operator){
		"Reconciler.Reconcile is nil":                   kind(operator.Reconciler[*Box]{}),
		"Reconciler.Cleanup needs a finalizer":          kind(operator.Reconciler[*Box]{Reconcile: works, Cleanup: cleanup}),
		"Reconciler.Elsewhere needs a finalizer":        kind(operator.Reconciler[*Box]{Reconcile: works, Elsewhere: true}),
		"Reconciler.Finalizer has no work: set Cleanup": kind(operator.Reconciler[*Box]{Reconcile: works, Finalizer: "a.example.com/b"}),
		`Reconciler.Finalizer is "b": use a domain`:     kind(operator.Reconciler[*Box]{Reconcile: works, Cleanup: cleanup, Finalizer: "b"}),
		"Reconciler.PruneAll has no effect":             kind(operator.Reconciler[*Box]{Reconcile: works, PruneAll: true}),
		"Reconciler.Phases and ReadOnly exclude":        kind(operator.Reconciler[*Box]{Reconcile: works, ReadOnly: true, Phases: phases()}),
		`Reconciler.Phases has the state "Unknown"`:     kind(operator.Reconciler[*Box]{Reconcile: works, Phases: map[kstatus.State]string{kstatus.Unknown: "x"}}),
		"Phases is set, and the status of *v1.ConfigMap has no text field phase": func(op *operator.Operator) {
			operator.Kind(op, configMaps, operator.Reconciler[*corev1.ConfigMap]{Phases: phases(), Reconcile: func(context.Context, *corev1.ConfigMap) (reconcile.Result, error) { return reconcile.Result{}, nil }})
		},
		"the status of Deployment belongs to another controller: set Reconciler.ReadOnly": func(op *operator.Operator) {
			operator.Kind(op, appsv1.SchemeGroupVersion.WithResource("deployments"), operator.Reconciler[*appsv1.Deployment]{Reconcile: func(context.Context, *appsv1.Deployment) (reconcile.Result, error) { return reconcile.Result{}, nil }})
		},
		"Children of configmaps: the controller was not made by Kind, so use Owns": func(op *operator.Operator) {
			operator.Children(op.Controller("x", nothing), configMaps, applycorev1.ExtractConfigMap)
		},
		"Children was called twice for configmaps": func(op *operator.Operator) {
			c := operator.Kind(op, boxes, operator.Reconciler[*Box]{Reconcile: works})
			operator.Children(c, configMaps, applycorev1.ExtractConfigMap)
			operator.Children(c, configMaps, applycorev1.ExtractConfigMap)
		},
		"configmaps has two Go types": func(op *operator.Operator) {
			c := operator.Kind(op, boxes, operator.Reconciler[*Box]{Reconcile: works})
			operator.Children(c, configMaps, applycorev1.ExtractConfigMap)
			operator.Kind(op, configMaps, operator.Reconciler[*object]{Reconcile: func(context.Context, *object) (reconcile.Result, error) { return reconcile.Result{}, nil }})
		},
		"configmaps has two versions, v1 and v2": func(op *operator.Operator) {
			c := operator.Kind(op, boxes, operator.Reconciler[*Box]{Reconcile: works})
			operator.Children(c, configMaps, applycorev1.ExtractConfigMap)
			operator.Children(c, schema.GroupVersionResource{Version: "v2", Resource: "configmaps"}, applycorev1.ExtractConfigMap)
		},
		`kind has Version "": use the version alone`: func(op *operator.Operator) {
			operator.Kind(op, schema.GroupVersionResource{Group: "g.io", Resource: "boxes"}, operator.Reconciler[*Box]{Reconcile: works})
		},
		"secrets: the Go type is *unstructured.Unstructured, which is for any kind: use a struct with the name of the kind": func(op *operator.Operator) {
			operator.Reads(op.Controller("x", nothing), secretsVersion, operator.Reading[*unstructured.Unstructured]{})
		},
		"secrets: the Go type is *v1.PartialObjectMetadata, which is for any kind": func(op *operator.Operator) {
			operator.Reads(op.Controller("x", nothing), secretsVersion, operator.Reading[*metav1.PartialObjectMetadata]{})
		},
		"Reads of secrets: Reading.Names needs Single":                        reads(operator.Reading[*corev1.Secret]{Names: []string{"x"}}),
		"Reads of secrets: a name in Reading.Names is empty":                  reads(operator.Reading[*corev1.Secret]{Single: true, Names: []string{""}}),
		"Reads of secrets: Reading.Single excludes Optional and Indexes":      reads(operator.Reading[*corev1.Secret]{Single: true, Indexes: map[string]func(*corev1.Secret) []string{"x": nil}}),
		`reads: the index "x" of secrets has an empty name or a nil function`: reads(operator.Reading[*corev1.Secret]{Indexes: map[string]func(*corev1.Secret) []string{"x": nil}}),
		"secrets is required in one registration and optional in another": func(op *operator.Operator) {
			reads(operator.Reading[*corev1.Secret]{})(op)
			operator.Reads(op.Controller("y", nothing), secretsVersion, operator.Reading[*corev1.Secret]{Optional: true})
		},
		"secrets has an informer of Inform, which cannot be single": func(op *operator.Operator) {
			op.Inform(corev1.Resource("secrets"), newFactory().Core().V1().Secrets().Informer())
			reads(operator.Reading[*corev1.Secret]{Single: true})(op)
		},
		"secrets has two informers, in controller \"x\" and controller \"z\"": func(op *operator.Operator) {
			reads(operator.Reading[*corev1.Secret]{})(op)
			operator.Reads(op.Controller("y", nothing), secretsVersion, operator.Reading[*corev1.Secret]{})
			operator.Watches(op.Controller("z", nothing), corev1.Resource("secrets"), newFactory().Core().V1().Secrets(), func(*corev1.Secret) []types.NamespacedName { return nil })
		},
		"Inform: the informer of configmaps is nil": func(op *operator.Operator) { op.Inform(corev1.Resource("configmaps"), nil) },
		"secrets: the function of InformFrom returned no informer": func(op *operator.Operator) {
			op.InformFrom(func(schema.GroupVersionKind, controllerkit.Object) (cache.SharedIndexInformer, error) {
				return nil, nil
			})
			reads(operator.Reading[*corev1.Secret]{})(op)
		},
		"secrets: no cache of Secret *v1.Secret": func(op *operator.Operator) {
			op.InformFrom(func(kind schema.GroupVersionKind, obj controllerkit.Object) (cache.SharedIndexInformer, error) {
				return nil, fmt.Errorf("no cache of %s %T", kind.Kind, obj)
			})
			reads(operator.Reading[*corev1.Secret]{})(op)
			if n := len(op.Controllers()); n != 1 {
				t.Errorf("%d controllers, want 1", n)
			}
		},
		"Inform: configmaps has an informer already": func(op *operator.Operator) {
			operator.Children(operator.Kind(op, boxes, operator.Reconciler[*Box]{Reconcile: works}), configMaps, applycorev1.ExtractConfigMap)
			op.Inform(corev1.Resource("configmaps"), newFactory().Core().V1().ConfigMaps().Informer())
		},
	} {
		op, err := operator.New(nowhere(), operator.Options{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		register(op)
		if err := op.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run() = %v, want an error with %q", err, want)
		}
	}
}

// TestSamePlural: kinds of two groups that have one plural are in one operator, and a kind is there once.
func TestSamePlural(t *testing.T) {
	op, err := operator.New(nowhere(), operator.Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	works := operator.Reconciler[*Box]{Reconcile: func(context.Context, *Box) (reconcile.Result, error) { return reconcile.Result{}, nil }}
	boxes, others := boxVersion.WithResource("boxes"), schema.GroupVersionResource{Group: "other.io", Version: "v1", Resource: "boxes"}
	var names []string
	for _, resource := range []schema.GroupVersionResource{boxes, others, others, boxes} {
		names = append(names, operator.Kind(op, resource, works).Loop.Name)
	}
	if want := []string{"boxes", "boxes.other.io", "boxes.other.io", "boxes"}; !slices.Equal(names, want) {
		t.Errorf("the controllers have the names %q, want %q", names, want)
	}
	const want = `operator: two controllers have the name "boxes.other.io": the name labels metrics, so use another
operator: two controllers have the name "boxes": the name labels metrics, so use another`
	if err := op.Run(t.Context()); err == nil || err.Error() != want {
		t.Errorf("Run() = %v, want %s", err, want)
	}
}
