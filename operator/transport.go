package operator

import (
	"net/http"
	"sync"
)

// A writer is the transport of one client. It passes requests through the Stores of all
// controllers. Each Store records the writes of its own calls.
type writer struct {
	op   *Operator
	next http.RoundTripper

	once  sync.Once
	chain http.RoundTripper // next in the Stores, which are known since Run
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (w *writer) WrappedRoundTripper() http.RoundTripper { return w.next }

// RoundTrip implements http.RoundTripper.
func (w *writer) RoundTrip(req *http.Request) (*http.Response, error) {
	if !w.op.running.Load() {
		return w.next.RoundTrip(req)
	}
	w.once.Do(func() {
		w.chain = w.next
		for _, c := range w.op.controllers {
			w.chain = c.writes.Wrap(w.chain)
		}
		if w.op.Debug != nil {
			w.chain = w.op.Debug.Transport(w.chain)
		}
	})
	return w.chain.RoundTrip(req)
}
