package operator

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/internal/guard"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/deaf"
	"github.com/controllerkit/controllerkit/operator/internal/hidden"
	"github.com/controllerkit/controllerkit/operator/internal/mistakes"
	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/operator/internal/stray"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/recorder"
)

// Controller is one loop of an [Operator]. [Operator.Controller] makes one.
type Controller struct {
	// Loop is the loop with its settings: Workers, Resync, Classify, Hook and others can
	// be set before Run. A field that is zero gets this value in Run:
	//
	//	Workers      4, so calls with different keys run at once
	//	Queue        queue.New, with the operator's metrics, in which namespaces take turns, so
	//	             that the objects of one tenant do not wait for those of another; for your
	//	             own limits set one with a RateLimiter, and also with a Name, the namespace
	//	             as Group, and the operator's Metrics as MetricsProvider
	//	Gate         consistency.New, for the resources of the operator
	//	Metrics      the operator's
	//	GracePeriod  20/28 of the operator's GracePeriod: 20s
	//	Timeout      15/28 of the operator's GracePeriod: 15s
	//
	// HasSynced also gets the operator's informers. If a key waits at the Gate for 10s, one
	// log line names the awaited resource and version.
	Loop reconcile.Controller[types.NamespacedName]

	op       *Operator
	owner    schema.GroupResource // of For
	filtered bool                 // For has predicates, so its handler does not add each key
	owns     bool                 // whether Owns was called
	writes   *consistency.Store   // the Gate, unless Loop has one
	debug    *debug.Controller    // nil without Operator.Debug
	about    stray.Subject        // its calls
	calls    deaf.Calls

	once workqueue.TypedRateLimitingInterface[types.NamespacedName] // of a preview; nil without

	tracker   reads.Tracker[types.NamespacedName]
	remembers bool // by Reads or Children

	// Of Kind.
	children                   map[schema.GroupKind]child // nil without Kind
	childKinds                 []child                    // the same in the order of registration
	gvk                        schema.GroupVersionKind
	manager                    string
	former                     []string // managers
	prune, pruneAll, elsewhere bool
	phases                     served.Phases // that the schema must allow
	readies                    bool          // each object gets the condition Ready
}

// For makes the controller reconcile the objects of resource: their keys are queued. It
// returns the lister of from, which has the informer:
//
//	widgets := operator.For(c, v1.Resource("widgets"), factory.Example().V1().Widgets())
//
// The function Resource stands in the package of the types: in the packages of Kubernetes,
// in those of client-gen, and by hand in docs/crd.md.
//
// The informer must not have been started. Only events that pass all predicates, which are
// called in their order, queue a key. See the package's Caveats for informers of a factory.
//
// Errors, such as a second For or a nil informer, are returned by Run.
func For[T any, L interface {
	List(labels.Selector) ([]T, error)
}](c *Controller, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, pass ...enqueue.Predicate[T]) L {
	if c.owner != (schema.GroupResource{}) {
		c.fail("For was called for %s and for %s: use Watches for the second, or a second controller", c.owner, resource)
	}
	c.owner, c.filtered = resource, len(pass) > 0
	return owned(c, resource, from, enqueue.KeyOf[metav1.Object], pass)
}

// Owns queues the controller owner of each object of resource, if it is an object of
// [For]. A cluster-scoped owner is recognized too. The rest is as for For.
func Owns[T any, L interface {
	List(labels.Selector) ([]T, error)
}](c *Controller, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, pass ...enqueue.Predicate[T]) L {
	c.owns = true
	return owned(c, resource, from, c.controllerKeys, pass)
}

// controllerKeys returns the key of the object of For that controls obj.
func (c *Controller) controllerKeys(obj metav1.Object) []types.NamespacedName {
	kind, found := c.op.served.Kinds()[c.owner]
	if !found { // the loop does not run yet, and begins with all objects
		return nil
	}
	keys := enqueue.ControllerOf[metav1.Object](kind.GroupKind())(obj)
	if len(keys) > 0 && !kind.Namespaced { // an object has at most one controller
		keys[0].Namespace = ""
	}
	return keys
}

