// Package late lets the requests of clients pass through transports that are made after the
// clients.
package late

import (
	"net/http"
	"sync"
	"sync/atomic"
)

// A Chain is a list of transports. The zero value has none yet.
type Chain struct {
	wraps atomic.Pointer[[]func(http.RoundTripper) http.RoundTripper]
}

// Set makes requests pass through the transports from now on, the last one first. It is
// called once.
func (c *Chain) Set(wraps ...func(http.RoundTripper) http.RoundTripper) { c.wraps.Store(&wraps) }

// Wrap returns the transport of one client.
func (c *Chain) Wrap(next http.RoundTripper) http.RoundTripper {
	return &transport{chain: c, next: next}
}

type transport struct {
	chain *Chain
	next  http.RoundTripper

	once    sync.Once
	wrapped http.RoundTripper // next in the transports of the chain
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	wraps := t.chain.wraps.Load()
	if wraps == nil {
		return t.next.RoundTrip(req)
	}
	t.once.Do(func() {
		t.wrapped = t.next
		for _, wrap := range *wraps {
			t.wrapped = wrap(t.wrapped)
		}
	})
	return t.wrapped.RoundTrip(req)
}
