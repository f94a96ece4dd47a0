package leader_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/leader"
)

// A wallClock is the wall clock of one replica, which can be set.
type wallClock struct{ offset atomic.Int64 }

func (w *wallClock) read(t time.Time) time.Time {
	return t.Round(0).Add(time.Duration(w.offset.Load()))
}

func (w *wallClock) jump(d time.Duration) { w.offset.Add(int64(d)) }

func withWall(e *leader.Elector) *wallClock {
	w := &wallClock{}
	e.SetWall(w.read)
	return w
}

// TestClockSetForward: the line about the end of a term names a clock that was set forward.
func TestClockSetForward(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		wall := withWall(e)
		var out lockedBuffer
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), testlog.Text(&out, 4)))
		defer cancel()
		err := e.Run(ctx, func(lead context.Context) error {
			wall.jump(10 * time.Minute)
			<-lead.Done()
			synctest.Wait()
			cancel()
			return nil
		})
		if text := out.String(); err != nil || !strings.Contains(text, "Stopped leading") || !strings.Contains(text, "its clock was set forward") {
			t.Errorf("Run() = %v, and the lines do not name the clock:\n%s", err, text)
		}
	})
}

// TestSuspend: a machine wakes up after a time that its monotonic clock did not
// count. Term.Check returns ErrLost at once; the context of a lead
// that does not ask ends before the next renewal is sent; then the process is a
// candidate again.
//
// Proves L11.
func TestSuspend(t *testing.T) {
	t.Run("asks", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store) {
			e, _ := s.elector("a")
			wall := withWall(e)
			r := start(t, e, untilDone)
			ctx := r.leads(t, soon)
			term := mustTerm(t, ctx)
			time.Sleep(time.Minute + time.Second)
			if err := term.Check(ctx); err != nil {
				t.Fatalf("Check() = %v before the suspend, want nil", err)
			}
			wall.jump(renewDeadline)
			if err := term.Check(ctx); !errors.Is(err, leader.ErrLost) {
				t.Errorf("Check() = %v right after the suspend, want ErrLost", err)
			}
			if !errors.Is(context.Cause(ctx), leader.ErrLost) {
				t.Errorf("cause = %v after Check, want ErrLost", context.Cause(ctx))
			}
			if got := mustTerm(t, r.leads(t, soon)).Number; got != term.Number+1 {
				t.Errorf("Number = %d in the next term, want %d", got, term.Number+1)
			}
			_ = r.stop()
		})
	})
	t.Run("does not ask", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store) {
			e, c := s.elector("a")
			wall := withWall(e)
			r := start(t, e, untilDone)
			ctx := r.leads(t, soon)
			time.Sleep(time.Minute + time.Second)
			before := c.Calls("update")
			wall.jump(renewDeadline)
			began := time.Now()
			await(t, ctx)
			if got := since(began); got > renewPeriod {
				t.Errorf("lead's context ended after %v, want before the next renewal", got)
			}
			if got := c.Calls("update"); got != before {
				t.Errorf("%d renewals sent after the suspend, want none", got-before)
			}
			_ = r.stop()
		})
	})
	t.Run("during a renewal", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store) {
			e, c := s.elector("a")
			wall := withWall(e)
			r := start(t, e, untilDone)
			ctx := r.leads(t, soon)
			time.Sleep(time.Minute + time.Second)
			sent := make(chan struct{}, 10)
			c.On(func(string, string) fault {
				sent <- struct{}{}
				return fault{After: time.Second}
			})
			<-sent
			time.Sleep(time.Second / 2)
			wall.jump(renewDeadline)
			began := time.Now()
			await(t, ctx)
			if got := since(began); got > time.Second/2 {
				t.Errorf("lead's context ended after %v, want with the response: it must not prolong what is over", got)
			}
			_ = r.stop()
		})
	})
	t.Run("while acquiring", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store) {
			e, c := s.elector("a")
			wall := withWall(e)
			c.On(func(verb, _ string) fault {
				if verb == "create" {
					return fault{After: time.Second}
				}
				return fault{}
			})
			r := start(t, e, untilDone)
			time.Sleep(time.Second / 2)
			wall.jump(renewDeadline)
			// The record is its own, so it is claimed again.
			if got := mustTerm(t, r.leads(t, time.Second)).Number; got != 1 {
				t.Errorf("Number = %d, want 1: what the first claim acquired was over", got)
			}
			_ = r.stop()
		})
	})
}

