package managertest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/managertest"
)

// maker makes one Secret with a generated name for each ConfigMap.
type maker struct {
	client.Client
	live   client.Reader
	writes *managerkit.Writes // nil means to trust the cache
}

func (m maker) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var a corev1.ConfigMap
	if err := m.Get(ctx, req.NamespacedName, &a); err != nil || a.DeletionTimestamp != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var reader client.Reader = m
	if consistency.LiveRead(ctx) {
		reader = m.live
	}
	var list corev1.SecretList
	if err := reader.List(ctx, &list, client.InNamespace(req.Namespace)); err != nil {
		return ctrl.Result{}, err
	}
	for n := range list.Items {
		if consistency.LiveRead(ctx) {
			if err := m.writes.WroteAt(ctx, &list.Items[n]); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	if len(list.Items) == 0 {
		// The cache can show the deletion of a Secret before that of its owner.
		if err := m.live.Get(ctx, req.NamespacedName, &a); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, GenerateName: "of-a-"}}
		if err := ctrl.SetControllerReference(&a, secret, m.Scheme()); err != nil {
			return ctrl.Result{}, err
		}
		if err := m.Create(ctx, secret); err != nil {
			return ctrl.Result{}, err
		}
	}
	if a.Labels["made"] != "" {
		return ctrl.Result{}, nil
	}
	// The event of this write is the next run, which the event of the Secret may not precede.
	return ctrl.Result{}, m.Patch(ctx, &a, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"made":"yes"}}}`)))
}

// TestServerDuplicates: an exploration finds the second Secret of a controller that
// trusts its cache while that is old, and none in the same one with Writes.
func TestServerDuplicates(t *testing.T) {
	t.Parallel()
	setup := func(mgr manager.Manager, writes *managerkit.Writes) error {
		var r crreconcile.Reconciler = maker{mgr.GetClient(), mgr.GetAPIReader(), writes}
		if writes != nil {
			r = writes.Reconciler(r)
		}
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}, builder.WithPredicates(named("a"))).Owns(&corev1.Secret{}).Complete(r)
	}
	trusting := managertest.Start(ctrl.Options{}, func(mgr manager.Manager, _ *controllertest.Env) error { return setup(mgr, nil) })
	consistent := func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		writes, options := managerkit.NewWrites(consistency.Config{}), ctrl.Options{}
		if err := writes.Install(cfg, &options); err != nil {
			return err
		}
		return managertest.Start(options, func(mgr manager.Manager, _ *controllertest.Env) error { return setup(mgr, writes) })(ctx, cfg, env)
	}
	for _, version := range []struct {
		name  string
		start func(context.Context, *rest.Config, *controllertest.Env) error
		finds bool
	}{{"trusting", trusting, true}, {"consistent", consistent, false}} {
		s := account(version.start)
		s.Converged = func(s *controllertest.State) error {
			a, secrets := s.Get("configmaps", "a"), s.Objects("secrets")
			if a != nil && (len(secrets) != 1 || a.GetLabels()["made"] == "") || a == nil && len(secrets) > 0 {
				return fmt.Errorf("a: %t, and %d Secrets", a != nil, len(secrets))
			}
			return nil
		}
		report, err := controllertest.Run(t.Context(), s, controllertest.Options{
			Config: testserver.Config(t), KeepNamespaces: true, ConvergeTimeout: 20 * time.Second,
			Faults: []controllertest.Kind{controllertest.Hold, controllertest.LostResponse},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(report)
		for _, f := range report.Failures {
			if !version.finds || !strings.Contains(f.String(), "2 Secrets") {
				t.Errorf("%s: %s", version.name, f)
			}
		}
		if version.finds == (len(report.Failures) == 0) {
			t.Errorf("%s: %d failures in %d valid plans", version.name, len(report.Failures), report.Valid)
		}
	}
}
