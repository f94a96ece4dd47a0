package managerkit_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/queue"
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
	config := &rest.Config{Host: "shop.example"} // ctrl.GetConfigOrDie()
	options := ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}}
	writes := managerkit.NewWrites(consistency.Config{})
	if err := writes.Install(config, &options); err != nil {
		fmt.Println(err)
		return
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	r := &Creator{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Writes: writes}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("example-reconciler").
		For(&corev1.ServiceAccount{}).
		Complete(writes.Reconciler(r))
	fmt.Println("added:", err)
	// then mgr.Start(ctrl.SetupSignalHandler())

	// Output: added: <nil>
}

// With the loop of package reconcile, each controller has a Gate. The loop reports to the
// metrics of controller-runtime.
func ExampleComplete() {
	config := &rest.Config{Host: "shop.example"} // ctrl.GetConfigOrDie()
	options := ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}}
	metrics, err := managerkit.NewMetrics() // also for an Elector and a finalizer.Plan
	if err != nil {
		fmt.Println(err)
		return
	}
	writes := managerkit.NewWrites(consistency.Config{Metrics: metrics})
	if err := writes.Install(config, &options); err != nil {
		fmt.Println(err)
		return
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	r := &Creator{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Writes: writes}
	loop := &reconcile.Controller[ctrl.Request]{
		Name:    "example-complete",
		Workers: 4,
		Timeout: 15 * time.Second,
		Gate:    writes.Gate(),
		Metrics: metrics,
	}
	builder := ctrl.NewControllerManagedBy(mgr).For(&corev1.ServiceAccount{})
	fmt.Println("added:", managerkit.Complete(builder, r, loop, controller.Options{}))
	// then mgr.Start(ctrl.SetupSignalHandler())

	// Output: added: <nil>
}

// A controller with controller-runtime's own workers gets the queue of package queue. No key
// waits behind others for more than ten seconds.
func ExampleNewQueue() {
	config := &rest.Config{Host: "shop.example"} // ctrl.GetConfigOrDie()
	mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	options := controller.Options{
		MaxConcurrentReconciles: 4,
		NewQueue:                managerkit.NewQueue(queue.Config[ctrl.Request]{MaxWait: 10 * time.Second}),
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("example-queue").
		For(&corev1.ServiceAccount{}).
		WithOptions(options).
		Complete(&Creator{Client: mgr.GetClient(), Live: mgr.GetAPIReader()})
	fmt.Println("added:", err)
	// Output: added: <nil>
}