// Watches queues the keys that keys returns for each object of resource, for example for
// children without an owner reference. keys gets the old and the new object of an update,
// must not change them, and is called by the informer's goroutine. If keys or a predicate
// panics, the panic is logged, and the event adds no key. The rest is as for [For].
func Watches[T any, L interface {
	List(labels.Selector) ([]T, error)
}](c *Controller, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, keys func(T) []types.NamespacedName, pass ...enqueue.Predicate[T]) L {
	return watch(c, resource, from, keys, pass)
}

// owned is watch with a function of the metadata alone. Without a predicate, an informer of package
// compact does not decode the objects of events.
func owned[T any, L any](c *Controller, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, keys func(metav1.Object) []types.NamespacedName, pass []enqueue.Predicate[T]) L {
	if len(pass) > 0 {
		return watch(c, resource, from, func(obj T) []types.NamespacedName { return keys(object(obj)) }, hidden.Deletions(pass, c.logger(resource), func() { c.op.options.Metrics.Mistakes(mistakes.HiddenDeletion, 1) }))
	}
	return handle[T](c, resource, from, func() cache.ResourceEventHandler { return enqueue.Handler(c.adder(resource), keys) })
}

// logger returns a function that returns the logger of a handler.
func (c *Controller) logger(resource schema.GroupResource) func() klog.Logger {
	return func() klog.Logger { return c.op.logger.WithValues("controller", c.Loop.Name, "resource", resource) }
}

// object returns obj as an object of the API: an informer holds no other ones.
func object(obj any) metav1.Object { return obj.(metav1.Object) }

func watch[T any, L any](c *Controller, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, keys func(T) []types.NamespacedName, pass []enqueue.Predicate[T]) L {
	return handle[T](c, resource, from, func() cache.ResourceEventHandler {
		switch {
		case keys == nil:
			c.fail("the function of Watches for %s is nil", resource)
			return nil
		case slices.ContainsFunc(pass, func(p enqueue.Predicate[T]) bool { return p == nil }):
			c.fail("a predicate for %s is nil", resource)
			return nil
		}
		handler := enqueue.Handler(c.adder(resource), keys)
		if len(pass) > 0 {
			handler = enqueue.Filter(handler, enqueue.And(pass...))
		}
		return handler
	})
}

// handle adds a handler of objects of T to the informer. newHandler returns nil after an error.
func handle[T any, L any](c *Controller, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, newHandler func() cache.ResourceEventHandler) (lister L) {
	var informer cache.SharedIndexInformer
	if !kube.IsNil(from) {
		informer = from.Informer()
	}
	switch {
	case resource.Resource == "":
		c.fail("a resource is empty: name it, e.g. appsv1.Resource(\"deployments\")")
		return lister
	case kube.IsNil(informer):
		c.fail("the informer of %s is nil", resource)
		return lister
	}
	handler := newHandler()
	if handler == nil {
		return from.Lister()
	}
	handler = &guard.Handler{ResourceEventHandler: handler, Logger: c.logger(resource)}
	s, err := c.op.sources.Of(served.Needed[T](resource, from, c.Loop.Name), c.op.sources.Known(c.op.settings, informer))
	if err != nil {
		c.op.fail("%w", err)
		return from.Lister()
	}
	c.about.Watch(resource, s.GetStore(), resource == c.owner)
	if c.op.Debug != nil {
		s.Held.Time()
	}
	if resource == c.owner {
		c.count(reflect.TypeFor[T](), s)
	}
	if _, err := c.Loop.Handle(s, handler); err != nil {
		c.fail("%w", err)
	}
	return from.Lister()
}

