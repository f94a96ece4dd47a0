package leader_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testlog"
)

func TestStartTimeout(t *testing.T) {
	forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, errors.New("RBAC says no"))
	for _, tt := range []struct {
		name   string
		exists bool
		faults func(verb, _ string) fault
		within time.Duration
		want   []string
		not    string
	}{
		{
			name:   "get forbidden",
			faults: func(string, string) fault { return fault{Err: forbidden} },
			want:   []string{"get leases.coordination.k8s.io ns/controller", "RBAC says no", "verbs: [get]", "StartTimeout"},
		},
		{
			name:   "API server does not answer",
			faults: func(string, string) fault { return fault{Lost: true} },
			want:   []string{"get leases.coordination.k8s.io ns/controller", "deadline exceeded"},
		},
		{
			name: "create forbidden",
			faults: func(verb, _ string) fault {
				if verb == "create" {
					return fault{Err: forbidden}
				}
				return fault{}
			},
			want: []string{"create leases.coordination.k8s.io ns/controller", "RBAC says no", "resources: [leases], verbs: [create]"},
		},
		{
			name: "a full quota",
			faults: func(verb, _ string) fault {
				if verb == "create" {
					return fault{Err: apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, errors.New("exceeded quota: q"))}
				}
				return fault{}
			},
			want: []string{"create leases.coordination.k8s.io ns/controller", "exceeded quota: q"},
			not:  "a Role",
		},
		{
			name:   "unauthorized",
			faults: func(string, string) fault { return fault{Err: apierrors.NewUnauthorized("Unauthorized")} },
			want:   []string{"get leases.coordination.k8s.io ns/controller", "Unauthorized"},
		},
		{
			name: "no namespace",
			faults: func(verb, _ string) fault {
				if verb == "create" {
					return fault{Err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)}
				}
				return fault{}
			},
			want: []string{"create leases.coordination.k8s.io ns/controller", `namespaces "ns" not found`},
		},
		{
			name:   "a proxy without the API server",
			faults: func(string, string) fault { return fault{Err: fromProxy(404)} },
			want:   []string{"get leases.coordination.k8s.io ns/controller", "the server could not find the requested resource"},
		},
		{
			name:   "a proxy refuses",
			faults: func(string, string) fault { return fault{Err: fromProxy(403)} },
			want:   []string{"get leases.coordination.k8s.io ns/controller"},
			not:    "a Role",
		},
		{
			name:   "update forbidden",
			exists: true,
			faults: func(verb, _ string) fault {
				if verb == "update" {
					return fault{Err: forbidden}
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
					if _, err := s.Create(stranger(nil)); err != nil {
						t.Fatal(err)
					}
				}
				e, c := s.elector("a")
				e.StartTimeout = 30 * time.Second
				c.On(tt.faults)
				began, logs := time.Now(), testlog.New()
				err := e.Run(logs.Context(t.Context()), untilDone)
				if err == nil {
					t.Fatal("Run() = nil, want an error")
				}
				if lines := logs.Find("Cannot use the Lease, trying again"); len(lines) != 1 {
					t.Errorf("%d lines of log about the problem, want 1: %v", len(lines), lines)
				}
				for _, want := range tt.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("Run() = %v, want it to say %q", err, want)
					}
				}
				if tt.not != "" && strings.Contains(err.Error(), tt.not) {
					t.Errorf("Run() = %v, want it not to say %q", err, tt.not)
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

// TestRefusedInBetween: refusals count only as long as the Lease stays free.
func TestRefusedInBetween(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		if _, err := s.Create(stranger(ptr.To[int32](5))); err != nil {
			t.Fatal(err)
		}
		e, c := s.elector("a")
		refuse := func(verb, _ string) fault {
			if verb == "update" {
				return fault{Err: apierrors.NewForbidden(coordinationv1.Resource("leases"), leaseName, nil)}
			}
			return fault{}
		}
		c.On(refuse)
		r := start(t, e, untilDone)
		time.Sleep(15 * time.Second) // expired and refused for ten
		for range 30 {
			s.edit(t, func(l *coordinationv1.Lease) { l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()} })
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second) // and once more, but not for StartTimeout
		c.On(nil)
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
		cb.Partition(true)
		time.Sleep(time.Hour)
		cb.Partition(false)
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
		b.leads(t, time.Minute)
		_ = b.stop()
	})
}

// TestHangingReads: after a read that timed out a standby waits for RetryPeriod.
func TestHangingReads(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		if _, err := s.Create(stranger(nil)); err != nil {
			t.Fatal(err)
		}
		e, c := s.elector("a")
		e.StartTimeout = time.Hour
		c.Partition(true)
		r := start(t, e, untilDone)
		time.Sleep(time.Minute)
		// Each takes half of RenewDeadline, 5s, and a RetryPeriod with its jitter.
		if got := c.Calls("get"); got < 8 || got > 9 {
			t.Errorf("%d reads in a minute, want one each 7s to 7.4s", got)
		}
		_ = r.stop()
	})
}

