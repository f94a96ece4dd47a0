package page

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
	"github.com/controllerkit/controllerkit/ssa"
)
type reconciler struct {
	client kubernetes.Interface
	maps   corelisters.ConfigMapLister
}

func (r *reconciler) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	cm, err := r.maps.ConfigMaps(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	held, live, err := finalizer.Ensure(ctx, r.client.CoreV1().ConfigMaps(cm.Namespace), cm, "example.com/cleanup", r.cleanup)
	if err != nil || !live {
		return reconcile.Result{}, err
	}
	if _, ok := held.Object().Data["size"]; !ok {
		return reconcile.Result{}, fmt.Errorf("data.size is missing: %w", reconcile.ErrTerminal)
	}
	config := applycorev1.ConfigMap(cm.Name+"-child", cm.Namespace).WithData(map[string]string{"of": cm.Name})
	_, err = ssa.Apply(ctx, "example-controller", r.client.CoreV1().ConfigMaps(cm.Namespace).Apply, config)
	return reconcile.Result{RequeueAfter: time.Hour}, err
}

func (r *reconciler) cleanup(ctx context.Context, held finalizer.Held[*corev1.ConfigMap]) error { return nil }
func run(config *rest.Config) error {
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	op, err := operator.New(config, operator.Options{
		Name: "example-operator", LeaseNamespace: "example-system", Listen: ":8080",
	})
	if err != nil {
		return err
	}
	op.Elector.Name = "80807133.example.com" // the LeaderElectionID of the manager
	client, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return err
	}
	maps := informers.NewSharedInformerFactory(client, 0).Core().V1().ConfigMaps()
	r := &reconciler{client: client}
	c := op.Controller("configmaps", r.reconcile)
	r.maps = operator.For(c, corev1.Resource("configmaps"), maps)
	op.Writes(corev1.Resource("configmaps"), "create", "patch")
	return op.Run(ctx)
}
