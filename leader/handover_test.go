package leader_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testlog"
)

// TestExpiry: a candidate waits for the record's duration after it saw the last
// change, and ignores the times in the record.
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
				if _, err := s.Create(stranger(tt.seconds)); err != nil {
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
// always loses does not send a storm of requests.
func TestConflictsInARow(t *testing.T) {
	for _, watching := range []bool{true, false} {
		bubble(t, func(t *testing.T, s *store) {
			released := stranger(ptr.To[int32](1))
			released.Spec.HolderIdentity = ptr.To("")
			if _, err := s.Create(released); err != nil {
				t.Fatal(err)
			}
			e, c := s.elector("a")
			e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = time.Minute, 45*time.Second, 30*time.Second
			var forestalled atomic.Int32
			c.On(func(verb, _ string) fault {
				switch {
				case verb == "watch" && !watching:
					return fault{Err: errors.New("no watch")}
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
			c.On(func(verb, _ string) fault {
				if verb == "update" {
					s.edit(t, func(l *coordinationv1.Lease) { *l.Spec.LeaseTransitions++ })
				}
				return fault{}
			})
			r = start(t, e, untilDone)
			time.Sleep(10 * time.Minute)
			if got, most := c.Calls("update"), int(10*time.Minute/retryPeriod)*3; got > most {
				t.Errorf("%d claims in 10 minutes of conflicts, want at most %d", got, most)
			}
			_ = r.stop()
		})
	}
}

// TestHandOverWithoutWatch: without events of a watch, standbys find the
// released Lease at their next poll.
//
// Proves L6.
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
		{name: "forbidden", watch: fault{Err: forbidden}, least: 15, most: 40, limit: retryPeriod * 6 / 5},
		{name: "hangs when it starts", watch: fault{Lost: true}, least: 12, most: 40, limit: retryPeriod * 6 / 5},
		{name: "silent", delay: 24 * time.Hour, least: 1, most: 3, limit: retryPeriod * 12 / 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				ea, _ := s.elector("a")
				a := start(t, ea, untilDone)
				a.leads(t, soon)
				eb, cb := s.elector("b")
				cb.DelayWatches(tt.delay)
				cb.On(func(verb, _ string) fault {
					if verb == "watch" {
						return tt.watch
					}
					return fault{}
				})
				b := start(t, eb, untilDone)
				time.Sleep(10 * time.Minute)
				if got := cb.Calls("watch"); got < tt.least || got > tt.most {
					t.Errorf("%d watches tried in 10 minutes, want %d to %d", got, tt.least, tt.most)
				}
				if got, want := cb.Calls("get"), int(10*time.Minute/tt.limit)-1; got < want {
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

// TestForbiddenWatch: one line of the log names a missing right that costs only time.
func TestForbiddenWatch(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		c.On(func(verb, _ string) fault {
			if verb == "watch" {
				return fault{Err: apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, nil)}
			}
			return fault{}
		})
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
		defer stop()
		logs := testlog.New()
		if err := e.Run(logs.Context(ctx), untilDone); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		lines := logs.Find("Cannot watch the Lease, so reads notice a hand-over later: grant the verb watch on leases")
		if len(lines) != 1 || lines[0].Level != 0 || c.Calls("watch") < 2 {
			t.Errorf("%d lines after %d watches, want one of level 0: %v", len(lines), c.Calls("watch"), lines)
		}
	})
}

// TestWatchRestarts: a watch that breaks is established again.
func TestWatchRestarts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		abort func(*watcher)
	}{
		{name: "closed", abort: (*watcher).Stop},
		{name: "error event", abort: func(w *watcher) {
			w.Push(watch.Event{Type: watch.Error, Object: &metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonExpired}})
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
					for _, w := range s.Watches() {
						tt.abort(w)
					}
				}
				time.Sleep(retryPeriod)
				if got := cb.Calls("watch"); got != 9 {
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
		if got := cb.Calls("get"); got > 3 {
			t.Errorf("%d reads in 4 minutes, want hardly any", got)
		}
		_, _ = b.stop(), a.stop()
	})
}
