package leader_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

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

// TestRunReturns proves L6.
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
		// What lead started may go on, so the Lease has to expire.
		if lease, _ := s.get(); *lease.Spec.HolderIdentity != "a" {
			t.Errorf("holder = %q, want a: not released", *lease.Spec.HolderIdentity)
		}
	})
}

func TestRunMisuse(t *testing.T) {
	valid := func() *leader.Elector {
		return &leader.Elector{Leases: newStore().client(), Namespace: namespace, Name: leaseName}
	}
	stopped, stop := context.WithCancel(t.Context())
	stop() // what is not noticed as misuse returns nil
	for _, tt := range []struct {
		name   string
		change func(*leader.Elector)
		field  string
	}{
		{name: "no client", change: func(e *leader.Elector) { e.Leases = nil }, field: "Leases"},
		{name: "no namespace", change: func(e *leader.Elector) { e.Namespace = "" }, field: "Namespace"},
		{name: "no name", change: func(e *leader.Elector) { e.Name = "" }, field: "Name"},
		{name: "negative lease", change: func(e *leader.Elector) { e.LeaseDuration = -time.Second }, field: "LeaseDuration"},
		{name: "more seconds than a Lease holds", change: func(e *leader.Elector) { e.LeaseDuration = 1 << 31 * time.Second }, field: "LeaseDuration"},
		{name: "no margin", change: func(e *leader.Elector) { e.LeaseDuration = renewDeadline }, field: "LeaseDuration"},
		{name: "no room to retry", change: func(e *leader.Elector) { e.RetryPeriod = 9 * time.Second }, field: "RenewDeadline"},
		{name: "negative deadline", change: func(e *leader.Elector) { e.RenewDeadline = -time.Second }, field: "RenewDeadline"},
		{name: "negative period", change: func(e *leader.Elector) { e.RetryPeriod = -time.Second }, field: "RetryPeriod"},
		{name: "negative start", change: func(e *leader.Elector) { e.StartTimeout = -time.Second }, field: "StartTimeout"},
		{name: "negative drain", change: func(e *leader.Elector) { e.DrainTimeout = -time.Second }, field: "DrainTimeout"},
		{name: "negative stop", change: func(e *leader.Elector) { e.StopTimeout = -time.Second }, field: "StopTimeout"},
		{name: "no time to stop", change: func(e *leader.Elector) { e.StopTimeout = 4850 * time.Millisecond }, field: "RenewDeadline"},
		{name: "negative drift", change: func(e *leader.Elector) { e.MaxDrift = -0.1 }, field: "MaxDrift"},
		{name: "a drift that stops a clock", change: func(e *leader.Elector) { e.MaxDrift = 1 }, field: "MaxDrift"},
		{name: "a drift that is no number", change: func(e *leader.Elector) { e.MaxDrift = math.NaN() }, field: "MaxDrift"},
		{name: "more drift than margin", change: func(e *leader.Elector) { e.MaxDrift = 1.0 / 3 }, field: "RenewDeadline"},
		{name: "less margin than the default drift", change: func(e *leader.Elector) { e.RenewDeadline = 14900 * time.Millisecond }, field: "RenewDeadline"},
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

func TestRunTwiceAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		r := start(t, e, untilDone)
		r.leads(t, soon)
		if err := e.Run(t.Context(), untilDone); err == nil || !strings.Contains(err.Error(), "running already") {
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

// TestValidityFromSendTime: the term ends RenewDeadline after the last
// successful renewal was sent, however late its response was.
//
// Proves L1.
func TestValidityFromSendTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		v := validity(t, ctx)
		var sent time.Time

		// The first renewal is answered 4.9s later; then nothing any more.
		c.on(func(verb string) fault {
			sent = time.Now()
			c.partition(true)
			return fault{after: 4900 * time.Millisecond}
		})
		<-ctx.Done()
		if got := since(sent); got != renewDeadline {
			t.Errorf("lead's context ended %v after the renewal was sent, want RenewDeadline", got)
		}
		if !errors.Is(context.Cause(ctx), leader.ErrLost) {
			t.Errorf("cause = %v, want ErrLost", context.Cause(ctx))
		}
		if !errors.Is(context.Cause(v), leader.ErrLost) {
			t.Errorf("cause of the validity context = %v, want ErrLost", context.Cause(v))
		}
		if err := mustTerm(t, ctx).Check(ctx); err != leader.ErrLost {
			t.Errorf("Term.Check() = %v, want ErrLost", err)
		}
		c.on(nil)
		c.partition(false)
		r.leads(t, time.Minute)
		if err := r.stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// TestValidityFromSendTimeOfAcquire: so does the first one, counted from when the
// request that acquired the Lease was sent.
func TestValidityFromSendTimeOfAcquire(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		var sent time.Time
		c.on(func(verb string) fault {
			if verb != "create" {
				return fault{}
			}
			sent = time.Now()
			c.partition(true) // or the first renewal, which is due at once, may get through
			return fault{after: 4900 * time.Millisecond}
		})
		r := start(t, e, untilDone)
		ctx := r.leads(t, time.Minute)
		<-ctx.Done()
		if got := since(sent); got != renewDeadline {
			t.Errorf("lead's context ended %v after the request was sent, want %v", got, renewDeadline)
		}
		_ = r.stop()
	})
}

func TestErrLostIsClassedByMethod(t *testing.T) {
	var lost interface{ LeadershipLost() bool }
	if !errors.As(leader.ErrLost, &lost) || !lost.LeadershipLost() {
		t.Error("ErrLost has no LeadershipLost() that is true")
	}
}

// TestLostResponseDoesNotExtend: renewals that are stored, but whose responses
// are lost, do not keep a leader: it cannot know.
//
// Proves L3.
func TestLostResponseDoesNotExtend(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		var updates atomic.Int32
		c.on(func(verb string) fault {
			switch verb {
			case "watch":
				return fault{err: errors.New("no watch")}
			case "update": // stored but not heard of; the next one is a conflict
				return fault{cut: updates.Add(1)%2 == 1}
			}
			return fault{}
		})
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		began := time.Now()
		<-ctx.Done()
		if got := since(began); got != renewDeadline {
			t.Errorf("lead's context ended after %v, want %v", got, renewDeadline)
		}
		if n := updates.Load(); n < 3 {
			t.Errorf("%d renewals, want several", n)
		}
		c.on(nil)
		r.leads(t, time.Minute)
		_ = r.stop()
	})
}

