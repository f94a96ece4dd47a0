package leader_test

import (
	"context"
	"errors"
	"flag"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
)

// For ten minutes: go test -run '^TestServerThrottledApplication$' ./leader -throttled 10m -timeout 0
var throttledFor = flag.Duration("throttled", 6*time.Second,
	"how long TestServerThrottledApplication watches the leader beside the throttled application")

// A contestant leads with a Lease of its own name, so that only its client
// decides whether it goes on.
type contestant struct {
	lead   context.Context // of the first term
	lost   chan time.Time  // when it ended
	cancel context.CancelFunc
	ended  chan error
}

// The timings of contestants. Twice the time of a call fits into RenewDeadline
// with half a second to spare, so a call that times out costs no leadership.
const (
	contestantLease = 18 * time.Second
	contestantRenew = 15 * time.Second
	contestantRetry = 500 * time.Millisecond
)

// startContestant returns once the contestant leads.
func startContestant(t *testing.T, leases leader.LeaseClient, ns, name string) *contestant {
	t.Helper()
	e := &leader.Elector{
		Leases: leases, Namespace: ns, Name: name,
		LeaseDuration: contestantLease, RenewDeadline: contestantRenew, RetryPeriod: contestantRetry,
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := &contestant{lost: make(chan time.Time, 1), cancel: cancel, ended: make(chan error, 1)}
	leads := make(chan context.Context, 1)
	go func() {
		c.ended <- e.Run(ctx, func(ctx context.Context) error {
			select {
			case leads <- ctx:
			default: // a later term
			}
			<-ctx.Done()
			return nil
		})
	}()
	select {
	case c.lead = <-leads:
		context.AfterFunc(c.lead, func() { c.lost <- time.Now() })
	case err := <-c.ended:
		t.Fatalf("%s: Run() = %v before it leads", name, err)
	case <-time.After(patience):
		t.Fatalf("%s does not lead after %v", name, patience)
	}
	return c
}

func (c *contestant) stop(t *testing.T) {
	t.Helper()
	c.cancel()
	if err := <-c.ended; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// loses waits for the contestant to lose the Lease.
func (c *contestant) loses(t *testing.T, who string, began time.Time) {
	t.Helper()
	var lost time.Time
	select {
	case lost = <-c.lost:
	case <-time.After(contestantLease + patience):
		t.Fatalf("%s still leads: the fault does not show", who)
	}
	if cause := context.Cause(c.lead); !errors.Is(cause, leader.ErrLost) {
		t.Fatalf("%s: cause = %v, want ErrLost", who, cause)
	}
	t.Logf("%s lost the Lease %v after the fault", who, lost.Sub(began).Round(time.Millisecond))
}

// keepsUntil follows what the API server stores, over a path of its own, until a
// renewal of the given time or later, and returns how many it saw and the longest
// time between two.
func (c *contestant) keepsUntil(t *testing.T, ns, name string, until time.Time) (renewals int, gap time.Duration) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), until.Add(contestantLease+patience))
	defer cancel()
	var last time.Time
	for last.Before(until) {
		w, err := newClient(t, testserver.Config(t)).CoordinationV1().Leases(ns).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		})
		if err != nil {
			t.Fatalf("%s: watch the Lease: %v", name, err)
		}
		for last.Before(until) {
			var event watch.Event
			select {
			case event = <-w.ResultChan():
			case <-c.lead.Done():
				w.Stop()
				t.Fatalf("%s lost the Lease: %v; last renewal %v, %d seen", name, context.Cause(c.lead), last, renewals)
			}
			lease, ok := event.Object.(*coordinationv1.Lease)
			if !ok {
				break // closed: the server ends every watch after a while
			}
			if renewed := lease.Spec.RenewTime.Time; renewed.After(last) {
				if !last.IsZero() {
					gap = max(gap, renewed.Sub(last))
				}
				last = renewed
				renewals++
			}
		}
		w.Stop()
		if ctx.Err() != nil {
			t.Fatalf("%s: no renewal of %v or later is stored, the last is of %v", name, until, last)
		}
	}
	return renewals, gap
}

