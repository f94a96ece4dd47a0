package leader_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/leader"
)

// The default timings, which most tests use.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	renewPeriod   = retryPeriod * 11 / 10  // the longest time from one renewal to the next
	soon          = 100 * time.Millisecond // more than the jitter before a claim
)

// stranger returns a Lease of a holder that does not run, with a wrong clock.
func stranger(seconds *int32) *coordinationv1.Lease {
	yesterday := metav1.NewMicroTime(time.Now().Add(-24 * time.Hour))
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = namespace, leaseName
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity:       ptr.To("stranger"),
		LeaseDurationSeconds: seconds,
		LeaseTransitions:     ptr.To[int32](7),
		AcquireTime:          &yesterday,
		RenewTime:            &yesterday,
	}
	return lease
}

type recordedMetrics struct {
	mu sync.Mutex
	observed
}

type observed struct {
	leading     bool
	seen        bool
	calls       int
	transitions int
	absences    int
	absent      time.Duration
	took        time.Duration
	renewals    int
	slow        int
	slowest     time.Duration
	name        string
}

func (m *recordedMetrics) LeaderStatus(name string, leading bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leading, m.name = leading, name
	m.calls++
}

func (m *recordedMetrics) LeaderSeen(_ string, seen bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = seen
}

func (m *recordedMetrics) LeaderTransition(_ string, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.transitions++
	m.took = took
}

func (m *recordedMetrics) LeaderAbsent(_ string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.absences++
	m.absent += d
}

func (m *recordedMetrics) LeaderRenewal(_ string, took time.Duration, slow bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renewals++
	if slow {
		m.slow++
	}
	m.slowest = max(m.slowest, took)
}

// now returns the observations after all goroutines are blocked.
func (m *recordedMetrics) now() observed {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.observed
}

const (
	namespace = "ns"
	leaseName = "controller"
)

// bubble runs test in a synctest bubble with an empty store, and waits for the
// requests that are still under way at its end.
func bubble(t *testing.T, test func(t *testing.T, s *store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		defer s.Wait()
		test(t, s)
	})
}

// A replica is one running Elector with work that reports.
type replica struct {
	*leader.Elector
	client *client
	cancel context.CancelCauseFunc
	starts chan context.Context // a term began
	ended  chan error           // Run returned
}

// elector is an Elector with short timings on a client of its own.
func (s *store) elector(identity string) (*leader.Elector, *client) {
	c := s.Client()
	return &leader.Elector{
		Leases: c, Namespace: namespace, Name: leaseName, Identity: identity,
	}, c
}

// untilDone is work that stops when it is asked to.
func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// start runs the Elector with work that announces itself and then does work.
func start(t *testing.T, e *leader.Elector, work func(context.Context) error) *replica {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	r := &replica{Elector: e, cancel: cancel, starts: make(chan context.Context, 100), ended: make(chan error, 1)}
	r.client, _ = e.Leases.(*client)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- e.Run(ctx, func(ctx context.Context) error {
			r.starts <- ctx
			return work(ctx)
		})
	}()
	t.Cleanup(func() { // a test that failed has not stopped it
		cancel(nil)
		<-done
	})
	return r
}

// leads waits for the replica's next term, but not longer than limit.
func (r *replica) leads(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	select {
	case ctx := <-r.starts:
		return ctx
	case err := <-r.ended:
		t.Fatalf("%s: Run returned %v, want a term", r.Identity, err)
	case <-time.After(limit):
		t.Fatalf("%s does not lead after %v", r.Identity, limit)
	}
	return nil
}

// stop cancels the replica and returns the result of its Run.
func (r *replica) stop() error {
	r.cancel(nil)
	return <-r.ended
}

func mustTerm(t *testing.T, ctx context.Context) leader.Term {
	t.Helper()
	term, ok := leader.TermFrom(ctx)
	if !ok {
		t.Fatal("TermFrom() = false, want the term of lead's context")
	}
	return term
}

// validity is the second context that lead's context carries, found the way a
// package finds it that does not import leader.
func validity(t *testing.T, ctx context.Context) context.Context {
	t.Helper()
	v, ok := ctx.Value(calls.Validity{}).(context.Context)
	if !ok {
		t.Fatal("lead's context carries no validity context")
	}
	return v
}

func since(start time.Time) time.Duration { return time.Since(start).Round(time.Millisecond) }
