package managerkit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Writes makes each reconcile of a manager see its own writes: a key runs only when the
// manager's cache shows the writes of its last run. Other keys run in the meantime. It
// does for a manager what a consistency.Store does for informers: read the package comment of
// consistency for its bounds, and call consistency.LiveRead in a reconcile that must not
// decide on an old cache.
//
//	writes := managerkit.NewWrites(consistency.Config{})
//	if err := writes.Install(config, &options); err != nil { ... }
//	mgr, err := ctrl.NewManager(config, options)
//	...
//	err = ctrl.NewControllerManagedBy(mgr).For(&v1.Website{}).Complete(writes.Reconciler(r))
//
// Writes are recorded if they have the context of the reconcile, whichever client made from
// the configuration sends them: the manager's, a clientset or a dynamic client. Writes of a
// resource for which the cache has no informer are not recorded, because the cache then serves
// no reads of it. Each such resource is logged once. A write to another API server is an
// error: make the clients of other clusters from a configuration without Install.
//
// A write is visible when all informers that can show the object have reached it: typed,
// unstructured and metadata-only ones, of its namespace or of all namespaces. An informer of
// another namespace delays no key. An informer with a selector reaches the write of an
// object that it does not select with its next bookmark, about a minute later. An informer
// that cannot list delays the keys that write its resource until Config.MaxWait.
//
// Use NewWrites, and one Writes for each manager. Its methods are safe for concurrent use.
type Writes struct {
	cfg consistency.Config

	// setup is held while resources, gates or the stores of gates are added. It is
	// locked before the locks of the consistency.Stores, and those before mu.
	setup sync.Mutex

	mu         sync.RWMutex
	installed  bool
	wrapped    bool   // a client was made from the configuration
	cached     bool   // the manager's cache was made; the fields below are set
	host       string // of the API server
	scheme     *runtime.Scheme
	mapper     meta.RESTMapper
	namespaces []string // the namespaces with a store of their own, and "" for all others
	gates      []*gate
	informers  map[schema.GroupResource][]*watched

	unwatched sync.Map // of each schema.GroupResource without an informer that was logged
}

// NewWrites returns a Writes whose stores have the given configuration. The field Stores
// must be nil, because the manager's cache has the stores.
func NewWrites(cfg consistency.Config) *Writes {
	return &Writes{cfg: cfg, informers: map[schema.GroupResource][]*watched{}}
}

// Install adds the Writes to the configuration and the options of a manager. Call it once,
// before ctrl.NewManager and before other clients are made from the configuration. It wraps
// the transport of config, and sets options.NewCache to a function that calls the previous
// one, or cache.New, with a Cache.NewInformer that calls the previous one. A NewCache of your
// own must pass on the NewInformer that it gets.
//
// A program that builds several managers, such as one for each term with [Run], calls Install of a new
// Writes with rest.CopyConfig of its configuration for each of them. Otherwise each request passes through the
// Writes of all earlier managers, which stay in memory.
//
// The informers of the manager begin with a consistent list, as with
// informer.ConsistentLists.
func (w *Writes) Install(config *rest.Config, options *manager.Options) error {
	switch {
	case w.zero():
		return errors.New("managerkit: Writes.Install: the Writes is zero: use NewWrites")
	case config == nil:
		return errors.New("managerkit: Writes.Install: config is nil: pass the rest.Config of ctrl.NewManager")
	case options == nil:
		return errors.New("managerkit: Writes.Install: options is nil: pass the manager.Options of ctrl.NewManager")
	case len(w.cfg.Stores) > 0:
		return errors.New("managerkit: Writes.Install: consistency.Config.Stores is set: leave it nil, the manager's cache has the stores")
	case options.Client.HTTPClient != nil:
		return errors.New("managerkit: Writes.Install: options.Client.HTTPClient is set, and its requests would not be recorded: use config.Wrap in its place")
	case options.Cache.HTTPClient != nil:
		return errors.New("managerkit: Writes.Install: options.Cache.HTTPClient is set, and its requests could not be seen: use config.Wrap in its place")
	}
	// Of all views or of none: gate.add ignores it.
	if err := consistency.New(w.cfg).AddInformer(schema.GroupResource{Resource: "objects"}, viewInformer{view: &view{w: w}}); err != nil {
		return fmt.Errorf("managerkit: Writes.Install: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.installed {
		return errors.New("managerkit: Writes.Install was called twice: make one Writes for each manager")
	}
	w.installed = true
	config.Wrap(w.wrap)
	newCache := options.NewCache
	if newCache == nil {
		newCache = crcache.New
	}
	options.NewCache = func(config *rest.Config, opts crcache.Options) (crcache.Cache, error) {
		if err := w.open(config, opts); err != nil {
			return nil, err
		}
		opts.NewInformer = w.newInformer(opts.NewInformer)
		return newCache(config, opts)
	}
	return nil
}

// open makes the stores when the manager makes its cache.
func (w *Writes) open(config *rest.Config, opts crcache.Options) error {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return fmt.Errorf("managerkit: Writes: the manager's rest.Config: %w", err)
	}
	w.setup.Lock()
	defer w.setup.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.cached:
		return errors.New("managerkit: Writes: the options of Install made a second cache: make one Writes for each manager")
	case !w.wrapped:
		return errors.New("managerkit: Writes: the manager's rest.Config is not the one that Install got, and its writes would not be recorded")
	case opts.Scheme == nil || kube.IsNil(opts.Mapper):
		return errors.New("managerkit: Writes: the options of the cache have no Scheme or no Mapper: make the cache by ctrl.NewManager")
	}
	w.cached, w.host, w.scheme, w.mapper = true, server.Host, opts.Scheme, opts.Mapper
	w.namespaces = namespacesOf(opts)
	for _, g := range w.gates {
		g.open()
	}
	return nil
}

