package operator_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
)

// A services controller keeps a Service for each ConfigMap.
type services struct {
	apply func(ctx context.Context, children ...any) ([]operator.Child, error)
}

func (s *services) reconcile(ctx context.Context, cm *corev1.ConfigMap) (reconcile.Result, error) {
	service := applycorev1.Service(cm.Name, cm.Namespace).WithSpec(applycorev1.ServiceSpec().WithClusterIP(corev1.ClusterIPNone))
	_, err := s.apply(ctx, service)
	return reconcile.Result{}, err
}

// runServices runs the controller as a process.
func runServices(ctx context.Context, config *rest.Config, namespace string) error {
	op, err := operator.New(config, operator.Options{Name: "mirror", LeaseNamespace: namespace, Namespace: namespace, Listen: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	s := &services{}
	c := operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{Reconcile: s.reconcile})
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("services"), applycorev1.ExtractService)
	s.apply = c.Apply
	return op.Run(ctx)
}

// A whole controller, of objects and their children. The example named keys makes the same one from a function
// of a key, and the example named pieces does without an Operator.
func Example() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"} // in a Pod: rest.InClusterConfig()
	ctx, cancel := shutdown.Context(context.Background())
	cancel() // a program defers this, and runs until SIGTERM
	fmt.Println("stopped:", runServices(ctx, config, "mirrors"))
	// Output: stopped: <nil>
}

// A controller with an effect outside of the cluster. Its function takes a finalizer.Held, so it cannot
// run before the finalizer is stored.
func ExampleHeld() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"} // in a Pod: rest.InClusterConfig()
	op, err := operator.New(config, operator.Options{Name: "buckets"})
	if err != nil {
		fmt.Println(err)
		return
	}
	create := func(_ context.Context, held finalizer.Held[*corev1.ConfigMap]) error {
		fmt.Println("a bucket for", held.Object().UID)
		return nil
	}
	operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
		Reconcile: func(ctx context.Context, cm *corev1.ConfigMap) (reconcile.Result, error) {
			held, err := operator.Held(ctx, cm)
			if err != nil {
				return reconcile.Result{}, err
			}
			return reconcile.Result{}, create(ctx, held)
		},
		Finalizer: "example.com/bucket",
		Cleanup:   func(context.Context, *corev1.ConfigMap) error { return nil }, // delete the bucket
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a program runs until SIGTERM
	fmt.Println("stopped:", op.Run(ctx))
	// Output: stopped: <nil>
}

// Other code of the process shares the informer of the children. A Reader returns them in the calls of the functions.
func ExampleOperator_Inform() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"} // in a Pod: rest.InClusterConfig()
	op, err := operator.New(config, operator.Options{Name: "mirror"})
	if err != nil {
		fmt.Println(err)
		return
	}
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(op.Config), 0)
	op.Inform(corev1.Resource("services"), factory.Core().V1().Services().Informer())
	var services *operator.Reader[*corev1.Service]
	c := operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
		Reconcile: func(ctx context.Context, cm *corev1.ConfigMap) (reconcile.Result, error) {
			service, err := services.Get(ctx, cm.Namespace, cm.Name)
			if err == nil {
				fmt.Println(service.Spec.ClusterIP)
			}
			return reconcile.Result{}, err
		},
	})
	services = operator.Children(c, corev1.SchemeGroupVersion.WithResource("services"), applycorev1.ExtractService)
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a program runs until SIGTERM
	fmt.Println("stopped:", op.Run(ctx))
	// Output: stopped: <nil>
}
