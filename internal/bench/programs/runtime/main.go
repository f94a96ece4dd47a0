// Command runtime is the contender of the rows about processes on controller-runtime.
package main

import (
	"context"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

func main() { contender.Main(run) }

func run(ctx context.Context, p *contender.Process) error {
	ctrl.SetLogger(logr.Discard())
	options := cache.Options{DefaultNamespaces: map[string]cache.Config{p.Namespace: {}}}
	if p.Trim {
		options.DefaultTransform = cache.TransformStripManagedFields()
	}
	contender.AddGadgets(scheme.Scheme)
	m, err := ctrl.NewManager(p.Config, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}, Cache: options})
	if err != nil {
		return err
	}
	err = builder.ControllerManagedBy(m).
		For(object(p.Kind)).
		WithOptions(controller.Options{MaxConcurrentReconciles: contender.Workers}).
		Complete(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			obj := object(p.Kind)
			if err := m.GetClient().Get(ctx, req.NamespacedName, obj); err != nil {
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}
			return reconcile.Result{}, p.Reconciled(ctx, obj)
		}))
	if err != nil {
		return err
	}
	return m.Start(ctx)
}

// object returns an empty object of the flag -kind.
func object(kind string) client.Object {
	switch kind {
	case contender.Deployments:
		return &appsv1.Deployment{}
	case contender.Gadgets:
		return &contender.Gadget{}
	}
	return &corev1.ConfigMap{}
}
