// Package loops checks the loops that managerkit.Complete gets.
package loops

import (
	"context"
	"errors"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// ErrShutDown means that no loop can run with the queue.
var ErrShutDown = errors.New("managerkit: the Queue of the loop is shut down: give the loop a new one, or leave it nil")

// Valid returns the error that Run would return at once.
func Valid[request comparable](loop *reconcile.Controller[request]) error {
	name, queued, metrics := loop.Name, loop.Queue, loop.Metrics
	defer func() { loop.Name, loop.Queue, loop.Metrics = name, queued, metrics }()
	loop.Metrics = nil
	if loop.Name == "" {
		loop.Name = "of the builder"
	}
	if !kube.IsNil(queued) && queued.ShuttingDown() {
		return ErrShutDown
	}
	loop.Queue = queue.New(queue.Config[request]{})
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	cancel()
	return loop.Run(ctx)
}
