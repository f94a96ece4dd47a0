package bridge_test

import (
	"context"
	"fmt"
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/managerkit/bridge"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// exampleOptions make a manager that sends no request before its start.
var exampleOptions = ctrl.Options{
	Metrics: metricsserver.Options{BindAddress: "0"},
	MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
		mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
		mapper.Add(appsv1.SchemeGroupVersion.WithKind("Deployment"), meta.RESTScopeNamespace)
		return mapper, nil
	},
}

// setUp adds a controller that makes a ConfigMap for each Deployment. It also fits an operator of operator.New.
func setUp(op *operator.Operator) error {
	var c *operator.Controller
	c = operator.Kind(op, appsv1.SchemeGroupVersion.WithResource("deployments"), operator.Reconciler[*appsv1.Deployment]{
		ReadOnly: true, // the status is that of the Deployment's own controller
		Reconcile: func(ctx context.Context, d *appsv1.Deployment) (reconcile.Result, error) {
			_, err := c.Apply(ctx, applycorev1.ConfigMap(d.Name, d.Namespace).WithData(map[string]string{"image": d.Spec.Template.Spec.Containers[0].Image}))
			return reconcile.Result{}, err
		},
	})
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	return nil
}

// A manager runs the controllers of an operator on its cache.
func ExampleAdd() {
	mgr, err := ctrl.NewManager(&rest.Config{Host: "shop.example"}, exampleOptions) // ctrl.GetConfigOrDie()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("added:", bridge.Add(mgr, operator.Options{Name: "images"}, setUp))
	// then mgr.Start(ctrl.SetupSignalHandler())

	// Output: added: <nil>
}

// A controller on client-go reads the manager's cache by a lister.
func ExampleInformer() {
	mgr, err := ctrl.NewManager(&rest.Config{Host: "shop.example"}, exampleOptions)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = bridge.Add(mgr, operator.Options{Name: "pods"}, func(op *operator.Operator) error {
		pods, err := bridge.Informer(mgr, &corev1.Pod{})
		if err != nil {
			return err
		}
		var lister corelisters.PodLister
		c := op.Controller("pods", func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
			_, err := lister.Pods(key.Namespace).Get(key.Name)
			return reconcile.Result{}, err
		})
		lister = operator.For(c, corev1.Resource("pods"), informer.With(pods, corelisters.NewPodLister))
		return nil
	})
	fmt.Println("added:", err)
	// Output: added: <nil>
}

// The cache of this manager has an informer for each of two namespaces.
func ExamplePrepare() {
	config, options := &rest.Config{Host: "shop.example"}, exampleOptions
	options.Cache.DefaultNamespaces = map[string]cache.Config{"blue": {}, "green": {}}
	if err := bridge.Prepare(config, &options); err != nil {
		fmt.Println(err)
		return
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("added:", bridge.Add(mgr, operator.Options{Name: "images"}, setUp))
	// Output: added: <nil>
}