// TestServerDeadConnection: the connections to the API server die without a word,
// new ones work. The leader with its own client dials and keeps its Lease. The one
// on the application's client shows that the fault is one: all its calls share a
// connection that is dead for longer than a RenewDeadline.
//
// Proves L10.
func TestServerDeadConnection(t *testing.T) {
	t.Parallel()
	ns := testserver.Namespace(t)
	config := testserver.Config(t)
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	path := startPath(t, server.Host)
	if config.ServerName == "" && !config.Insecure {
		config.ServerName = server.Hostname()
	}
	config.Host = strings.Replace(config.Host, server.Host, path.addr(), 1)

	own := startContestant(t, ownClient(t, config, ns), ns, "own")
	ordinary := startContestant(t, newClient(t, config).CoordinationV1().Leases(ns), ns, "ordinary")

	began := time.Now()
	t.Logf("%d connections die", path.freeze())
	renewals, gap := own.keepsUntil(t, ns, "own", began.Add(contestantRenew))
	t.Logf("own client: %d renewals seen, the longest gap is %v", renewals, gap)
	ordinary.loses(t, "the ordinary client", began)

	// And once more, with the connection that was dialled since.
	began = time.Now()
	t.Logf("%d connections die", path.freeze())
	own.keepsUntil(t, ns, "own", began.Add(contestantRetry))

	own.stop(t)
	ordinary.cancel()
	path.cut() // the ordinary client would wait for an answer
	<-ordinary.ended
}

// TestServerThrottledApplication: an application has used up its rate limiter for
// minutes ahead, and keeps hundreds of watches open. The leader with its own
// client keeps its Lease. The one on the application's client shows that the fault
// is one.
//
// Proves L10.
func TestServerThrottledApplication(t *testing.T) {
	t.Parallel()
	const (
		waiting = 300 // requests that wait for the limiter at any time
		watches = 200
	)
	ns := testserver.Namespace(t)
	config := testserver.Config(t)
	config.QPS = 1
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(1, 20) // the burst lets the election start
	application := newClient(t, config)

	own := startContestant(t, ownClient(t, config, ns), ns, "own")
	shared := startContestant(t, application.CoordinationV1().Leases(ns), ns, "shared")

	load, stopLoad := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopLoad()
	var inLine, served atomic.Int64
	for range waiting {
		wg.Go(func() {
			for load.Err() == nil {
				inLine.Add(1)
				if _, err := application.CoreV1().ConfigMaps(ns).List(load, metav1.ListOptions{}); err == nil {
					served.Add(1)
				}
				inLine.Add(-1)
			}
		})
	}
	unlimited := rest.CopyConfig(config) // the same connections
	unlimited.QPS, unlimited.RateLimiter = -1, nil
	watcher := newClient(t, unlimited)
	for range watches {
		wg.Go(func() {
			for load.Err() == nil {
				w, err := watcher.CoreV1().ConfigMaps(ns).Watch(load, metav1.ListOptions{})
				if err != nil {
					if load.Err() == nil {
						t.Errorf("watch ConfigMaps: %v", err)
					}
					return
				}
				for range w.ResultChan() { // closed when load ends
				}
			}
		})
	}

	began := time.Now()
	renewals, gap := own.keepsUntil(t, ns, "own", began.Add(*throttledFor))
	shared.loses(t, "the application's client", began)
	t.Logf("own client: %d renewals in %v, the longest gap is %v; the application has %d requests in line, %d were served",
		renewals, time.Since(began).Round(time.Millisecond), gap, inLine.Load(), served.Load())
	if n := inLine.Load(); n < waiting*9/10 {
		t.Errorf("%d requests of the application are in line, want %d: it is not throttled", n, waiting)
	}
	if gap >= contestantRenew {
		t.Errorf("the longest time between two renewals is %v, want less than RenewDeadline, which is %v", gap, contestantRenew)
	}
	stopLoad()
	own.stop(t)
	shared.cancel()
	<-shared.ended
}
