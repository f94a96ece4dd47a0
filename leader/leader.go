package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"reflect"
	"runtime/pprof"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/stacks"
)

// The zero values of the Elector's other fields.
const (
	defaultStartTimeout = 20 * time.Second
	// Between the GracePeriod of a reconcile.Controller, 20s, and that of a
	// shutdown.Group, 25s.
	defaultDrainTimeout = 22 * time.Second
	defaultMaxDrift     = 0.01
)

// Defaults returns the timings that zero values stand for: 15s, 10s and 2s. They
// are client-go's recommended ones, so a rollout from one to the other changes
// none. A crashed leader is replaced within 18s. An API server that cannot be
// reached for 6s costs nothing, one for 10s costs leadership.
func Defaults() (leaseDuration, renewDeadline, retryPeriod time.Duration) {
	return 15 * time.Second, 10 * time.Second, 2 * time.Second
}

// OutageTolerant returns timings of 137s, 107s and 26s, those of OpenShift's
// controllers (library-go, pkg/config/leaderelection). The leader leads on through
// 78s without API server, enough for a single one to restart, and renewing takes
// a thirteenth of the requests. The price: a crashed leader is replaced only after
// up to 170s, and 30s are left for work to stop after a loss. A graceful hand-over
// takes milliseconds with any timings.
func OutageTolerant() (leaseDuration, renewDeadline, retryPeriod time.Duration) {
	return 137 * time.Second, 107 * time.Second, 26 * time.Second
}

// LeaseClient is the part of a Lease client that an Elector uses. The
// LeaseInterface of client-go's coordination/v1 client satisfies it.
type LeaseClient interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Metrics is told what an Elector does. Name is the Lease's namespace/name.
// The methods may be called by several goroutines and must not block.
type Metrics interface {
	// LeaderStatus says whether this replica leads. It is called with false
	// when Run starts and when it ends, and on every change between.
	LeaderStatus(name string, leading bool)
	// LeaderTransition says that this replica acquired the Lease, and how long
	// that took from when it saw that the Lease was free.
	LeaderTransition(name string, took time.Duration)
	// LeaderRenewal says that the Lease was renewed, and how long it took from
	// when the renewal was sent until its response was there. A slow one came
	// when half of RenewDeadline or more had passed since the one before was sent.
	LeaderRenewal(name string, took time.Duration, slow bool)
}

// An Elector takes part in the election of one leader by one Lease. Its fields
// are its configuration and must not change once Run was called. An Elector
// must not be copied after first use.
type Elector struct {
	// Leases is the client of the Lease's namespace. It is required. [NewClient]
	// makes one that shares neither rate limiter nor connections with the
	// application, so that a busy controller does not delay its own renewals.
	Leases LeaseClient
	// Namespace is the Lease's namespace: the one Leases was made for. It is
	// required.
	Namespace string
	// Name is the Lease's name. It is required.
	Name string
	// Identity names this replica in the Lease. Replicas that share an
	// identity are still told apart. "" means the host name, an underscore and
	// a UUID, new for every Run.
	Identity string

	// LeaseDuration is how long the other candidates wait, at the least, after
	// they last saw the Lease change before they take it. It is stored in the
	// Lease in whole seconds, rounded up. 0 means 15s. See also [Defaults] and
	// [OutageTolerant].
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader stays leader after it sent its last
	// successful renewal. The rest of LeaseDuration is the margin: it must exceed
	// LeaseDuration * MaxDrift + StopTimeout. 0 means 10s.
	RenewDeadline time.Duration
	// RetryPeriod is the time from one renewal to the next, with up to a tenth of
	// jitter, and between two reads of the Lease where no watch brings news. A call
	// to the API server is given up after half of RenewDeadline. 0 means 2s.
	RetryPeriod time.Duration

	// StartTimeout is how long Run puts up with a Lease that it cannot use: none
	// of its calls succeeded since the start, or the API server keeps refusing to
	// let it read the Lease, or take it when it is free. An outage later on is
	// waited out. 0 means 20s.
	StartTimeout time.Duration
	// DrainTimeout is how long lead may go on, with the Lease being renewed,
	// after the context given to Run is done. It must be longer than what lead
	// grants to its own work, such as the GracePeriod of a reconcile.Controller, and
	// shorter than what Run is granted, such as the GracePeriod of a shutdown.Group.
	// 0 means 22s, which is between their defaults.
	DrainTimeout time.Duration
	// StopTimeout is how long lead may take to return once leadership is over,
	// so that it has stopped before another replica leads. 0 means all that
	// MaxDrift leaves of the margin.
	StopTimeout time.Duration
	// MaxDrift is by what fraction the clock of one replica may run faster than
	// that of another. 0 means 0.01, twenty times the rate at which NTP sets a
	// clock right (500 ppm, RFC 5905).
	MaxDrift float64

	// Metrics is told of changes. nil means none.
	Metrics Metrics
	// Event records an event on the Lease when a term begins and when its work has
	// ended. The reason is LeaderElection, as client-go's elector has it. The calls
	// are made one after the other. One that blocks delays neither renewals nor lead
	// nor the release of the Lease, but Run returns only after the last call has
	// returned. The recorder needs a client without [Guard]. nil means none.
	Event func(obj runtime.Object, eventtype, reason, note string)

	wall func(time.Time) time.Time // the wall clock, for tests; nil means wallClock

	mu      sync.Mutex // guards the fields below
	running bool       // a Run has not returned
	term    *term      // the term whose lead has not returned; nil means none
}

