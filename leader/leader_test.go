package leader_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/controllerkit/controllerkit/leader"
)

func TestRunLeadsAndReleases(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		boom := errors.New("boom")
		var spec coordinationv1.LeaseSpec
		err := e.Run(t.Context(), func(ctx context.Context) error {
			time.Sleep(time.Minute + time.Second)
			lease, _ := s.get()
			spec = lease.Spec
			if got, want := mustTerm(t, ctx), (leader.Term{LeaseUID: lease.UID, Number: 0}); got != want {
				t.Errorf("TermFrom() = %v, want %v", got, want)
			}
			if err := mustTerm(t, ctx).Check(ctx); err != nil {
				t.Errorf("Term.Check() after a minute of renewals = %v, want nil", err)
			}
			if err := (leader.Term{LeaseUID: lease.UID, Number: 1}).Check(ctx); err != leader.ErrLost {
				t.Errorf("Check() of another term = %v, want ErrLost", err)
			}
			return boom
		})
		if err != boom {
			t.Errorf("Run() = %v, want the error of lead", err)
		}
		if got := *spec.HolderIdentity; got != "a" {
			t.Errorf("holderIdentity while leading = %q, want %q", got, "a")
		}
		if got := *spec.LeaseDurationSeconds; got != 15 {
			t.Errorf("leaseDurationSeconds = %d, want 15", got)
		}
		if got := spec.RenewTime.Sub(spec.AcquireTime.Time); got <= 61*time.Second-renewPeriod || got > 61*time.Second {
			t.Errorf("renewTime - acquireTime after 61s = %v, want no longer ago than RetryPeriod and a tenth", got)
		}
		lease, _ := s.get()
		if got := *lease.Spec.HolderIdentity; got != "" {
			t.Errorf("holderIdentity after Run = %q, want it released", got)
		}
		if got := *lease.Spec.LeaseDurationSeconds; got != 1 {
			t.Errorf("leaseDurationSeconds after Run = %d, want 1", got)
		}
	})
}

// TestRunReturns proves L4.
func TestRunReturns(t *testing.T) {
	boom := errors.New("boom")
	cause := errors.New("shutting down")
	for _, tt := range []struct {
		name  string
		lead  func(context.Context) error
		stop  bool
		cause error
		want  error
	}{
		{name: "lead returns nil by itself", lead: func(context.Context) error { return nil }},
		{name: "lead fails by itself", lead: func(context.Context) error { return boom }, want: boom},
		{name: "stopped, lead returns nil", lead: untilDone, stop: true},
		{name: "stopped, lead returns ctx.Err()", stop: true, lead: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}},
		{name: "stopped, lead returns the cause", stop: true, cause: cause, lead: func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}},
		{name: "stopped, lead fails", stop: true, want: boom, lead: func(ctx context.Context) error {
			<-ctx.Done()
			return boom
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, _ := s.elector("a")
				r := start(t, e, tt.lead)
				if tt.stop {
					r.leads(t, soon)
					r.cancel(tt.cause)
				}
				if got := <-r.ended; got != tt.want {
					t.Errorf("Run() = %v, want %v", got, tt.want)
				}
				if lease, _ := s.get(); *lease.Spec.HolderIdentity != "" {
					t.Errorf("holderIdentity = %q, want it released", *lease.Spec.HolderIdentity)
				}
				if err := e.Check(nil); err != nil {
					t.Errorf("Check() after Run = %v, want nil", err)
				}
			})
		})
	}
}

func TestRunGoexit(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		err := e.Run(t.Context(), func(context.Context) error {
			t.SkipNow() // ends the goroutine of lead, not that of the test
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "Goexit") {
			t.Errorf("Run() = %v, want an error that names Goexit", err)
		}
		// Goroutines of lead may go on, so the Lease has to expire.
		if lease, _ := s.get(); *lease.Spec.HolderIdentity != "a" {
			t.Errorf("holder = %q, want a: not released", *lease.Spec.HolderIdentity)
		}
	})
}

