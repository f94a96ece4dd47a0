package memcached_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/examples/memcached"
	"github.com/controllerkit/controllerkit/managerkit/examples/memcached/after"
	v1 "github.com/controllerkit/controllerkit/managerkit/examples/memcached/api/v1"
	"github.com/controllerkit/controllerkit/managerkit/examples/memcached/before"
	"github.com/controllerkit/controllerkit/managerkit/managertest"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testserver.Main(m)
}

// startBefore runs the version with the usual patterns.
func startBefore(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	return managertest.Start(ctrl.Options{}, func(mgr ctrl.Manager, env *controllertest.Env) error {
		r := &before.Reconciler{Client: mgr.GetClient(), Events: mgr.GetEventRecorder("memcached"), Directory: directory{env.Cloud}}
		return errors.Join(v1.AddToScheme(mgr.GetScheme()), r.SetupWithManager(mgr))
	})(ctx, cfg, env)
}

// startAfter runs the version with controllerkit.
func startAfter(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	writes, options := managerkit.NewWrites(consistency.Config{}), ctrl.Options{}
	if err := writes.Install(cfg, &options); err != nil {
		return err
	}
	return managertest.Start(options, func(mgr ctrl.Manager, env *controllertest.Env) error {
		r := &after.Reconciler{Client: mgr.GetClient(), Events: mgr.GetEventRecorder("memcached"), Directory: directory{env.Cloud}, Writes: writes}
		return errors.Join(v1.AddToScheme(mgr.GetScheme()), r.SetupWithManager(mgr))
	})(ctx, cfg, env)
}

// directory is a Directory whose calls pass through the faults of a plan.
type directory struct{ *cloud.Cloud }

func (d directory) Register(ctx context.Context, id, address string) error {
	tags := map[string]string{"address": address}
	err := d.Update(ctx, id, tags)
	if errors.Is(err, cloud.ErrNotFound) {
		_, err = d.Create(ctx, cloud.Resource{Name: id, Tags: tags})
	}
	return err
}

func (d directory) Unregister(ctx context.Context, id string) error {
	err := d.Delete(ctx, id)
	if errors.Is(err, cloud.ErrNotFound) {
		err = fmt.Errorf("%w: %w", memcached.ErrNotRegistered, err)
	}
	return err
}

// scenario is the life of a Memcached.
func scenario(start func(context.Context, *rest.Config, *controllertest.Env) error) controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "memcached",
		CRDs:  []string{"config"},
		Cloud: cloud.Options{ChosenIDs: true},
		Start: start,
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, c client.Client, namespace string) error {
				m := &v1.Memcached{Spec: v1.MemcachedSpec{Size: 2, Port: 11211}}
				m.Namespace, m.Name = namespace, "cache"
				return c.Create(ctx, m)
			}),
			patch("another size and port", `{"spec":{"size":3,"port":11212}}`),
			// No controller of Deployments runs, so the Memcached is available only now.
			patch("no servers", `{"spec":{"size":0}}`),
		},
		Converged: converged,
		Invariants: []controllertest.Invariant{
			{Name: "each address belongs to a Memcached with the finalizer", Check: held},
		},
	}
}

func step(name string, do func(ctx context.Context, c client.Client, namespace string) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		scheme := runtime.NewScheme()
		c, err := client.New(cfg, client.Options{Scheme: scheme})
		if err := errors.Join(err, v1.AddToScheme(scheme)); err != nil {
			return err
		}
		return do(ctx, c, env.Namespace)
	}}
}

func patch(name, patch string) controllertest.Step {
	return step(name, func(ctx context.Context, c client.Client, namespace string) error {
		m := &v1.Memcached{}
		m.Namespace, m.Name = namespace, "cache"
		return c.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(patch)))
	})
}

// converged returns nil if the cluster and the directory match the spec, or nothing is left
// of a Memcached that is gone.
func converged(s *controllertest.State) error {
	obj, child, addresses := s.Get("memcacheds.cache.example.com", "cache"), s.Get("deployments.apps", "cache"), s.Cloud()
	if obj == nil {
		if child != nil || len(addresses) > 0 {
			return fmt.Errorf("the Memcached is gone, but there are a Deployment: %t, and the addresses %v", child != nil, addresses)
		}
		return nil
	}
	var m v1.Memcached
	var d appsv1.Deployment
	if child == nil {
		return errors.New("there is no Deployment")
	}
	if err := errors.Join(
		runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &m),
		runtime.DefaultUnstructuredConverter.FromUnstructured(child.Object, &d),
	); err != nil {
		return err
	}
	available := meta.FindStatusCondition(m.Status.Conditions, "Available")
	port := fmt.Sprint(m.Spec.Port)
	switch {
	case m.DeletionTimestamp != nil:
		return errors.New("the Memcached is being deleted")
	case len(addresses) != 1 || addresses[0].ID != string(m.UID) || !strings.HasSuffix(addresses[0].Tags["address"], ":"+port):
		return fmt.Errorf("the addresses are %v, want one with port %s", addresses, port)
	case !metav1.IsControlledBy(&d, &m) || *d.Spec.Replicas != m.Spec.Size || d.Spec.Template.Spec.Containers[0].Args[1] != port:
		return fmt.Errorf("the Deployment is %+v, want that of %+v", d.Spec, m.Spec)
	case available == nil || available.ObservedGeneration != m.Generation || m.Status.Ready != d.Status.ReadyReplicas ||
		(available.Status == metav1.ConditionTrue) != (m.Status.Ready >= m.Spec.Size):
		return fmt.Errorf("the status is %+v with %d ready servers", m.Status, d.Status.ReadyReplicas)
	}
	return nil
}

