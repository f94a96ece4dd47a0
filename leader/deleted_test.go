package leader_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestLeaseDeleted: the leader ends at once and takes a new Lease; a standby that
// had seen the record waits for it to run out.
//
// Proves L5.
func TestLeaseDeleted(t *testing.T) {
	for _, tt := range []struct {
		name  string
		watch bool
	}{{"watching", true}, {"not watching", false}} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				faults := func(verb, _ string) fault {
					if verb == "watch" && !tt.watch {
						return fault{Err: errors.New("no watch")}
					}
					return fault{}
				}
				ea, ca := s.elector("a")
				eb, cb := s.elector("b")
				ca.On(faults)
				cb.On(faults)
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
				cc.On(faults)
				c := start(t, ec, untilDone)
				time.Sleep(time.Minute)
				cb.Partition(true)
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
		if _, err := s.Create(stranger(nil)); err != nil {
			t.Fatal(err)
		}
		e, c := s.elector("a")
		c.On(func(verb, _ string) fault {
			if verb == "watch" {
				return fault{Err: errors.New("no watch")}
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
					cb.Partition(true)
					<-ctx.Done()
				} else {
					x, _ := s.elector("x")
					first := start(t, x, untilDone)
					first.leads(t, soon)
					cb.On(func(verb, _ string) fault { return fault{Lost: verb == "update"} })
					b = start(t, eb, untilDone)
					time.Sleep(time.Second)
					_ = first.stop()
					time.Sleep(soon) // b has seen it released, and claims in vain
					cb.Partition(true)
				}
				ea, ca := s.elector("a")
				a := start(t, ea, untilDone)
				ctx := a.leads(t, time.Minute)
				time.Sleep(retryPeriod + time.Second)
				ca.Partition(true)
				s.delete()
				if !told {
					time.Sleep(time.Millisecond) // the event is lost
				}
				cb.Partition(false)
				cb.On(nil)
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
// must not create it again, which only its UID prevents.
func TestUpdateDoesNotRecreate(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		})
		ctx := r.leads(t, soon)
		c.On(func(verb, _ string) fault {
			if verb == "update" {
				s.delete()
			}
			return fault{}
		})
		<-ctx.Done()
		if _, err := s.get(); !apierrors.IsNotFound(err) {
			t.Errorf("the Lease exists (%v) right after a renewal of a deleted one", err)
		}
		c.On(nil)
		_ = r.stop()
	})
}

// TestNumberGrows: a standby that has seen a term begins none below it, although the Lease has a lower
// number: somebody has edited it, or another replica has made it again.
//
// Proves L3.
func TestNumberGrows(t *testing.T) {
	for name, lower := range map[string]func(t *testing.T, s *store){
		"edited": func(t *testing.T, s *store) {
			s.edit(t, func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = ptr.To[int32](3) })
		},
		"made again": func(t *testing.T, s *store) {
			s.delete()
			if _, err := s.Create(stranger(nil)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				if _, err := s.Create(stranger(nil)); err != nil {
					t.Fatal(err)
				}
				s.edit(t, func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = ptr.To[int32](20) })
				e, _ := s.elector("a")
				r := start(t, e, untilDone)
				time.Sleep(time.Second)
				lower(t, s)
				ctx := r.leads(t, 2*time.Minute)
				if got := mustTerm(t, ctx).Number; got != 21 {
					t.Errorf("term %d, want 21", got)
				}
				_ = r.stop()
			})
		})
	}
}

// TestOldEventsKeepTheNumber: a standby that has read of a term does not begin a
// new Lease below it because an older event arrives late.
//
// Proves L3.
func TestOldEventsKeepTheNumber(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		if _, err := s.Create(stranger(nil)); err != nil {
			t.Fatal(err)
		}
		e, c := s.elector("a")
		c.DelayWatches(7 * time.Second)
		r := start(t, e, untilDone)
		time.Sleep(time.Second)
		c.DelayWatches(time.Hour)
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
