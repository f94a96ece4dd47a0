package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/typed"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/operator/internal/churn"
	"github.com/controllerkit/controllerkit/operator/internal/late"
	"github.com/controllerkit/controllerkit/operator/internal/mistakes"
	"github.com/controllerkit/controllerkit/operator/internal/objects"
	"github.com/controllerkit/controllerkit/operator/internal/optional"
	checked "github.com/controllerkit/controllerkit/operator/internal/options"
	"github.com/controllerkit/controllerkit/operator/internal/page"
	"github.com/controllerkit/controllerkit/operator/internal/rights"
	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/operator/internal/source"
	"github.com/controllerkit/controllerkit/operator/internal/stray"
	"github.com/controllerkit/controllerkit/operator/internal/warn"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/recorder"
	"github.com/controllerkit/controllerkit/shutdown"
)

// Options configure an [Operator].
type Options struct {
	// Name names the operator in its Lease, its Events and its user agent, e.g.
	// website-controller: a DNS subdomain of at most 63 characters. Without LeaseNamespace
	// it can be any qualified name, which an Event requires. Do not change it in a release: during
	// the rolling update two replicas would lead. Without Manager and Former, Apply would also leave its
	// fields to the former name. Required.
	Name string

	// LeaseNamespace is the namespace of the Lease, usually the Pod's. It must exist. The
	// replicas then elect a leader, and only the leader reconciles. Run adds the election
	// to /livez. "" means no election: at most one replica may run.
	LeaseNamespace string

	// Listen is the address of /metrics, /readyz and /livez, such as ":8080". A standby is
	// ready as soon as its informers are synced. "" means no listener; Mux can be served
	// by the caller.
	Listen string

	// Debug is the address of /debug/controllers, the page of package debug, and of
	// /debug/pprof/, the profiles of the process. It is a loopback address such as
	// "127.0.0.1:6060", which kubectl port-forward reaches. To serve them to other hosts, see
	// Operator.Debug. Any other address is an error of New. If another process listens there,
	// Run logs it and tries again, and the rest of the operator works. Mux serves neither of
	// them. "" means no page and no profiles.
	Debug string

	// Namespace limits the informers that [Kind], [Children] and [Reads] make to one namespace. ""
	// means all namespaces. If one of the kinds is cluster-scoped, Run returns an error, unless Reading
	// makes it optional or single.
	Namespace string

	// GracePeriod bounds the stop of the whole process. Run gives the running calls and
	// the election their parts of it, so set this one only. It must be shorter than the
	// Pod's terminationGracePeriodSeconds, whose default is 30: a test of the manifest can call
	// shutdown's Group.Fits. 0 means 28s.
	GracePeriod time.Duration

	// StartTimeout bounds how long the API server may be unreachable at the start, a
	// CustomResourceDefinition missing, and a first list without data. A list that brings data may
	// take 30 times as long: see informer.Set.Timeout. 0 means 20s.
	StartTimeout time.Duration

	// AnnotationPrefix is the part before the slash of the annotations paused and requested-at, by
	// which users pause an object of [Kind], or ask for a call now. "" means controllerkit.github.io.
	AnnotationPrefix string

	// Metrics receives all metrics, and its Handler is served at /metrics. nil means
	// metrics.New(nil).
	Metrics *metrics.Metrics

	// Preview makes Run show what the controllers would do: each key runs once, all writes are dry runs,
	// and then Run returns. There is no election, no listener and no Event, and the parts that were added
	// to Group do not run. See package preview. nil means none.
	Preview *preview.Preview
}

