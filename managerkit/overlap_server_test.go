package managerkit_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
)

// A slowNetwork executes the first renewal after its start and returns the response after
// a delay. Later requests for the Lease get no response.
type slowNetwork struct {
	delay   time.Duration
	started atomic.Bool
	cut     atomic.Bool
}

func (n *slowNetwork) wrap(next http.RoundTripper) http.RoundTripper {
	return leaseTransport(func(r *http.Request) (*http.Response, error) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/leases/"+electionName) || !n.started.Load():
			return next.RoundTrip(r)
		case r.Method != http.MethodPut || n.cut.Swap(true):
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		sent := time.Now()
		response, err := next.RoundTrip(r)
		select {
		case <-time.After(time.Until(sent.Add(n.delay))):
			return response, err
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	})
}

// TestElectSlowRenewal: the response to a renewal comes late, and then the leader is cut
// off. Its work has ended when the next leader's begins. client-go's elector counts from
// the response, and then waits for the response to the release before it stops the work:
// the overlap of the plain manager is in the log.
//
// Proves MK8.
func TestElectSlowRenewal(t *testing.T) {
	const lease, renew, retry = 9 * time.Second, 6 * time.Second, 1200 * time.Millisecond // 0.6 of the defaults
	schedule := func(t *testing.T, options func(*rest.Config) manager.Options) (overlap time.Duration) {
		network := &slowNetwork{delay: renew/2 - 100*time.Millisecond}
		works := make(chan struct{})
		begins, ends := make(chan time.Time, 2), make(chan time.Time, 1)
		cfg := testserver.Config(t)
		cfg.Wrap(network.wrap)
		a := startReplica(t, cfg, options(cfg), func(ctx context.Context) error {
			close(works)
			<-ctx.Done()
			ends <- time.Now()
			return nil
		})
		await(t, works, "leader")
		for range 2 {
			cfg := testserver.Config(t)
			startReplica(t, cfg, options(cfg), func(ctx context.Context) error {
				begins <- time.Now()
				<-ctx.Done()
				return nil
			})
		}
		network.started.Store(true)
		next := await(t, begins, "next leader")
		if err := a.wait(t); err == nil {
			t.Error("Start() = nil after the loss, want an error")
		}
		return await(t, ends, "end of the work").Sub(next)
	}
	t.Run("Elect", func(t *testing.T) {
		t.Parallel()
		ns := testserver.Namespace(t)
		overlap := schedule(t, func(cfg *rest.Config) manager.Options {
			return elected(t, &leader.Elector{
				Leases: leasesOf(t, cfg, ns), Namespace: ns, Name: electionName,
				LeaseDuration: lease, RenewDeadline: renew, RetryPeriod: retry,
			})
		})
		t.Logf("the work of the two overlaps by %v", overlap)
		if overlap > 0 {
			t.Errorf("two managers work at once for %v", overlap)
		}
	})
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		ns := testserver.Namespace(t)
		overlap := schedule(t, func(*rest.Config) manager.Options {
			options := plain(ns)
			options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = ptr.To(lease), ptr.To(renew), ptr.To(retry)
			return options
		})
		t.Logf("the work of the two overlaps by %v", overlap)
	})
}
