package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/queue"
)

// Add makes an operator, calls setup, which adds its controllers, and adds it to the manager:
//
//	err := bridge.Add(mgr, operator.Options{Name: "websites"}, setup)
//
// The same setup fits an operator of operator.New. In a manager these things differ:
//
//   - operator.Kind, Children and Reads use the informers of the manager's cache. The scheme of the manager
//     must have their Go types. Options.Namespace must be empty: the cache has the namespaces of
//     cache.Options.DefaultNamespaces.
//   - The operator runs when the manager leads, or at once without LeaderElection. Its Options.LeaseNamespace and
//     Listen must be empty. It must stop in less than the manager's GracefulShutdownTimeout.
//   - Its loops and queues feed the metrics of managerkit.NewMetrics, which the manager serves, unless Options.Metrics
//     or those of a loop are set.
//   - Each controller has a health check of its name in the manager. That of Operator.Informers has the name of
//     the operator and "-informers". Each kind of operator.Kind, Children and Reads has a readiness check, such as
//     "websites-informers-Secret", which fails until the manager's cache has the objects.
//   - Log lines go to the manager's logger.
//
// Call Add before the manager starts, at most once for each name of a controller. An error of a registration is
// returned by the manager's Start. setup runs before Add returns.
func Add(mgr manager.Manager, options operator.Options, setup func(op *operator.Operator) error) error {
	switch {
	case kube.IsNil(mgr):
		return errors.New("bridge: Add: mgr is nil: pass the manager of ctrl.NewManager")
	case setup == nil:
		return errors.New("bridge: Add: setup is nil: pass the function that adds the controllers")
	case options.LeaseNamespace != "":
		return fmt.Errorf("bridge: Add: Options.LeaseNamespace is %q: leave it empty, because the manager elects: see managerkit.Elect", options.LeaseNamespace)
	case options.Listen != "":
		return fmt.Errorf("bridge: Add: Options.Listen is %q: leave it empty, because the manager serves probes and metrics", options.Listen)
	case options.Namespace != "": // it limits no informer of the manager
		return fmt.Errorf("bridge: Add: Options.Namespace is %q: leave it empty, and set cache.Options.DefaultNamespaces of the manager", options.Namespace)
	}
	var metrics *managerkit.Metrics
	if options.Metrics == nil {
		var err error
		if metrics, err = managerkit.NewMetrics(); err != nil {
			return fmt.Errorf("bridge: Add: %w", err)
		}
		options.Metrics = metrics.Metrics
	}
	op, err := operator.New(mgr.GetConfig(), options)
	if err != nil {
		return fmt.Errorf("bridge: Add: %w", err)
	}
	kinds := cached{}
	op.InformFrom(func(kind schema.GroupVersionKind, obj controllerkit.Object) (cache.SharedIndexInformer, error) {
		known, err := apiutil.GVKForObject(obj, mgr.GetScheme())
		switch {
		case err != nil:
			return nil, fmt.Errorf("the scheme of the manager has no %T: call the AddToScheme of its package: %w", obj, err)
		case known != kind:
			return nil, fmt.Errorf("the scheme of the manager has %T as %s: use its version and kind", obj, known)
		}
		in, err := Informer(mgr, obj)
		if err == nil {
			kinds.add(options.Name, kind.GroupKind(), in)
		}
		return in, err
	})
	if err := setup(op); err != nil {
		return fmt.Errorf("bridge: Add: setup: %w", err)
	}
	checks := map[string]healthz.Checker{options.Name + "-informers": func(*http.Request) error { return op.Informers.Check() }}
	for _, c := range op.Controllers() {
		loop := &c.Loop
		if metrics != nil && kube.IsNil(loop.Metrics) {
			loop.Metrics = metrics
			if kube.IsNil(loop.Queue) {
				loop.Queue = queue.New(queue.Config[types.NamespacedName]{
					Name: loop.Name, MetricsProvider: metrics,
					Group: func(key types.NamespacedName) string { return key.Namespace },
				})
			}
		}
		checks[loop.Name] = loop.Check
	}
	for name, check := range checks {
		if err := mgr.AddHealthzCheck(name, check); err != nil {
			return fmt.Errorf("bridge: Add: call it before the manager starts: %w", err)
		}
	}
	for name, check := range kinds {
		if err := mgr.AddReadyzCheck(name, check); err != nil {
			return fmt.Errorf("bridge: Add: call it before the manager starts: %w", err)
		}
	}
	err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return op.Run(klog.NewContext(ctx, mgr.GetLogger()))
	}))
	if err != nil {
		return fmt.Errorf("bridge: Add: %w", err)
	}
	return nil
}
