package managertest

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/calls"
)

// Start returns a function for the field Start of a [controllertest.Scenario]. Each call of
// the function is a new process: it makes a manager, passes it to setup, which adds the
// controllers, and runs it until all its Runnables have returned. Some goroutines of
// controller-runtime end a moment later; the explorer waits for them.
//
//	controllertest.Explore(t, controllertest.Scenario{
//		Start: managertest.Start(ctrl.Options{}, func(mgr ctrl.Manager, _ *controllertest.Env) error {
//			if err := v1.AddToScheme(mgr.GetScheme()); err != nil {
//				return err
//			}
//			return (&WebsiteReconciler{Client: mgr.GetClient()}).SetupWithManager(mgr)
//		}),
//		...
//
// The manager has a copy of options with these differences:
//
//   - A nil Scheme becomes a new scheme with the types of client-go, for each process.
//   - Metrics, health probes, pprof and webhooks have no listener, and no webhook is called.
//   - The cache has only the namespace of the run, in place of DefaultNamespaces and of the
//     Namespaces of ByObject.
//   - If LeaderElection is true, the Lease is in the namespace of the run, and
//     LeaderElectionConfig is not used.
//   - GracefulShutdownTimeout is endless: Options.StopTimeout of the exploration bounds the stop.
//   - Names of controllers are not checked.
//   - A Logger without a sink is replaced by the exploration's, so that its lines are in the
//     timeline.
//
// setup runs concurrently for several processes. If options has a Scheme, all processes share
// it, and setup must not add types to it, because concurrent calls of AddToScheme corrupt a
// scheme: add them before, or leave Scheme nil and add them to mgr.GetScheme(). The same is
// true of scheme.Scheme of client-go.
//
// managerkit's Elect and Writes.Install change a configuration and options of one manager. For
// them, call the returned function with new ones for each process:
//
//	Start: func(ctx context.Context, config *rest.Config, env *controllertest.Env) error {
//		var options ctrl.Options
//		writes := managerkit.NewWrites(consistency.Config{})
//		if err := writes.Install(config, &options); err != nil {
//			return err
//		}
//		return managertest.Start(options, func(mgr ctrl.Manager, env *controllertest.Env) error {
//			...
//		})(ctx, config, env)
//	},
//
// The explorer waits for the queues of loops that managerkit.Complete made. It knows the queues of
// controller-runtime's own workers only if options.NewQueue of the controller returns a
// queue.Queue that was passed to env.Queue. Without that it sees their writes and reads of
// the API server, and a Converged that checks every field is needed.
func Start(options manager.Options, setup func(mgr manager.Manager, env *controllertest.Env) error) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, config *rest.Config, env *controllertest.Env) error {
		if setup == nil {
			return errors.New("managertest: Start got a nil setup: pass the function that adds the controllers to the manager")
		}
		own, err := processOptions(ctx, options, env)
		if err != nil {
			return err
		}
		mgr, err := manager.New(config, own)
		if err != nil {
			return err
		}
		if err := setup(mgr, env); err != nil {
			return err
		}
		return mgr.Start(ctx)
	}
}

// processOptions returns the options of one process.
func processOptions(ctx context.Context, o manager.Options, env *controllertest.Env) (manager.Options, error) {
	if o.Scheme == nil {
		o.Scheme = runtime.NewScheme()
		if err := clientgoscheme.AddToScheme(o.Scheme); err != nil {
			return o, err
		}
	}
	if o.Logger.GetSink() == nil {
		o.Logger = klog.FromContext(ctx)
	}
	o.Metrics = metricsserver.Options{BindAddress: "0"}
	o.HealthProbeBindAddress, o.PprofBindAddress = "0", "0"
	o.WebhookServer = silent{webhook.NewServer(webhook.Options{})}
	o.Cache.DefaultNamespaces = map[string]cache.Config{env.Namespace: {}}
	byObject := map[client.Object]cache.ByObject{}
	for obj, by := range o.Cache.ByObject {
		by.Namespaces = nil
		byObject[obj] = by
	}
	o.Cache.ByObject = byObject
	o.LeaderElectionConfig = nil
	if o.LeaderElectionResourceLockInterface == nil {
		o.LeaderElectionNamespace = env.Namespace
	}
	o.GracefulShutdownTimeout = ptr.To[time.Duration](-1)
	o.Controller.SkipNameValidation = ptr.To(true)
	base := o.BaseContext
	if base == nil {
		base = context.Background
	}
	o.BaseContext = func() context.Context {
		return context.WithValue(klog.NewContext(base(), o.Logger), calls.Explored{}, registerLoop(ctx, env))
	}
	return o, nil
}

// registerLoop returns the value of exploredKey: a function that registers the queue of a loop
// and, if ctx comes from an exploration, its gate.
func registerLoop(ctx context.Context, env *controllertest.Env) func(queue interface{ Len() int }, gated func() int) (end func()) {
	return func(queue interface{ Len() int }, gated func() int) (end func()) {
		env.Queue(queue)
		if register, ok := ctx.Value(calls.Explored{}).(func(queue interface{ Len() int }, gated func() int) (end func())); ok {
			return register(queue, gated)
		}
		return func() {}
	}
}

// silent is a webhook.Server without a listener.
type silent struct{ webhook.Server }

// Start waits until ctx is done.
func (silent) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