// TestOneLostRenewal: a renewal whose response is lost is recognised as the
// leader's own, and leadership goes on.
//
// Proves L3.
func TestOneLostRenewal(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		var lost atomic.Bool
		c.on(func(verb string) fault {
			return fault{cut: verb == "update" && lost.CompareAndSwap(false, true)}
		})
		time.Sleep(time.Minute)
		if !lost.Load() {
			t.Fatal("no renewal was lost")
		}
		if err := ctx.Err(); err != nil {
			t.Errorf("lead's context = %v after one lost response, want it to go on", context.Cause(ctx))
		}
		_ = r.stop()
	})
}

// TestSlowRenewalThenPartition is the schedule under which client-go's elector
// has two leaders for 4.66 s: the response of one renewal is 9.5 s late, and
// then the leader is cut off.
//
// Proves L1.
func TestSlowRenewalThenPartition(t *testing.T) {
	for _, late := range []time.Duration{0, 4 * time.Second, 4999 * time.Millisecond, 9500 * time.Millisecond} {
		t.Run(late.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				ea, ca := s.elector("a")
				a := start(t, ea, untilDone)
				ctxA := a.leads(t, soon)
				eb, _ := s.elector("b")
				b := start(t, eb, untilDone)

				ca.on(func(string) fault {
					ca.partition(true)
					return fault{after: late}
				})
				var endA time.Time
				go func() {
					<-ctxA.Done()
					endA = time.Now()
				}()
				b.leads(t, time.Minute)
				synctest.Wait()
				if endA.IsZero() {
					t.Fatal("b leads while a still does")
				}
				margin := time.Since(endA)
				if want := leaseDuration - renewDeadline; margin < want {
					t.Errorf("b leads %v after a ended, want at least %v", margin, want)
				}
				if limit := leaseDuration + 2*time.Second; margin > limit {
					t.Errorf("b leads %v after a ended, want at most %v", margin, limit)
				}
				_, _ = a.stop(), b.stop()
			})
		})
	}
}

// TestLostAcquire: whatever happens to the request that acquires the Lease, the
// work starts at most once at a time, and soon.
//
// Proves L3.
func TestLostAcquire(t *testing.T) {
	for _, tt := range []struct {
		name  string
		verb  string
		fault fault
	}{
		{name: "create not sent", verb: "create", fault: fault{lost: true}},
		{name: "create stored, response lost", verb: "create", fault: fault{cut: true}},
		{name: "create stored after the client gave up", verb: "create", fault: fault{before: 6 * time.Second}},
		{name: "update not sent", verb: "update", fault: fault{lost: true}},
		{name: "update stored, response lost", verb: "update", fault: fault{cut: true}},
		{name: "update stored after the client gave up", verb: "update", fault: fault{before: 6 * time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				if tt.verb == "update" { // a Lease that was released
					e, _ := s.elector("before")
					if err := e.Run(t.Context(), func(context.Context) error { return nil }); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				e, c := s.elector("a")
				once := true
				c.on(func(verb string) fault {
					if verb != tt.verb || !once {
						return fault{}
					}
					once = false
					return tt.fault
				})
				r := start(t, e, untilDone)
				ctx := r.leads(t, time.Minute)
				if once {
					t.Fatal("the fault did not happen")
				}
				// The call is given up after 5s, and then tried again: far sooner
				// than LeaseDuration after a record that is not one's own.
				if got := since(began); got > 5*time.Second+2*retryPeriod {
					t.Errorf("leads after %v, want less than %v", got, 5*time.Second+2*retryPeriod)
				}
				lease, _ := s.get()
				if got, want := mustTerm(t, ctx), (leader.Term{LeaseUID: lease.UID, Number: int64(*lease.Spec.LeaseTransitions)}); got != want {
					t.Errorf("term = %v, want that of the Lease, %v", got, want)
				}
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Errorf("lead's context ended: %v", context.Cause(ctx))
				}
				_ = r.stop()
			})
		})
	}
}

// TestStoppedWhileAcquiring: a Run that is stopped while its claim is under way
// does not start the work and does not leave its name in the Lease.
func TestStoppedWhileAcquiring(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault fault
	}{
		{name: "stored before the stop", fault: fault{after: time.Second}},
		{name: "stored after the stop", fault: fault{before: time.Second}},
		{name: "response lost", fault: fault{cut: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				c.on(func(verb string) fault {
					if verb == "create" {
						return tt.fault
					}
					return fault{}
				})
				r := start(t, e, func(context.Context) error {
					t.Error("lead was called")
					return nil
				})
				time.Sleep(500 * time.Millisecond)
				if err := r.stop(); err != nil {
					t.Errorf("Run() = %v, want nil", err)
				}
				time.Sleep(5 * time.Second) // what is on its way arrives
				if lease, err := s.get(); err == nil && *lease.Spec.HolderIdentity != "" {
					t.Errorf("holderIdentity = %q, want it released", *lease.Spec.HolderIdentity)
				}
			})
		})
	}
}