func TestRunMisuse(t *testing.T) {
	valid := func() *leader.Elector {
		return &leader.Elector{Leases: newStore().Client(), Namespace: namespace, Name: leaseName}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop() // what is not noticed as misuse returns nil
	for _, tt := range []struct {
		name   string
		change func(*leader.Elector)
		field  string
	}{
		{name: "no client", change: func(e *leader.Elector) { e.Leases = nil }, field: "Leases"},
		{name: "nil pointer as client", change: func(e *leader.Elector) { e.Leases = (*client)(nil) }, field: "Leases"},
		{name: "no namespace", change: func(e *leader.Elector) { e.Namespace = "" }, field: "Namespace"},
		{name: "no name", change: func(e *leader.Elector) { e.Name = "" }, field: "Name"},
		{name: "negative lease", change: func(e *leader.Elector) { e.LeaseDuration = -time.Second }, field: "LeaseDuration"},
		{name: "more seconds than a Lease holds", change: func(e *leader.Elector) { e.LeaseDuration = 1 << 31 * time.Second }, field: "LeaseDuration"},
		{name: "no margin", change: func(e *leader.Elector) { e.LeaseDuration = renewDeadline }, field: "LeaseDuration"},
		{name: "no room to retry", change: func(e *leader.Elector) { e.RetryPeriod = 9 * time.Second }, field: "RenewDeadline"},
		{name: "negative deadline", change: func(e *leader.Elector) { e.RenewDeadline = -time.Second }, field: "RenewDeadline"},
		{name: "just no room to retry", change: func(e *leader.Elector) { e.RenewDeadline, e.RetryPeriod = 6*time.Second, 5*time.Second }, field: "RenewDeadline"},
		{name: "negative period", change: func(e *leader.Elector) { e.RetryPeriod = -time.Second }, field: "RetryPeriod"},
		{name: "negative start", change: func(e *leader.Elector) { e.StartTimeout = -time.Second }, field: "StartTimeout"},
		{name: "negative drain", change: func(e *leader.Elector) { e.DrainTimeout = -time.Second }, field: "DrainTimeout"},
		{name: "negative stop", change: func(e *leader.Elector) { e.StopTimeout = -time.Second }, field: "StopTimeout"},
		{name: "no time to stop", change: func(e *leader.Elector) { e.StopTimeout = 4850 * time.Millisecond }, field: "RenewDeadline"},
		{name: "negative drift", change: func(e *leader.Elector) { e.MaxDrift = -0.1 }, field: "MaxDrift"},
		{name: "a drift that stops a clock", change: func(e *leader.Elector) { e.MaxDrift = 1 }, field: "MaxDrift"},
		{name: "a drift that is no number", change: func(e *leader.Elector) { e.MaxDrift = math.NaN() }, field: "MaxDrift"},
		{name: "more drift than margin", change: func(e *leader.Elector) { e.MaxDrift = 1.0 / 3 }, field: "LeaseDuration"},
		{name: "less margin than the default drift", change: func(e *leader.Elector) { e.RenewDeadline = 14900 * time.Millisecond }, field: "LeaseDuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := valid()
			tt.change(e)
			err := e.Run(stopped, untilDone)
			if err == nil || !strings.HasPrefix(err.Error(), "leader: "+tt.field+" is ") {
				t.Errorf("Run() = %v, want an error that names %s", err, tt.field)
			}
		})
	}
	if err := valid().Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "lead is nil") {
		t.Errorf("Run(ctx, nil) = %v, want an error that says so", err)
	}
}

