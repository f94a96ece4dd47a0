package leader_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fromProxy is the error that client-go makes of a response without a Status.
func fromProxy(code int) error {
	return apierrors.NewGenericServerResponse(code, "get", coordinationv1.Resource("leases"), leaseName, http.StatusText(code), 0, true)
}

// proxyErrors look like responses about the Lease, and say nothing about it.
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

// TestProxyErrorsWhileLeading: a proxy's errors for less than RenewDeadline cost
// nothing, whatever their code.
//
// Proves L20.
func TestProxyErrorsWhileLeading(t *testing.T) {
	for name, err := range proxyErrors() {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store) {
				e, c := s.elector("a")
				r := start(t, e, untilDone)
				ctx := r.leads(t, soon)
				time.Sleep(3 * time.Second)
				c.on(func(string) fault { return fault{err: err} })
				time.Sleep(6 * time.Second)
				c.on(nil)
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

// TestProxyErrorsOfStandby: a standby waits out a proxy's errors, whatever their
// code, and does not take the Lease for a deleted one.
//
// Proves L20.
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
				cb.on(func(string) fault { return fault{err: err} })
				for _, w := range s.watches() {
					w.Stop()
				}
				time.Sleep(time.Hour)
				if got := cb.calls("create"); got != 0 {
					t.Errorf("%d attempts to create the Lease, want none", got)
				}
				cb.on(nil)
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
				before := c.calls("update")
				c.on(func(verb string) fault {
					if verb == "update" {
						return fault{err: err}
					}
					return fault{}
				})
				time.Sleep(6 * time.Second)
				if got := c.calls("update") - before; got > 4 {
					t.Errorf("%d updates in 6s, want one each RetryPeriod", got)
				}
				c.on(nil)
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Errorf("lead's context ended: %v", context.Cause(ctx))
				}
				_ = r.stop()
			})
		})
	}
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
					c.on(func(verb string) fault {
						if verb == "update" && since(began) < time.Second {
							return fault{err: tt.err}
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
