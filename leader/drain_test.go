package leader_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/leader"
)

// TestDrain: the Lease is renewed while lead drains, and released only after.
//
// Proves L4.
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
// Proves L4.
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
		c.Partition(true)
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

// TestHang: work that ignores everything does not keep Run; the error shows where it hangs.
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

// TestReleaseIsConditional: a Lease that is another's by the time of the release
// is left alone, also when the takeover happens between its read and its write.
//
// Proves L4.
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
				c.On(func(v, _ string) fault {
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
		{verb: "get", fault: fault{Err: errors.New("connection refused")}},
		{verb: "update", fault: fault{Err: errors.New("connection refused")}},
		{verb: "get", fault: fault{Lost: true}},
		{verb: "update", fault: fault{Lost: true}},
	} {
		t.Run(fmt.Sprintf("%s, hangs=%t", tt.verb, tt.fault.Lost), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				err := e.Run(t.Context(), func(context.Context) error {
					failed := false
					c.On(func(v, _ string) fault {
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
		c.On(func(verb, _ string) fault {
			if verb == "update" && once {
				once = false
				return fault{Before: 500 * time.Millisecond}
			}
			return fault{After: 300 * time.Millisecond}
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

// TestReleaseForbidden: a release that the API server forbids is not retried. One
// that a proxy refuses is.
func TestReleaseForbidden(t *testing.T) {
	for _, tt := range []struct {
		name     string
		err      error
		most     time.Duration
		released bool
	}{
		{name: "API server", err: apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, nil)},
		{name: "proxy", err: fromProxy(http.StatusForbidden), most: 2 * time.Second, released: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				began := time.Now()
				err := e.Run(t.Context(), func(context.Context) error {
					began = time.Now()
					c.On(func(verb, _ string) fault {
						if verb == "update" && since(began) < time.Second {
							return fault{Err: tt.err}
						}
						return fault{}
					})
					return nil
				})
				if got := since(began); err != nil || got > tt.most {
					t.Errorf("Run() = %v after %v, want nil after at most %v", err, got, tt.most)
				}
				if lease, _ := s.get(); (*lease.Spec.HolderIdentity == "") != tt.released {
					t.Errorf("holderIdentity = %q, want it released: %t", *lease.Spec.HolderIdentity, tt.released)
				}
			})
		})
	}
}
