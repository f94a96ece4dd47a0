package leader_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/leader"
)

func contains(s string, all ...string) bool {
	for _, part := range all {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

func edits() map[string]func(*coordinationv1.LeaseSpec) {
	past := metav1.NewMicroTime(time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC))
	return map[string]func(*coordinationv1.LeaseSpec){
		"another holder":     func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = ptr.To("stranger") },
		"a holder of spaces": func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = ptr.To("   ") },
		"no holder":          func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = nil },
		"an empty holder":    func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = ptr.To("") },
		"no duration":        func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = nil },
		"no time at all":     func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = ptr.To[int32](0) },
		"a negative time":    func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = ptr.To[int32](-7) },
		"a shorter time":     func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = ptr.To[int32](1) },
		"a later term":       func(s *coordinationv1.LeaseSpec) { s.LeaseTransitions = ptr.To[int32](100) },
		"an earlier term":    func(s *coordinationv1.LeaseSpec) { s.LeaseTransitions = ptr.To[int32](0) },
		"no term":            func(s *coordinationv1.LeaseSpec) { s.LeaseTransitions = nil },
		"renewed long ago":   func(s *coordinationv1.LeaseSpec) { s.RenewTime = &past },
		"never renewed":      func(s *coordinationv1.LeaseSpec) { s.RenewTime = nil },
		"acquired long ago":  func(s *coordinationv1.LeaseSpec) { s.AcquireTime = &past },
		"a strategy": func(s *coordinationv1.LeaseSpec) {
			s.Strategy = ptr.To(coordinationv1.OldestEmulationVersion)
		},
		"nothing": func(s *coordinationv1.LeaseSpec) { *s = coordinationv1.LeaseSpec{} },
	}
}

// TestEdited: whatever a person changes in the record ends the term, at once by
// the watch and otherwise at the next renewal, because others go by what is
// written there. Then the edited record is waited out like anybody else's.
//
// Proves L5.
func TestEdited(t *testing.T) {
	for name, edit := range edits() {
		for _, watching := range []bool{true, false} {
			t.Run(name+map[bool]string{true: "/watch", false: "/no watch"}[watching], func(t *testing.T) {
				bubble(t, func(t *testing.T, s *store) {
					// So that the term has a number that can be lowered.
					before, _ := s.elector("before")
					for range 3 {
						if err := before.Run(t.Context(), func(context.Context) error { return nil }); err != nil {
							t.Fatal(err)
						}
					}
					e, c := s.elector("a")
					if !watching {
						c.On(func(verb, _ string) fault {
							if verb == "watch" {
								return fault{Err: errors.New("no watch")}
							}
							return fault{}
						})
					}
					r := start(t, e, untilDone)
					ctx := r.leads(t, soon)
					first := mustTerm(t, ctx)
					time.Sleep(time.Minute + retryPeriod/2)

					s.edit(t, func(lease *coordinationv1.Lease) { edit(&lease.Spec) })
					edited, _ := s.get()
					began := time.Now()
					await(t, ctx)
					limit := renewPeriod
					if watching {
						limit = 0
					}
					if got := since(began); got > limit {
						t.Errorf("lead's context ended after %v, want at most %v", got, limit)
					}
					if edited.Spec.Strategy != nil {
						var err error
						select {
						case err = <-r.ended:
						case <-time.After(time.Minute):
						}
						if err == nil || !contains(err.Error(), "strategy", "OldestEmulationVersion", "another name") {
							t.Errorf("Run() = %v, want an error that names the strategy and the cure", err)
						}
						return
					}
					wait := leaseDuration
					if s := ptr.Deref(edited.Spec.LeaseDurationSeconds, 0); s > 0 {
						wait = time.Duration(s) * time.Second
					}
					if ptr.Deref(edited.Spec.HolderIdentity, "") == "" {
						wait = 0
					}
					second := mustTerm(t, r.leads(t, time.Minute))
					if got := since(began); got < wait || got > wait+limit+soon {
						t.Errorf("leads again after %v, want what the edited record says, %v", got, wait)
					}
					if want := max(first.Number, int64(ptr.Deref(edited.Spec.LeaseTransitions, 0))) + 1; second.Number != want || second.LeaseUID != first.LeaseUID {
						t.Errorf("term %v after %v, want number %d, above the edited record's and the term before", second, first, want)
					}
					if lease, _ := s.get(); *lease.Spec.LeaseDurationSeconds != 15 || *lease.Spec.HolderIdentity != "a" {
						t.Errorf("record = %v, want the Elector's own again", lease.Spec)
					}
					_ = r.stop()
				})
			})
		}
	}
}

