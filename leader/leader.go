package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/tenure"
)

// Defaults returns the timings that zero values stand for: 15s, 10s and 2s. They are
// client-go's recommended ones, so a rollout from one to the other keeps them. A
// crashed leader is replaced within 18s. An outage of the API server of 6s does not
// cost leadership, and one of 10s does.
func Defaults() (leaseDuration, renewDeadline, retryPeriod time.Duration) {
	return tenure.LeaseDuration, tenure.RenewDeadline, tenure.RetryPeriod
}

// OutageTolerant returns the timings of OpenShift's controllers: 137s, 107s and 26s.
// The leader keeps leading through an outage of 78s, long enough for a single API
// server to restart, and sends a thirteenth of the requests. On the other hand a
// crashed leader is replaced only after up to 170s, and after a loss the work has 30s
// to stop. A graceful hand-over takes milliseconds with any timings.
func OutageTolerant() (leaseDuration, renewDeadline, retryPeriod time.Duration) {
	return 137 * time.Second, 107 * time.Second, 26 * time.Second
}

// LeaseClient is the part of a Lease client that an Elector uses. The LeaseInterface of
// client-go's coordination/v1 client satisfies it. The Role needs get, create, update
// and watch on leases: see manifests/role.yaml. A rule for create cannot have
// resourceNames. Without watch the election works at the speed of RetryPeriod.
type LeaseClient interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Metrics receives the measurements of an Elector. Name is the Lease's namespace/name.
// The methods may be called by several goroutines and must not block.
type Metrics interface {
	// LeaderStatus reports whether this replica leads. It is called with false when Run
	// starts, and on every change. Its last call before the end of Run has false.
	LeaderStatus(name string, leading bool)
	// LeaderSeen reports whether this replica leads or sees the Lease held by another one that
	// renews it. It is called with false when Run starts, and on every change. Its last call
	// before the end of Run has false.
	LeaderSeen(name string, seen bool)
	// LeaderTransition reports that this replica acquired the Lease, and the time from
	// when it saw the free Lease.
	LeaderTransition(name string, took time.Duration)
	// LeaderRenewal reports that the Lease was renewed, and the time from the request to its
	// response. slow is true if the response came RenewDeadline/2 or more after the request of
	// the last successful renewal before this one, or of the acquisition.
	LeaderRenewal(name string, took time.Duration, slow bool)
	// LeaderAbsent reports the time for which this replica saw the Lease free, at the end
	// of that time: another replica has acquired the Lease, or Run ends. LeaderTransition
	// reports it for a Lease that this replica acquired.
	LeaderAbsent(name string, d time.Duration)
}

