package informer_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/controllerkit/controllerkit/informer"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestConsistentLists tests that informers begin with a list no older than their request if
// the API server does not stream it.
func TestConsistentLists(t *testing.T) {
	for _, tc := range []struct{ method, path, want string }{
		{http.MethodGet, "/api/v1/pods?limit=500&resourceVersion=0", "/api/v1/pods?limit=500"},
		{http.MethodGet, "/api/v1/pods?resourceVersion=0&resourceVersionMatch=NotOlderThan", "/api/v1/pods"},
		{http.MethodGet, "/api/v1/pods?labelSelector=a%3Db&resourceVersion=0&watch=false", "/api/v1/pods?labelSelector=a%3Db&watch=false"},
		{http.MethodGet, "/api/v1/pods?resourceVersion=7", "/api/v1/pods?resourceVersion=7"},
		{http.MethodGet, "/api/v1/pods", "/api/v1/pods"},
		{http.MethodGet, "/api/v1/pods?resourceVersion=0&watch=true", "/api/v1/pods?resourceVersion=0&watch=true"},
		{http.MethodGet, "/api/v1/pods?resourceVersion=0&watch=", "/api/v1/pods?resourceVersion=0&watch="},
		{http.MethodDelete, "/api/v1/namespaces/a/pods?resourceVersion=0", "/api/v1/namespaces/a/pods?resourceVersion=0"},
	} {
		req := httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, http.NoBody)
		var got string
		rt := informer.ConsistentLists(roundTripper(func(req *http.Request) (*http.Response, error) {
			got = req.URL.String()
			return httptest.NewRecorder().Result(), nil
		}))
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got != tc.want {
			t.Errorf("%s %s was sent as %s, want %s", tc.method, tc.path, got, tc.want)
		}
		if req.URL.String() != tc.path {
			t.Errorf("the caller's request was changed to %s", req.URL)
		}
	}
	if w, ok := informer.ConsistentLists(nil).(interface{ WrappedRoundTripper() http.RoundTripper }); !ok || w.WrappedRoundTripper() != http.DefaultTransport {
		t.Error("nil does not mean http.DefaultTransport")
	}
}
