package leader_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/leader"
)

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

		// The first renewal has its response 4.9s later, the later ones never.
		c.On(func(verb, _ string) fault {
			sent = time.Now()
			c.Partition(true)
			return fault{After: 4900 * time.Millisecond}
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
		c.On(nil)
		c.Partition(false)
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
		c.On(func(verb, _ string) fault {
			if verb != "create" {
				return fault{}
			}
			sent = time.Now()
			c.Partition(true) // or the first renewal, which is due at once, may get through
			return fault{After: 4900 * time.Millisecond}
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
	var lost controllerkit.LostError
	if !errors.As(leader.ErrLost, &lost) || !lost.LeadershipLost() {
		t.Error("ErrLost has no LeadershipLost() that is true")
	}
}

// TestLostResponseDoesNotExtend: renewals that are stored, but whose responses
// are lost, do not keep a leader: it cannot know.
//
// Proves L2.
func TestLostResponseDoesNotExtend(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		var updates atomic.Int32
		c.On(func(verb, _ string) fault {
			switch verb {
			case "watch":
				return fault{Err: errors.New("no watch")}
			case "update": // stored but not heard of; the next one is a conflict
				return fault{Cut: updates.Add(1)%2 == 1}
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
		c.On(nil)
		r.leads(t, time.Minute)
		_ = r.stop()
	})
}

// TestOneLostRenewal: a renewal whose response is lost is recognised as the
// leader's own, and leadership goes on.
//
// Proves L2.
func TestOneLostRenewal(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		var lost atomic.Bool
		c.On(func(verb, _ string) fault {
			return fault{Cut: verb == "update" && lost.CompareAndSwap(false, true)}
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

				ca.On(func(string, string) fault {
					ca.Partition(true)
					return fault{After: late}
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
// Proves L2.
func TestLostAcquire(t *testing.T) {
	for _, tt := range []struct {
		name  string
		verb  string
		fault fault
	}{
		{name: "create not sent", verb: "create", fault: fault{Lost: true}},
		{name: "create stored, response lost", verb: "create", fault: fault{Cut: true}},
		{name: "create stored after the client gave up", verb: "create", fault: fault{Before: 6 * time.Second}},
		{name: "update not sent", verb: "update", fault: fault{Lost: true}},
		{name: "update stored, response lost", verb: "update", fault: fault{Cut: true}},
		{name: "update stored after the client gave up", verb: "update", fault: fault{Before: 6 * time.Second}},
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
				c.On(func(verb, _ string) fault {
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
		{name: "stored before the stop", fault: fault{After: time.Second}},
		{name: "stored after the stop", fault: fault{Before: time.Second}},
		{name: "response lost", fault: fault{Cut: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				c.On(func(verb, _ string) fault {
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

// TestCallsAreBounded: no call may take longer than half of RenewDeadline.
func TestCallsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		n := 0
		c.On(func(verb, _ string) fault {
			if verb == "update" {
				if n++; n == 1 {
					return fault{Lost: true}
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