func TestRunShortTimings(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = 2*time.Second, time.Second, 200*time.Millisecond
		r := start(t, e, untilDone)
		r.leads(t, soon)
		if err := r.stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

func TestNilPointerAsMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		e.Metrics = (*recordedMetrics)(nil)
		r := start(t, e, untilDone)
		r.leads(t, soon)
		time.Sleep(2 * renewPeriod)
		if err := r.stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

func TestRunTwiceAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		r := start(t, e, untilDone)
		r.leads(t, soon)
		if err := e.Run(t.Context(), untilDone); err == nil || !strings.Contains(err.Error(), "runs already") {
			t.Errorf("second Run() = %v, want an error", err)
		}
		if err := r.stop(); err != nil {
			t.Errorf("first Run() = %v, want nil", err)
		}
		// One after the other is fine, and is a later term.
		again := start(t, e, untilDone)
		if got := mustTerm(t, again.leads(t, soon)).Number; got != 1 {
			t.Errorf("Number of the second Run's term = %d, want 1", got)
		}
		if err := again.stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

func TestIdentityDefault(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("")
		var holders []string
		for range 2 {
			if err := e.Run(t.Context(), func(context.Context) error {
				lease, _ := s.get()
				holders = append(holders, *lease.Spec.HolderIdentity)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if !strings.Contains(holders[0], "_") || holders[0] == holders[1] {
			t.Errorf("identities = %q, want host_uuid, new for every Run", holders)
		}
		if e.Identity != "" {
			t.Errorf("Identity = %q after Run, want the field untouched", e.Identity)
		}
	})
}

// TestCampaignsAgain: after a loss Run waits for lead, then leads again in the same
// process, and does not wait for its own record to expire.
//
// Proves L3.
func TestCampaignsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		cleanup := 3 * time.Second
		var running int
		r := start(t, e, func(ctx context.Context) error {
			running++
			defer func() { running-- }()
			if running > 1 {
				t.Error("lead runs twice")
			}
			<-ctx.Done()
			time.Sleep(cleanup)
			return errors.New("failed because it was lost")
		})
		first := r.leads(t, soon)
		c.Partition(true)
		<-first.Done()
		c.Partition(false)
		lost := time.Now()
		second := r.leads(t, time.Minute)
		if got := since(lost); got < cleanup || got > cleanup+soon {
			t.Errorf("leads again %v after the loss, want %v: when lead returned", got, cleanup)
		}
		a, b := mustTerm(t, first), mustTerm(t, second)
		if a.LeaseUID != b.LeaseUID || b.Number != a.Number+1 {
			t.Errorf("second term = %v after %v, want the next number", b, a)
		}
		if err := b.Check(first); err != leader.ErrLost {
			t.Errorf("Check of the second term with the first's context = %v, want ErrLost", err)
		}
		_ = r.stop()
	})
}

func TestCheck(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		if err := e.Check(nil); err != nil {
			t.Errorf("Check() before Run = %v, want nil", err)
		}
		release := make(chan struct{})
		r := start(t, e, func(ctx context.Context) error {
			stuckWork(release)
			return nil
		})
		r.leads(t, soon)
		for range 100 {
			time.Sleep(time.Second)
			if err := e.Check(nil); err != nil {
				t.Fatalf("Check() while leading = %v, want nil", err)
			}
		}
		c.Partition(true)
		time.Sleep(leaseDuration) // lost, but not for long
		if err := e.Check(nil); err != nil {
			t.Errorf("Check() right after a loss = %v, want nil", err)
		}
		time.Sleep(renewDeadline + retryPeriod)
		if err := e.Check(nil); !errors.Is(err, leader.ErrLost) {
			t.Errorf("Check() long after a loss with lead running = %v, want ErrLost", err)
		}
		close(release)
		synctest.Wait()
		if err := e.Check(nil); err != nil {
			t.Errorf("Check() once lead returned = %v, want nil", err)
		}
		_ = r.stop()
	})
}