// An Elector takes part in the election of one leader by one Lease. Its fields are its
// configuration and must not change after Run was called. An Elector must not be copied
// after first use.
//
// Leadership is valid for RenewDeadline after the Elector sent its last successful
// renewal. A timer ends it, and no call can delay that timer. A candidate acquires a
// Lease that was not released only after it has seen the same record for the record's
// LeaseDuration.
//
// # Exceptions
//
// Two replicas can lead at the same time in these cases:
//
//	Lease deleted or edited  until the watch reports it, milliseconds later; without a
//	                         watch until the leader's next renewal
//	etcd restored            until the leader's next renewal. Term numbers repeat: a later
//	                         term can have the LeaseUID and the Number of an earlier one.
//	                         Delete the Lease after a restore: the next one has a new UID.
//	client-go's elector      while its work outlives its lease: up to 7s with its usual
//	                         15s, 10s and 2s. With an Elector's identity it edits the
//	                         Lease, as in the first case.
//
// If a process freezes between Term.Check and its request, or a request is delayed on
// its way, the request can arrive while another replica leads. Package fence refuses
// such a write if it carries its term.
//
// # Assumptions
//
//   - The clocks of two replicas may differ by any amount, but their rates differ by at
//     most MaxDrift. LeaseDuration - RenewDeadline is the margin for that drift and for
//     StopTimeout.
//   - A virtual machine gets the time from its host when it wakes up from a suspend.
//     Before that, only the API server can report the loss.
//   - If the Lease is deleted, its leader can receive the watch event. A candidate that
//     has seen the Lease waits for its LeaseDuration, unless the event shows that it
//     was free. A candidate that never saw it creates the Lease at once.
//
// A model of the protocol visits all of its states under these assumptions, and finds a
// counter-example for each rule that is left out (model_test.go).
//
// # Other writers
//
//   - client-go's elector treats a record with its own identity as its own. If it has
//     the identity of an Elector, it leads at once, and the Elector stops.
//   - client-go's elector compares renewTime in whole seconds and can acquire a Lease a
//     second early. While both share a Lease, LeaseDuration - RenewDeadline must exceed
//     a second.
//   - A process that restarts with the same identity waits like any other candidate, because
//     the annotation controllerkit.github.io/leader-run distinguishes equal identities.
//   - Candidates obey an edited record: a leaseDurationSeconds of a year blocks all of
//     them for a year. If it is absent or not positive, the candidate's own
//     LeaseDuration counts.
//   - Coordinated leader election (KEP-4355) controls a Lease with a strategy. Run
//     returns an error for it after StartTimeout.
type Elector struct {
	// Leases is the client of the Lease's namespace. If it is of another namespace, Run
	// returns an error after StartTimeout. A client of [NewClient] shares neither rate
	// limiter nor connections with the application. Required.
	Leases LeaseClient
	// Namespace is the Lease's namespace, for which Leases was made. Required.
	Namespace string
	// Name is the Lease's name, a DNS subdomain. Required.
	Name string
	// Identity names this replica in the Lease. Replicas with the same identity are
	// still distinguished. Empty means the host name, an underscore and a UUID, new for
	// every Run.
	Identity string

	// LeaseDuration is what this replica writes into the Lease, in whole seconds, rounded
	// up. A candidate acquires a Lease whose spec has not changed for the duration in it.
	// 0 means 15s. See also [Defaults] and [OutageTolerant].
	LeaseDuration time.Duration
	// RenewDeadline is the time that leadership stays valid after the last successful
	// renewal was sent. LeaseDuration - RenewDeadline must exceed LeaseDuration * MaxDrift +
	// StopTimeout, if that is set, and RenewDeadline must exceed 1.2 RetryPeriod. 0 means 10s.
	RenewDeadline time.Duration
	// RetryPeriod is the time from one renewal to the next, with up to a tenth of jitter, and
	// between two reads of the Lease without a watch. A call to the API server times out after
	// half of RenewDeadline. A timeout alone does not end leadership. 0 means 2s.
	RetryPeriod time.Duration

	// StartTimeout bounds how long Run retries with a Lease that it cannot use: no call
	// has succeeded after the start, or the API server keeps rejecting reads of the
	// Lease, or writes while it is free. A later outage, also a 401, is waited out.
	// 0 means 20s.
	StartTimeout time.Duration
	// DrainTimeout bounds how long the Lease is renewed while lead runs, after the context
	// of Run is done. It must exceed the time that lead grants its own work, such as the GracePeriod
	// of a reconcile.Controller, and be less than the time that Run has, such as the
	// GracePeriod of a shutdown.Group. 0 means 22s, which is between their defaults.
	DrainTimeout time.Duration
	// StopTimeout is the time that lead needs to return after leadership is over. It is kept
	// free before another replica can lead. Run does not enforce it, except after
	// DrainTimeout. 0 means all that MaxDrift leaves of LeaseDuration - RenewDeadline.
	StopTimeout time.Duration
	// MaxDrift is the fraction by which the clock of one replica may run faster than
	// the clock of another. 0 means 0.01, twenty times the rate at which NTP corrects a
	// clock (500 ppm, RFC 5905).
	MaxDrift float64

	// Metrics receives measurements. nil disables it.
	Metrics Metrics
	// Event records an event on the Lease when a term begins and when its work has
	// ended. The reason is LeaderElection, as in client-go's elector. The calls are
	// sequential. If Event blocks, renewals, lead and the release of the Lease go on,
	// events beyond 64 are dropped, and Run returns after the last call has returned.
	// The recorder needs a client without [Guard]. nil disables events.
	Event func(obj runtime.Object, eventtype, reason, note string)

	wall func(time.Time) time.Time // the wall clock, for tests; nil means tenure.WallClock

	mu      sync.Mutex // guards the fields below
	running bool       // a Run has not returned
	term    *term      // the term whose lead has not returned; nil means none
}