// held is about existing Memcacheds: converged finds an address without one.
func held(s *controllertest.State) error {
	objects := s.Objects("memcacheds.cache.example.com")
	for _, address := range s.Cloud() {
		ok := len(objects) == 0
		for _, m := range objects {
			ok = ok || string(m.GetUID()) == address.ID && len(m.GetFinalizers()) > 0
		}
		if !ok {
			return fmt.Errorf("no finalizer guarantees that the address of %s is removed", address.ID)
		}
	}
	return nil
}

// TestUpgrade lets the version with controllerkit take over from the version before, under faults: the
// move changes no object and no address.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := scenario(startAfter)
	s.Name = "memcached-upgrade"
	s.From = &controllertest.Former{Start: startBefore}
	controllertest.Explore(t, s, controllertest.Options{
		Config: testserver.Config(t), KeepNamespaces: true, ConvergeTimeout: 20 * time.Second, Parallel: 16, Sample: 8,
	})
}

// TestExplore: under the same faults, the version with the usual patterns has findings, and
// the version with controllerkit has none. The findings have one cause: if the process dies
// or the update fails after the address was removed, the next cleanup fails forever.
// EXPLORE_BUDGET, for example 5m, runs more plans.
func TestExplore(t *testing.T) {
	t.Parallel()
	options := controllertest.Options{
		Config: testserver.Config(t), KeepNamespaces: true, ConvergeTimeout: 20 * time.Second, Parallel: 16,
		Faults: []controllertest.Kind{controllertest.CrashAfter, controllertest.DropRequest},
	}
	if text := os.Getenv("EXPLORE_BUDGET"); text != "" {
		var err error
		if options.Budget, err = time.ParseDuration(text); err != nil {
			t.Fatalf("EXPLORE_BUDGET: %v", err)
		}
		options.Faults = nil
	}
	for _, version := range []struct {
		name  string
		start func(context.Context, *rest.Config, *controllertest.Env) error
		finds bool
	}{{"before", startBefore, true}, {"after", startAfter, false}} {
		report, err := controllertest.Run(t.Context(), scenario(version.start), options)
		if err != nil {
			t.Fatalf("%s: %v", version.name, err)
		}
		t.Logf("%s: %s", version.name, report)
		for _, f := range report.Failures {
			if version.finds && f.Plan != "" {
				t.Logf("%s: %s: %s", version.name, f.Plan, f.Findings[0].Text)
			} else {
				t.Errorf("%s: %s", version.name, f)
			}
		}
		if version.finds && len(report.Failures) == 0 {
			t.Errorf("%s has no finding", version.name)
		}
		if report.Valid == 0 {
			t.Errorf("%s: no plan was valid: %v", version.name, report.Invalid)
		}
	}
}

// TestDiff: finalizer, status and consistency, with the clients of ssa, change at most 30
// lines of the controller.
func TestDiff(t *testing.T) {
	lines := func(file string) []string {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, code, _ := strings.Cut(string(src), "\nimport (") // without the name of the package
		return strings.Split(code, "\n")
	}
	a, b := lines("before/controller.go"), lines("after/controller.go")
	// common[j] is the length of the longest common subsequence of the rest of a and b[j:].
	common := make([]int, len(b)+1)
	for i := len(a) - 1; i >= 0; i-- {
		diagonal := 0
		for j := len(b) - 1; j >= 0; j-- {
			next := max(common[j], common[j+1])
			if a[i] == b[j] {
				next = diagonal + 1
			}
			diagonal, common[j] = common[j], next
		}
	}
	added, removed := len(b)-common[0], len(a)-common[0]
	t.Logf("%d lines of %d are new or changed, %d of %d are removed or changed", added, len(b), removed, len(a))
	if added > 30 || removed > 30 {
		t.Errorf("the migration adds or changes %d lines and removes or changes %d, want at most 30", added, removed)
	}
}