// TestStandbyOfEdited: a candidate obeys an edited record.
func TestStandbyOfEdited(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*coordinationv1.LeaseSpec)
		want time.Duration
	}{
		{name: "rubbish holder", edit: func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = ptr.To("\x00 {}") }, want: 15 * time.Second},
		{name: "no duration", edit: func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = ptr.To[int32](0) }, want: leaseDuration},
		{name: "negative duration", edit: func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = ptr.To[int32](math.MinInt32) }, want: leaseDuration},
		{name: "a day", edit: func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = ptr.To[int32](86400) }, want: 24 * time.Hour},
		{name: "renewed in the future", edit: func(s *coordinationv1.LeaseSpec) {
			future := metav1.NewMicroTime(time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC))
			s.RenewTime, s.AcquireTime = &future, &future
		}, want: 15 * time.Second},
		{name: "negative term", edit: func(s *coordinationv1.LeaseSpec) { s.LeaseTransitions = ptr.To[int32](-3) }, want: 15 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				lease := stranger(ptr.To[int32](15))
				tt.edit(&lease.Spec)
				if _, err := s.Create(lease); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				e, _ := s.elector("a")
				r := start(t, e, untilDone)
				term := mustTerm(t, r.leads(t, 48*time.Hour))
				if got := since(began); got < tt.want || got > tt.want+soon {
					t.Errorf("leads after %v, want %v", got, tt.want)
				}
				if want := max(0, int64(*lease.Spec.LeaseTransitions)+1); term.Number != want {
					t.Errorf("Number = %d, want %d", term.Number, want)
				}
				_ = r.stop()
			})
		})
	}
}

// TestStrategy: the Lease belongs to coordinated leader election, which writes
// whom it likes into it.
func TestStrategy(t *testing.T) {
	for _, holder := range []string{"", "stranger"} {
		t.Run("holder "+holder, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				lease := stranger(ptr.To[int32](15))
				lease.Spec.HolderIdentity = &holder
				lease.Spec.Strategy = ptr.To(coordinationv1.OldestEmulationVersion)
				if _, err := s.Create(lease); err != nil {
					t.Fatal(err)
				}
				e, c := s.elector("a")
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := e.Run(ctx, untilDone)
				if err == nil || !contains(err.Error(), "ns/controller", "strategy", "OldestEmulationVersion", "another name", "StartTimeout") {
					t.Errorf("Run() = %v, want an error that names the Lease, its strategy and the cure", err)
				}
				if got := since(began); got < 20*time.Second || got > 20*time.Second+soon {
					t.Errorf("Run returned after %v, want StartTimeout", got)
				}
				if n := c.Calls("update"); n != 0 {
					t.Errorf("%d updates, want none", n)
				}
			})
		})
	}
	t.Run("for a while", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *store) {
			lease := stranger(ptr.To[int32](1))
			lease.Spec.Strategy = ptr.To(coordinationv1.OldestEmulationVersion)
			if _, err := s.Create(lease); err != nil {
				t.Fatal(err)
			}
			e, _ := s.elector("a")
			r := start(t, e, untilDone)
			time.Sleep(19 * time.Second)
			s.edit(t, func(lease *coordinationv1.Lease) { lease.Spec.Strategy = nil })
			r.leads(t, time.Second+soon)
			_ = r.stop()
		})
	})
}