// TestWallClockSetBack: it neither costs leadership nor prolongs it.
//
// Proves L11.
func TestWallClockSetBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		wall := withWall(e)
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		wall.jump(-time.Hour)
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Fatalf("lead's context ended: %v", context.Cause(ctx))
		}
		c.Partition(true)
		wall.jump(-time.Hour)
		began := time.Now()
		select {
		case <-ctx.Done():
		case <-time.After(time.Hour):
		}
		if got := since(began); got > renewDeadline {
			t.Errorf("lead's context ended %v after the last renewal, want at most RenewDeadline", got)
		}
		c.Partition(false)
		_ = r.stop()
	})
}

// TestStandbyOfClockSetBack: after the leader's clock was set back, events of the watch seem late. The standby reads the Lease
// a few times, and not until the term ends. It still notices a watch that lags later, and then takes over in time.
//
// Proves L9.
func TestStandbyOfClockSetBack(t *testing.T) {
	for _, back := range []time.Duration{retryPeriod * 11 / 10, 3 * time.Second, time.Hour} {
		for n := range 5 {
			bubble(t, func(t *testing.T, s *store) {
				var offset atomic.Int64 // of the leader's clock
				var leads atomic.Bool
				leads.Store(true)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					c := s.Client()
					lease := stranger(ptr.To(int32(leaseDuration / time.Second)))
					lease, err := c.Create(t.Context(), lease, metav1.CreateOptions{})
					for err == nil && leads.Load() {
						time.Sleep(retryPeriod + rand.N(renewPeriod-retryPeriod))
						now := metav1.NewMicroTime(time.Now().Add(time.Duration(offset.Load())))
						lease.Spec.RenewTime = &now
						lease, err = c.Update(t.Context(), lease, metav1.UpdateOptions{})
					}
					if err != nil {
						t.Error(err)
					}
				}()
				eb, cb := s.elector("b")
				b := start(t, eb, untilDone)
				for range 3 {
					time.Sleep(5 * time.Minute)
					offset.Add(-int64(back))
					before := cb.Calls("get")
					time.Sleep(10 * time.Minute)
					if got := cb.Calls("get") - before; got > 30 {
						t.Errorf("set back by %v: %d reads in ten minutes", back, got)
					}
					before = cb.Calls("get")
					time.Sleep(10 * time.Minute)
					if got := cb.Calls("get") - before; got > 3 {
						t.Errorf("set back by %v: %d reads in the next ten minutes, want at most one for each new watch", back, got)
					}
				}
				cb.DelayWatches(30 * time.Second)
				time.Sleep(time.Minute + time.Duration(n)*400*time.Millisecond)
				leads.Store(false)
				<-ended
				began := time.Now()
				b.leads(t, time.Minute)
				if got, want := since(began), leaseDuration+retryPeriod*6/5+250*time.Millisecond; got > want {
					t.Errorf("set back by %v: another leads after %v with a watch that lags, want at most %v", back, got, want)
				}
				_ = b.stop()
			})
		}
	}
}

// TestWallClockSlewed: small corrections cost no leadership.
func TestWallClockSlewed(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		wall := withWall(e)
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		for range 100 {
			wall.jump(time.Second)
			time.Sleep(retryPeriod)
		}
		if ctx.Err() != nil {
			t.Errorf("lead's context ended: %v", context.Cause(ctx))
		}
		_ = r.stop()
	})
}