// Run campaigns for the Lease and calls lead while this process is the leader.
//
// The context given to lead ends when ctx is done, which asks lead to finish
// within DrainTimeout while the Lease is still renewed, or when leadership is
// lost, with ErrLost as its cause: then all work must stop at once. It carries
// the term (see [TermFrom]). lead is never called twice at a time, and never
// once ctx is done. A panic in lead is not recovered.
//
// Run returns when, and only when,
//
//   - ctx is done and lead has returned or was not running: the error of lead,
//     or nil if that is nil or just says that the context ended. If the Lease was
//     still held it was released.
//   - lead returned by itself while this process was the leader: the error of
//     lead, after the Lease was released.
//   - ctx is done and lead did not return within DrainTimeout: an error. From
//     then on the Lease is not renewed, and it expires unreleased. The work is
//     told by ErrLost and gets StopTimeout to stop. If lead has not returned even
//     then, the error holds its stack and lead is left
//     behind: the one goroutine that outlives Run. The process should exit;
//     until lead returns, Run refuses to run again and Check reports an error.
//   - the Lease could not be used for StartTimeout: an error that names verb,
//     resource, object and cause.
//   - a field is not valid, lead is nil, or the Elector runs already: an error.
//
// After a loss Run waits for lead to return, for as long as it takes, logs its
// error and campaigns again. Run may be called again after it returned.
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

	// The watch outlives ctx: the Lease is held, and can be lost, while lead drains.
	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopWatch()
	defer close(c.notes)
	wg.Go(func() { c.watch(watchCtx) })
	wg.Go(func() { c.recordEvents(e.Event) })

	c.metrics.LeaderStatus(c.ref, false)
	defer c.metrics.LeaderStatus(c.ref, false)

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

// Check reports whether the election is healthy, for a liveness endpoint; the
// request is not looked at and may be nil. It returns nil while this process
// does not lead, and while it leads and renews. It returns an error once lead
// is running although the last successful renewal was sent more than
// LeaseDuration + RenewDeadline ago: lead has not returned long after
// leadership was lost, and only a restart helps. So it does while a lead runs
// that Run has left behind.
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
	if age := time.Since(t.lastRenewal()); age > t.unhealthyAfter {
		return fmt.Errorf("leader: lead is still running although Lease %s/%s was last renewed %v ago: %w",
			e.Namespace, e.Name, age.Round(time.Millisecond), ErrLost)
	}
	return nil
}

