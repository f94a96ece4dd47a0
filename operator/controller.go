package operator

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/recorder"
)

// Controller is one loop of an [Operator]. [Operator.Controller] makes one.
type Controller struct {
	// Loop is the loop with its settings: Workers, Resync, Classify, Hook and others can
	// be set before Run. A field that is zero gets this value in Run:
	//
	//	Queue        queue.New, with the operator's metrics
	//	Gate         consistency.New, for the resources of the controller
	//	Metrics      the operator's
	//	GracePeriod  20/28 of the operator's GracePeriod: 20s
	//	Timeout      15/28 of the operator's GracePeriod: 15s
	//
	// HasSynced also gets the operator's informers.
	Loop reconcile.Controller[types.NamespacedName]

	op     *Operator
	owner  schema.GroupResource // of For
	writes *consistency.Store   // nil: Loop.Gate is the caller's

	// Of owner, set before the informers run.
	kind       schema.GroupVersionKind
	namespaced bool
}

// For makes the controller reconcile the objects of resource: their keys are queued. It
// returns the lister of from, which has the informer:
//
//	widgets := operator.For(c, v1.Resource("widgets"), factory.Example().V1().Widgets())
//
// The function Resource stands in the package of the types: in the packages of Kubernetes,
// in those of client-gen, and by hand in docs/crd.md.
//
// The informer must not have been started. Only events that pass all predicates queue a
// key. See the package's Caveats for informers of a factory.
//
// Errors, such as a second For or a nil informer, are returned by Run.
func For[T any, L interface {
	List(labels.Selector) ([]T, error)
}](c *Controller, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, pass ...enqueue.Predicate[T]) L {
	if c.owner != (schema.GroupResource{}) {
		c.op.fail("controller %q: For was called for %s and for %s: use Watches for the second, or a second controller", c.Loop.Name, c.owner, resource)
	}
	c.owner = resource
	return watch(c, resource, false, from, func(obj T) []types.NamespacedName { return enqueue.KeyOf(object(obj)) }, pass)
}

// Owns queues the controller owner of each object of resource, if it is an object of
// [For]. A cluster-scoped owner is recognized too. The rest is as for For.
func Owns[T any, L interface {
	List(labels.Selector) ([]T, error)
}](c *Controller, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, pass ...enqueue.Predicate[T]) L {
	return watch(c, resource, true, from, func(obj T) []types.NamespacedName {
		keys := enqueue.ControllerOf[metav1.Object](c.kind.GroupKind())(object(obj)) // the kind is known since the start
		for i := range keys {
			if !c.namespaced {
				keys[i].Namespace = ""
			}
		}
		return keys
	}, pass)
}

// Watches queues the keys that keys returns for each object of resource, for example for
// children without an owner reference. keys gets the old and the new object of an update,
// must not change them, and is called by the informer's goroutine. The rest is as for
// [For].
func Watches[T any, L interface {
	List(labels.Selector) ([]T, error)
}](c *Controller, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, keys func(T) []types.NamespacedName, pass ...enqueue.Predicate[T]) L {
	if keys == nil {
		c.op.fail("controller %q: the function of Watches for %s is nil", c.Loop.Name, resource)
	}
	return watch(c, resource, false, from, keys, pass)
}

// object returns obj as an object of the API: an informer holds no other ones.
func object(obj any) metav1.Object { return obj.(metav1.Object) }

// source is one resource of a controller.
type source struct {
	c            *Controller
	resource     schema.GroupResource
	informer     cache.SharedIndexInformer
	id           <-chan struct{} // of the informer: a factory wraps it anew for each caller
	registration cache.ResourceEventHandlerRegistration
	kind         string // of the objects, "" if it is not known
	owned        bool   // by objects of For
}

