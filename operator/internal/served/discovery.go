package served

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/alive"
)

// Discovery finds the kinds of a program's resources while its informers send their first requests.
type Discovery struct {
	kinds atomic.Pointer[Kinds]
	found chan struct{} // closed by Found
}

// NewDiscovery returns a Discovery that has found nothing yet.
func NewDiscovery() *Discovery { return &Discovery{found: make(chan struct{})} }

// Phases are the phases of a kind for CheckPhases.
type Phases struct {
	Kind   schema.GroupVersionKind
	Phases []string
}

// Run calls Wait and then CheckPhases. If it returns nil, Kinds returns what it found. It is called once.
func (d *Discovery) Run(ctx context.Context, config *rest.Config, timeout time.Duration, resources []Resource, phases []Phases) error {
	kinds, err := Wait(ctx, config, timeout, resources)
	if err != nil {
		return err
	}
	for _, p := range phases {
		if len(p.Phases) == 0 {
			continue
		}
		if err := CheckPhases(ctx, config, timeout, p.Kind, p.Phases); err != nil {
			return err
		}
	}
	d.Found(kinds)
	return nil
}

// Found notes the kinds that the API server serves. It is called once, by Run.
func (d *Discovery) Found(kinds Kinds) {
	d.kinds.Store(&kinds)
	close(d.found)
}

// Kinds returns the found kinds, which are nil before the end of Run and after its failure.
func (d *Discovery) Kinds() Kinds {
	if kinds := d.kinds.Load(); kinds != nil {
		return *kinds
	}
	return nil
}

// Done returns a channel that is closed when Kinds has the found kinds.
func (d *Discovery) Done() <-chan struct{} { return d.found }

// Transport returns a transport that sends the requests of informers once before the kinds are found. If the
// request fails, it waits until they are found, or the request's context is done, and sends it again. The informers
// then see no error of a resource that is not served yet.
func (d *Discovery) Transport(next http.RoundTripper) http.RoundTripper { return &early{d, next} }

type early struct {
	discovery *Discovery
	next      http.RoundTripper
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (e *early) WrappedRoundTripper() http.RoundTripper { return e.next }

// RoundTrip implements http.RoundTripper.
func (e *early) RoundTrip(req *http.Request) (*http.Response, error) {
	found := e.discovery.kinds.Load() != nil // before the request
	resp, err := e.next.RoundTrip(req)
	if found || err == nil && resp.StatusCode < http.StatusBadRequest || req.Method != http.MethodGet || alive.From(req.Context()) == nil {
		return resp, err
	}
	if err == nil {
		_ = resp.Body.Close()
	}
	select {
	case <-e.discovery.found:
		return e.next.RoundTrip(req)
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}