func (e *Elector) begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running {
		return errors.New("leader: the Elector is running already: use one Elector for each Run")
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

// candidate checks the configuration and resolves its zero values.
func (e *Elector) candidate(ctx context.Context) (*candidate, error) {
	leaseDuration, renewDeadline, retryPeriod := Defaults()
	c := &candidate{
		elector:       e,
		client:        e.Leases,
		identity:      e.Identity,
		run:           string(uuid.NewUUID()),
		leaseDuration: cmp.Or(e.LeaseDuration, leaseDuration),
		renewDeadline: cmp.Or(e.RenewDeadline, renewDeadline),
		retryPeriod:   cmp.Or(e.RetryPeriod, retryPeriod),
		startTimeout:  cmp.Or(e.StartTimeout, defaultStartTimeout),
		metrics:       e.Metrics,
		notes:         make(chan note, noteLimit),
		wall:          e.wall,
		ref:           e.Namespace + "/" + e.Name,
		kick:          make(chan struct{}, 1),
	}
	c.drainTimeout = cmp.Or(e.DrainTimeout, defaultDrainTimeout)
	c.callTimeout = c.renewDeadline / 2
	margin := c.leaseDuration - c.renewDeadline
	maxDrift := cmp.Or(e.MaxDrift, defaultMaxDrift)
	drift := time.Duration(float64(c.leaseDuration) * maxDrift)
	c.stopTimeout = cmp.Or(e.StopTimeout, margin-drift)

	switch {
	case c.client == nil:
		return nil, errors.New("leader: Leases is nil: set it to a client such as clientset.CoordinationV1().Leases(namespace)")
	case e.Namespace == "":
		return nil, errNamespace
	case e.Name == "":
		return nil, errName
	case c.leaseDuration < 0 || c.leaseDuration > math.MaxInt32*time.Second:
		return nil, fmt.Errorf("leader: LeaseDuration is %v: it must be positive, and in seconds fit into 31 bits", c.leaseDuration)
	case c.retryPeriod < 0:
		return nil, fmt.Errorf("leader: RetryPeriod is %v: it must not be negative", c.retryPeriod)
	case float64(c.renewDeadline) <= 1.2*float64(c.retryPeriod):
		return nil, fmt.Errorf("leader: RenewDeadline is %v: it must be more than 1.2 times RetryPeriod, which is %v", c.renewDeadline, c.retryPeriod)
	case c.leaseDuration <= c.renewDeadline:
		return nil, fmt.Errorf("leader: LeaseDuration is %v: it must be more than RenewDeadline, which is %v", c.leaseDuration, c.renewDeadline)
	case !(maxDrift >= 0 && maxDrift < 1): // false for NaN too
		return nil, fmt.Errorf("leader: MaxDrift is %v: it must be a fraction of at least 0 and less than 1", maxDrift)
	case e.StopTimeout < 0:
		return nil, fmt.Errorf("leader: StopTimeout is %v: it must not be negative", e.StopTimeout)
	case margin-drift <= e.StopTimeout: // a sum could overflow
		return nil, fmt.Errorf("leader: RenewDeadline is %v: the margin that it leaves of LeaseDuration, %v, must exceed LeaseDuration * MaxDrift, which is %v, and StopTimeout, which is %v, together: lower RenewDeadline or raise LeaseDuration",
			c.renewDeadline, margin, drift, e.StopTimeout)
	case c.startTimeout < 0:
		return nil, fmt.Errorf("leader: StartTimeout is %v: it must not be negative", c.startTimeout)
	case c.drainTimeout < 0:
		return nil, fmt.Errorf("leader: DrainTimeout is %v: it must not be negative", c.drainTimeout)
	}
	if c.identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("leader: Identity is empty and the host has no name, set it: %w", err)
		}
		c.identity = host + "_" + string(uuid.NewUUID())
	}
	if c.metrics == nil {
		c.metrics = noMetrics{}
	}
	if c.wall == nil {
		c.wall = wallClock
	}
	c.logger = klog.FromContext(ctx).WithValues("lease", klog.KRef(e.Namespace, e.Name), "identity", c.identity)
	return c, nil
}

var (
	errNamespace = errors.New("leader: Namespace is empty: set it to the namespace Leases was made for")
	errName      = errors.New("leader: Name is empty: set it to the name of the Lease")
)

type noMetrics struct{}

func (noMetrics) LeaderStatus(string, bool)                 {}
func (noMetrics) LeaderTransition(string, time.Duration)    {}
func (noMetrics) LeaderRenewal(string, time.Duration, bool) {}