// Run campaigns for the Lease and calls lead while this process is the leader.
//
// If ctx is done, lead's context ends: lead has DrainTimeout to finish while the Lease is
// still renewed. If leadership is lost, lead's context ends with the cause ErrLost: then
// all work must stop at once. The context carries the term, see [TermFrom], and a resource
// version that no write of an earlier leader exceeds, unless it arrives late or is in another etcd. With it
// consistency.LiveRead judges the caches. A panic in lead is not recovered.
//
// Run calls lead once for each term, so lead must make what it shuts down, such as a
// workqueue. Calls of lead do not overlap, and lead is not called after ctx is done.
//
// Run returns only in these cases:
//
//   - ctx is done and lead has returned or was not running: the error of lead, or nil
//     if that is nil or only reports the end of the context. If the Lease was still
//     held, Run released it.
//   - lead returned while this process was the leader: the error of lead, after the
//     Lease was released.
//   - ctx is done and lead did not return within DrainTimeout: an error. The Lease is
//     no longer renewed and expires. lead's work gets ErrLost and StopTimeout to stop.
//     If lead has not returned after that, the error contains its stack, and lead is
//     the one goroutine that outlives Run. The process should exit: Run refuses to run
//     again and Check returns an error until lead returns.
//   - the Lease was not usable for StartTimeout: an error with verb, resource, object
//     and cause.
//   - a field is not valid, lead is nil, or the Elector runs already: an error.
//
// After a loss Run waits for lead to return, without a bound, logs its error and
// campaigns again. Run can be called again after it returned.
func (e *Elector) Run(ctx context.Context, lead func(context.Context) error) error {
	if lead == nil {
		return errors.New("leader: lead is nil: pass the function to run while leading")
	}
	c, err := e.candidate(ctx)
	if err != nil {
		return err
	}
	if err := e.begin(); err != nil {
		return err
	}
	defer e.end()

	// The watch outlives ctx, because the Lease is held and can be lost while lead
	// drains.
	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopWatch()
	defer close(c.notes)
	wg.Go(func() { c.watch(watchCtx) })
	wg.Go(func() { c.recordEvents(e.Event) })

	c.metrics.LeaderStatus(c.ref, false) // a term ends with it too
	c.metrics.LeaderSeen(c.ref, false)
	defer c.see(false)

	for {
		t, err := c.acquire(ctx)
		if t == nil {
			return err
		}
		if again, err := c.serve(ctx, t, lead); !again {
			return err
		}
	}
}

// Check reports whether the election is healthy, for a liveness endpoint. It ignores
// the request, which may be nil. It returns nil while this process does not lead, and
// while it leads and renews. It returns an error in two cases that only a restart
// cures: lead still runs although the last successful renewal was sent more than
// LeaseDuration + RenewDeadline ago, or Run has returned without it.
func (e *Elector) Check(*http.Request) error {
	e.mu.Lock()
	t, running := e.term, e.running
	e.mu.Unlock()
	if t == nil {
		return nil
	}
	if !running {
		return errLeftBehind
	}
	if age := time.Since(t.LastRenewal()); age > t.unhealthyAfter {
		return fmt.Errorf("leader: lead still runs although Lease %s/%s was last renewed %v ago: restart the process: %w",
			e.Namespace, e.Name, age.Round(time.Millisecond), ErrLost)
	}
	return nil
}