// Operator is a process with one or more controllers. Make one with [New], add
// controllers, and call [Operator.Run] once.
//
// The fields are the parts that Run assembles. They may be changed or, if they are
// pointers, replaced before Run.
type Operator struct {
	// Config is for all clients of the controllers. It is a copy of the configuration
	// that New got, with these additions: the writes of a reconcile delay the next one of
	// its key until the informers show them, requests are counted, lists of informers are
	// consistent, a watch that is silent for 3m ends, no client-side limit applies, and
	// each warning of the API server is logged once, unless a handler was set. If a call
	// writes an object of an informer by another client, through the packages ssa, status,
	// finalizer, owner or external, that is logged once, unless Loop.Gate was set.
	Config *rest.Config

	// Group runs the parts. Run adds http, debug, informers, events and controllers, in
	// this order, and stops the last one first. Parts that were added before Run stop
	// last.
	Group *shutdown.Group

	// Mux has the endpoints. Run adds those that it does not have.
	Mux *http.ServeMux

	// Elector elects the leader. nil means no election.
	Elector *leader.Elector

	// Events writes the Events of all controllers. nil drops them.
	Events *recorder.Recorder

	// Informers runs the informers of all controllers. If its Mutated is nil, Run sets it to a
	// function that logs the change. Their Served is called when the API server serves all resources
	// of the operator.
	Informers *informer.Set

	// Metrics receives all metrics: Options.Metrics or its default. Give it to parts that the
	// operator does not make, such as a shard.Group. It must not be replaced.
	Metrics *metrics.Metrics

	// Debug is the page at Options.Debug. To serve it to other hosts, set it before the first
	// controller is added, and add it and debug.Profiles to Mux behind package serve: the page
	// shows names of objects, and neither authenticates. Run sets its zero fields. nil means none, which costs
	// a reconcile nothing.
	Debug *debug.Page

	options     Options
	controllers []*Controller
	sources     source.Set
	settings    []source.Setting
	uses        rights.Set // what Writes declared
	served      *served.Discovery
	errs        []error     // of registrations, for Run
	logger      klog.Logger // set before the informers run
	running     atomic.Bool
	transports  late.Chain   // of the clients of Config; observe sets them
	stray       stray.Finder // of writes by clients that are not of Config
	churn       churn.Finder // of children that calls change again and again
	term        page.Term
	debugServer *http.Server // at Options.Debug

	objects objects.Set
	singles []rights.Names
	asks    optional.Intervals
}

// New makes an operator for the API server of config, which it copies. It sends no
// request. An error names the option that is not valid.
func New(config *rest.Config, options Options) (*Operator, error) {
	o := options
	if config == nil {
		return nil, errors.New("operator: config is nil: pass the cluster's configuration, e.g. of rest.InClusterConfig")
	}
	if err := (checked.Options{Name: o.Name, LeaseNamespace: o.LeaseNamespace, AnnotationPrefix: o.AnnotationPrefix, GracePeriod: o.GracePeriod, StartTimeout: o.StartTimeout}).Check(); err != nil {
		return nil, err
	}
	o.GracePeriod = cmp.Or(o.GracePeriod, 28*time.Second)
	o.StartTimeout = cmp.Or(o.StartTimeout, 20*time.Second)
	if o.Metrics == nil {
		var err error
		if o.Metrics, err = metrics.New(nil); err != nil {
			return nil, fmt.Errorf("operator: %w", err)
		}
	}
	op := &Operator{
		Config:    rest.AddUserAgent(rest.CopyConfig(config), o.Name),
		Group:     &shutdown.Group{GracePeriod: o.GracePeriod, Metrics: o.Metrics},
		Mux:       http.NewServeMux(),
		Informers: &informer.Set{Timeout: o.StartTimeout, StopTimeout: o.part(2), Metrics: o.Metrics},
		Metrics:   o.Metrics,
		options:   o,
		uses:      rights.Set{},
		served:    served.NewDiscovery(),
		asks:      optional.Intervals{Absent: 10 * time.Second, Present: time.Minute},
	}
	if o.Debug != "" {
		op.Debug = &debug.Page{Verbosity: debug.Klog}
		var err error
		if op.debugServer, err = page.Server(o.Debug, func(w http.ResponseWriter, r *http.Request) { op.Debug.ServeHTTP(w, r) }); err != nil {
			return nil, fmt.Errorf("operator: Options.Debug %q: use a loopback address such as 127.0.0.1:6060, or see Operator.Debug: %w", o.Debug, err)
		}
	}
	op.Config.QPS, op.Config.RateLimiter = -1, nil // the API server has priority and fairness
	if op.Config.WarningHandler == nil && op.Config.WarningHandlerWithContext == nil {
		op.Config.WarningHandlerWithContext = warn.Once()
	}
	if o.LeaseNamespace != "" {
		leases, err := leader.NewClient(op.Config, o.LeaseNamespace)
		if err != nil {
			return nil, fmt.Errorf("operator: %w", err)
		}
		op.Elector = &leader.Elector{
			Leases: leases, Namespace: o.LeaseNamespace, Name: o.Name,
			StartTimeout: o.StartTimeout, DrainTimeout: o.part(22), Metrics: o.Metrics,
		}
	}
	op.Config.Wrap(o.Metrics.Transport)
	events, err := typed.New(op.Config, eventsv1.SchemeGroupVersion, "events", eventsv1.AddToScheme, func() *eventsv1.Event { return &eventsv1.Event{} })
	if err != nil {
		return nil, fmt.Errorf("operator: %w", err)
	}
	op.Events = &recorder.Recorder{
		Client:     func(namespace string) recorder.Client { return events.In(namespace) },
		Controller: o.Name, StopTimeout: o.part(2), Metrics: o.Metrics,
	}
	op.Config.Wrap(op.served.Transport)
	op.Config.Wrap(informer.ConsistentLists)
	op.Config.Wrap(informer.EndSilentWatches(0))
	op.Config.Wrap(op.transports.Wrap)
	if o.Preview != nil {
		op.Config.Wrap(o.Preview.Transport) // before the others: they ignore dry runs
	}
	return op, nil
}