// TestRoundedUp: others never wait for less than LeaseDuration, whatever part of
// a second it ends in.
func TestRoundedUp(t *testing.T) {
	for _, tt := range []struct {
		duration time.Duration
		want     int32
	}{
		{duration: 20 * time.Millisecond, want: 1},
		{duration: 300 * time.Millisecond, want: 1},
		{duration: time.Second, want: 1},
		{duration: time.Second + 1, want: 2},
		{duration: 15500 * time.Millisecond, want: 16},
	} {
		t.Run(tt.duration.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				a, _ := s.elector("a")
				a.LeaseDuration, a.RenewDeadline, a.RetryPeriod = tt.duration, tt.duration/2, tt.duration/4
				r := start(t, a, untilDone)
				ctx := r.leads(t, soon)
				lease, _ := s.get()
				if got := *lease.Spec.LeaseDurationSeconds; got != tt.want {
					t.Errorf("leaseDurationSeconds = %d, want %d", got, tt.want)
				}
				b, _ := s.elector("b")
				b.LeaseDuration, b.RenewDeadline, b.RetryPeriod = tt.duration, tt.duration/2, tt.duration/4
				standby := start(t, b, untilDone)
				time.Sleep(10 * tt.duration)
				r.client.Partition(true)
				began := time.Now()
				await(t, ctx)
				if got := since(began); got > tt.duration/2 {
					t.Errorf("lead's context ended after %v, want RenewDeadline at most", got)
				}
				standby.leads(t, time.Minute)
				if got, least := since(began), time.Duration(tt.want)*time.Second-tt.duration*11/40; got < least {
					t.Errorf("the next leads after %v, want at least %v", got, least)
				}
				_ = standby.stop()
				_ = r.stop()
			})
		})
	}
}

// TestShortened: an admission plugin stores less than was sent. Validity shrinks
// with it, or there is none.
func TestShortened(t *testing.T) {
	t.Run("a little", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store) {
			s.Admit = func(lease *coordinationv1.Lease) { lease.Spec.LeaseDurationSeconds = ptr.To[int32](10) }
			e, c := s.elector("a")
			r := start(t, e, untilDone)
			ctx := r.leads(t, soon)
			time.Sleep(time.Minute)
			if ctx.Err() != nil {
				t.Fatalf("lead's context ended: %v", context.Cause(ctx))
			}
			b, _ := s.elector("b")
			standby := start(t, b, untilDone)
			time.Sleep(time.Second)
			c.Partition(true)
			began := time.Now()
			await(t, ctx)
			// 5s of margin remain of the 10s.
			if got := since(began); got > 5*time.Second {
				t.Errorf("lead's context ended %v after the last renewal, want at most 5s", got)
			}
			standby.leads(t, time.Minute)
			_ = standby.stop()
			_ = r.stop()
		})
	})
	for _, seconds := range []int32{5, 6, 7} { // the last two leave a term that ends before its renewal
		t.Run(fmt.Sprintf("to %ds", seconds), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				s.Admit = func(lease *coordinationv1.Lease) {
					if *lease.Spec.LeaseDurationSeconds > seconds {
						lease.Spec.LeaseDurationSeconds = &seconds
					}
				}
				e, c := s.elector("a")
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := e.Run(ctx, untilDone)
				if err == nil || !contains(err.Error(), "leaseDurationSeconds", fmt.Sprintf("%ds", seconds), "15s", "StartTimeout") {
					t.Errorf("Run() = %v, want an error that says who shortened what", err)
				}
				if got := c.Calls("update") + c.Calls("create"); got > 15 {
					t.Errorf("%d writes in %v, want about one each RetryPeriod", got, 20*time.Second)
				}
				if lease, _ := s.get(); *lease.Spec.HolderIdentity != "" {
					t.Errorf("holder = %q after Run, want it released", *lease.Spec.HolderIdentity)
				}
			})
		})
	}
}

// TestManyFailedRenewals: a leader that has more renewals without a response than it remembers knows its record.
func TestManyFailedRenewals(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = 30*time.Second, 20*time.Second, 100*time.Millisecond
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		time.Sleep(time.Second)
		c.On(func(string, string) fault { return fault{Err: errors.New("connection refused")} })
		time.Sleep(12 * time.Second)
		if got := c.Calls("update"); got < 100 {
			t.Fatalf("%d renewals, want more than are remembered", got)
		}
		c.On(nil)
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Errorf("lead's context ended: %v", context.Cause(ctx))
		}
		_ = r.stop()
	})
}
