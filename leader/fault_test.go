package leader_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/leader"
)

// stopsWhenLeading stops the Run as soon as it leads.
type stopsWhenLeading struct {
	recordedMetrics
	stop func()
}

func (m *stopsWhenLeading) LeaderStatus(_ string, leading bool) {
	if leading {
		m.stop()
	}
}

// TestStoppedBeforeLead: a stop between the claim and the start of lead.
//
// Proves L4.
func TestStoppedBeforeLead(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		ctx, stop := context.WithCancel(t.Context())
		e, _ := s.elector("a")
		e.Metrics = &stopsWhenLeading{stop: stop}
		if err := e.Run(ctx, func(context.Context) error {
			t.Error("lead was called after ctx was done")
			return nil
		}); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if lease, _ := s.get(); *lease.Spec.HolderIdentity != "" {
			t.Errorf("holder = %q, want it released", *lease.Spec.HolderIdentity)
		}
	})
}

// TestCheckAfterHang: a lead that was left behind is unhealthy at once.
func TestCheckAfterHang(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		release := make(chan struct{})
		defer close(release)
		r := start(t, e, func(context.Context) error {
			<-release
			return nil
		})
		r.leads(t, soon)
		if err := r.stop(); err == nil {
			t.Fatal("Run() = nil, want an error")
		}
		if err := e.Check(nil); err == nil {
			t.Error("Check() = nil right after Run left lead behind, want an error")
		}
	})
}

// TestOvertakenClaim: the watch tells of a stranger's write, or of the Lease's
// deletion, before the response to the claim is there.
//
// Proves L5.
func TestOvertakenClaim(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *store){
		"edited": func(t *testing.T, s *store) {
			s.edit(t, func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = ptr.To("stranger") })
		},
		"deleted": func(_ *testing.T, s *store) { s.delete() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				c.On(func(verb, _ string) fault {
					if verb == "create" {
						return fault{After: time.Second}
					}
					return fault{After: time.Millisecond} // so that lead starts first
				})
				r := start(t, e, untilDone)
				time.Sleep(time.Second / 2)
				change(t, s)
				ctx := r.leads(t, time.Second)
				began := time.Now()
				await(t, ctx)
				if got := since(began); got > 2*time.Millisecond {
					t.Errorf("lead's context ended after %v, want at once: the watch had told", got)
				}
				_ = r.stop()
			})
		})
	}
}

// TestOldNewsAfterBadNews: while a renewal is under way the watch tells of a
// stranger, breaks, and begins again with a version from long ago. The stranger
// is not forgotten for it.
//
// Proves L5.
func TestOldNewsAfterBadNews(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		old, _ := s.get()
		time.Sleep(time.Minute)
		sent := make(chan struct{}, 10)
		c.On(func(verb, _ string) fault {
			if verb == "update" {
				sent <- struct{}{}
			}
			return fault{After: time.Second}
		})
		<-sent
		began := time.Now()
		time.Sleep(time.Second / 2)
		s.edit(t, func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = ptr.To("stranger") })
		for _, w := range s.Watches() {
			w.Push(watch.Event{Type: watch.Added, Object: old})
		}
		<-ctx.Done()
		// The renewal's response, and at once the next one's and that of a read.
		if got, want := since(began), 3*time.Second; got != want {
			t.Errorf("lead's context ended %v after the renewal was sent, want %v", got, want)
		}
		c.On(nil)
		_ = r.stop()
	})
}

// TestNoTermLeftCure: the cure that the error names helps a Run that has seen it.
func TestNoTermLeftCure(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		lease := stranger(ptr.To[int32](1))
		lease.Spec.LeaseTransitions = ptr.To[int32](math.MaxInt32)
		if _, err := s.Create(lease); err != nil {
			t.Fatal(err)
		}
		e, _ := s.elector("a")
		r := start(t, e, untilDone)
		time.Sleep(10 * time.Second)
		s.delete()
		if got := mustTerm(t, r.leads(t, 2*leaseDuration)).Number; got != 0 {
			t.Errorf("Number = %d in the new Lease, want 0", got)
		}
		_ = r.stop()
	})
}

func TestHugeDurations(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, f := range []string{"LeaseDuration", "StopTimeout"} {
		e := &leader.Elector{Leases: newStore().Client(), Namespace: namespace, Name: leaseName}
		if f == "LeaseDuration" {
			e.LeaseDuration = math.MaxInt64
		} else {
			e.StopTimeout = math.MaxInt64
		}
		err := e.Run(stopped, untilDone)
		if err == nil || !strings.Contains(err.Error(), f) {
			t.Errorf("%s: Run() = %v, want an error", f, err)
		}
	}
}

// TestConflictsWhileRenewing: a server that refuses every update with a conflict
// is not called in a loop without a delay.
func TestConflictsWhileRenewing(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		conflict := apierrors.NewConflict(coordinationv1.Resource("leases"), leaseName, errors.New("says a webhook"))
		c.On(func(verb, _ string) fault {
			if verb == "update" {
				return fault{After: time.Millisecond, Err: conflict}
			}
			return fault{After: time.Millisecond}
		})
		before, began := c.Calls("update"), time.Now()
		<-ctx.Done()
		if got := since(began); got < renewDeadline-renewPeriod {
			t.Errorf("lead's context ended after %v, want RenewDeadline after the last renewal", got)
		}
		if got := c.Calls("update") - before; got > 15 {
			t.Errorf("%d updates until then, want a few each RetryPeriod", got)
		}
		c.On(nil)
		_ = r.stop()
	})
}

