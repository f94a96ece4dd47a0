package informer

import (
	"net/http"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// ConsistentLists returns a transport with which informers begin with a consistent list.
// It has the form of rest.Config.Wrap:
//
//	config.Wrap(informer.ConsistentLists)
//
// If the API server does not stream the initial list, client-go's informers list with
// resourceVersion "0". The response can come from the server's cache, and be older than
// the state that an earlier process of the controller saw. The controller could then
// create children for a deleted object. ConsistentLists removes that version from lists,
// which costs the API server more, once at each start. It changes all reads with that
// version, also reads that are not an informer's. Watches and other requests pass
// unchanged. nil means http.DefaultTransport.
func ConsistentLists(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return &consistent{next}
}

type consistent struct{ next http.RoundTripper }

// WrappedRoundTripper returns the inner transport, for client-go.
func (c *consistent) WrappedRoundTripper() http.RoundTripper { return c.next }

// RoundTrip implements http.RoundTripper.
func (c *consistent) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet || req.URL == nil {
		return c.next.RoundTrip(req)
	}
	query := req.URL.Query()
	if query.Get("resourceVersion") != "0" || kube.IsWatch(req.URL) {
		return c.next.RoundTrip(req)
	}
	query.Del("resourceVersion")
	query.Del("resourceVersionMatch")
	req = req.Clone(req.Context()) // a RoundTripper must not change its request
	req.URL.RawQuery = query.Encode()
	return c.next.RoundTrip(req)
}