// adder returns what the events of a resource add keys to.
func (c *Controller) adder(resource schema.GroupResource) controllerkit.EventAdder[types.NamespacedName] {
	source := c.Loop.Source(resource.Resource)
	if c.op.Debug == nil {
		return source
	}
	return c.page().Source(resource.Resource, source)
}

// page returns the controller's part of the page.
func (c *Controller) page() *debug.Controller {
	if c.debug == nil {
		c.debug = c.op.Debug.Controller(c.Loop.Name)
	}
	return c.debug
}

// kind returns the kind of the objects of For, which is zero until Run has found it.
func (c *Controller) kind() served.Kind { return c.op.served.Kinds()[c.owner] }

// fail records an error of a registration, which Run returns.
func (c *Controller) fail(format string, args ...any) {
	c.op.fail("controller %q: "+format, append([]any{c.Loop.Name}, args...)...)
}

// prepare sets the fields of the loop that the caller left zero.
func (c *Controller) prepare() {
	o, loop := c.op.options, &c.Loop
	if c.owner == (schema.GroupResource{}) {
		c.op.fail("controller %q reconciles nothing: call operator.For", loop.Name)
	}
	if kube.IsNil(loop.Metrics) {
		loop.Metrics = o.Metrics
	}
	if kube.IsNil(loop.Queue) {
		loop.Queue = queue.New(queue.Config[types.NamespacedName]{Name: loop.Name, MetricsProvider: o.Metrics, Group: func(key types.NamespacedName) string { return key.Namespace }})
	}
	loop.Workers = cmp.Or(loop.Workers, 4)
	loop.GracePeriod = cmp.Or(loop.GracePeriod, o.part(20))
	loop.Timeout = cmp.Or(loop.Timeout, o.part(15))
	switch limit := o.part(21); {
	case loop.GracePeriod > limit:
		c.fail("Loop.GracePeriod %v does not fit into the operator's GracePeriod %v: use at most %v, or leave it 0", loop.GracePeriod, o.GracePeriod, limit)
	case loop.Timeout > loop.GracePeriod:
		c.fail("Loop.Timeout %v is longer than Loop.GracePeriod %v, so a stop would cancel the call: raise the operator's GracePeriod, or use a shorter Timeout", loop.Timeout, loop.GracePeriod)
	}
	loop.HasSynced = append(loop.HasSynced, c.op.Informers.HasSyncedChecker())
	if c.remembers && loop.Reconcile != nil {
		loop.Reconcile = reads.Track(&c.tracker, loop.Reconcile)
	}
	if !kube.IsNil(loop.Gate) {
		return
	}
	loop.Gate = c.writes
	call := loop.Reconcile
	c.about.Kind, c.calls.Timeout, c.calls.Slack = c.kind, loop.Timeout, o.part(5) // more than writing takes
	loop.Reconcile = func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		defer c.calls.End(c.calls.Begin(ctx))
		return call(c.op.stray.Begin(ctx, &c.about, key), key)
	}
	for _, s := range c.op.sources {
		if err := c.writes.AddInformer(s.GroupResource, s.Shared()); err != nil {
			c.fail("%w", err)
		}
	}
}

// Event records an Event about an object of [For]. It never blocks:
//
//	c.Event(widget, corev1.EventTypeNormal, "Created", "CreateBucket", "bucket %s exists", name)
//
// reason and action are words in CamelCase. The note is formatted if it has args. Until Run
// has found the kind of the object, which is before its first call, Events are dropped:
// give a reconciler the method as a field of type func, which a unit test can replace. See
// [recorder.Recorder.Event].
func (c *Controller) Event(obj metav1.Object, eventType, reason, action, note string, args ...any) {
	if len(args) > 0 {
		note = fmt.Sprintf(note, args...)
	}
	c.op.Events.Event(recorder.Reference(obj, c.kind().GroupVersionKind), corev1.ObjectReference{}, eventType, reason, action, note)
}