// serve runs lead for one term. It reports whether to campaign again, and if
// not what Run returns.
func (c *candidate) serve(ctx context.Context, t *term, lead func(context.Context) error) (again bool, err error) {
	c.logger.Info("Started leading", "term", t.Number)
	c.metrics.LeaderTransition(c.ref, t.took)
	c.metrics.LeaderStatus(c.ref, true)
	c.note(t, "became leader")
	defer c.note(t, "stopped leading")

	var wg sync.WaitGroup
	renewCtx, stopRenewing := context.WithCancel(t.validity)
	wg.Go(func() { c.renew(renewCtx, t) })
	defer wg.Wait()
	defer stopRenewing()

	leadCtx, cancelLead := context.WithCancelCause(context.WithValue(t.validity, validityKey{}, t.validity))
	defer cancelLead(nil)
	defer context.AfterFunc(ctx, func() { cancelLead(context.Cause(ctx)) })()

	returned := make(chan error, 1)
	c.elector.setTerm(t)
	// The label marks lead's goroutines in profiles and finds their stacks if they hang.
	go pprof.Do(leadCtx, pprof.Labels(stackLabel, c.ref), func(leadCtx context.Context) {
		err := errGoexit
		defer func() {
			// A panic goes on and ends the process. Run must not hear of it: it would
			// release the Lease, or end the process itself, before the panic is printed.
			if v := recover(); v != nil {
				panic(v)
			}
			c.elector.setTerm(nil)
			returned <- err
		}()
		switch {
		case ctx.Err() != nil:
			err = nil // stopped since the claim
		case !t.valid():
			err = ErrLost // paused since the claim
		default:
			err = lead(leadCtx)
		}
	})

	var (
		stopped = ctx.Done()
		lost    = t.validity.Done()
		drained <-chan time.Time // lead has had its DrainTimeout
		hung    <-chan time.Time // lead has ignored ErrLost since
		overran bool
	)
	for {
		select {
		case <-stopped:
			stopped = nil
			if lost != nil {
				c.logger.Info("Asked to stop, keeping the Lease while the work drains", "drainTimeout", c.drainTimeout)
			}
			drained = time.After(c.drainTimeout)

		case <-drained:
			overran = true
			t.end()
			hung = time.After(c.stopTimeout)

		case <-lost:
			lost = nil
			c.logger.Info("Stopped leading, waiting for the work to stop", "term", t.Number)
			c.metrics.LeaderStatus(c.ref, false)

		case <-hung:
			return false, fmt.Errorf("leader: lead has not returned %v after it was asked to stop; Lease %s expires unreleased; lead is at:\n%s",
				c.drainTimeout+c.stopTimeout, c.ref, stacks.Labelled(stackLabel, c.ref, stackLimit))

		case err := <-returned:
			held := t.valid()
			t.end() // before the release: from now on the Lease may be another's
			stopRenewing()
			wg.Wait()
			c.metrics.LeaderStatus(c.ref, false)
			if held && err != errGoexit { //nolint:errorlint // by identity: nobody else has it
				c.release(ctx)
			}
			switch {
			case overran:
				if err == nil {
					err = ErrLost
				}
				return false, fmt.Errorf("leader: lead did not return within DrainTimeout, which is %v; Lease %s expires unreleased: %w",
					c.drainTimeout, c.ref, err)
			case ctx.Err() != nil:
				return false, unlessStopped(ctx, err)
			case held:
				return false, err
			}
			c.logger.Info("The work has stopped, campaigning again", "term", t.Number, "err", err)
			return true, nil
		}
	}
}

var errGoexit = errors.New("leader: lead ended its goroutine with runtime.Goexit; the Lease expires unreleased")

// unlessStopped is err, or nil where err is just the end of ctx handed back.
// Compared by identity: an error that wraps it has more to say. A cause without
// identity, such as an Aggregate of apimachinery, is compared by value.
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

const (
	stackLabel = "leader"
	stackLimit = 16 << 10
)

// jittered is d and up to a fifth more, so that replicas do not act in step.
func jittered(d time.Duration) time.Duration {
	return d + rand.N(d/5+1)
}
