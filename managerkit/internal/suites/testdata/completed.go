package controllers

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

// complete runs the loop of package reconcile in place of controller-runtime's workers.
func complete(b *builder.Builder, r crreconcile.Reconciler, workers int, writes *managerkit.Writes) error {
	return managerkit.Complete(b, r, &reconcile.Controller[ctrl.Request]{Workers: workers, Gate: writes.Gate()}, controller.Options{})
}