// part returns the given number of 28 parts of the grace period. The times of the parts
// nest: a call has 15, the calls that run at the stop have 20, the election waits 22 for
// them, and the group has 28.
func (o Options) part(n int) time.Duration { return o.GracePeriod * time.Duration(n) / 28 }

// fail records an error of a registration, which Run returns.
func (op *Operator) fail(format string, args ...any) {
	op.errs = append(op.errs, fmt.Errorf("operator: "+format, args...))
}

// Run runs the operator until ctx is done, usually the context of [shutdown.Context], and
// returns when everything has stopped: nil if it stopped as asked and in time. Informers
// run on every replica, so that a new leader begins with warm caches. If a registration was
// wrong, such as a nil function or two informers of one resource, Run returns an error
// before it starts anything. One line of this error, and of an error of the start, names
// the cure.
//
// If the leadership is lost, Run cancels the calls and campaigns again. An Operator runs
// once, because informers do. A program that goes on after Run calls a function that makes
// the operator, its clients and its informers: see the example of that name.
func (op *Operator) Run(ctx context.Context) error {
	if op.running.Load() {
		return errors.New("operator: Run was called twice: make another Operator, with clients from its Config and new informers")
	}
	if op.options.Preview != nil {
		return op.preview(ctx)
	}
	return op.run(ctx)
}

func (op *Operator) run(ctx context.Context) error {
	for _, c := range op.controllers {
		c.prepare()
	}
	if len(op.controllers) == 0 {
		op.fail("no controller: call Operator.Controller before Run")
	}
	needed := op.register()
	if err := page.Endpoints(op.Mux, op.options.Metrics.Handler(), op.Group.Ready(), op.Group.Live()); err != nil {
		op.fail("%w", err)
	}
	if len(op.errs) > 0 {
		return errors.Join(op.errs...)
	}
	op.running.Store(true)
	op.logger = klog.FromContext(ctx)
	if op.Informers.Mutated == nil {
		op.Informers.Mutated = warn.Mutations(op.logger)
	}
	ctx = mistakes.With(ctx, op.options.Metrics.Mistakes)
	op.observe(ctx)
	op.Group.AddReady("informers", op.Informers.Ready)
	op.Group.AddLive("informers", op.Informers.Check)
	for _, c := range op.controllers {
		op.Group.AddLive(c.Loop.Name, func() error { return c.Loop.Check(nil) })
	}
	if op.options.Listen != "" {
		op.Group.Add("http", shutdown.Server(&http.Server{Addr: op.options.Listen, Handler: op.Mux}))
	}
	if op.debugServer != nil {
		op.Group.Add("debug", page.Serve(op.debugServer))
	}
	op.discover(needed)
	op.Group.Add("informers", op.inform)
	op.Group.Add("events", op.Events.Run)
	lead, begin := op.reconcile, op.served.Done()
	if op.Elector != nil {
		op.Group.AddLive("leader", func() error { return op.Elector.Check(nil) })
		begin = op.Informers.HasSyncedChecker().Done() // a replica that cannot work takes no Lease
		lead = func(ctx context.Context) error {
			return op.Elector.Run(ctx, func(ctx context.Context) error { return op.term.Lead(ctx, op.reconcile) })
		}
	}
	op.Group.Add("controllers", func(ctx context.Context) error {
		select {
		case <-begin:
			return lead(ctx)
		case <-ctx.Done():
			return nil
		}
	})
	return op.Group.Run(ctx)
}

// discover makes the informers wait until the API server serves what is needed.
func (op *Operator) discover(needed []served.Resource) {
	var phases []served.Phases
	for _, c := range op.controllers {
		phases = append(phases, c.phases)
	}
	own := op.Informers.Served
	op.Informers.Served = func(ctx context.Context) error {
		if err := op.served.Run(ctx, op.Config, op.options.StartTimeout, needed, phases); err != nil {
			return fmt.Errorf("operator: %w", err)
		}
		if own == nil {
			return nil
		}
		return own(ctx)
	}
}

// inform runs the informers.
func (op *Operator) inform(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g sync.WaitGroup
	defer g.Wait()
	if len(op.objects.Optional) > 0 {
		ask, err := served.Asker(op.Config)
		if err != nil {
			return fmt.Errorf("operator: %w", err)
		}
		for _, i := range op.objects.Optional {
			g.Go(func() { i.Observe(ctx, ask, op.asks) })
		}
	}
	defer cancel() // before the wait
	return op.Informers.Run(ctx)
}

