package tenure

import (
	"net/http"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// A Guard is a transport that asks Admit about each write, as the last step before it sends it.
// Reads pass.
type Guard struct {
	Next http.RoundTripper
	// Admit returns the request to send, or the reason why it is not sent.
	Admit func(*http.Request) (*http.Request, error)
}

// RoundTrip implements http.RoundTripper.
func (g *Guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, preview := calls.InPreview(req.Context()); preview || !kube.IsWrite(req) { // package preview has no term, and sends dry runs
		return g.Next.RoundTrip(req)
	}
	admitted, err := g.Admit(req)
	if err != nil {
		if req.Body != nil {
			req.Body.Close() // as a RoundTripper must, also on errors
		}
		return nil, &unsentError{err}
	}
	return g.Next.RoundTrip(admitted)
}

// WrappedRoundTripper returns the inner transport, for client-go's utilities.
func (g *Guard) WrappedRoundTripper() http.RoundTripper { return g.Next }

// unsentError is the error of a request that was not sent.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return e.err.Error() }
func (e *unsentError) Unwrap() error { return e.err }
func (*unsentError) NotSent() bool   { return true }