// TestOutageWhileLeading: an outage ends the term, not Run.
func TestOutageWhileLeading(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		r := start(t, e, untilDone)
		r.leads(t, soon)
		c.Partition(true)
		time.Sleep(time.Hour)
		c.Partition(false)
		r.leads(t, time.Minute)
		if err := r.stop(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// TestUnauthorized: a token that expires and is replaced is an outage, for a leader and for a
// standby, and one line shows it. client-go reads the new token from the file.
func TestUnauthorized(t *testing.T) {
	for name, verb := range map[string]string{"all": "", "reads": "get", "claims": "update"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				logs := testlog.New()
				terms, ended := make(chan context.Context, 10), make(chan error, 1)
				ctx, stop := context.WithCancel(logs.Context(t.Context()))
				defer stop()
				go func() {
					ended <- e.Run(ctx, func(ctx context.Context) error {
						terms <- ctx
						return untilDone(ctx)
					})
				}()
				first := <-terms
				c.On(func(v, _ string) fault {
					if verb == "" || v == verb {
						return fault{Err: apierrors.NewUnauthorized("Unauthorized")}
					}
					return fault{}
				})
				if verb == "get" { // a renewal does not read
					s.edit(t, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("b") })
				}
				time.Sleep(10 * time.Minute)
				if first.Err() == nil {
					t.Error("the term has not ended")
				}
				if lines := logs.Find("Cannot use the Lease, trying again"); len(lines) != 1 {
					t.Errorf("%d lines of log about the problem, want 1: %v", len(lines), lines)
				}
				c.On(nil)
				began := time.Now()
				select {
				case <-terms:
				case err := <-ended:
					t.Fatalf("Run() = %v, want a term", err)
				}
				if took := since(began); took > 2*retryPeriod {
					t.Errorf("the next term began after %v, want within 2 RetryPeriods", took)
				}
				stop()
				if err := <-ended; err != nil {
					t.Errorf("Run() = %v, want nil", err)
				}
			})
		})
	}
}

// fromProxy is the error that client-go makes of a response without a Status.
func fromProxy(code int) error {
	return apierrors.NewGenericServerResponse(code, "get", coordinationv1.Resource("leases"), leaseName, http.StatusText(code), 0, true)
}

// proxyErrors look like responses about the Lease, and are not.
func proxyErrors() map[string]error {
	return map[string]error{
		"400 of a proxy": fromProxy(http.StatusBadRequest),
		"401 of a proxy": fromProxy(http.StatusUnauthorized),
		"403 of a proxy": fromProxy(http.StatusForbidden),
		"404 of a proxy": fromProxy(http.StatusNotFound),
		"405 of a proxy": fromProxy(http.StatusMethodNotAllowed),
		"409 of a proxy": fromProxy(http.StatusConflict),
		"422 of a proxy": fromProxy(http.StatusUnprocessableEntity),
		"503 of a proxy": fromProxy(http.StatusServiceUnavailable),
		"404 without details": &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource",
		}},
	}
}

// TestProxyErrorsWhileLeading: a proxy's errors for less than RenewDeadline cost no
// leadership, with any code.
//
// Proves L12.
func TestProxyErrorsWhileLeading(t *testing.T) {
	for name, err := range proxyErrors() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				r := start(t, e, untilDone)
				ctx := r.leads(t, soon)
				time.Sleep(3 * time.Second)
				c.On(func(string, string) fault { return fault{Err: err} })
				time.Sleep(6 * time.Second)
				c.On(nil)
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Errorf("lead's context ended: %v", context.Cause(ctx))
				}
				if err := r.stop(); err != nil {
					t.Errorf("Run() = %v, want nil", err)
				}
			})
		})
	}
}

// TestProxyErrorsOfStandby: a standby waits out a proxy's errors with any code, and
// does not take the Lease for a deleted one.
//
// Proves L12.
func TestProxyErrorsOfStandby(t *testing.T) {
	for name, err := range proxyErrors() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				ea, _ := s.elector("a")
				a := start(t, ea, untilDone)
				a.leads(t, soon)
				eb, cb := s.elector("b")
				b := start(t, eb, untilDone)
				time.Sleep(time.Second)
				cb.On(func(string, string) fault { return fault{Err: err} })
				for _, w := range s.Watches() {
					w.Stop()
				}
				time.Sleep(time.Hour)
				if got := cb.Calls("create"); got != 0 {
					t.Errorf("%d attempts to create the Lease, want none", got)
				}
				cb.On(nil)
				if err := a.stop(); err != nil {
					t.Fatal(err)
				}
				b.leads(t, time.Minute)
				_ = b.stop()
			})
		})
	}
}