// TestUncomparable: lead returns an error that == cannot compare. Run returns it unless
// it is the cause of the stop.
func TestUncomparable(t *testing.T) {
	stop := utilerrors.NewAggregate([]error{errors.New("a"), errors.New("b")})
	failed := utilerrors.NewAggregate([]error{errors.New("a"), errors.New("c")})
	for _, tt := range []struct {
		name     string
		err, run error
	}{
		{name: "the cause of the stop", err: stop},
		{name: "a failure", err: failed, run: failed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, _ := s.elector("a")
				ctx, cancel := context.WithCancelCause(t.Context())
				defer func() {
					if v := recover(); v != nil {
						t.Errorf("panic: %v", v)
					}
				}()
				err := e.Run(ctx, func(ctx context.Context) error {
					cancel(stop)
					<-ctx.Done()
					return tt.err
				})
				if !reflect.DeepEqual(err, tt.run) {
					t.Errorf("Run() = %v, want %v", err, tt.run)
				}
			})
		})
	}
}

// TestAnnotationRemoved: an admission plugin removes annotations.
func TestAnnotationRemoved(t *testing.T) {
	for _, after := range []time.Duration{0, 100 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				s.Admit = func(lease *coordinationv1.Lease) { lease.Annotations = nil }
				e, c := s.elector("a")
				c.On(func(string, string) fault { return fault{After: after} })
				r := start(t, e, untilDone)
				ctx := r.leads(t, time.Second)
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Errorf("lead's context ended: %v, want it to last: no response was lost", context.Cause(ctx))
				}
				if got := c.Calls("update"); got > 31 {
					t.Errorf("%d renewals in a minute, want one each RetryPeriod", got)
				}
				_ = r.stop()
			})
		})
	}
}

func TestNamespaceMismatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("before")
		if err := e.Run(t.Context(), func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		e, _ = s.elector("a")
		e.Namespace = "other"
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := e.Run(ctx, untilDone)
		if err == nil || !contains(err.Error(), "Leases", `"ns"`, "Namespace", `"other"`) {
			t.Errorf("Run() = %v, want an error that names both namespaces", err)
		}
	})
}

// TestShortWatches: something cuts each watch after half a minute.
func TestShortWatches(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		ea, _ := s.elector("a")
		a := start(t, ea, untilDone)
		a.leads(t, soon)
		eb, cb := s.elector("b")
		b := start(t, eb, untilDone)
		var without, n int
		var mu sync.Mutex
		born := map[*watcher]time.Time{}
		for range 600 {
			time.Sleep(time.Second)
			n++
			has := false
			for _, w := range s.Watches() {
				mu.Lock()
				if _, ok := born[w]; !ok {
					born[w] = time.Now()
				}
				old := time.Since(born[w]) >= 30*time.Second
				mu.Unlock()
				if w.Client == cb {
					has = true
					if old {
						w.Stop()
					}
				}
			}
			if !has {
				without++
			}
		}
		if without > n/10 {
			t.Errorf("%d of %d seconds without a watch", without, n)
		}
		_ = a.stop()
		b.leads(t, time.Minute)
		_ = b.stop()
	})
}

// TestStoppedAfterLoss: a stop after a loss, when the Lease still has the record
// of this Run, does not leave its name there.
func TestStoppedAfterLoss(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		read := make(chan struct{}, 100)
		r := start(t, e, untilDone)
		ctx := r.leads(t, soon)
		c.Partition(true)
		<-ctx.Done()
		c.Partition(false)
		c.On(func(verb, _ string) fault {
			switch verb {
			case "get":
				read <- struct{}{}
			case "update":
				return fault{Err: errors.New("a webhook is down")}
			}
			return fault{}
		})
		<-read
		time.Sleep(time.Nanosecond) // within the jitter before the claim
		c.On(nil)
		if err := r.stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if lease, _ := s.get(); *lease.Spec.HolderIdentity != "" {
			t.Errorf("holder = %q, want it released", *lease.Spec.HolderIdentity)
		}
	})
}

// pausedBeforeLead sets the wall clock ahead when a term begins.
type pausedBeforeLead struct {
	recordedMetrics
	once sync.Once
	wall *wallClock
}

func (m *pausedBeforeLead) LeaderStatus(_ string, leading bool) {
	if leading {
		m.once.Do(func() { m.wall.jump(renewDeadline) })
	}
}

// TestSuspendedBeforeLead: a machine that is suspended between the claim and the
// start of lead does not start it in a term that is over.
//
// Proves L11.
func TestSuspendedBeforeLead(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, _ := s.elector("a")
		e.Metrics = &pausedBeforeLead{wall: withWall(e)}
		r := start(t, e, untilDone)
		ctx := r.leads(t, time.Second)
		if err := mustTerm(t, ctx).Check(ctx); err != nil {
			t.Errorf("Check() = %v at the start of lead, want nil", err)
		}
		_ = r.stop()
	})
}

// TestSlowReads: an API server that takes longer for a read than there is between
// two of them does not keep a candidate from claiming the Lease.
func TestSlowReads(t *testing.T) {
	for _, watching := range []bool{true, false} {
		t.Run(fmt.Sprintf("watching=%t", watching), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				c.On(func(verb, _ string) fault {
					switch {
					case verb == "get":
						return fault{After: renewDeadline/2 - time.Millisecond}
					case verb == "watch" && !watching:
						return fault{Err: errors.New("no watch")}
					}
					return fault{}
				})
				r := start(t, e, untilDone)
				r.leads(t, 2*renewDeadline)
				_ = r.stop()
			})
		})
	}
}
