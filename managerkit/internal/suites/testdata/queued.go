package controllers

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// complete keeps controller-runtime's workers, and gives them the queue of NewQueue.
func complete(b *builder.Builder, r crreconcile.Reconciler, workers int, writes *managerkit.Writes) error {
	return b.WithOptions(controller.Options{
		MaxConcurrentReconciles: workers,
		NewQueue:                managerkit.NewQueue(queue.Config[ctrl.Request]{}),
	}).Complete(writes.Reconciler(r))
}
