package metrics_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/controllerkit/controllerkit/metrics"
)

// TestRequestLabels proves M1, M2.
func TestRequestLabels(t *testing.T) {
	for _, tc := range []struct {
		name     string
		req      *http.Request
		resp     roundTripper
		want     string // the requests series
		duration bool
	}{
		{name: "get", req: request("GET", "https://api:6443/api/v1/pods?limit=1"), resp: status(200), want: `code="200",host="api:6443",method="GET"`, duration: true},
		{name: "no method means GET", req: request("", "https://api/x"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "apply", req: request("PATCH", "https://api/x"), resp: status(409), want: `code="409",host="api",method="PATCH"`, duration: true},
		{name: "unknown method", req: request("PROPFIND", "https://api/x"), resp: status(405), want: `code="405",host="api",method="other"`, duration: true},
		{name: "lowest code", req: request("GET", "https://api/x"), resp: status(101), want: `code="101",host="api",method="GET"`, duration: true},
		{name: "below", req: request("GET", "https://api/x"), resp: status(100), want: `code="other",host="api",method="GET"`, duration: true},
		{name: "highest code", req: request("GET", "https://api/x"), resp: status(507), want: `code="507",host="api",method="GET"`, duration: true},
		{name: "above", req: request("GET", "https://api/x"), resp: status(508), want: `code="other",host="api",method="GET"`, duration: true},
		{name: "no answer", req: request("DELETE", "https://api/x"), resp: func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") },
			want: `code="<error>",host="api",method="DELETE"`, duration: true},
		{name: "credentials in the URL", req: request("GET", "https://user:secret@api/x"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "credentials in the host", req: &http.Request{Method: "GET", URL: &url.URL{Scheme: "https", Host: "user:secret@api"}}, resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "no host", req: &http.Request{Method: "GET", URL: &url.URL{Path: "/"}}, resp: status(200), want: `code="200",host="none",method="GET"`, duration: true},
		{name: "watch", req: request("GET", "https://api/api/v1/pods?watch=true"), resp: status(200), want: `code="200",host="api",method="GET"`},
		{name: "watch among others", req: request("GET", "https://api/api/v1/pods?resourceVersion=1&watch=1"), resp: status(200), want: `code="200",host="api",method="GET"`},
		{name: "watch without a value", req: request("GET", "https://api/api/v1/pods?watch"), resp: status(200), want: `code="200",host="api",method="GET"`},
		{name: "no watch", req: request("GET", "https://api/api/v1/pods?limit=1&watch=False"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "no watch, as a number", req: request("GET", "https://api/api/v1/pods?watch=0"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
		{name: "neither answer nor error", req: request("GET", "https://api/x"), resp: func(*http.Request) (*http.Response, error) { return nil, nil },
			want: `code="<error>",host="api",method="GET"`, duration: true},
		{name: "a label named watch", req: request("GET", "https://api/api/v1/pods?labelSelector=watch%3Dyes"), resp: status(200), want: `code="200",host="api",method="GET"`, duration: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, reg := newMetrics(t)
			wantResp, wantErr := tc.resp(tc.req)
			resp, err := m.Transport(roundTripper(func(r *http.Request) (*http.Response, error) {
				if r != tc.req {
					t.Error("the request was copied or replaced, want it passed on untouched")
				}
				return wantResp, wantErr
			})).RoundTrip(tc.req)
			if resp != wantResp || err != wantErr {
				t.Errorf("RoundTrip() = %v, %v, want what the next one gave", resp, err)
			}
			want := `# HELP rest_client_requests_total Total number of requests to an API server, by status code, or <error> without a response.
# TYPE rest_client_requests_total counter
rest_client_requests_total{` + tc.want + "} 1\n"
			if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "rest_client_requests_total"); err != nil {
				t.Error(err)
			}
			n, err := testutil.GatherAndCount(reg, "rest_client_request_duration_seconds")
			if err != nil || (n == 1) != tc.duration {
				t.Errorf("%d duration series, %v; want one: %v", n, err, tc.duration)
			}
		})
	}
}

func TestTransportCanBeUnwrapped(t *testing.T) {
	m, _ := newMetrics(t)
	base := &http.Transport{}
	u, ok := m.Transport(base).(interface{ WrappedRoundTripper() http.RoundTripper })
	if !ok || u.WrappedRoundTripper() != base {
		t.Error("WrappedRoundTripper does not give the transport below, which exec and port-forward need")
	}
}

// TestTransportOfNil tests a nil next, and a nil *Metrics, which counts nothing.
func TestTransportOfNil(t *testing.T) {
	m, _ := newMetrics(t)
	base := &http.Transport{}
	for _, tc := range []struct {
		name       string
		next, want http.RoundTripper
	}{
		{"transport", base, base},
		{"nil", nil, http.DefaultTransport},
		{"nil pointer", (*http.Transport)(nil), http.DefaultTransport},
		{"nil function", roundTripper(nil), http.DefaultTransport},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := m.Transport(tc.next).(interface{ WrappedRoundTripper() http.RoundTripper })
			if got := u.WrappedRoundTripper(); got != tc.want {
				t.Errorf("Transport wraps %T at %[1]p, want %T at %[2]p", got, tc.want)
			}
			if got := (*metrics.Metrics)(nil).Transport(tc.next); got != tc.want {
				t.Errorf("Transport of a nil *Metrics = %T at %[1]p, want %T at %[2]p", got, tc.want)
			}
		})
	}
}

// wrapper has no method CloseIdleConnections, as client-go's transport for TLS.
type wrapper struct{ next http.RoundTripper }

func (w wrapper) RoundTrip(req *http.Request) (*http.Response, error) { return w.next.RoundTrip(req) }
func (w wrapper) WrappedRoundTripper() http.RoundTripper              { return w.next }

// TestIdleConnectionsCanBeClosed: http.Client looks for the method on its
// transport only.
func TestIdleConnectionsCanBeClosed(t *testing.T) {
	m, _ := newMetrics(t)
	base := &closer{roundTripper: status(200)}
	client := &http.Client{Transport: m.Transport(base)}
	client.CloseIdleConnections()
	if base.closed != 1 {
		t.Errorf("the transport below was told %d times to close idle connections, want once", base.closed)
	}
	client = &http.Client{Transport: m.Transport(wrapper{base})}
	client.CloseIdleConnections()
	if base.closed != 2 {
		t.Errorf("below a wrapper, as of client-go, the transport was told %d times, want twice", base.closed)
	}
	client = &http.Client{Transport: m.Transport(status(200))} // has no such method
	client.CloseIdleConnections()
}
