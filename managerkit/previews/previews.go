package previews

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/preview"
)

// Prepare makes each write of clients of the configuration a dry run, and switches the manager's election, metrics
// endpoint and probes off, because the present version has them. Call it before ctrl.NewManager and before
// any other client of the configuration is made.
func Prepare(p *preview.Preview, config *rest.Config, options *manager.Options) {
	config.Wrap(p.Transport)
	options.LeaderElection = false
	options.Metrics.BindAddress, options.HealthProbeBindAddress, options.PprofBindAddress = "0", "0", "0"
}

// Controller returns a reconciler whose calls are in the report, under the name, and sets NewQueue of options to a queue
// that gives out each request once. Use the options for no other controller. nil leaves the queue to the caller.
func Controller[request comparable](p *preview.Preview, name string, options *controller.TypedOptions[request], r crreconcile.TypedReconciler[request]) crreconcile.TypedReconciler[request] {
	if options != nil {
		queue := preview.NewQueue[request](p) // now, so that Run waits for it
		options.NewQueue = func(string, workqueue.TypedRateLimiter[request]) workqueue.TypedRateLimitingInterface[request] {
			return queue
		}
		options.UsePriorityQueue = new(false)
	}
	return crreconcile.TypedFunc[request](func(ctx context.Context, req request) (res crreconcile.Result, err error) {
		ctx, end := p.Begin(ctx, name, fmt.Sprint(req))
		defer func() {
			if v := recover(); v != nil {
				end(fmt.Errorf("panic: %v", v))
				panic(v)
			}
			end(err)
		}()
		return r.Reconcile(ctx, req)
	})
}