func (e *Elector) begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running {
		return errors.New("leader: the Elector runs already: use one Elector for each Run")
	}
	if e.term != nil {
		return errLeftBehind
	}
	e.running = true
	return nil
}

var errLeftBehind = errors.New("leader: lead of an earlier Run has not returned: restart the process")

func (e *Elector) end() {
	e.mu.Lock()
	e.running = false
	e.mu.Unlock()
}

func (e *Elector) setTerm(t *term) {
	e.mu.Lock()
	e.term = t
	e.mu.Unlock()
}

// candidate validates the configuration and applies the defaults.
func (e *Elector) candidate(ctx context.Context) (*candidate, error) {
	c := &candidate{
		elector:  e,
		client:   e.Leases,
		identity: e.Identity,
		run:      string(uuid.NewUUID()),
		began:    time.Now(),
		metrics:  e.Metrics,
		notes:    make(chan note, noteLimit),
		wall:     e.wall,
		ref:      e.Namespace + "/" + e.Name,
		wake:     make(chan struct{}, 1),
	}
	switch {
	case kube.IsNil(c.client):
		return nil, errors.New("leader: Leases is nil: set it to a client such as clientset.CoordinationV1().Leases(namespace)")
	case checkLease(e.Namespace, e.Name) != nil:
		return nil, checkLease(e.Namespace, e.Name)
	}
	var err error
	c.Times, err = tenure.Times{
		LeaseDuration: e.LeaseDuration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		StartTimeout: e.StartTimeout, DrainTimeout: e.DrainTimeout, StopTimeout: e.StopTimeout, MaxDrift: e.MaxDrift,
	}.Resolve("leader")
	if err != nil {
		return nil, err
	}
	if c.identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("leader: Identity is empty and the host has no name: set Identity: %w", err)
		}
		c.identity = host + "_" + string(uuid.NewUUID())
	}
	if kube.IsNil(c.metrics) {
		c.metrics = noMetrics{}
	}
	if c.wall == nil {
		c.wall = tenure.WallClock
	}
	c.logger = klog.FromContext(ctx).WithValues("lease", klog.KRef(e.Namespace, e.Name), "identity", c.identity)
	return c, nil
}

// checkLease returns an error if the API server rejects the name of the Lease.
func checkLease(namespace, name string) error {
	switch {
	case len(validation.IsDNS1123Label(namespace)) > 0:
		return fmt.Errorf("leader: Namespace is %q: set it to the namespace of Leases", namespace)
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return fmt.Errorf("leader: Name is %q: set it to the name of the Lease, a DNS subdomain such as shop-controller", name)
	}
	return nil
}

type noMetrics struct{}

func (noMetrics) LeaderStatus(string, bool)                 {}
func (noMetrics) LeaderSeen(string, bool)                   {}
func (noMetrics) LeaderTransition(string, time.Duration)    {}
func (noMetrics) LeaderRenewal(string, time.Duration, bool) {}
func (noMetrics) LeaderAbsent(string, time.Duration)        {}

