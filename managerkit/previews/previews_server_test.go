package previews_test

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/managerkit/bridge"
	"github.com/controllerkit/controllerkit/managerkit/previews"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/reconcile"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	testserver.Main(m)
}

// TestServerManager previews a manager with a controller of controller-runtime, one of managerkit.Complete and one of
// package operator. Proves PM1.
func TestServerManager(t *testing.T) {
	t.Parallel()
	ns := testserver.Namespace(t)
	real := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1()
	for _, name := range []string{"a", "b"} {
		if _, err := real.ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	run := func(ctx context.Context) (*preview.Report, error) {
		p := &preview.Preview{}
		config, skip := rest.CopyConfig(testserver.Config(t)), true
		options := ctrl.Options{LeaderElection: true, LeaderElectionID: "present", LeaderElectionNamespace: ns, Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{ns: {}}}}
		options.Controller.SkipNameValidation = &skip
		previews.Prepare(p, config, &options)
		if err := bridge.Prepare(config, &options); err != nil {
			return nil, err
		}
		mgr, err := ctrl.NewManager(config, options)
		if err != nil {
			return nil, err
		}
		makes := func(kind string) crreconcile.Func {
			return func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
				if kind == "secret" && req.Name == "b" {
					return ctrl.Result{}, errors.New("the service is away")
				}
				meta := metav1.ObjectMeta{Namespace: req.Namespace, Name: kind + "-" + req.Name}
				var obj client.Object = &corev1.Secret{ObjectMeta: meta}
				if kind == "map" {
					obj = &corev1.ConfigMap{ObjectMeta: meta}
				}
				return ctrl.Result{RequeueAfter: 1}, mgr.GetClient().Create(ctx, obj)
			}
		}
		var o controller.Options
		r := previews.Controller(p, "maps", &o, makes("map"))
		loop := &reconcile.Controller[ctrl.Request]{Name: "secrets", Queue: preview.NewQueue[ctrl.Request](p)}
		err = errors.Join(
			ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ServiceAccount{}).WithOptions(o).Complete(r),
			managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&corev1.ServiceAccount{}), previews.Controller[ctrl.Request](p, "secrets", nil, makes("secret")), loop, controller.Options{}),
			bridge.Add(mgr, operator.Options{Name: "claims", Preview: p}, func(op *operator.Operator) error {
				var c *operator.Controller
				c = operator.Kind(op, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), operator.Reconciler[*corev1.ServiceAccount]{
					ReadOnly: true, Reconcile: func(ctx context.Context, a *corev1.ServiceAccount) (reconcile.Result, error) {
						_, err := c.Apply(ctx, applycorev1.ConfigMap("child-"+a.Name, a.Namespace))
						return reconcile.Result{}, err
					},
				})
				operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
				return nil
			}),
		)
		if err != nil {
			return nil, err
		}
		err = p.Run(ctx, mgr.Start)
		return p.Report(), err
	}

	before := testserver.Stored(t, testserver.Config(t), ns)
	got, err := run(t.Context())
	created := func(resource, name string) []preview.Change {
		return []preview.Change{{Action: preview.Create, Resource: resource, Namespace: ns, Name: name}}
	}
	want := &preview.Report{Keys: 6, Calls: []preview.Call{
		{Controller: "maps", Key: ns + "/a", Changes: created("configmaps", "map-a")},
		{Controller: "maps", Key: ns + "/b", Changes: created("configmaps", "map-b")},
		{Controller: "secrets", Key: ns + "/a", Changes: created("secrets", "secret-a")},
		{Controller: "secrets", Key: ns + "/b", Error: "the service is away"},
		{Controller: "serviceaccounts", Key: ns + "/a", Changes: created("configmaps", "child-a")},
		{Controller: "serviceaccounts", Key: ns + "/b", Changes: created("configmaps", "child-b")},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, (-want +got)\n%s", err, diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := run(ctx); err == nil || err.Error() != "preview: it was stopped before each key has run" {
		t.Errorf("a preview that is stopped: %v", err)
	}
	if diff := cmp.Diff(before, testserver.Stored(t, testserver.Config(t), ns)); diff != "" {
		t.Errorf("the previews have changed objects: (-before +after)\n%s", diff)
	}
}
