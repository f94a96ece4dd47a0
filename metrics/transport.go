package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Transport returns a round tripper that counts the requests and passes them to next. It
// can be passed to rest.Config.Wrap:
//
//	config.Wrap(m.Transport)
//
// It does not change requests. Each attempt counts, also if client-go repeats a request. A
// watch counts when its response begins; its duration is not observed. A nil next means
// http.DefaultTransport. Transport of a nil m returns next.
func (m *Metrics) Transport(next http.RoundTripper) http.RoundTripper {
	if kube.IsNil(next) {
		next = http.DefaultTransport
	}
	if m == nil {
		return next
	}
	return &transport{m: m, next: next}
}

type transport struct {
	m    *Metrics
	next http.RoundTripper
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	start := time.Now()
	resp, err := t.next.RoundTrip(req)
	took := time.Since(start)

	host, method, code := t.m.host(req), method(req.Method), "<error>"
	if err == nil && resp != nil { // without both, next is wrong, which http.Client reports
		code = status(resp.StatusCode)
	}
	t.m.requests.WithLabelValues(code, method, host).Inc()
	if !kube.IsWatch(req.URL) {
		t.m.latencies.WithLabelValues(method, host).observe(took.Seconds(), t.m.exemplar(req.Context(), took))
	}
	return resp, err
}

// WrappedRoundTripper returns next, which client-go needs for exec and port-forward.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// CloseIdleConnections calls the method of the first transport below that has it, for
// http.Client.CloseIdleConnections. That of client-go's TLS transport is below wrappers without it.
func (t *transport) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(t.next) }

// host returns the label of the server. It removes a user and password, which URL.Host
// has only if the caller put them there.
func (m *Metrics) host(req *http.Request) string {
	host := req.URL.Host
	if i := strings.LastIndexByte(host, '@'); i >= 0 {
		host = host[i+1:]
	}
	if host == "" {
		return "none"
	}
	return m.hosts.label(host)
}

// status returns the label of a status code. API servers, webhooks and the proxies before them
// return these codes. All that exist would be half of the series of a scrape with many hosts.
func status(code int) string {
	switch code {
	case 101, 200, 201, 202, 204, 206, 301, 302, 304, 307, 308,
		400, 401, 403, 404, 405, 406, 408, 409, 410, 412, 413, 415, 422, 429,
		500, 501, 502, 503, 504, 505, 507:
		return strconv.Itoa(code)
	}
	return other
}

func method(m string) string {
	switch m {
	case "":
		return http.MethodGet // as in net/http
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions:
		return m
	}
	return other
}
