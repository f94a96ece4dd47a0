package zoo

import (
	"context"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// A loop is the common part of the controllers: clients, informers of the run's
// namespace, a queue of parents, and the loop.
type loop struct {
	env     *controllertest.Env
	kube    kubernetes.Interface
	dyn     dynamic.Interface
	factory informers.SharedInformerFactory
	dynamic dynamicinformer.DynamicSharedInformerFactory
	queue   *queue.Queue[types.NamespacedName]
	writes  *consistency.Store // nil if the controller does not wait for its own writes
	synced  []cache.DoneChecker
	handler func(cache.ResourceEventHandler) cache.ResourceEventHandler
}

// loopOptions configures a loop. The zero value is right for a correct controller.
type loopOptions struct {
	staleReads bool // do not wait for own writes to be in the caches
	anyVersion bool // let lists begin with any version that the API server has, as client-go does when it falls back from watch-lists
	resync     time.Duration
	handler    func(cache.ResourceEventHandler) cache.ResourceEventHandler // wraps the handler of the queue; nil means no wrapper
}

func newLoop(cfg *rest.Config, env *controllertest.Env, o loopOptions) (*loop, error) {
	l := &loop{env: env, handler: o.handler, queue: queue.New(queue.Config[types.NamespacedName]{
		RateLimiter: queue.Exponential[types.NamespacedName](5*time.Millisecond, 500*time.Millisecond),
	})}
	env.Queue(l.queue)
	if !o.staleReads {
		l.writes = consistency.New(consistency.Config{RecheckInterval: 20 * time.Millisecond})
		// The store keeps client-go from repeating a request, which some bugs need.
		cfg.Wrap(moveHeader("Retry-After", keptRetryAfter))
		cfg.Wrap(l.writes.Wrap)
		cfg.Wrap(moveHeader(keptRetryAfter, "Retry-After"))
	}
	var err error
	if l.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return nil, err
	}
	if l.dyn, err = dynamic.NewForConfig(cfg); err != nil {
		return nil, err
	}
	tweak := func(options *metav1.ListOptions) {
		if options.ResourceVersion == "0" && !o.anyVersion {
			options.ResourceVersion = ""
		}
	}
	l.factory = informers.NewSharedInformerFactoryWithOptions(l.kube, o.resync,
		informers.WithNamespace(env.Namespace), informers.WithTweakListOptions(tweak))
	l.dynamic = dynamicinformer.NewFilteredDynamicSharedInformerFactory(l.dyn, o.resync, env.Namespace, tweak)
	return l, nil
}

const keptRetryAfter = "Zoo-Retry-After"

// moveHeader returns a transport that renames a header of responses.
func moveHeader(from, to string) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err == nil && resp.Header.Get(from) != "" {
				resp.Header.Set(to, resp.Header.Get(from))
				resp.Header.Del(from)
			}
			return resp, err
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// watch adds the keys of each event's object to the queue.
func (l *loop) watch(resource schema.GroupResource, informer cache.SharedIndexInformer, keys func(metav1.Object) []types.NamespacedName) error {
	if l.writes != nil {
		if err := l.writes.AddInformer(resource, informer); err != nil {
			return err
		}
	}
	handler := enqueue.Handler(l.queue, keys)
	if l.handler != nil {
		handler = l.handler(handler)
	}
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return err
	}
	l.synced = append(l.synced, informer.HasSyncedChecker(), registration.HasSyncedChecker())
	return nil
}

// run blocks until all has stopped.
func (l *loop) run(ctx context.Context, reconciler reconcile.Func[types.NamespacedName]) error {
	defer l.factory.Shutdown()
	defer l.dynamic.Shutdown()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.factory.StartWithContext(ctx)
	l.dynamic.Start(ctx.Done())
	c := &reconcile.Controller[types.NamespacedName]{
		Name: "zoo", Queue: l.queue, Reconcile: reconciler, Workers: 2,
		GracePeriod: 10 * time.Millisecond, HasSynced: l.synced,
	}
	if l.writes != nil {
		c.Gate = l.writes
	}
	return c.Run(ctx)
}

// self names an object by its own key.
func self(o metav1.Object) []types.NamespacedName {
	return []types.NamespacedName{{Namespace: o.GetNamespace(), Name: o.GetName()}}
}

// owner names an object by the name of its controlling owner, of any kind.
func owner(o metav1.Object) []types.NamespacedName {
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		return []types.NamespacedName{{Namespace: o.GetNamespace(), Name: ref.Name}}
	}
	return nil
}