func TestTermOutside(t *testing.T) {
	if term, ok := leader.TermFrom(context.Background()); ok {
		t.Errorf("TermFrom() = %v, true, want false", term)
	}
	if err := (leader.Term{}).Check(context.Background()); err == nil || errors.Is(err, leader.ErrLost) {
		t.Errorf("Term.Check() = %v, want an error that tells misuse from loss", err)
	}
}

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		if _, err := s.Create(stranger(nil)); err != nil {
			t.Fatal(err)
		}
		m := &recordedMetrics{}
		e, c := s.elector("a")
		e.Metrics = m
		r := start(t, e, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(5 * time.Second)
			return nil
		})
		if got := m.now(); got.calls == 0 || got.leading || got.transitions != 0 {
			t.Errorf("while standing by: %+v, want status false from the start", got)
		}
		r.leads(t, time.Minute)
		if got := m.now(); !got.leading || got.transitions != 1 || got.name != "ns/controller" {
			t.Errorf("while leading: %+v, want status true, 1 transition, ns/controller", got)
		}
		if got := m.now().took; got <= 0 || got > soon {
			t.Errorf("took %v to acquire the Lease once it had expired, want the jitter", got)
		}
		time.Sleep(10*renewPeriod + retryPeriod/2)
		if got := m.now(); got.renewals < 10 || got.renewals > 11 || got.slow != 0 || got.slowest != 0 {
			t.Errorf("after 10 periods: %+v, want 10 or 11 renewals, none slow", got)
		}
		const late = renewDeadline/2 - time.Second
		c.On(func(string, string) fault { return fault{After: late} })
		time.Sleep(renewPeriod + late)
		c.On(nil)
		if got := m.now(); got.slow != 1 || got.slowest != late {
			t.Errorf("after a late response: %+v, want 1 slow renewal, of %v", got, late)
		}
		c.Partition(true)
		time.Sleep(renewDeadline + time.Second)
		if m.now().leading {
			t.Error("status true after a loss, while the work stops, want false")
		}
		c.Partition(false)
		r.leads(t, time.Minute)
		if got := m.now(); !got.leading || got.transitions != 2 {
			t.Errorf("leading again: %+v, want status true and 2 transitions", got)
		}
		_ = r.stop()
		if m.now().leading {
			t.Error("status true after Run, want false")
		}
	})
}

// TestMetricsOfASeenLeader: a standby sees the leader while its Lease is renewed. A replica that
// cannot use the API server sees none after LeaseDuration.
func TestMetricsOfASeenLeader(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		start := func(name string) (*replica, *client, *recordedMetrics) {
			m := &recordedMetrics{}
			e, c := s.elector(name)
			e.Metrics = m
			return start(t, e, untilDone), c, m
		}
		want := func(when string, want bool, all ...*recordedMetrics) {
			t.Helper()
			for n, m := range all {
				if got := m.now().seen; got != want {
					t.Errorf("%s: replica %d sees a leader: %t, want %t", when, n, got, want)
				}
			}
		}
		a, ofA, ma := start("a")
		a.leads(t, time.Minute)
		_, ofB, mb := start("b")
		time.Sleep(retryPeriod)
		want("a leads", true, ma, mb)
		ofB.Partition(true)
		time.Sleep(leaseDuration + 2*retryPeriod)
		want("b is alone", false, mb)
		want("b is alone", true, ma)
		ofB.Partition(false)
		time.Sleep(2 * retryPeriod)
		want("b is back", true, ma, mb)
		ofA.Partition(true)
		time.Sleep(leaseDuration + 2*retryPeriod)
		want("a is alone", false, ma)
		want("b leads", true, mb)
		ofB.Partition(true)
		time.Sleep(leaseDuration + 2*retryPeriod)
		want("all requests fail", false, ma, mb)
		ofA.Partition(false)
		ofB.Partition(false)
		time.Sleep(leaseDuration + 2*retryPeriod)
		want("the API server is back", true, ma, mb)
		_ = a.stop()
		want("a has stopped", false, ma)
	})
}

// TestMetricsOfAnAbsence: the time for which the Lease was free is reported when another
// replica takes it, and when Run ends.
func TestMetricsOfAnAbsence(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		if _, err := s.Create(stranger(nil)); err != nil {
			t.Fatal(err)
		}
		m := &recordedMetrics{}
		e, c := s.elector("a")
		e.Metrics = m
		c.On(func(verb, _ string) fault {
			if verb == "update" {
				return fault{Err: errors.New("no connection")}
			}
			return fault{}
		})
		r := start(t, e, untilDone)
		time.Sleep(leaseDuration + 10*time.Second)
		if got := m.now(); got.absences != 0 {
			t.Errorf("while the Lease is free: %+v, want no report yet", got)
		}
		s.edit(t, func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions++ })
		if got := m.now(); got.absences != 1 || got.absent < 9*time.Second || got.absent > 11*time.Second {
			t.Errorf("after another replica took it: %+v, want one absence of about 10s", got)
		}
		time.Sleep(leaseDuration + 10*time.Second)
		_ = r.stop()
		if got := m.now(); got.absences != 2 || got.absent < 18*time.Second || got.absent > 21*time.Second || got.transitions != 0 {
			t.Errorf("after Run: %+v, want two absences of about 20s together", got)
		}
	})
}