// TestForeignTakeover: another holder in the Lease ends leadership at once, by
// the watch, and without one at the next renewal. The other's record is neither
// overwritten nor released.
//
// Proves L7.
func TestForeignTakeover(t *testing.T) {
	takeover := func(l *coordinationv1.Lease) {
		l.Spec.HolderIdentity = ptr.To("stranger")
		*l.Spec.LeaseTransitions++
	}
	steal := func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("stranger") }
	for _, tt := range []struct {
		name   string
		change func(*coordinationv1.Lease) // nil deletes the Lease
		watch  bool
		hang   bool // every call hangs; only the watch works
		within time.Duration
	}{
		{name: "takeover, watching, calls hang", change: takeover, watch: true, hang: true, within: 0},
		{name: "deleted, watching, calls hang", watch: true, hang: true, within: 0},
		{name: "takeover, watching", change: takeover, watch: true, within: 0},
		{name: "edit without a new term, watching", change: steal, watch: true, within: 0},
		{name: "released by a stranger, watching", watch: true, within: 0, change: func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("") }},
		{name: "takeover, not watching", change: takeover, within: renewPeriod},
		{name: "edit without a new term, not watching", change: steal, within: renewPeriod},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				c.on(func(verb string) fault {
					if verb == "watch" && !tt.watch {
						return fault{err: errors.New("no watch")}
					}
					return fault{}
				})
				r := start(t, e, untilDone)
				ctx := r.leads(t, soon)
				time.Sleep(time.Second)
				if tt.hang {
					c.on(func(string) fault { return fault{lost: true} })
				}
				began := time.Now()
				if tt.change == nil {
					s.delete()
					<-ctx.Done()
					if got := since(began); got > tt.within {
						t.Errorf("lead's context ended after %v, want %v", got, tt.within)
					}
					_ = r.stop()
					return
				}
				s.edit(t, tt.change)
				edited, _ := s.get()
				<-ctx.Done()
				if got := since(began); got > tt.within {
					t.Errorf("lead's context ended after %v, want %v", got, tt.within)
				}
				if !errors.Is(context.Cause(ctx), leader.ErrLost) {
					t.Errorf("cause = %v, want ErrLost", context.Cause(ctx))
				}
				synctest.Wait()
				after, _ := s.get()
				if after.ResourceVersion != edited.ResourceVersion {
					t.Errorf("the stranger's record was overwritten: holder %q", *after.Spec.HolderIdentity)
				}
				_ = r.stop()
			})
		})
	}
}

// TestMetadataChange: who changes only metadata does not depose the leader.
func TestMetadataChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		c.on(func(verb string) fault {
			if verb == "watch" {
				return fault{err: errors.New("no watch")}
			}
			return fault{}
		})
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		time.Sleep(500 * time.Millisecond)
		for range 10 {
			s.edit(t, func(l *coordinationv1.Lease) { l.Labels = map[string]string{"at": time.Now().Format("150405")} })
			time.Sleep(3100 * time.Millisecond) // never at the instant of a renewal
		}
		if ctx.Err() != nil {
			t.Errorf("lead's context ended: %v", context.Cause(ctx))
		}
		_ = r.stop()
	})
}

// TestLaggingWatch: events that are older than what the leader knows neither
// depose it nor make it renew more often.
func TestLaggingWatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		before, _ := s.elector("before")
		for range 3 {
			if err := before.Run(t.Context(), func(context.Context) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		e, c := s.elector("a")
		c.delay = 7 * time.Second
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Errorf("lead's context ended: %v", context.Cause(ctx))
		}
		// One to acquire and 30 renewals; the first events may cost a few more.
		if got := c.calls("update"); got > 35 {
			t.Errorf("%d updates in a minute, want about one each RetryPeriod", got)
		}
		_ = r.stop()
	})
}

// TestSameIdentity: two processes with one name never both lead, and one does
// not take the other's record for its own.
//
// Proves L2.
func TestSameIdentity(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e1, c1 := s.elector("twin")
		e2, _ := s.elector("twin")
		first := start(t, e1, untilDone)
		ctx1 := first.leads(t, soon)
		second := start(t, e2, untilDone)
		time.Sleep(time.Minute)
		select {
		case <-second.starts:
			t.Fatal("the second twin leads although the first does")
		default:
		}
		if ctx1.Err() != nil {
			t.Fatalf("the first twin lost: %v", context.Cause(ctx1))
		}

		c1.partition(true)
		<-ctx1.Done()
		lost := time.Now()
		ctx2 := second.leads(t, time.Minute)
		if margin := time.Since(lost); margin < leaseDuration-renewDeadline {
			t.Errorf("the second twin leads %v after the first lost, want at least %v", margin, leaseDuration-renewDeadline)
		}
		if got := mustTerm(t, ctx2).Number; got != 1 {
			t.Errorf("Number = %d, want 1: a new term although the identity is the same", got)
		}
		c1.partition(false)
		time.Sleep(time.Minute)
		select {
		case <-first.starts:
			t.Error("the first twin leads again although the second does")
		default:
		}
		_, _ = first.stop(), second.stop()
	})
}

