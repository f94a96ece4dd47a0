package managerkit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit/internal/hidden"
)

// Run runs a new manager for each term of e, so that the process survives the loss of
// leadership. It returns as e.Run does.
//
//	err := managerkit.Run(ctx, elector, func(options manager.Options) (manager.Manager, error) {
//		options.Scheme = scheme
//		mgr, err := ctrl.NewManager(rest.CopyConfig(config), options)
//		...
//		return mgr, ctrl.NewControllerManagedBy(mgr).For(&v1.Website{}).Complete(r)
//	})
//
// newManager is called while this process leads, and must build a new manager with the
// given options, in which it may set further fields. If it wraps the transport of the
// configuration, as [Writes.Install] does, it must wrap that of a copy: otherwise the wrappers of all
// terms stay, with the caches that they refer to. The options have
//
//   - BaseContext: the contexts of the Runnables have the term. If leadership is lost,
//     they end at once, and their cause has the method LeadershipLost() bool. If ctx is
//     done, they end when the manager stops its Runnables, in its order.
//   - GracefulShutdownTimeout -1: Start returns after all Runnables have returned, and
//     the Lease is released after that. DrainTimeout of e bounds the drain.
//   - Controller.SkipNameValidation, because the controllers of all terms have the same
//     names.
//   - NewCache: the manager stops also while its cache is not filled yet.
//   - Metrics.BindAddress "0": the manager opens no port for metrics. With "" it opens :8080.
//
// LeaderElection must stay off. Webhooks, probes, metrics and all else that also serves
// on standbys must run outside of these managers. So may the cache, see [Share]: a
// manager without Share fills its cache in each term.
//
// If newManager returns an error, or Start does while this process leads, Run releases
// the Lease and returns that error.
func Run(ctx context.Context, e *leader.Elector, newManager func(manager.Options) (manager.Manager, error)) error {
	switch {
	case e == nil:
		return errNoElector
	case newManager == nil:
		return errors.New("managerkit: newManager is nil: pass a function that builds a manager")
	}
	return e.Run(ctx, func(ctx context.Context) error {
		options, cancel := termOptions(ctx)
		defer cancel(nil)
		options.Metrics.BindAddress = "0" // "" is :8080 without authentication
		mgr, err := newManager(options)
		if err != nil {
			return fmt.Errorf("managerkit: newManager: %w", err)
		}
		if err := usable(mgr); err != nil {
			return err
		}
		if err := mgr.Add(manager.RunnableFunc(hasTerm)); err != nil {
			return fmt.Errorf("managerkit: add to the manager: %w", err)
		}
		ctx, stop := untilOver(ctx, cancel)
		defer stop()
		return mgr.Start(ctx)
	})
}

// untilOver returns the context of a manager's Start, which ends with lead's. After a loss the
// contexts of the Runnables are canceled first, because the manager cancels them without a
// cause as soon as its own has ended.
func untilOver(lead context.Context, cancel context.CancelCauseFunc) (context.Context, func()) {
	ctx, end := context.WithCancelCause(context.WithoutCancel(lead))
	stop := context.AfterFunc(lead, func() {
		if validity := lead.Value(calls.Validity{}).(context.Context); validity.Err() != nil {
			cancel(context.Cause(validity))
		}
		end(context.Cause(lead))
	})
	return ctx, func() { stop(); end(nil) }
}

// termOptions returns the options for the manager of lead's context, and the function that
// ends the contexts of its Runnables.
func termOptions(ctx context.Context) (manager.Options, context.CancelCauseFunc) {
	validity := ctx.Value(calls.Validity{}).(context.Context)
	end := &ending{lead: ctx, failed: make(chan error, 1)}
	base, cancel := context.WithCancelCause(context.WithValue(context.WithValue(validity, calls.Validity{}, validity), (*ending)(nil), end))
	end.base, end.cancel = base, cancel
	return manager.Options{
		NewCache: func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
			c, err := cache.New(config, opts)
			return &termCache{c, end}, err
		},
		BaseContext:             func() context.Context { return base },
		GracefulShutdownTimeout: ptr.To(time.Duration(-1)),
		Controller:              config.Controller{SkipNameValidation: ptr.To(true)},
	}, cancel
}

func usable(mgr manager.Manager) error {
	switch {
	case kube.IsNil(mgr):
		return errors.New("managerkit: newManager returned no manager and no error: return the manager of manager.New")
	case isClosed(mgr.Elected()):
		return errors.New("managerkit: newManager returned a manager that was started already: build a new one for each term")
	case hidden.Elects(mgr):
		return errors.New("managerkit: LeaderElection of the manager is on: leave it off, because the Elector elects")
	}
	return nil
}

