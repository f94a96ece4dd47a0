package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Transport returns a round tripper that counts the requests it hands to next.
// It fits rest.Config.Wrap:
//
//	config.Wrap(m.Transport)
//
// Requests are passed on untouched. Each attempt counts, those that client-go
// repeats by itself included. A watch counts when its response begins; its
// duration is not observed. nil means http.DefaultTransport.
func (m *Metrics) Transport(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
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
	if err == nil && resp != nil { // neither is a mistake of next, which http.Client reports
		code = other
		if resp.StatusCode >= 100 && resp.StatusCode <= 599 {
			code = strconv.Itoa(resp.StatusCode)
		}
	}
	t.m.requests.WithLabelValues(code, method, host).Inc()
	if !isWatch(req) {
		t.m.latencies.WithLabelValues(method, host).Observe(took.Seconds())
	}
	return resp, err
}

// WrappedRoundTripper lets client-go find the transport below, as it must for
// exec and port-forward.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// CloseIdleConnections lets http.Client's method of that name reach the transport
// below.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// host is the label of the server. User and password are not in URL.Host, but
// nothing stops a hand-made URL from having them there.
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
		return http.MethodGet // as net/http reads it
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions:
		return m
	}
	return other
}

// isWatch looks for the query parameter without parsing the query, and reads its
// value as the API server does.
func isWatch(req *http.Request) bool {
	for parameter := range strings.SplitSeq(req.URL.RawQuery, "&") {
		if name, value, _ := strings.Cut(parameter, "="); name == "watch" {
			return value != "0" && !strings.EqualFold(value, "false")
		}
	}
	return false
}
