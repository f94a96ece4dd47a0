package leader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

// The zero values of the Elector's durations. They are client-go's
// recommended ones, so a rollout from one to the other changes no timing.
const (
	defaultLeaseDuration = 15 * time.Second
	defaultRenewDeadline = 10 * time.Second
	defaultRetryPeriod   = 2 * time.Second
	defaultStartTimeout  = 20 * time.Second
)

// LeaseClient is the part of a Lease client that an Elector uses. The
// LeaseInterface of client-go's coordination/v1 client satisfies it.
type LeaseClient interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Metrics is told what an Elector does. Name is the Lease's namespace/name.
// The methods are called by one goroutine at a time and must not block.
type Metrics interface {
	// LeaderStatus says whether this replica leads. It is called with false
	// when Run starts and when it ends, and on every change between.
	LeaderStatus(name string, leading bool)
	// LeaderTransition counts: this replica acquired the Lease.
	LeaderTransition(name string)
}

// An Elector takes part in the election of one leader by one Lease. Its fields
// are its configuration and must not change once Run was called. An Elector
// must not be copied after first use.
type Elector struct {
	// Leases is the client of the Lease's namespace. It is required. Give the
	// election a client of its own, or a busy controller delays its own renewals:
	// its own rest.Config has its own rate limiter, but client-go shares the
	// connection of configurations that are equal, so set a Dial of its own too.
	// Set no Timeout: it would cut the watch, and calls are bounded anyway.
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

	// LeaseDuration is how long the other candidates wait after they last saw
	// the Lease change before they take it. It is stored in the Lease in whole
	// seconds, so it must be a whole number of seconds. 0 means 15s.
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader stays leader after it sent its last
	// successful renewal. The rest of LeaseDuration is the margin for clocks
	// that run at different rates and for work to stop. 0 means 10s.
	RenewDeadline time.Duration
	// RetryPeriod is the time from one renewal to the next, and between two
	// reads of the Lease where no watch brings news. A call to the API server
	// is given up after half of RenewDeadline. 0 means 2s.
	RetryPeriod time.Duration

	// StartTimeout is how long Run puts up with a Lease that it cannot use:
	// none of its calls succeeded since the start, or the API server keeps
	// refusing to let it take the free Lease. 0 means 20s.
	StartTimeout time.Duration
	// DrainTimeout is how long lead may go on, with the Lease being renewed,
	// after the context given to Run is done. 0 means RenewDeadline.
	DrainTimeout time.Duration
	// Metrics is told of changes. nil means none.
	Metrics Metrics

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
//     told by ErrLost and gets LeaseDuration - RenewDeadline to stop. If lead has
//     not returned even then, the error holds its stack and lead is left
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

	c.metrics.LeaderStatus(c.ref, false)
	defer c.metrics.LeaderStatus(c.ref, false)

	// The watch outlives ctx: the Lease is held, and can be lost, while lead drains.
	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopWatch()
	wg.Go(func() { c.watch(watchCtx) })

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
// leadership was lost, and only a restart helps.
func (e *Elector) Check(*http.Request) error {
	e.mu.Lock()
	t := e.term
	e.mu.Unlock()
	if t == nil {
		return nil
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
		return errors.New("leader: lead of an earlier Run has not returned: restart the process")
	}
	e.running = true
	return nil
}

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
	or := func(d, zero time.Duration) time.Duration {
		if d == 0 {
			return zero
		}
		return d
	}
	c := &candidate{
		elector:       e,
		client:        e.Leases,
		identity:      e.Identity,
		run:           string(uuid.NewUUID()),
		leaseDuration: or(e.LeaseDuration, defaultLeaseDuration),
		renewDeadline: or(e.RenewDeadline, defaultRenewDeadline),
		retryPeriod:   or(e.RetryPeriod, defaultRetryPeriod),
		startTimeout:  or(e.StartTimeout, defaultStartTimeout),
		metrics:       e.Metrics,
		ref:           e.Namespace + "/" + e.Name,
		kick:          make(chan struct{}, 1),
	}
	c.drainTimeout = or(e.DrainTimeout, c.renewDeadline)
	c.callTimeout = c.renewDeadline / 2

	switch {
	case c.client == nil:
		return nil, errors.New("leader: Leases is nil: set it to a client such as clientset.CoordinationV1().Leases(namespace)")
	case e.Namespace == "":
		return nil, errors.New("leader: Namespace is empty: set it to the namespace Leases was made for")
	case e.Name == "":
		return nil, errors.New("leader: Name is empty: set it to the name of the Lease")
	case c.leaseDuration < time.Second || c.leaseDuration%time.Second != 0 || c.leaseDuration/time.Second > math.MaxInt32:
		return nil, fmt.Errorf("leader: LeaseDuration is %v: a Lease stores whole seconds, set it to a whole number of seconds, at least 1s", c.leaseDuration)
	case c.retryPeriod < 0:
		return nil, fmt.Errorf("leader: RetryPeriod is %v: it must not be negative", c.retryPeriod)
	case float64(c.renewDeadline) <= 1.2*float64(c.retryPeriod):
		return nil, fmt.Errorf("leader: RenewDeadline is %v: it must be more than 1.2 times RetryPeriod, which is %v", c.renewDeadline, c.retryPeriod)
	case c.leaseDuration <= c.renewDeadline:
		return nil, fmt.Errorf("leader: LeaseDuration is %v: it must be more than RenewDeadline, which is %v", c.leaseDuration, c.renewDeadline)
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
	c.logger = klog.FromContext(ctx).WithValues("lease", klog.KRef(e.Namespace, e.Name), "identity", c.identity)
	return c, nil
}

type noMetrics struct{}

func (noMetrics) LeaderStatus(string, bool) {}
func (noMetrics) LeaderTransition(string)   {}

// serve runs lead for one term. It reports whether to campaign again, and if
// not what Run returns.
func (c *candidate) serve(ctx context.Context, t *term, lead func(context.Context) error) (again bool, err error) {
	c.logger.Info("Started leading", "term", t.Number)
	c.metrics.LeaderTransition(c.ref)
	c.metrics.LeaderStatus(c.ref, true)

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
	go pprof.Do(leadCtx, pprof.Labels(stackLabel, c.ref), func(ctx context.Context) {
		err := errGoexit
		defer func() {
			c.elector.setTerm(nil)
			returned <- err
		}()
		err = lead(ctx)
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
			c.logger.Info("Asked to stop, keeping the Lease while the work drains", "drainTimeout", c.drainTimeout)
			drained = time.After(c.drainTimeout)

		case <-drained:
			overran = true
			t.end()
			hung = time.After(c.leaseDuration - c.renewDeadline)

		case <-lost:
			lost = nil
			c.logger.Info("Stopped leading, waiting for the work to stop", "term", t.Number)
			c.metrics.LeaderStatus(c.ref, false)

		case <-hung:
			return false, fmt.Errorf("leader: lead has not returned %v after it was asked to stop; Lease %s expires unreleased; lead is at:\n%s",
				c.drainTimeout+c.leaseDuration-c.renewDeadline, c.ref, leadStacks(c.ref))

		case err := <-returned:
			held := t.valid()
			t.end() // before the release: from now on the Lease may be another's
			stopRenewing()
			wg.Wait()
			c.metrics.LeaderStatus(c.ref, false)
			if held {
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

var errGoexit = errors.New("leader: lead ended its goroutine with runtime.Goexit")

// unlessStopped is err, or nil where err is just the end of ctx handed back.
// Compared by identity: an error that wraps it has more to say.
func unlessStopped(ctx context.Context, err error) error {
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

// leadStacks is the stacks of all goroutines that carry lead's label: that of
// lead and those it started.
func leadStacks(ref string) string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return err.Error()
	}
	var found strings.Builder
	label := fmt.Sprintf("%q:%q", stackLabel, ref)
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(stack, label) && found.Len()+len(stack) < stackLimit {
			found.WriteString(stack)
			found.WriteString("\n\n")
		}
	}
	return strings.TrimSpace(found.String())
}

// jittered is d and up to a fifth more, so that replicas do not act in step.
func jittered(d time.Duration) time.Duration {
	return d + rand.N(d/5+1)
}