// TestSameIdentityAtOneInstant: a record of a twin that was written at the very
// microsecond of an own attempt that got lost is still the twin's.
//
// Proves L2.
func TestSameIdentityAtOneInstant(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("twin")
		var taken time.Time
		c.on(func(verb string) fault {
			if verb != "create" {
				return fault{}
			}
			taken = time.Now()
			lease := stranger(ptr.To[int32](15))
			lease.Spec.HolderIdentity = ptr.To("twin")
			lease.Spec.LeaseTransitions = ptr.To[int32](0)
			lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(taken.Truncate(time.Microsecond)))
			lease.Spec.AcquireTime = lease.Spec.RenewTime
			if _, err := s.create(lease); err != nil {
				t.Error(err)
			}
			return fault{lost: true}
		})
		r := start(t, e, untilDone)
		r.leads(t, time.Minute)
		if got := since(taken); got < leaseDuration {
			t.Errorf("leads %v after the twin took the Lease, want at least %v", got, leaseDuration)
		}
		_ = r.stop()
	})
}

// TestCrashedSelf: a new process does not resume the record of a crashed one of
// the same name; it waits like any other.
func TestCrashedSelf(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e1, c1 := s.elector("pod-0")
		crashed := start(t, e1, untilDone)
		ctx := crashed.leads(t, soon)
		c1.partition(true)
		began := time.Now()
		e2, _ := s.elector("pod-0")
		restarted := start(t, e2, untilDone)
		restarted.leads(t, time.Minute)
		if got := since(began); got < leaseDuration {
			t.Errorf("leads after %v, want at least %v", got, leaseDuration)
		}
		if ctx.Err() == nil {
			t.Error("both lead")
		}
		_, _ = crashed.stop(), restarted.stop()
	})
}

// TestLeaseDeleted: the leader ends at once and takes a new Lease; a standby that
// had seen the record waits for it to run out.
//
// Proves L7.
func TestLeaseDeleted(t *testing.T) {
	for _, tt := range []struct {
		name  string
		watch bool
	}{{"watching", true}, {"not watching", false}} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				faults := func(verb string) fault {
					if verb == "watch" && !tt.watch {
						return fault{err: errors.New("no watch")}
					}
					return fault{}
				}
				ea, ca := s.elector("a")
				eb, cb := s.elector("b")
				ca.on(faults)
				cb.on(faults)
				a := start(t, ea, untilDone)
				ctx := a.leads(t, soon)
				before := mustTerm(t, ctx)
				b := start(t, eb, untilDone)
				time.Sleep(time.Minute + time.Second)

				s.delete()
				began := time.Now()
				<-ctx.Done()
				if got := since(began); tt.watch && got != 0 || got > renewPeriod {
					t.Errorf("lead's context ended after %v", got)
				}
				after := mustTerm(t, a.leads(t, soon))
				if after.LeaseUID == before.LeaseUID || after.Number <= before.Number {
					t.Errorf("term = %v after %v, want another UID and a higher number", after, before)
				}
				_ = a.stop()

				// Now the holder is gone together with the Lease.
				ctx = b.leads(t, time.Minute)
				ec, cc := s.elector("c")
				cc.on(faults)
				c := start(t, ec, untilDone)
				time.Sleep(time.Minute)
				cb.partition(true)
				s.delete()
				<-ctx.Done()
				lost := time.Now()
				c.leads(t, time.Minute)
				if margin := time.Since(lost); margin < leaseDuration-renewDeadline {
					t.Errorf("c leads %v after b lost, want at least %v", margin, leaseDuration-renewDeadline)
				}
				_, _ = b.stop(), c.stop()
			})
		})
	}
}

// TestLeaseDeletedAfterUnseenRenewal: who finds the Lease deleted cannot know how
// long before it was last renewed.
func TestLeaseDeletedAfterUnseenRenewal(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		if _, err := s.create(stranger(nil)); err != nil {
			t.Fatal(err)
		}
		e, c := s.elector("a")
		c.on(func(verb string) fault {
			if verb == "watch" {
				return fault{err: errors.New("no watch")}
			}
			return fault{}
		})
		r := start(t, e, untilDone)
		time.Sleep(retryPeriod - time.Millisecond) // right before the second read
		s.edit(t, func(l *coordinationv1.Lease) { l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()} })
		s.delete()
		renewed := time.Now()
		r.leads(t, time.Minute)
		if got := since(renewed); got < leaseDuration {
			t.Errorf("leads %v after the last renewal, want at least %v", got, leaseDuration)
		}
		_ = r.stop()
	})
}

// TestLeaseDeletedAfterUnseenTerm: another replica has led since this one saw the
// Lease released, or its own, and leads on although the Lease was deleted. Who
// finds none then waits.
//
// Proves L1.
func TestLeaseDeletedAfterUnseenTerm(t *testing.T) {
	for i := range 4 {
		own, told := i&1 != 0, i&2 != 0
		t.Run(fmt.Sprintf("own=%t,told=%t", own, told), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				eb, cb := s.elector("b")
				var b *replica
				if own {
					b = start(t, eb, untilDone)
					ctx := b.leads(t, soon)
					time.Sleep(time.Second)
					cb.partition(true)
					<-ctx.Done()
				} else {
					x, _ := s.elector("x")
					first := start(t, x, untilDone)
					first.leads(t, soon)
					cb.on(func(verb string) fault { return fault{lost: verb == "update"} })
					b = start(t, eb, untilDone)
					time.Sleep(time.Second)
					_ = first.stop()
					time.Sleep(soon) // b has seen it released, and claims in vain
					cb.partition(true)
				}
				ea, ca := s.elector("a")
				a := start(t, ea, untilDone)
				ctx := a.leads(t, time.Minute)
				time.Sleep(retryPeriod + time.Second)
				ca.partition(true)
				s.delete()
				if !told {
					time.Sleep(time.Millisecond) // the event is lost
				}
				cb.partition(false)
				cb.on(nil)
				next := b.leads(t, 2*time.Minute)
				if ctx.Err() == nil || mustTerm(t, ctx).Check(ctx) == nil {
					t.Error("b leads while a does")
				}
				if mustTerm(t, next).Check(next) != nil {
					t.Error("b does not lead, the test proves nothing")
				}
				_ = a.stop()
				_ = b.stop()
			})
		})
	}
}

