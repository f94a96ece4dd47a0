package managerkit_test

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Creator creates one ConfigMap with a generated name for each ServiceAccount.
type Creator struct {
	client.Client
	Live   client.Reader // the manager's GetAPIReader
	Writes *managerkit.Writes
}

func (c *Creator) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var reader client.Reader = c.Client
	if consistency.LiveRead(ctx) { // the cache could be behind the writes of the last run
		reader = c.Live
	}
	list := &corev1.ConfigMapList{}
	if err := reader.List(ctx, list, client.InNamespace(req.Namespace), client.MatchingLabels{"account": req.Name}); err != nil {
		return ctrl.Result{}, err
	}
	for n := range list.Items {
		if !consistency.LiveRead(ctx) {
			break
		}
		if err := c.Writes.WroteAt(ctx, &list.Items[n]); err != nil {
			return ctrl.Result{}, err
		}
	}
	if len(list.Items) > 0 {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: req.Namespace, GenerateName: req.Name + "-", Labels: map[string]string{"account": req.Name},
	}})
}

// With controller-runtime's own workers, Reconciler is all that a controller needs. It can be
// called for each controller of the manager.
func ExampleWrites_Reconciler() {
	config := ctrl.GetConfigOrDie()
	options := manager.Options{}
	writes := managerkit.NewWrites(consistency.Config{})
	if err := writes.Install(config, &options); err != nil {
		panic(err)
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		panic(err)
	}
	r := &Creator{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Writes: writes}
	err = ctrl.NewControllerManagedBy(mgr).
		For(&corev1.ServiceAccount{}).
		Owns(&corev1.ConfigMap{}).
		Complete(writes.Reconciler(r))
	if err != nil {
		panic(err)
	}
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		panic(err)
	}
}

// With the loop of package reconcile, the Writes is its Gate.
func ExampleWrites() {
	config := ctrl.GetConfigOrDie()
	options := manager.Options{}
	writes := managerkit.NewWrites(consistency.Config{})
	if err := writes.Install(config, &options); err != nil {
		panic(err)
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		panic(err)
	}
	var r crreconcile.Reconciler = &Creator{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Writes: writes}
	loop := &reconcile.Controller[ctrl.Request]{Workers: 4, Gate: writes}
	if err := managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&corev1.ServiceAccount{}), r, loop, controller.Options{}); err != nil {
		panic(err)
	}
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		panic(err)
	}
}
