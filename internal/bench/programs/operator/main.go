// Command operator is the contender of the rows about processes that package operator
// assembles.
package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

func main() { contender.Main(run) }

func run(ctx context.Context, p *contender.Process) error {
	op, err := operator.New(p.Config, operator.Options{Name: "operator"})
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return err
	}
	options := []informers.SharedInformerOption{informers.WithNamespace(p.Namespace)}
	switch {
	case p.Metadata:
		options = append(options, informers.WithTransform(informer.KeepMetadata(func(o metav1.Object) bool { return contender.Selected(o.GetLabels()) })))
	case p.Trim:
		options = append(options, informers.WithTransform(informer.Trim))
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, options...)
	var objects corev1listers.ConfigMapLister
	c := op.Controller("operator", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		obj, err := objects.ConfigMaps(key.Namespace).Get(key.Name)
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil
		}
		if err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, p.Reconciled(ctx, obj)
	})
	c.Loop.Workers = contender.Workers
	objects = operator.For(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
	return op.Run(ctx)
}