// TestUpdateDoesNotRecreate: a renewal that arrives after the Lease was deleted
// must not create it anew, which only its UID prevents.
func TestUpdateDoesNotRecreate(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		})
		ctx := r.leads(t, soon)
		c.on(func(verb string) fault {
			if verb == "update" {
				s.delete()
			}
			return fault{}
		})
		<-ctx.Done()
		if _, err := s.get(); !apierrors.IsNotFound(err) {
			t.Errorf("the Lease exists (%v) right after a renewal of a deleted one", err)
		}
		c.on(nil)
		_ = r.stop()
	})
}

// TestExpiry: a candidate waits as long as the record says, counted from when it
// saw the last change, whatever the clock times in the record are.
func TestExpiry(t *testing.T) {
	for _, tt := range []struct {
		name    string
		seconds *int32
		want    time.Duration
	}{
		{name: "the record's duration is longer", seconds: ptr.To[int32](40), want: 40 * time.Second},
		{name: "the record's duration is shorter", seconds: ptr.To[int32](5), want: 5 * time.Second},
		{name: "the record has none", seconds: nil, want: leaseDuration},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				if _, err := s.create(stranger(tt.seconds)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour) // the age of the record does not matter
				began := time.Now()
				e, _ := s.elector("a")
				r := start(t, e, untilDone)
				ctx := r.leads(t, 2*time.Minute)
				if got := since(began); got < tt.want || got > tt.want+soon {
					t.Errorf("leads after %v, want %v", got, tt.want)
				}
				if got := mustTerm(t, ctx).Number; got != 8 {
					t.Errorf("Number = %d, want 8, one more than the record's", got)
				}
				_ = r.stop()
			})
		})
	}
}

// stranger is a Lease held by nobody who runs, by a clock that is far off.
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

// TestHandOver: a released Lease is taken at once, although the next poll of the
// standbys is half a minute away.
func TestHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		var replicas []*replica
		for _, name := range []string{"a", "b", "c"} {
			e, _ := s.elector(name)
			e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = time.Minute, 45*time.Second, 30*time.Second
			replicas = append(replicas, start(t, e, untilDone))
			if name == "a" {
				replicas[0].leads(t, soon)
			}
		}
		time.Sleep(10 * time.Second)
		if err := replicas[0].stop(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		select {
		case <-replicas[1].starts:
		case <-replicas[2].starts:
		}
		if got := since(began); got > soon {
			t.Errorf("the next leader started %v after the release, want at most %v", got, soon)
		}
		_, _ = replicas[1].stop(), replicas[2].stop()
	})
}

// TestConflictsInARow: a candidate whom others forestall several times, and do
// not keep the Lease, acquires it at once and not a RetryPeriod later; one that is
// forestalled for ever does not storm.
func TestConflictsInARow(t *testing.T) {
	for _, watching := range []bool{true, false} {
		bubble(t, func(t *testing.T, s *store) {
			released := stranger(ptr.To[int32](1))
			released.Spec.HolderIdentity = ptr.To("")
			if _, err := s.create(released); err != nil {
				t.Fatal(err)
			}
			e, c := s.elector("a")
			e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = time.Minute, 45*time.Second, 30*time.Second
			var forestalled atomic.Int32
			c.on(func(verb string) fault {
				switch {
				case verb == "watch" && !watching:
					return fault{err: errors.New("no watch")}
				case verb == "update" && forestalled.Add(1) <= 4:
					s.edit(t, func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions++ })
				}
				return fault{}
			})
			r := start(t, e, untilDone)
			r.leads(t, time.Second)
			if got := forestalled.Load(); got != 5 {
				t.Errorf("%d claims, want four that are forestalled and one", got)
			}
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}

			e, c = s.elector("b")
			c.on(func(verb string) fault {
				if verb == "update" {
					s.edit(t, func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions++ })
				}
				return fault{}
			})
			r = start(t, e, untilDone)
			time.Sleep(10 * time.Minute)
			if got, most := c.calls("update"), int(10*time.Minute/retryPeriod)*3; got > most {
				t.Errorf("%d claims in 10 minutes of conflicts, want at most %d", got, most)
			}
			_ = r.stop()
		})
	}
}

// TestHandOverWithoutWatch: where the watch brings nothing, standbys find the
// released Lease at their next poll.
//
// Proves L8.
func TestHandOverWithoutWatch(t *testing.T) {
	forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, nil)
	for _, tt := range []struct {
		name  string
		watch fault
		delay time.Duration
		least int // watches in ten minutes
		most  int
		limit time.Duration // of the time between two polls
	}{
		{name: "forbidden", watch: fault{err: forbidden}, least: 15, most: 40, limit: retryPeriod * 6 / 5},
		{name: "hangs when it starts", watch: fault{lost: true}, least: 12, most: 40, limit: retryPeriod * 6 / 5},
		{name: "silent", delay: 24 * time.Hour, least: 1, most: 3, limit: retryPeriod * 12 / 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				ea, _ := s.elector("a")
				a := start(t, ea, untilDone)
				a.leads(t, soon)
				eb, cb := s.elector("b")
				cb.delay = tt.delay
				cb.on(func(verb string) fault {
					if verb == "watch" {
						return tt.watch
					}
					return fault{}
				})
				b := start(t, eb, untilDone)
				time.Sleep(10 * time.Minute)
				if got := cb.calls("watch"); got < tt.least || got > tt.most {
					t.Errorf("%d watches tried in 10 minutes, want %d to %d", got, tt.least, tt.most)
				}
				if got, want := cb.calls("get"), int(10*time.Minute/tt.limit)-1; got < want {
					t.Errorf("%d reads in 10 minutes, want at least %d", got, want)
				}
				if err := a.stop(); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				b.leads(t, time.Minute)
				if got := since(began); got > tt.limit+soon {
					t.Errorf("the next leader started %v after the release, want at most %v", got, tt.limit+soon)
				}
				_ = b.stop()
			})
		})
	}
}