func watch[T any, L any](c *Controller, resource schema.GroupResource, owned bool, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, keys func(T) []types.NamespacedName, pass []enqueue.Predicate[T]) (lister L) {
	s := source{c: c, resource: resource, owned: owned}
	if resource.Resource == "" {
		c.op.fail("controller %q: a resource is empty: name it, e.g. appsv1.Resource(\"deployments\")", c.Loop.Name)
		return lister
	}
	if !kube.IsNil(from) {
		s.informer, s.kind = from.Informer(), served.KindOf[T](from)
	}
	if kube.IsNil(s.informer) {
		c.op.fail("controller %q: the informer of %s is nil", c.Loop.Name, resource)
		return lister
	}
	if keys == nil {
		return from.Lister()
	}
	s.id = s.informer.HasSyncedChecker().Done()
	handler := enqueue.Handler(c.Loop.Source(resource.Resource), keys)
	for _, p := range pass {
		if p == nil {
			c.op.fail("controller %q: a predicate for %s is nil", c.Loop.Name, resource)
			return from.Lister()
		}
		handler = enqueue.Filter(handler, p)
	}
	var err error
	if s.registration, err = s.informer.AddEventHandler(handler); err != nil {
		c.op.fail("controller %q: add a handler to the informer of %s: %w", c.Loop.Name, resource, err)
	}
	c.op.sources = append(c.op.sources, s)
	return from.Lister()
}

// register gives all informers to the set, each once with the handlers of all
// controllers.
func (op *Operator) register() {
	handlers := map[<-chan struct{}][]cache.ResourceEventHandlerRegistration{}
	for i, s := range op.sources {
		handlers[s.id] = append(handlers[s.id], s.registration)
		for _, f := range op.sources[:i] {
			if f.resource == s.resource && f.id != s.id {
				op.fail("%s has two informers, in controller %q and controller %q: use one informer for both, as their scopes could differ", s.resource, f.c.Loop.Name, s.c.Loop.Name)
				break
			}
			if f.resource != s.resource && f.id == s.id {
				op.fail("%s and %s have the same informer: pass each resource with its own", f.resource, s.resource)
				break
			}
		}
	}
	for _, s := range op.sources {
		if all, ok := handlers[s.id]; ok {
			op.Informers.Add(s.resource.String(), s.informer, all...)
			delete(handlers, s.id)
		}
	}
}

// prepare fills in what the caller left out of the loop.
func (c *Controller) prepare() {
	op, loop := c.op, &c.Loop
	if c.owner == (schema.GroupResource{}) {
		op.fail("controller %q reconciles nothing: call operator.For", loop.Name)
	}
	if kube.IsNil(loop.Metrics) {
		loop.Metrics = op.options.Metrics
	}
	if kube.IsNil(loop.Queue) {
		loop.Queue = queue.New(queue.Config[types.NamespacedName]{Name: loop.Name, MetricsProvider: op.options.Metrics})
	}
	loop.GracePeriod = cmp.Or(loop.GracePeriod, op.options.part(20))
	loop.Timeout = cmp.Or(loop.Timeout, op.options.part(15))
	switch limit := op.options.part(21); {
	case loop.GracePeriod > limit:
		op.fail("controller %q: Loop.GracePeriod %v does not fit into the operator's GracePeriod %v: use at most %v, or leave it 0", loop.Name, loop.GracePeriod, op.options.GracePeriod, limit)
	case loop.Timeout > loop.GracePeriod:
		op.fail("controller %q: Loop.Timeout %v is longer than Loop.GracePeriod %v, so a stop would cancel the call: raise the operator's GracePeriod, or use a shorter Timeout", loop.Name, loop.Timeout, loop.GracePeriod)
	}
	loop.HasSynced = append(loop.HasSynced, op.Informers.HasSyncedChecker())
	if !kube.IsNil(loop.Gate) {
		return
	}
	c.writes = consistency.New(consistency.Config{Metrics: op.options.Metrics})
	loop.Gate = c.writes
	seen := map[schema.GroupResource]bool{}
	for _, s := range op.sources {
		if s.c != c || seen[s.resource] {
			continue
		}
		seen[s.resource] = true
		if err := c.writes.AddInformer(s.resource, s.informer); err != nil {
			op.fail("controller %q: %w", loop.Name, err)
		}
	}
}

// Event records an Event about an object of [For]. It never blocks:
//
//	c.Event(widget, corev1.EventTypeNormal, "Created", "CreateBucket", "bucket %s exists", name)
//
// reason and action are words in CamelCase. The note is formatted if it has args. Before the
// start of Run the kind of the object is not known, so the Event is dropped: give a
// reconciler the method as a field of type func, which a unit test can replace. See
// [recorder.Recorder.Event].
func (c *Controller) Event(obj metav1.Object, eventType, reason, action, note string, args ...any) {
	if len(args) > 0 {
		note = fmt.Sprintf(note, args...)
	}
	c.op.Events.Event(recorder.Reference(obj, c.kind), corev1.ObjectReference{}, eventType, reason, action, note)
}
