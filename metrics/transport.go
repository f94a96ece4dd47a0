package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"time"

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
		code = other
		if resp.StatusCode >= 100 && resp.StatusCode <= 599 {
			code = strconv.Itoa(resp.StatusCode)
		}
	}
	t.m.requests.WithLabelValues(code, method, host).Inc()
	if !kube.IsWatch(req.URL) {
		t.m.latencies.WithLabelValues(method, host).observe(took.Seconds(), t.m.exemplar(req.Context(), took))
	}
	return resp, err
}

// WrappedRoundTripper returns next, which client-go needs for exec and port-forward.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// CloseIdleConnections calls the method of next, for http.Client.CloseIdleConnections.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

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

func method(m string) string {
	switch m {
	case "":
		return http.MethodGet // as in net/http
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions:
		return m
	}
	return other
}