// serve runs lead for one term. It reports whether to campaign again, and otherwise the
// result of Run.
func (c *candidate) serve(ctx context.Context, t *term, lead func(context.Context) error) (again bool, err error) {
	c.logger.Info("Started leading", "term", t.Number)
	c.metrics.LeaderTransition(c.ref, t.took)
	c.metrics.LeaderStatus(c.ref, true)
	c.see(true)
	c.note(t, "became leader")

	var wg sync.WaitGroup
	renewCtx, stopRenewing := context.WithCancel(t.Context())
	wg.Go(func() { c.renew(renewCtx, t) })
	defer wg.Wait()
	defer stopRenewing()

	returned := make(chan error, 1)
	defer c.start(ctx, t, lead, returned)()

	var (
		stopped = ctx.Done()
		lost    = t.Context().Done()
		drained <-chan time.Time // lead has had its DrainTimeout
		hung    <-chan time.Time // lead has ignored ErrLost since
		overran bool
	)
	for {
		select {
		case <-stopped:
			stopped = nil
			if lost != nil {
				c.logger.Info("Stopping, the Lease is kept while the work drains", "drainTimeout", c.DrainTimeout)
			}
			drained = time.After(c.DrainTimeout)

		case <-drained:
			overran = true
			t.End()
			hung = time.After(c.StopTimeout)

		case <-lost:
			lost = nil
			c.logger.Info("Stopped leading, waiting until the work has stopped", "term", t.Number, "lastRenewal", time.Since(t.LastRenewal()).Round(time.Millisecond), "err", tenure.Printable(t.reason()))
			c.metrics.LeaderStatus(c.ref, false)
			c.see(false) // nor does this replica look for another leader

		case <-hung:
			c.metrics.LeaderStatus(c.ref, false) // lost may be ready too
			return false, fmt.Errorf("leader: lead did not return within DrainTimeout and StopTimeout, %v: restart the process; Lease %s expires; the stack of lead:\n%s",
				c.DrainTimeout+c.StopTimeout, c.ref, tenure.Stacks(stackLabel, c.ref))

		case err := <-returned:
			held := t.Valid()
			t.End() // before the release: from now on the Lease may be another's
			stopRenewing()
			wg.Wait()
			c.metrics.LeaderStatus(c.ref, false)
			if held && err != errGoexit { //nolint:errorlint // by identity
				c.release(ctx)
			}
			c.note(t, "stopped leading")
			return c.result(ctx, t, held, overran, err)
		}
	}
}

// start calls lead in a goroutine, which sends its error. The returned function ends lead's context.
func (c *candidate) start(ctx context.Context, t *term, lead func(context.Context) error, returned chan<- error) (end func()) {
	leadCtx, cancel := context.WithCancelCause(context.WithValue(t.Context(), calls.Validity{}, t.Context()))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	c.elector.setTerm(t)
	tenure.Go(leadCtx, stackLabel, c.ref, errGoexit, func(leadCtx context.Context) error {
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // stopped since the claim
		case !t.Valid():
			return ErrLost // paused since the claim
		}
		return lead(leadCtx)
	}, func(err error) {
		c.elector.setTerm(nil)
		returned <- err
	})
	return func() {
		stop()
		cancel(nil)
	}
}

// result returns what serve does with the error of lead. held means that the Lease was held when
// lead returned, and overran that it was not renewed because DrainTimeout was over.
func (c *candidate) result(ctx context.Context, t *term, held, overran bool, err error) (again bool, _ error) {
	switch {
	case overran:
		if err == nil {
			err = ErrLost
		}
		return false, fmt.Errorf("leader: lead did not return within DrainTimeout (%v): raise it or make lead stop sooner; Lease %s expires: %w",
			c.DrainTimeout, c.ref, err)
	case ctx.Err() != nil:
		return false, unlessStopped(ctx, err)
	case held:
		return false, err
	}
	c.logger.Info("The work has stopped, campaigning again", tenure.Values(err, "term", t.Number)...)
	return true, nil
}

var errGoexit = errors.New("leader: lead called runtime.Goexit: return instead; the Lease expires")

// unlessStopped returns nil if err is only the end of ctx, and err otherwise. It
// compares by identity, because an error that wraps it has more to report. A cause that
// is not comparable, such as an Aggregate of apimachinery, is compared by value.
func unlessStopped(ctx context.Context, err error) error {
	if !reflect.ValueOf(err).Comparable() {
		if reflect.DeepEqual(err, context.Cause(ctx)) {
			return nil
		}
		return err
	}
	switch err { //nolint:errorlint // by identity, see above
	case context.Canceled, ctx.Err(), context.Cause(ctx):
		return nil
	}
	return err
}

// stackLabel is the key of the label of lead's goroutines. Its value is the name of the Lease.
const stackLabel = "leader"