// namespacesOf returns the namespaces that have informers of their own, and "".
func namespacesOf(opts crcache.Options) []string {
	list := []string{""}
	for namespace := range opts.DefaultNamespaces {
		list = append(list, namespace)
	}
	for _, by := range opts.ByObject {
		for namespace := range by.Namespaces {
			list = append(list, namespace)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// usable returns an error if no manager was made with the options of Install.
func (w *Writes) usable() error {
	if w.zero() {
		return errors.New("managerkit: Writes: the Writes is zero: use NewWrites and Install")
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if !w.cached {
		return errors.New("managerkit: Writes: the manager was not made with the options of Install: call Install before ctrl.NewManager")
	}
	return nil
}

// Gate returns a new gate for the loop of one controller; see [Complete]. Each controller needs its
// own, because the keys of two can be equal. If no manager was made with the options of
// Install, Begin of the gate logs an error and returns a context that is done, with the error
// as its cause.
func (w *Writes) Gate() controllerkit.Gate[ctrl.Request] {
	if w.zero() {
		return &gate{}
	}
	return w.newGate()
}

func (w *Writes) zero() bool { return w == nil || w.informers == nil }

// WroteAt records that the reconcile of ctx has read obj from the API server, or has written
// it with another context. The key runs again when the cache shows obj at its version. Call
// it with the objects of a live read, so that the next run does not need
// another; see consistency.LiveRead. If ctx does not come from a run, WroteAt returns an
// error. It also returns one if obj has no resource version or an unknown kind, or if the
// cache does not watch the kind.
func (w *Writes) WroteAt(ctx context.Context, obj client.Object) error {
	if err := w.usable(); err != nil {
		return err
	}
	running, ok := ctx.Value(runKey{w}).(run)
	if !ok {
		return errors.New("managerkit: Writes.WroteAt: ctx is not that of a run: pass the context that Reconcile got")
	}
	if kube.IsNil(obj) || obj.GetResourceVersion() == "" {
		return errors.New("managerkit: Writes.WroteAt: obj is nil or has no resource version: pass an object of the API server")
	}
	resource, err := w.resourceOf(obj)
	if err != nil {
		return fmt.Errorf("managerkit: Writes.WroteAt: %w", err)
	}
	if !w.watches(resource) {
		return fmt.Errorf("managerkit: Writes.WroteAt: %w", unwatchedError(resource))
	}
	running.gate.store(obj.GetNamespace()).WroteAt(running.key, "", resource, obj.GetResourceVersion())
	return nil
}

func (w *Writes) resourceOf(obj runtime.Object) (schema.GroupResource, error) {
	gvk, err := apiutil.GVKForObject(obj, w.scheme)
	if err != nil {
		return schema.GroupResource{}, fmt.Errorf("find the kind of %T: %w", obj, err)
	}
	mapping, err := w.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return schema.GroupResource{}, fmt.Errorf("find the resource of %s: %w", gvk, err)
	}
	return mapping.Resource.GroupResource(), nil
}

// runKey is the key of the context value of a run, which has the type run.
type runKey struct{ w *Writes }

type run struct {
	gate *gate
	key  types.NamespacedName
}

// gate is the gate of one controller. It has a store for each namespace with informers of
// its own, because a consistency.Store waits for all informers of a resource.
type gate struct {
	w      *Writes
	stores []*store // in the order of w.namespaces; nil until the cache is made
}

type store struct {
	*consistency.Store
	namespace string
	wake      func()
}

// newGate adds a gate.
func (w *Writes) newGate() *gate {
	w.setup.Lock()
	defer w.setup.Unlock()
	g := &gate{w: w}
	w.mu.Lock()
	w.gates = append(w.gates, g)
	if w.cached {
		g.open()
	}
	var resources []schema.GroupResource
	for resource := range w.informers {
		resources = append(resources, resource)
	}
	w.mu.Unlock()
	for _, resource := range resources {
		g.add(resource)
	}
	return g
}

// open makes the stores. The caller holds w.mu.
func (g *gate) open() {
	for _, namespace := range g.w.namespaces {
		s := consistency.New(g.w.cfg)
		handler := s.Handler()
		g.stores = append(g.stores, &store{Store: s, namespace: namespace, wake: func() { handler.OnUpdate(nil, nil) }})
	}
}

// add adds a resource to the stores. The caller holds w.setup, and adds it once.
func (g *gate) add(resource schema.GroupResource) {
	for _, s := range g.stores {
		// The informer of a view cannot fail: Install has tried one.
		_ = s.AddInformer(resource, viewInformer{view: &view{w: g.w, resource: resource, namespace: s.namespace}})
	}
}

// store returns the store for objects of the namespace.
func (g *gate) store(namespace string) *store {
	other := g.stores[0] // of ""
	for _, s := range g.stores {
		if s.namespace == namespace {
			return s
		}
	}
	return other
}

// Begin implements reconcile.Gate.
func (g *gate) Begin(ctx context.Context, req ctrl.Request) context.Context {
	if err := g.w.usable(); err != nil {
		klog.FromContext(ctx).Error(kube.PrintableError(err, 4<<10), "The reconcile must not run")
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(kube.Terminal(err))
		return ctx
	}
	return g.begin(ctx, req.NamespacedName)
}

// Ready implements reconcile.Gate.
func (g *gate) Ready(req ctrl.Request, wake func()) bool {
	return g.w.usable() != nil || g.ready(req.NamespacedName, wake)
}

// End implements reconcile.Gate.
func (g *gate) End(req ctrl.Request) {
	if g.w.usable() == nil {
		g.end(req.NamespacedName)
	}
}

func (g *gate) begin(ctx context.Context, key types.NamespacedName) context.Context {
	ctx = context.WithValue(ctx, runKey{g.w}, run{g, key})
	if len(g.stores) == 1 {
		return g.stores[0].Begin(ctx, key)
	}
	var begun []context.Context
	for _, s := range g.stores {
		of := s.Begin(ctx, key)
		if consistency.LiveRead(of) {
			begun = slices.Insert(begun, 0, of)
		} else {
			begun = append(begun, of)
		}
	}
	return merged{begun[0], begun[1:]}
}

func (g *gate) ready(key types.NamespacedName, wake func()) bool {
	for _, s := range g.stores {
		next := wake
		if len(g.stores) > 1 {
			next = func() {
				if g.ready(key, wake) && wake != nil {
					wake()
				}
			}
		}
		if !s.Ready(key, next) {
			return false
		}
	}
	return true
}

func (g *gate) end(key types.NamespacedName) {
	for _, s := range g.stores {
		s.End(key)
	}
}

// merged is a context with the values of several contexts of one parent. If one of them
// requires a live read, it is the first.
type merged struct {
	context.Context
	others []context.Context
}

// Value implements context.Context.
func (m merged) Value(key any) any {
	if v := m.Context.Value(key); v != nil {
		return v
	}
	for _, other := range m.others {
		if v := other.Value(key); v != nil {
			return v
		}
	}
	return nil
}