// hasTerm is the Runnable that finds a manager that was built with other options, and ends one whose loop has failed.
func hasTerm(ctx context.Context) error {
	end, ok := ctx.Value((*ending)(nil)).(*ending)
	if !ok {
		return errors.New("managerkit: BaseContext of the manager has no term: build the manager with the options that newManager receives")
	}
	select {
	case err := <-end.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// Share makes a manager with these options use the cache, the client, the scheme and the
// RESTMapper of a cluster, which outlive the manager: a new manager of [Run] then starts
// with filled caches. Both must have the same rest.Config.
//
//	shared, err := cluster.New(config)
//	go shared.Start(ctx)
//	err = managerkit.Run(ctx, elector, func(options manager.Options) (manager.Manager, error) {
//		if err := managerkit.Share(&options, shared); err != nil {
//			return nil, err
//		}
//		mgr, err := ctrl.NewManager(config, options)
//		...
//	})
//
// The manager does not start or stop the cluster, which must run before the manager
// starts. When the manager stops its cache, the event handlers that its controllers have
// added to the shared informers are removed. Add indexes to the cluster, before it
// starts, because an index cannot be added twice; the indexes of a bridge's operator are used again by the
// next term. Set no Cache.NewInformer and use no [Writes]:
// both would not see the informers of the cluster.
func Share(options *manager.Options, shared cluster.Cluster) error {
	switch {
	case options == nil:
		return errors.New("managerkit: options is nil: pass the address of the options for manager.New")
	case kube.IsNil(shared):
		return errors.New("managerkit: the cluster is nil: pass the cluster of cluster.New")
	case isLock(options.LeaderElectionResourceLockInterface):
		return errors.New("managerkit: Share was called after Elect, whose NewCache it would replace: call Share first")
	}
	host := shared.GetConfig().Host
	var end *ending
	if options.BaseContext != nil {
		end, _ = options.BaseContext().Value((*ending)(nil)).(*ending)
	}
	options.Scheme = shared.GetScheme()
	options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return shared.GetRESTMapper(), nil }
	options.NewCache = func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
		if opts.NewInformer != nil {
			return nil, errors.New("managerkit: Share: the manager's options have a Cache.NewInformer, such as that of Writes.Install, which the shared cache does not call: remove it, or do not share the cache")
		}
		if config.Host != host {
			return nil, fmt.Errorf("managerkit: Share: the manager's Host is %q and the cluster's is %q: use one rest.Config for both", config.Host, host)
		}
		return &sharedCache{termCache: termCache{shared.GetCache(), end}}, nil
	}
	options.NewClient = func(*rest.Config, client.Options) (client.Client, error) { return shared.GetClient(), nil }
	return nil
}

func isLock(l resourcelock.Interface) bool {
	_, ok := l.(*lock)
	return ok
}

// A termCache is the cache of a manager of Run. The manager waits for the sync of its cache
// even after the end of Start's context. A termCache ends that wait, and before that the
// contexts of the Runnables, which the manager starts then.
type termCache struct {
	cache.Cache
	*ending // nil without Run
}

// ending is how a term of Run ends. It is a value of the BaseContext, with the nil pointer as its key,
// because others can wrap the cache.
type ending struct {
	lead   context.Context
	base   context.Context         // of the Runnables, which is done when Run makes the next manager
	cancel context.CancelCauseFunc // of base
	failed chan error              // has the first error of a loop, which ends the manager
}

// fail ends the manager of Run whose Runnable has the context.
func fail(ctx context.Context, err error) {
	if end, ok := ctx.Value((*ending)(nil)).(*ending); ok {
		select {
		case end.failed <- err:
		default:
		}
	}
}

func (c *termCache) WaitForCacheSync(ctx context.Context) bool {
	if c.ending == nil {
		return c.Cache.WaitForCacheSync(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.lead, cancel)()
	if c.Cache.WaitForCacheSync(ctx) {
		return true
	}
	if c.lead.Err() == nil {
		return false
	}
	c.cancel(context.Cause(c.lead))
	return true
}

// A sharedCache is one manager's part of a shared cache: the event handlers that the
// manager has added to its informers. controller-runtime never removes them.
type sharedCache struct {
	termCache

	mu      sync.Mutex // guards the fields below
	removes []func() error
	over    bool
}

// Start blocks until the manager stops its cache, after its controllers, and removes the
// event handlers.
func (c *sharedCache) Start(ctx context.Context) error {
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	var errs []error
	for _, remove := range c.removes {
		errs = append(errs, remove())
	}
	c.removes = nil
	return errors.Join(errs...)
}

func (c *sharedCache) GetInformer(ctx context.Context, obj client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	return c.informer(c.Cache.GetInformer(ctx, obj, opts...))
}

func (c *sharedCache) GetInformerForKind(ctx context.Context, gvk schema.GroupVersionKind, opts ...cache.InformerGetOption) (cache.Informer, error) {
	return c.informer(c.Cache.GetInformerForKind(ctx, gvk, opts...))
}

func (c *sharedCache) informer(i cache.Informer, err error) (cache.Informer, error) {
	if err != nil {
		return nil, err
	}
	return sharedInformer{Informer: i, cache: c}, nil
}

// A sharedInformer records the event handlers that are added to it.
type sharedInformer struct {
	cache.Informer
	cache *sharedCache
}

// Unwrap returns the informer of the shared cache, whose handlers the caller removes.
func (i sharedInformer) Unwrap() cache.Informer { return i.Informer }

// Over reports whether the term of the manager has ended, also if it has not started its Runnables.
func (i sharedInformer) Over() bool {
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	return i.cache.over || i.cache.ending != nil && i.cache.base.Err() != nil
}

func (i sharedInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.add(func() (toolscache.ResourceEventHandlerRegistration, error) {
		return i.Informer.AddEventHandler(handler)
	})
}

func (i sharedInformer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler, resyncPeriod time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.add(func() (toolscache.ResourceEventHandlerRegistration, error) {
		return i.Informer.AddEventHandlerWithResyncPeriod(handler, resyncPeriod)
	})
}

func (i sharedInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, options toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.add(func() (toolscache.ResourceEventHandlerRegistration, error) {
		return i.Informer.AddEventHandlerWithOptions(handler, options)
	})
}

func (i sharedInformer) add(add func() (toolscache.ResourceEventHandlerRegistration, error)) (toolscache.ResourceEventHandlerRegistration, error) {
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	if i.cache.over {
		return nil, errors.New("managerkit: the manager of the shared cache has stopped")
	}
	registration, err := add()
	if err != nil {
		return nil, err
	}
	i.cache.removes = append(i.cache.removes, func() error { return i.RemoveEventHandler(registration) })
	return registration, nil
}