// TestProxyErrorsOfUpdates: a proxy's errors are no conflicts, after which a renewal
// is repeated at once.
func TestProxyErrorsOfUpdates(t *testing.T) {
	for name, err := range proxyErrors() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				r := start(t, e, untilDone)
				ctx := r.leads(t, soon)
				time.Sleep(3 * time.Second)
				before := c.Calls("update")
				c.On(func(verb, _ string) fault {
					if verb == "update" {
						return fault{Err: err}
					}
					return fault{}
				})
				time.Sleep(6 * time.Second)
				if got := c.Calls("update") - before; got > 4 {
					t.Errorf("%d updates in 6s, want one each RetryPeriod", got)
				}
				c.On(nil)
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Errorf("lead's context ended: %v", context.Cause(ctx))
				}
				_ = r.stop()
			})
		})
	}
}

// TestLossIsExplained: the line about a loss has the error of the last renewal.
func TestLossIsExplained(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(t *testing.T, s *store, c *client)
		want string
	}{
		{"refused", func(_ *testing.T, _ *store, c *client) {
			c.On(func(string, string) fault { return fault{Err: errors.New("connection refused")} })
		}, "connection refused"},
		{"no response", func(_ *testing.T, _ *store, c *client) {
			c.On(func(string, string) fault { return fault{Lost: true} })
		}, "deadline exceeded"},
		{"deleted", func(_ *testing.T, s *store, _ *client) { s.delete() }, "the Lease was deleted"},
		{"taken", func(t *testing.T, s *store, _ *client) {
			s.edit(t, func(l *coordinationv1.Lease) {
				l.Spec.HolderIdentity, l.Spec.LeaseTransitions = ptr.To("b"), ptr.To[int32](7)
				l.Annotations = nil
			})
		}, "the Lease is another's"},
		{"taken by client-go's elector", func(t *testing.T, s *store, _ *client) {
			s.edit(t, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = ptr.To("b") }) // it keeps the annotation
		}, "the Lease is another's"},
		{"edited", func(t *testing.T, s *store, _ *client) {
			s.edit(t, func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = ptr.To[int32](7) })
		}, "the Lease has a record of this replica that is not its last one: it was edited, or etcd was restored"},
		{"restored", func(_ *testing.T, s *store, _ *client) {
			restore := s.Backup()
			time.Sleep(10 * retryPeriod)
			restore(0)
		}, "the Lease has a record of this replica that is not its last one: it was edited, or etcd was restored"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				logs := testlog.New()
				ctx, stop := context.WithCancel(logs.Context(t.Context()))
				terms := make(chan context.Context, 10)
				ended := make(chan error, 1)
				go func() {
					ended <- e.Run(ctx, func(ctx context.Context) error {
						terms <- ctx
						return untilDone(ctx)
					})
				}()
				term := <-terms
				time.Sleep(2 * retryPeriod) // a renewal
				tt.lose(t, s, c)
				<-term.Done()
				c.On(nil)
				time.Sleep(time.Second)
				lines := logs.Find("Stopped leading, waiting until the work has stopped")
				if len(lines) != 1 {
					t.Fatalf("%d lines about the loss, want 1", len(lines))
				}
				if err, _ := lines[0].Values["err"].(error); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("the line has the error %v, want one with %q", err, tt.want)
				}
				if age, _ := lines[0].Values["lastRenewal"].(time.Duration); age <= 0 || age > renewDeadline {
					t.Errorf("the line has the last renewal %v, want at most %v", age, renewDeadline)
				}
				stop()
				if err := <-ended; err != nil {
					t.Errorf("Run() = %v, want nil", err)
				}
			})
		})
	}
}

// TestFailedReleaseIsExplained: the line about a release that fails has the API server's error, and not that of
// the deadline.
func TestFailedReleaseIsExplained(t *testing.T) {
	bubble(t, func(t *testing.T, s *store) {
		e, c := s.elector("a")
		logs := testlog.New()
		ctx, stop := context.WithCancel(logs.Context(t.Context()))
		led, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- e.Run(ctx, func(ctx context.Context) error {
				close(led)
				return untilDone(ctx)
			})
		}()
		<-led
		c.On(func(string, string) fault { return fault{Err: apierrors.NewUnauthorized("the token has expired")} })
		stop()
		<-ended
		lines := logs.Find("Could not release the Lease, it expires")
		if len(lines) != 1 || lines[0].Err == nil || !strings.Contains(lines[0].Err.Error(), "the token has expired") {
			t.Errorf("the lines are %v, want one with the API server's error", lines)
		}
	})
}
