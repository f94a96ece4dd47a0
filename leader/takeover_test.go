package leader_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/leader"
)

// TestForeignTakeover: another holder in the Lease ends leadership at once, by
// the watch, and without one at the next renewal. The other's record is neither
// overwritten nor released.
//
// Proves L5.
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
				c.On(func(verb, _ string) fault {
					if verb == "watch" && !tt.watch {
						return fault{Err: errors.New("no watch")}
					}
					return fault{}
				})
				r := start(t, e, untilDone)
				ctx := r.leads(t, soon)
				time.Sleep(time.Second)
				if tt.hang {
					c.On(func(string, string) fault { return fault{Lost: true} })
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

// TestMetadataChange: a change of metadata does not end the term.
func TestMetadataChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		c.On(func(verb, _ string) fault {
			if verb == "watch" {
				return fault{Err: errors.New("no watch")}
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
		c.DelayWatches(7 * time.Second)
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Errorf("lead's context ended: %v", context.Cause(ctx))
		}
		// One to acquire and 30 renewals; the first events may cost a few more.
		if got := c.Calls("update"); got > 35 {
			t.Errorf("%d updates in a minute, want about one each RetryPeriod", got)
		}
		_ = r.stop()
	})
}

// TestSameIdentity: two processes with one name never both lead, and one does not take the
// other's record for its own.
//
// Proves L1.
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

		c1.Partition(true)
		<-ctx1.Done()
		lost := time.Now()
		ctx2 := second.leads(t, time.Minute)
		if margin := time.Since(lost); margin < leaseDuration-renewDeadline {
			t.Errorf("the second twin leads %v after the first lost, want at least %v", margin, leaseDuration-renewDeadline)
		}
		if got := mustTerm(t, ctx2).Number; got != 1 {
			t.Errorf("Number = %d, want 1: a new term although the identity is the same", got)
		}
		c1.Partition(false)
		time.Sleep(time.Minute)
		select {
		case <-first.starts:
			t.Error("the first twin leads again although the second does")
		default:
		}
		_, _ = first.stop(), second.stop()
	})
}

// TestSameIdentityAtOneInstant: a record of a twin that was written at the very microsecond
// of an own attempt that got lost is still the twin's.
//
// Proves L1.
func TestSameIdentityAtOneInstant(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("twin")
		var taken time.Time
		c.On(func(verb, _ string) fault {
			if verb != "create" {
				return fault{}
			}
			taken = time.Now()
			lease := stranger(ptr.To[int32](15))
			lease.Spec.HolderIdentity = ptr.To("twin")
			lease.Spec.LeaseTransitions = ptr.To[int32](0)
			lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(taken.Truncate(time.Microsecond)))
			lease.Spec.AcquireTime = lease.Spec.RenewTime
			if _, err := s.Create(lease); err != nil {
				t.Error(err)
			}
			return fault{Lost: true}
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
		c1.Partition(true)
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
