package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// TestBadScenarios: a scenario that cannot be explored ends, in time, with a
// message that says which and what to change.
//
// Proves X4.
func TestBadScenarios(t *testing.T) {
	t.Parallel()
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	var number atomic.Int64
	tests := []struct {
		name   string
		copier copier
		with   func(s *controllertest.Scenario, o *controllertest.Options)
		within time.Duration
		want   []string
	}{
		{
			name: "writes a resource that is not served",
			with: func(s *controllertest.Scenario, o *controllertest.Options) {
				s.Start = writesGadget(s.Start)
				s.Converged = func(*controllertest.State) error { return errors.New("the gadget is missing") }
				o.ConvergeTimeout = 2 * time.Second
			},
			want: []string{"without any fault", "liveness: not converged 2s after", "the gadget is missing", "the API server does not serve gadgets.example.com: add its CRD to Scenario.CRDs"},
		}, {
			name: "never converges",
			with: func(s *controllertest.Scenario, o *controllertest.Options) {
				s.Converged = func(*controllertest.State) error { return errors.New("the moon is missing") }
				o.ConvergeTimeout = 2 * time.Second
			},
			want: []string{"without any fault", "liveness: not converged 2s after", "the moon is missing", "mend the controller or Converged, or set a longer Options.ConvergeTimeout"},
		}, {
			name: "Converged changes its mind",
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Converged = func(*controllertest.State) error {
					if number.Add(1)%2 == 0 {
						return errors.New("a coin fell on its head")
					}
					return nil
				}
			},
			want: []string{`controllertest: copier: Scenario.Converged returned nil and also an error for one state: let it depend on the state alone: a coin fell on its head`},
		}, {
			name: "others write without end",
			with: func(s *controllertest.Scenario, o *controllertest.Options) {
				s.Start = beside(t, s.Start, func(ctx context.Context, others typedv1.ConfigMapInterface) {
					for n := 0; ctx.Err() == nil; n++ {
						_, _ = others.Patch(ctx, "a", types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%d"}}`, n), metav1.PatchOptions{FieldManager: "somebody"})
					}
				})
				o.QuietPeriod, o.ConvergeTimeout = time.Second, 3*time.Second
			},
			want: []string{"without any fault", "quiescence: no rest of 1s within 3s", `/a was written by an unknown client, which is no part of the exploration: use a cluster on which it does not run`},
		}, {
			name: "others do the work",
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				start := s.Start
				s.Start = func(ctx context.Context, _ *rest.Config, env *controllertest.Env) error {
					cfg := testserver.Config(t)
					cfg.UserAgent = "somebody/1"
					return start(ctx, cfg, env)
				}
			},
			want: []string{"the controller made no write", `/a-copy was written by "somebody"`},
		}, {
			name: "writes without end",
			copier: copier{begin: func(ctx context.Context, c *copying) error {
				go func() {
					for n := 0; ctx.Err() == nil; n++ {
						_ = c.annotate(ctx, "a", fmt.Sprint(n))
					}
				}()
				return nil
			}},
			with: func(_ *controllertest.Scenario, o *controllertest.Options) {
				o.QuietPeriod, o.ConvergeTimeout = time.Second, 3*time.Second
			},
			want: []string{"without any fault", "quiescence: no rest of 1s within 3s", "patch configmaps a metadata.annotations", "a longer Options.QuietPeriod"},
		}, {
			name:   "a queue that is never empty",
			copier: copier{begin: func(_ context.Context, c *copying) error { c.env.Queue(queueOf(1)); return nil }},
			with:   func(_ *controllertest.Scenario, o *controllertest.Options) { o.ConvergeTimeout = 2 * time.Second },
			want:   []string{"without any fault", "a queue is not empty at rest", "mend its endless writes or its queue"},
		}, {
			name:   "an error at the start",
			copier: copier{begin: func(context.Context, *copying) error { return errors.New("no luck") }},
			with:   func(_ *controllertest.Scenario, o *controllertest.Options) { o.ConvergeTimeout = 2 * time.Second },
			want:   []string{"without any fault", "health: Start returned while its context was not done: no luck"},
		}, {
			name:   "returns at once",
			copier: copier{begin: func(context.Context, *copying) error { return nil }},
			with: func(s *controllertest.Scenario, o *controllertest.Options) {
				s.Start = func(context.Context, *rest.Config, *controllertest.Env) error { return nil }
				o.ConvergeTimeout = 2 * time.Second
			},
			want: []string{"without any fault", "Start returned while its context was not done: <nil>"},
		}, {
			name:   "panics at the start",
			copier: copier{begin: func(context.Context, *copying) error { panic("bang") }},
			with:   func(_ *controllertest.Scenario, o *controllertest.Options) { o.ConvergeTimeout = 2 * time.Second },
			want:   []string{"without any fault", "health: panic: bang", "the controller or the script fails without faults: mend it"},
		}, {
			name:   "panics at the start in a worker of client-go",
			copier: copier{begin: panicking},
			want:   []string{"without any fault", "health: panic: in a worker of client-go"},
		}, {
			name:   "Start ends its goroutine",
			copier: copier{begin: func(context.Context, *copying) error { runtime.Goexit(); return nil }},
			with:   func(_ *controllertest.Scenario, o *controllertest.Options) { o.ConvergeTimeout = 2 * time.Second },
			want:   []string{"without any fault", "health: Start returned while its context was not done: it called runtime.Goexit, as t.FailNow does: return an error instead"},
		}, {
			name:   "a step that ends its goroutine under a plan",
			copier: *notes(),
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
					copied, err := createsAndAwaits(ctx, cfg, env)
					if err == nil && copied.Annotations["second"] != "" {
						runtime.Goexit()
					}
					return err
				}
			},
			want: []string{`controllertest: copier: a function of the scenario called runtime.Goexit, as t.FailNow does, in plan "` + dropped + `", in or after step "create a": return an error instead`},
		}, {
			name:   "Converged panics under a plan",
			copier: *notes(),
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Converged = func(s *controllertest.State) error {
					if c := s.Get("configmaps", "a-copy"); c != nil && c.GetAnnotations()["second"] != "" {
						panic("bang")
					}
					return copied(s)
				}
			},
			want: []string{`controllertest: copier: a function of the scenario panicked (bang) in plan "` + dropped + `", in or after step "create a": return an error instead`, "bad_test.go"},
		}, {
			name:   "an invariant panics under a plan",
			copier: *notes(),
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Invariants = []controllertest.Invariant{{Name: "first attempt", Check: func(s *controllertest.State) error {
					if c := s.Get("configmaps", "a-copy"); c != nil && c.GetAnnotations()["second"] != "" {
						panic("bang")
					}
					return nil
				}}}
			},
			want: []string{`a function of the scenario panicked (bang) in plan "` + dropped + `"`},
		}, {
			name:   "does not stop",
			copier: copier{end: func(*copying) { <-forever }},
			with:   func(_ *controllertest.Scenario, o *controllertest.Options) { o.StopTimeout = time.Second },
			want:   []string{"without any fault", "Start has not returned 1s after its context was done", "bad_test.go"},
		}, {
			name:   "leaves goroutines",
			copier: copier{begin: func(context.Context, *copying) error { go func() { <-forever }(); return nil }},
			with:   func(_ *controllertest.Scenario, o *controllertest.Options) { o.StopTimeout = time.Second },
			want:   []string{"without any fault", "goroutines are left 1s after the run", "bad_test.go"},
		}, {
			name: "is told differently each time",
			copier: copier{begin: func(ctx context.Context, c *copying) error {
				for m := range 5 {
					_, err := c.configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("x-%d-%d", number.Add(1), m)}}, metav1.CreateOptions{})
					if err != nil {
						return err
					}
				}
				return nil
			}},
			want: []string{"controllertest: copier: the runs without faults differ, so plans cannot name the operations", "create configmaps x-", "give objects fixed names"},
		}, {
			name: "has another number of steps each time",
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Script = []controllertest.Step{{Name: "create a, or not", Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
					if n := number.Add(1); n%2 == 0 && strings.HasSuffix(env.Namespace, "-3") {
						return createsA(ctx, cfg, env)
					}
					kube, err := kubernetes.NewForConfig(cfg)
					if err == nil && !strings.HasSuffix(env.Namespace, "-2") {
						_, err = kube.CoreV1().ConfigMaps(env.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
					}
					return err
				}}}
			},
			want: []string{"controllertest: copier: the runs without faults differ: one had", "let the script create the same objects each time"},
		}, {
			name: "needs longer than the budget",
			with: func(_ *controllertest.Scenario, o *controllertest.Options) { o.Budget = time.Millisecond },
			want: []string{"controllertest: copier: the runs without faults took", "more than Options.Budget, which is 1ms", "make the script shorter"},
		}, {
			name: "does nothing",
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Start = func(ctx context.Context, _ *rest.Config, _ *controllertest.Env) error { <-ctx.Done(); return nil }
				s.Converged = func(*controllertest.State) error { return nil }
			},
			want: []string{"controllertest: copier: the controller made no write, read or external call", "let Start use its configuration"},
		}, {
			name: "ignores its configuration",
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				start := s.Start
				s.Start = func(ctx context.Context, _ *rest.Config, env *controllertest.Env) error {
					return start(ctx, testserver.Config(t), env)
				}
			},
			want: []string{"controllertest: copier: the controller made no write, read or external call", "let Start use its configuration"},
		}, {
			name: "a step that fails",
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Script[0].Do = func(context.Context, *rest.Config, *controllertest.Env) error { return errors.New("no such thing") }
			},
			want: []string{"without any fault", `health: step "create a": no such thing`},
		}, {
			name: "an invariant that never holds",
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Invariants = []controllertest.Invariant{{Name: "never", Check: func(*controllertest.State) error { return errors.New("no") }}}
			},
			want: []string{"without any fault", "invariant: never: no (at version ", "the scenario fails without faults"},
		}, {
			name: "Setup fails",
			with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Setup = func(context.Context, *rest.Config) error { return errors.New("no such server") }
			},
			want: []string{"controllertest: copier: Setup: no such server"},
		}, {
			name: "no Start", with: func(s *controllertest.Scenario, _ *controllertest.Options) { s.Start = nil },
			want: []string{"controllertest: copier: Scenario.Start is not set: give it"},
		}, {
			name: "no Script", with: func(s *controllertest.Scenario, _ *controllertest.Options) { s.Script = nil },
			want: []string{"Scenario.Script is not set: give it"},
		}, {
			name: "no Do", with: func(s *controllertest.Scenario, _ *controllertest.Options) { s.Script[0].Do = nil },
			want: []string{"Scenario.Script[0].Do is not set: give it"},
		}, {
			name: "no Converged", with: func(s *controllertest.Scenario, _ *controllertest.Options) { s.Converged = nil },
			want: []string{"Scenario.Converged is not set: give it"},
		}, {
			name: "no Check", with: func(s *controllertest.Scenario, _ *controllertest.Options) {
				s.Invariants = make([]controllertest.Invariant, 1)
			},
			want: []string{"Scenario.Invariants[0].Check is not set: give it"},
		}, {
			name: "negative Replicas", with: func(s *controllertest.Scenario, _ *controllertest.Options) { s.Replicas = -1 },
			want: []string{"controllertest: copier: Scenario.Replicas is -1: use 0 for the default"},
		}, {
			name: "negative Pause", with: func(s *controllertest.Scenario, _ *controllertest.Options) { s.Pause = -1 },
			want: []string{"controllertest: copier: Scenario.Pause is -1ns: use 0 for the default"},
		}, {
			name: "negative ConvergeTimeout", with: func(_ *controllertest.Scenario, o *controllertest.Options) { o.ConvergeTimeout = -1 },
			want: []string{"controllertest: Options.ConvergeTimeout is negative: use 0 for the default"},
		}, {
			name: "a kind that does not exist", with: func(_ *controllertest.Scenario, o *controllertest.Options) {
				o.Faults = []controllertest.Kind{"meteor"}
			},
			want: []string{`controllertest: Options.Faults: kind "meteor" does not exist: use one of [crash-before`},
		}, {
			name: "a plan that is none", with: func(_ *controllertest.Scenario, o *controllertest.Options) { o.Plans = []string{"meteor@x#1"} },
			want: []string{`kind "meteor" does not exist: use one of`},
		}, {
			name: "no fault that makes sense", with: func(_ *controllertest.Scenario, o *controllertest.Options) {
				o.Plans, o.Faults = nil, []controllertest.Kind{controllertest.SlowRenewal}
			},
			want: []string{"controllertest: no plan ran"},
		}, {
			name: "a server that is not there", with: func(_ *controllertest.Scenario, o *controllertest.Options) {
				o.Config = &rest.Config{Host: "http://127.0.0.1:1"}
			},
			want: []string{"controllertest: ", "connection refused"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, o := test.copier.scenario(), quick(t, dropped)
			if test.with != nil {
				test.with(&s, &o)
			}
			began := time.Now()
			rec := record(t, func(tb testing.TB) { controllertest.Explore(tb, s, o) })
			if !rec.failed {
				t.Error("the test did not fail")
			}
			if text := rec.errors(); slices.ContainsFunc(test.want, func(part string) bool { return !strings.Contains(text, part) }) {
				t.Errorf("Explore reports\n%s\nwant %q", text, test.want)
			}
			// On a busy machine five times ConvergeTimeout may not count, and the rest takes longer.
			if took, most := time.Since(began), 6*o.ConvergeTimeout+o.StopTimeout+2*time.Minute; took > most {
				t.Errorf("it took %v, want at most %v", took, most)
			}
		})
	}
}

