package operator_test

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/ondemand"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/scope"
	"github.com/controllerkit/controllerkit/shutdown"
)

// scopedPods has a scope of Pods in the form of For.
type scopedPods struct{ of *scope.Informer }

func (s scopedPods) Informer() cache.SharedIndexInformer { return s.of }
func (s scopedPods) Lister() corelisters.PodLister {
	return corelisters.NewPodLister(s.of.GetIndexer())
}

// registerScoped adds a controller of the Pods in the namespaces that the only ConfigMap of the
// namespace settings lists, and a second controller that reloads the list when it changes.
func registerScoped(ctx context.Context, op *operator.Operator, settings string, pod reconcile.Func[types.NamespacedName]) error {
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return err
	}
	watches := &ondemand.Informers[scope.Part]{New: func(p scope.Part) (cache.SharedIndexInformer, error) {
		byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		return coreinformers.NewFilteredPodInformer(kube, p.Namespace, 0, byNamespace, p.Options), nil
	}}
	op.Group.Add("watches", watches.Run)
	pods := scope.New(watches.Open)
	if err := pods.Select(ctx, scope.Selection{}); err != nil { // Run waits for a first selection
		return err
	}
	operator.For(op.Controller("pods", pod), corev1.Resource("pods"), scopedPods{pods})

	var configMaps corelisters.ConfigMapLister
	reload := op.Controller("scope", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		c, err := configMaps.ConfigMaps(key.Namespace).Get(key.Name)
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil // the last selection stays
		}
		if err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, pods.Select(ctx, scope.Selection{Namespaces: strings.Fields(c.Data["namespaces"])})
	})
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(settings))
	configMaps = operator.For(reload, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
	return nil
}

// The namespaces of a controller come from a ConfigMap, and change while it runs. If Select fails,
// for example because a namespace may not be listed, the selection stays, and the reconcile is
// repeated. On a standby nothing is selected until it leads.
func Example_scope() {
	op, err := operator.New(&rest.Config{Host: "https://127.0.0.1:6443"}, operator.Options{Name: "scoped"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := shutdown.Context(context.Background())
	err = registerScoped(ctx, op, "settings", func(context.Context, types.NamespacedName) (reconcile.Result, error) {
		return reconcile.Result{}, nil // reads the Pod from the lister of For
	})
	fmt.Println("registered:", err)
	cancel() // a program defers this, and runs until SIGTERM
	fmt.Println("stopped:", op.Run(ctx))
	// Output:
	// registered: <nil>
	// stopped: <nil>
}