// TestWatchRestarts: a watch that breaks is established again.
func TestWatchRestarts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		abort func(*watcher)
	}{
		{name: "closed", abort: (*watcher).Stop},
		{name: "error event", abort: func(w *watcher) {
			w.push(watch.Event{Type: watch.Error, Object: &metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired}})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				ea, _ := s.elector("a")
				a := start(t, ea, untilDone)
				a.leads(t, soon)
				eb, cb := s.elector("b")
				b := start(t, eb, untilDone)
				for range 8 {
					time.Sleep(time.Minute)
					for _, w := range s.watches() {
						tt.abort(w)
					}
				}
				time.Sleep(retryPeriod)
				if got := cb.calls("watch"); got != 9 {
					t.Errorf("%d watches, want 9: soon one more for each that broke", got)
				}
				began := time.Now()
				if err := a.stop(); err != nil {
					t.Fatal(err)
				}
				b.leads(t, time.Minute)
				if got := since(began); got > soon {
					t.Errorf("the next leader started %v after the release, want at most %v", got, soon)
				}
				_ = b.stop()
			})
		})
	}
}

// TestStandbyReadsLittle: a standby whose watch works leaves the API server alone.
func TestStandbyReadsLittle(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		ea, _ := s.elector("a")
		a := start(t, ea, untilDone)
		a.leads(t, soon)
		eb, cb := s.elector("b")
		b := start(t, eb, untilDone)
		time.Sleep(4 * time.Minute)
		if got := cb.calls("get"); got > 3 {
			t.Errorf("%d reads in 4 minutes, want hardly any", got)
		}
		_, _ = b.stop(), a.stop()
	})
}

// TestDrain: the Lease is renewed while lead drains, and released only after.
//
// Proves L5.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		drain := 50 * time.Second
		e, _ := s.elector("a")
		e.DrainTimeout = time.Minute
		var returned time.Time
		r := start(t, e, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(drain)
			if err := mustTerm(t, ctx).Check(ctx); err != nil {
				t.Errorf("Term.Check() after %v of draining = %v, want nil", drain, err)
			}
			if err := validity(t, ctx).Err(); err != nil {
				t.Errorf("the validity context ended while draining: %v", err)
			}
			returned = time.Now()
			return nil
		})
		ctx := r.leads(t, soon)
		eb, _ := s.elector("b")
		b := start(t, eb, untilDone)
		cause := errors.New("shutting down")
		r.cancel(cause)
		bctx := b.leads(t, 2*time.Minute)
		if err := <-r.ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if got := context.Cause(ctx); got != cause {
			t.Errorf("cause of lead's context = %v, want that of the caller's", got)
		}
		if got := since(returned); returned.IsZero() || got > soon {
			t.Errorf("b leads %v after a's work returned, want right after", got)
		}
		if validity(t, ctx).Err() == nil {
			t.Error("a's validity context has not ended although b leads")
		}
		if bctx.Err() != nil {
			t.Errorf("b's context: %v", context.Cause(bctx))
		}
		_ = b.stop()
	})
}

// TestLostWhileDraining: a drain does not keep a Lease that cannot be renewed.
//
// Proves L5.
func TestLostWhileDraining(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		e.DrainTimeout = time.Minute
		r := start(t, e, func(ctx context.Context) error {
			<-ctx.Done()
			v := validity(t, ctx)
			if v.Err() != nil {
				t.Errorf("the validity context ended with the caller's: %v", context.Cause(v))
			}
			<-v.Done()
			return context.Cause(v)
		})
		r.leads(t, soon)
		began := time.Now()
		c.partition(true)
		time.Sleep(time.Second)
		err := r.stop()
		if got := since(began); got != renewDeadline {
			t.Errorf("Run returned after %v, want %v: when the validity context ended", got, renewDeadline)
		}
		if !errors.Is(err, leader.ErrLost) {
			t.Errorf("Run() = %v, want the error of lead", err)
		}
	})
}

// TestDrainTimeout: work that overruns DrainTimeout loses leadership; its Lease
// expires unreleased.
func TestDrainTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		r := start(t, e, func(ctx context.Context) error {
			<-validity(t, ctx).Done()
			return nil
		})
		ctx := r.leads(t, soon)
		r.cancel(nil)
		began := time.Now()
		err := <-r.ended
		if got := since(began); got != 22*time.Second {
			t.Errorf("Run returned after %v, want 22s, the default of DrainTimeout", got)
		}
		if err == nil || !strings.Contains(err.Error(), "DrainTimeout") || !errors.Is(err, leader.ErrLost) {
			t.Errorf("Run() = %v, want an error that names DrainTimeout and is ErrLost", err)
		}
		if got := context.Cause(validity(t, ctx)); got != leader.ErrLost {
			t.Errorf("cause of the validity context = %v, want ErrLost", got)
		}
		time.Sleep(time.Minute)
		records := s.records()
		if last := records[len(records)-1]; last.holder != "a" || last.at.After(began.Add(22*time.Second)) {
			t.Errorf("last record = %+v, want one of a, not after DrainTimeout", last)
		}
	})
}

func stuckWork(release chan struct{}) { <-release }
func bystander(release chan struct{}) { <-release }

