package managerkit_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

// spans is a transport as a tracer has it: it sends a copy of the request with a context of its
// own, and returns a response with a body of its own.
type spans struct{ sent atomic.Int64 }

type spanKey struct{}

func (s *spans) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Method != http.MethodGet {
			s.sent.Add(1)
		}
		resp, err := next.RoundTrip(req.Clone(context.WithValue(req.Context(), spanKey{}, s)))
		if err == nil {
			resp.Body = struct{ io.ReadCloser }{resp.Body}
		}
		return resp, err
	})
}

// TestServerWrapped: the manager's client is an interceptor, and the configuration has a tracer's
// transport below and above Writes. The writes of a Client pass through all of them, and the key
// waits for its writes as without them.
//
// Proves MK2.
func TestServerWrapped(t *testing.T) {
	t.Parallel()
	const events = 5
	var below, above spans
	var creates, applies atomic.Int64
	held := &heldWatches{match: func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/configmaps") }}
	s := newSite(t, siteOptions{
		gated: true, loop: true,
		wrap:  func(next http.RoundTripper) http.RoundTripper { return below.wrap(held.wrap(next)) },
		outer: above.wrap,
		client: func(config *rest.Config, options client.Options) (client.Client, error) {
			c, err := client.NewWithWatch(config, options)
			if err != nil {
				return nil, err
			}
			return interceptor.NewClient(c, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
					creates.Add(1)
					return c.Create(ctx, obj, opts...)
				},
				Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
					applies.Add(1)
					return c.Apply(ctx, obj, opts...)
				},
				Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
					applies.Add(1)
					return c.Patch(ctx, obj, patch, opts...)
				},
			}), nil
		},
		reconcile: func(ctx context.Context, s *site, owner *corev1.ServiceAccount, _ int) (ctrl.Result, error) {
			var children corev1.ConfigMapList
			labels := client.MatchingLabels{ownerName: owner.Name}
			if err := s.mgr.GetClient().List(ctx, &children, client.InNamespace(s.ns), labels); err != nil || len(children.Items) > 0 {
				return ctrl.Result{}, err
			}
			maps, err := managerkit.NewClient[*corev1.ConfigMap](s.mgr.GetClient(), s.mgr.GetAPIReader())
			if err != nil {
				return ctrl.Result{}, err
			}
			child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: owner.Name + "-", Labels: labels}}
			if _, err := maps.Namespace(s.ns).Create(ctx, child, metav1.CreateOptions{}); err != nil {
				return ctrl.Result{}, err
			}
			config := applycorev1.ConfigMap("of-"+owner.Name, s.ns).WithData(map[string]string{"a": "b"})
			_, err = maps.Namespace(s.ns).Apply(ctx, config, metav1.ApplyOptions{FieldManager: "test.example.com/wrapped"})
			return ctrl.Result{}, err
		},
	})
	s.watch(&corev1.ConfigMap{})
	release := held.hold()
	defer release()
	s.event("owner", 1)
	s.mustUntil("run", func() bool { return s.ended["owner"] >= 1 })
	for n := 2; n <= events; n++ {
		s.event("owner", n)
		s.pass(fmt.Sprint("other-", n), 1) // another owner's child is not shown either: its key runs once
	}
	release()
	s.mustUntil("run the last event", func() bool { return s.ended["owner"] >= events })
	if got := s.children("owner"); got != 1 {
		t.Errorf("%d children, want 1", got)
	}
	for name, got := range map[string]int64{
		"creates of the interceptor": creates.Load(), "applies of the interceptor": applies.Load(),
		"requests of the transport below": below.sent.Load() / 2, "requests of the transport above": above.sent.Load() / 2,
	} {
		if got != events { // an owner and the others
			t.Errorf("%s: %d, want %d", name, got, events)
		}
	}
}

// TestServerTwoManagers: two managers of a process have controllers of the same name, each with
// Writes and a loop. Each runs its own keys, and one goes on after the other has stopped. Without
// SkipNameValidation the second controller is an error.
func TestServerTwoManagers(t *testing.T) {
	t.Parallel()
	first, second, keys := testserver.Namespace(t), testserver.Namespace(t), make(chan string, 1000)
	name := "mk-two-" + first // a name of its own for each run of the test
	build := func(namespace string, skip bool) (ctrl.Manager, error) {
		config, options, writes := testserver.Config(t), quiet(), managerkit.NewWrites(consistency.Config{})
		options.Cache.DefaultNamespaces = map[string]cache.Config{namespace: {}}
		options.Controller.SkipNameValidation = &skip
		if err := writes.Install(config, &options); err != nil {
			return nil, err
		}
		mgr, err := ctrl.NewManager(config, options)
		if err != nil {
			return nil, err
		}
		b := ctrl.NewControllerManagedBy(mgr).Named(name).For(&corev1.ConfigMap{}, builder.WithPredicates(named("a", "b")))
		f := crreconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
			keys <- namespace + " runs " + req.String()
			cm := &corev1.ConfigMap{}
			if err := mgr.GetClient().Get(ctx, req.NamespacedName, cm); err != nil || cm.Data["seen"] != "" {
				return ctrl.Result{}, client.IgnoreNotFound(err)
			}
			cm.Data = map[string]string{"seen": "yes"}
			return ctrl.Result{}, mgr.GetClient().Update(ctx, cm)
		})
		return mgr, managerkit.Complete(b, f, &reconcile.Controller[ctrl.Request]{Gate: writes.Gate()}, controller.Options{})
	}
	var stops []func() error
	for _, namespace := range []string{first, second} {
		mgr, err := build(namespace, namespace == second)
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, startManager(t, mgr))
	}
	if _, err := build(second, false); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("the second controller of a name: %v, want an error with the name", err)
	}
	run := func(namespace, name string) {
		t.Helper()
		createConfigMap(t, namespace, name)
		want := namespace + " runs " + namespace + "/" + name
		for range 2 { // the second run sees the write of the first
			for got := ""; got != want; {
				got = receive(t, keys, want)
				if !strings.HasPrefix(strings.TrimPrefix(got, got[:strings.Index(got, " ")]), " runs "+got[:strings.Index(got, " ")]+"/") {
					t.Errorf("got %s", got)
				}
			}
		}
	}
	run(first, "a")
	run(second, "a")
	if err := stops[0](); err != nil {
		t.Fatal(err)
	}
	run(second, "b")
}