// register gives the informers to the set, each once with the handlers of all controllers.
// It returns the resources that the API server must serve.
func (op *Operator) register() (needed []served.Resource) {
	for _, s := range op.sources {
		op.Informers.Add(s.String(), s.Shared(), s.Handlers...)
		op.options.Metrics.InformerHolds(s.String(), s.Held.Size)
		if _, optional := s.Informer.(*optional.Informer); !optional {
			needed = append(needed, s.Resource)
		}
	}
	op.sources.AddSettings(op.settings, op.Informers)
	for _, s := range op.settings {
		needed = append(needed, s.Resource)
	}
	for _, c := range op.controllers {
		if i := slices.IndexFunc(op.sources, func(s *source.Source) bool { return s.GroupResource == c.owner }); i >= 0 {
			op.options.Metrics.ReconcileObjects(c.Loop.Name, op.sources[i].Held.Objects)
		}
	}
	for _, s := range op.singles {
		needed = append(needed, served.Resource{GroupResource: s.GroupResource})
	}
	for _, resource := range op.uses.Named() {
		needed = append(needed, served.Resource{GroupResource: resource})
	}
	return needed
}

// observe makes clients of Config record the writes of calls, each in the Store of its
// controller, and shows all pieces on the page. ctx is that of Run.
func (op *Operator) observe(ctx context.Context) {
	wraps := make([]func(http.RoundTripper) http.RoundTripper, 0, len(op.controllers)+1)
	for _, c := range op.controllers {
		wraps = append(wraps, c.writes.Wrap)
	}
	if op.Debug != nil {
		wraps = append(wraps, op.Debug.Transport)
		op.term.Fill(op.Debug, op.options.Name, op.Elector, op.Informers, op.sources)
		for _, c := range op.controllers {
			page.Observe(c.page(), &c.Loop)
		}
	}
	declared := op.declared(true)
	for _, rule := range op.leaseRules() {
		declared.Add(coordinationv1.Resource("leases"), rule.Verbs...)
	}
	found, explored := ctx.Value(calls.Finding{}).(func(text string))
	if !explored {
		found = func(string) {}
	}
	wraps = append(wraps, op.stray.Wrap, declared.Undeclared(func(verb, resource string) {
		mistakes.Note(ctx, mistakes.Undeclared)
		if len(op.uses) == 0 {
			return // its Role is written by hand
		}
		found(fmt.Sprintf("the operator sends a request that is not declared, %s %s, so the Role of Rules does not allow it: call Writes", verb, resource))
	}))
	op.stray.Host, op.stray.Holding, op.stray.Holds = stray.Host(op.Config), op.sources.HoldsAny, op.sources.Holds
	op.stray.Found = func(ctx context.Context, of, namespace, name string) {
		const text = "A write was not recorded, so the next call may not see it: make the client from Operator.Config, and give it the context of the call"
		mistakes.Note(ctx, mistakes.UnrecordedWrite)
		klog.FromContext(ctx).Info(text, "type", of, "namespace", namespace, "name", name)
		found(fmt.Sprintf("%s: %s %s", text, of, name))
	}
	op.transports.Set(wraps...)
}

// reconcile is the work of a leader: it runs all controllers. A controller that fails ends the
// others.
func (op *Operator) reconcile(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range op.controllers {
		g.Go(func() error { return c.Loop.Run(ctx) })
	}
	return g.Wait()
}

// Controller adds a controller. Its name is unique in the operator and labels logs and
// metrics. reconcile is called with the key of an object of [For].
func (op *Operator) Controller(name string, reconcile reconcile.Func[types.NamespacedName]) *Controller {
	c := &Controller{op: op, writes: consistency.New(consistency.Config{Metrics: op.options.Metrics})}
	c.Loop.Name, c.Loop.Reconcile = name, reconcile
	switch {
	case name == "":
		op.fail("a controller has an empty name")
	case reconcile == nil:
		op.fail("controller %q: reconcile is nil", name)
	}
	if slices.ContainsFunc(op.controllers, func(other *Controller) bool { return other.Loop.Name == name }) {
		op.fail("two controllers have the name %q: the name labels metrics, so use another", name)
	}
	if op.options.Preview != nil {
		c.once = preview.NewQueue[types.NamespacedName](op.options.Preview) // now, so that a preview of several operators waits for it
	}
	op.controllers = append(op.controllers, c)
	return c
}

// Controllers returns the controllers in the order in which they were added.
func (op *Operator) Controllers() []*Controller { return slices.Clone(op.controllers) }