// TestHang: work that ignores everything does not keep Run; the error shows where
// it hangs.
//
// Proves L6.
func TestHang(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		e.DrainTimeout = 20 * time.Second
		release := make(chan struct{})
		go bystander(release)
		r := start(t, e, func(context.Context) error {
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() { stuckWork(release) })
			stuckWork(release)
			return nil
		})
		r.leads(t, soon)
		r.cancel(nil)
		began := time.Now()
		err := <-r.ended
		if got, want := since(began), 20*time.Second+4850*time.Millisecond; got != want {
			t.Errorf("Run returned after %v, want %v: DrainTimeout and the margin without the drift", got, want)
		}
		if err == nil || strings.Count(err.Error(), "stuckWork") < 2 {
			t.Errorf("Run() = %v, want an error with the stacks of lead and of what it started", err)
		}
		if strings.Contains(err.Error(), "bystander") || len(err.Error()) > 20<<10 {
			t.Errorf("Run() = %v, want only the stacks of lead", err)
		}
		if err := e.Run(t.Context(), untilDone); err == nil || !strings.Contains(err.Error(), "has not returned") {
			t.Errorf("Run() again = %v, want an error", err)
		}
		time.Sleep(leaseDuration + renewDeadline)
		if err := e.Check(nil); err == nil {
			t.Error("Check() = nil while lead hangs, want an error")
		}
		close(release)
		synctest.Wait()
		if err := e.Check(nil); err != nil {
			t.Errorf("Check() = %v once lead returned, want nil", err)
		}
	})
}

// TestCampaignsAgain: after a loss Run waits for lead, then leads again in the
// same process, and does not wait for its own record to expire.
//
// Proves L4.
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
		c.partition(true)
		<-first.Done()
		c.partition(false)
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
		c.partition(true)
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

// TestReleaseIsConditional: a Lease that is another's by the time of the release
// is left alone, also when the takeover happens between its read and its write.
//
// Proves L5.
func TestReleaseIsConditional(t *testing.T) {
	for _, verb := range []string{"get", "update"} {
		t.Run("taken over before the "+verb, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				finish := make(chan struct{})
				r := start(t, e, func(context.Context) error {
					<-finish
					return nil
				})
				r.leads(t, soon)
				time.Sleep(time.Second)
				done := false
				c.on(func(v string) fault {
					if v == verb && !done {
						done = true
						s.edit(t, func(l *coordinationv1.Lease) {
							l.Spec.HolderIdentity = ptr.To("stranger")
							*l.Spec.LeaseTransitions++
						})
					}
					return fault{}
				})
				close(finish)
				if err := <-r.ended; err != nil {
					t.Errorf("Run() = %v, want nil", err)
				}
				if lease, _ := s.get(); !done || *lease.Spec.HolderIdentity != "stranger" {
					t.Errorf("holderIdentity = %q, want the stranger's record untouched", *lease.Spec.HolderIdentity)
				}
			})
		})
	}
}

// TestReleaseIsRetried: a call that fails, or hangs, does not cost the hand-over.
func TestReleaseIsRetried(t *testing.T) {
	for _, tt := range []struct {
		verb  string
		fault fault
	}{
		{verb: "get", fault: fault{err: errors.New("connection refused")}},
		{verb: "update", fault: fault{err: errors.New("connection refused")}},
		{verb: "get", fault: fault{lost: true}},
		{verb: "update", fault: fault{lost: true}},
	} {
		t.Run(fmt.Sprintf("%s, hangs=%t", tt.verb, tt.fault.lost), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				err := e.Run(t.Context(), func(context.Context) error {
					failed := false
					c.on(func(v string) fault {
						if v != tt.verb || failed {
							return fault{}
						}
						failed = true
						return tt.fault
					})
					return nil
				})
				if lease, _ := s.get(); err != nil || *lease.Spec.HolderIdentity != "" {
					t.Errorf("Run() = %v, holderIdentity = %q, want it released", err, *lease.Spec.HolderIdentity)
				}
			})
		})
	}
}

// TestReleaseAfterLostRenewal: a renewal that is stored while the release is
// under way does not keep the Lease.
func TestReleaseAfterLostRenewal(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		finish := make(chan struct{})
		r := start(t, e, func(context.Context) error {
			<-finish
			return nil
		})
		r.leads(t, soon)
		once := true
		c.on(func(verb string) fault {
			if verb == "update" && once {
				once = false
				return fault{before: 500 * time.Millisecond}
			}
			return fault{after: 300 * time.Millisecond}
		})
		time.Sleep(renewPeriod + 100*time.Millisecond) // a renewal is on its way
		close(finish)
		<-r.ended
		time.Sleep(time.Minute)
		if lease, _ := s.get(); once || *lease.Spec.HolderIdentity != "" {
			t.Errorf("holderIdentity = %q, want it released", *lease.Spec.HolderIdentity)
		}
	})
}