// beside returns a Start that also runs others, who act on the namespace of a run and are no part of
// the exploration.
func beside(t *testing.T, start func(context.Context, *rest.Config, *controllertest.Env) error, others func(context.Context, typedv1.ConfigMapInterface)) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(testserver.Config(t))
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		wg.Go(func() { others(ctx, kube.CoreV1().ConfigMaps(env.Namespace)) })
		defer wg.Wait()
		return start(ctx, cfg, env)
	}
}

// TestStopped: the end of the context ends an exploration, and leaves nothing.
//
// Proves X5.
func TestStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.Map
	var n atomic.Int64
	c := copier{begin: func(_ context.Context, c *copying) error {
		if _, again := runs.LoadOrStore(c.env.Namespace, true); !again && n.Add(1) == 10 {
			cancel()
		}
		return nil
	}}
	o := quick(t)
	o.Faults = []controllertest.Kind{controllertest.DropRequest, controllertest.LostResponse, controllertest.Pause, controllertest.CrashAfter, controllertest.CrashBefore, controllertest.Conflict}
	report, err := controllertest.Run(ctx, c.scenario(), o)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if report != nil {
		for _, f := range report.Failures {
			t.Errorf("held against the controller: %s", f)
		}
	}
}

// TestSweep: on a cluster that goes on, nothing is left that holds anything.
//
// Proves X5.
func TestSweep(t *testing.T) {
	t.Parallel()
	kube, err := kubernetes.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	var namespaces sync.Map
	c := copier{
		begin: func(ctx context.Context, c *copying) error {
			namespaces.Store(c.env.Namespace, true)
			// A finalizer that nobody removes any more when the story ends early.
			_, err := c.configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "stuck", Finalizers: []string{"example.com/stuck"}}}, metav1.CreateOptions{})
			return ignoreExists(err)
		},
		end: func(c *copying) {
			// What was on its way when the process was killed.
			_, err := kube.CoreV1().ConfigMaps(c.env.Namespace).Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late", Finalizers: []string{"example.com/stuck"}}}, metav1.CreateOptions{})
			if ignoreExists(err) != nil {
				t.Error(err)
			}
		},
	}
	o := quick(t, dropped)
	o.KeepNamespaces = false
	s := c.scenario()
	bad := c.scenario()
	bad.Converged = func(*controllertest.State) error { return errors.New("never") }
	short := o
	short.ConvergeTimeout = time.Second
	run(t, s, o)
	run(t, bad, short)

	n := 0
	for name := range namespaces.Range {
		n++
		ns, err := kube.CoreV1().Namespaces().Get(t.Context(), name.(string), metav1.GetOptions{})
		if err == nil && ns.DeletionTimestamp == nil {
			t.Errorf("namespace %s is left", name)
		}
		all, err := kube.CoreV1().ConfigMaps(name.(string)).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, cm := range all.Items {
			if len(cm.Finalizers) > 0 {
				t.Errorf("%s/%s still has %v", name, cm.Name, cm.Finalizers)
			}
		}
	}
	if n < 6 {
		t.Errorf("%d namespaces were seen", n)
	}
}