// TestNoTermLeft: the number of terms has an end, which only an edit gets to.
func TestNoTermLeft(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		lease := stranger(ptr.To[int32](1))
		lease.Spec.LeaseTransitions = ptr.To[int32](math.MaxInt32)
		if _, err := s.Create(lease); err != nil {
			t.Fatal(err)
		}
		e, _ := s.elector("a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := e.Run(ctx, untilDone); err == nil || !contains(err.Error(), "ns/controller", "leaseTransitions", "delete the Lease") {
			t.Errorf("Run() = %v, want an error that names the Lease, the field and the cure", err)
		}
		s.delete()
		r := start(t, e, untilDone)
		if got := mustTerm(t, r.leads(t, soon)).Number; got != 0 {
			t.Errorf("Number = %d in the new Lease, want 0", got)
		}
		_ = r.stop()
	})
}

// TestRightsTakenAway: the API server refuses what it allowed when the process
// started. A leader leads on to its deadline; then, and as a standby, Run ends
// once that has lasted StartTimeout. If they are granted again in time, Run goes on.
func TestRightsTakenAway(t *testing.T) {
	forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, errors.New("RBAC says no"))
	for _, standby := range []bool{false, true} {
		t.Run(fmt.Sprintf("standby=%t", standby), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				if standby {
					other, _ := s.elector("other")
					o := start(t, other, untilDone)
					o.leads(t, soon)
					defer o.cancel(nil)
				}
				e, c := s.elector("a")
				r := start(t, e, untilDone)
				var ctx context.Context
				if !standby {
					ctx = r.leads(t, soon)
				}
				time.Sleep(time.Minute + retryPeriod/2)
				c.On(func(string, string) fault { return fault{Err: forbidden} })
				for _, w := range s.Watches() {
					if w.Client == c {
						w.Stop()
					}
				}
				time.Sleep(5900 * time.Millisecond) // see Defaults
				c.On(nil)
				time.Sleep(time.Minute)
				if ctx != nil && ctx.Err() != nil {
					t.Errorf("lead's context ended: %v", context.Cause(ctx))
				}
				began := time.Now()
				c.On(func(string, string) fault { return fault{Err: forbidden} })
				for _, w := range s.Watches() {
					if w.Client == c {
						w.Stop()
					}
				}
				var err error
				select {
				case err = <-r.ended:
				case <-time.After(time.Hour):
				}
				if !apierrors.IsForbidden(err) || !contains(err.Error(), "leases.coordination.k8s.io ns/controller", "a Role in namespace ns must allow", "verbs: [") {
					t.Errorf("Run() = %v, want an error that names the missing right", err)
				}
				least := 20 * time.Second
				if !standby {
					least += renewDeadline - retryPeriod
				}
				// Then it tries for RenewDeadline to release a Lease that it may have claimed.
				if got := since(began); got < least || got > least+4*retryPeriod+renewDeadline {
					t.Errorf("Run returned after %v, want about %v", got, least)
				}
				if ctx != nil && !errors.Is(context.Cause(ctx), leader.ErrLost) {
					t.Errorf("cause = %v, want ErrLost", context.Cause(ctx))
				}
			})
		})
	}
}

// TestTimings: the presets are valid, and the zero values are Defaults.
func TestTimings(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timings func() (time.Duration, time.Duration, time.Duration)
		seconds int32
	}{
		{name: "Defaults", timings: leader.Defaults, seconds: 15},
		{name: "OutageTolerant", timings: leader.OutageTolerant, seconds: 137},
		{name: "zero", timings: func() (a, b, c time.Duration) { return }, seconds: 15},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = tt.timings()
				r := start(t, e, untilDone)
				ctx := r.leads(t, soon)
				if lease, _ := s.get(); *lease.Spec.LeaseDurationSeconds != tt.seconds {
					t.Errorf("leaseDurationSeconds = %d, want %d", *lease.Spec.LeaseDurationSeconds, tt.seconds)
				}
				// The outage that their documentation allows.
				outage := map[int32]time.Duration{15: 6 * time.Second, 137: 78 * time.Second}[tt.seconds]
				for range 20 {
					time.Sleep(time.Duration(tt.seconds) * 777 * time.Millisecond)
					c.On(func(string, string) fault { return fault{Err: errors.New("connection refused")} })
					time.Sleep(outage)
					c.On(nil)
				}
				if ctx.Err() != nil {
					t.Errorf("lead's context ended although no outage lasted more than %v", outage)
				}
				_ = r.stop()
			})
		})
	}
}