func TestStartTimeout(t *testing.T) {
	forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, errors.New("RBAC says no"))
	for _, tt := range []struct {
		name   string
		exists bool
		faults func(verb string) fault
		within time.Duration
		want   []string
	}{
		{
			name:   "get forbidden",
			faults: func(string) fault { return fault{err: forbidden} },
			want:   []string{"get leases.coordination.k8s.io ns/controller", "RBAC says no", "verbs: [get]", "StartTimeout"},
		},
		{
			name:   "API server does not answer",
			faults: func(string) fault { return fault{lost: true} },
			want:   []string{"get leases.coordination.k8s.io ns/controller", "deadline exceeded"},
		},
		{
			name: "create forbidden",
			faults: func(verb string) fault {
				if verb == "create" {
					return fault{err: forbidden}
				}
				return fault{}
			},
			want: []string{"create leases.coordination.k8s.io ns/controller", "RBAC says no", "resources: [leases], verbs: [create]"},
		},
		{
			name: "no namespace",
			faults: func(verb string) fault {
				if verb == "create" {
					return fault{err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)}
				}
				return fault{}
			},
			want: []string{"create leases.coordination.k8s.io ns/controller", `namespaces "ns" not found`},
		},
		{
			name:   "a proxy without the API server",
			faults: func(string) fault { return fault{err: fromProxy(404)} },
			want:   []string{"get leases.coordination.k8s.io ns/controller", "the server could not find the requested resource"},
		},
		{
			name:   "update forbidden",
			exists: true,
			faults: func(verb string) fault {
				if verb == "update" {
					return fault{err: forbidden}
				}
				return fault{}
			},
			within: leaseDuration,
			want:   []string{"update leases.coordination.k8s.io ns/controller", "RBAC says no", "verbs: [update]"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				if tt.exists {
					if _, err := s.create(stranger(nil)); err != nil {
						t.Fatal(err)
					}
				}
				e, c := s.elector("a")
				e.StartTimeout = 30 * time.Second
				c.on(tt.faults)
				began := time.Now()
				err := e.Run(t.Context(), untilDone)
				if err == nil {
					t.Fatal("Run() = nil, want an error")
				}
				for _, want := range tt.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("Run() = %v, want it to say %q", err, want)
					}
				}
				if apierrors.IsForbidden(forbidden) && strings.Contains(tt.name, "forbidden") && !apierrors.IsForbidden(err) {
					t.Errorf("IsForbidden(%v) = false, want the cause wrapped", err)
				}
				least, most := e.StartTimeout+tt.within, e.StartTimeout+tt.within+10*time.Second
				if got := since(began); got < least || got > most {
					t.Errorf("Run returned after %v, want between %v and %v", got, least, most)
				}
			})
		})
	}
}

// TestOldEventsKeepTheNumber: a standby that has read of a term does not begin a
// new Lease below it because an older event arrives late.
//
// Proves L4.
func TestOldEventsKeepTheNumber(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		if _, err := s.create(stranger(nil)); err != nil {
			t.Fatal(err)
		}
		e, c := s.elector("a")
		c.delay = 7 * time.Second
		r := start(t, e, untilDone)
		time.Sleep(time.Second)
		c.mu.Lock()
		c.delay = time.Hour
		c.mu.Unlock()
		s.edit(t, func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = ptr.To[int32](20) })
		time.Sleep(7 * time.Second) // it has read of 20, and then heard of what was before
		s.delete()
		ctx := r.leads(t, 2*time.Minute)
		if got := mustTerm(t, ctx).Number; got != 21 {
			t.Errorf("term %d, want 21", got)
		}
		_ = r.stop()
	})
}

// TestRefusedInBetween: refusals count only as long as the Lease stays free.
func TestRefusedInBetween(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		if _, err := s.create(stranger(ptr.To[int32](5))); err != nil {
			t.Fatal(err)
		}
		e, c := s.elector("a")
		refuse := func(verb string) fault {
			if verb == "update" {
				return fault{err: apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, nil)}
			}
			return fault{}
		}
		c.on(refuse)
		r := start(t, e, untilDone)
		time.Sleep(15 * time.Second) // expired and refused for ten
		for range 30 {
			s.edit(t, func(l *coordinationv1.Lease) { l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()} })
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second) // and once more, but not for StartTimeout
		c.on(nil)
		r.leads(t, time.Minute)
		_ = r.stop()
	})
}

// TestOutageIsNoStartFailure: once the Lease was read, an outage is waited out.
func TestOutageIsNoStartFailure(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		ea, _ := s.elector("a")
		a := start(t, ea, untilDone)
		a.leads(t, soon)
		eb, cb := s.elector("b")
		b := start(t, eb, untilDone)
		time.Sleep(time.Second)
		cb.partition(true)
		time.Sleep(time.Hour)
		cb.partition(false)
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
		b.leads(t, time.Minute)
		_ = b.stop()
	})
}

// TestOutageWhileLeading: an outage ends the term, not Run.
func TestOutageWhileLeading(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, untilDone)
		r.leads(t, soon)
		c.partition(true)
		time.Sleep(time.Hour)
		c.partition(false)
		r.leads(t, time.Minute)
		if err := r.stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// TestCallsAreBounded: no call may take longer than half of RenewDeadline.
//
// Proves L9.
func TestCallsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		n := 0
		c.on(func(verb string) fault {
			if verb == "update" {
				if n++; n == 1 {
					return fault{lost: true}
				}
			}
			return fault{}
		})
		// Sent at 2s, given up at 7s, tried again before the term ends at 10s.
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Errorf("lead's context ended: %v, want one hanging call survived", context.Cause(ctx))
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

type recordedMetrics struct {
	mu sync.Mutex
	observed
}

type observed struct {
	leading     bool
	calls       int
	transitions int
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

func (m *recordedMetrics) LeaderTransition(_ string, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.transitions++
	m.took = took
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

// now is what was observed once everybody has done what is to be done now.
func (m *recordedMetrics) now() observed {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.observed
}

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		if _, err := s.create(stranger(nil)); err != nil {
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
		c.on(func(string) fault { return fault{after: late} })
		time.Sleep(renewPeriod + late)
		c.on(nil)
		if got := m.now(); got.slow != 1 || got.slowest != late {
			t.Errorf("after a late response: %+v, want 1 slow renewal, of %v", got, late)
		}
		c.partition(true)
		time.Sleep(renewDeadline + time.Second)
		if m.now().leading {
			t.Error("status true after a loss, while the work stops, want false")
		}
		c.partition(false)
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