// TestSweepFails: an object that cannot be deleted is an error, which names a few of many
// and the cure, and all others are deleted.
//
// Proves X5.
func TestSweepFails(t *testing.T) {
	t.Parallel()
	kube, err := kubernetes.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	var namespace atomic.Value // of a run
	c := copier{begin: func(ctx context.Context, c *copying) error {
		namespace.Store(c.env.Namespace)
		for _, name := range []string{"held", "kept-1", "kept-2"} {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if name == "held" {
				object.Finalizers = []string{"example.com/held"}
			}
			if _, err := c.configMaps.Create(ctx, object, metav1.CreateOptions{}); ignoreExists(err) != nil {
				return err
			}
		}
		return nil
	}}
	o := quick(t, dropped)
	o.KeepNamespaces, o.ConvergeTimeout = false, time.Minute
	o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			name := path.Base(req.URL.Path)
			if req.Method == http.MethodDelete && strings.HasPrefix(name, "kept") || req.Method == http.MethodPatch && name == "held" {
				return &http.Response{
					StatusCode: http.StatusForbidden, Request: req, Header: http.Header{"Content-Type": {"application/json"}},
					Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"not for you"}`)),
				}, nil
			}
			return next.RoundTrip(req)
		})
	})
	report, err := controllertest.Run(t.Context(), c.scenario(), o)
	if err == nil || report == nil || report.Valid != 1 {
		t.Fatalf("the error is %v, the report\n%v", err, report)
	}
	ns, _ := namespace.Load().(string)
	prefix := ns[:strings.LastIndexByte(ns, '-')]
	for _, part := range []string{
		"controllertest: remove the finalizers of configmaps/" + prefix + "-1/held: not for you", "controllertest: delete configmaps/" + prefix + "-1/kept-1: not for you",
		"controllertest: 15 requests of the cleanup failed: delete the objects above and the namespaces that begin with " + prefix + "-, or set Options.KeepNamespaces",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error is\n%v\nwant %q", err, part)
		}
	}
	if n := strings.Count(err.Error(), "not for you"); n != 5 {
		t.Errorf("the error names %d objects, want 5:\n%v", n, err)
	}
	for n := range report.Plans + 4 { // so that the namespaces of all runs end
		_, err := kube.CoreV1().ConfigMaps(fmt.Sprintf("%s-%d", prefix, n+1)).Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if ignoreNotFound(err) != nil {
			t.Error(err)
		}
	}
	if got, err := kube.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{}); err == nil && got.DeletionTimestamp == nil {
		t.Errorf("namespace %s is left", ns)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// writesGadget creates an object of a resource that is not served, before start.
func writesGadget(start func(context.Context, *rest.Config, *controllertest.Env) error) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		gadgets := dynamic.NewForConfigOrDie(cfg).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"})
		gadget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": map[string]any{"name": "g"}}}
		if _, err := gadgets.Namespace(env.Namespace).Create(ctx, gadget, metav1.CreateOptions{}); ignoreNotFound(err) != nil {
			return err
		}
		return start(ctx, cfg, env)
	}
}

// TestUnservedResource: a controller may handle the response that a resource is not served.
func TestUnservedResource(t *testing.T) {
	t.Parallel()
	s := (&copier{}).scenario()
	s.Start = writesGadget(s.Start)
	if report := run(t, s, quick(t, dropped)); len(report.Failures) > 0 {
		t.Errorf("the exploration failed:\n%s", report)
	}
}
