package tracing_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/controllerkit/controllerkit/tracing"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func request(t *testing.T, method, path string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://api.example.com:6443"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// TestTransport: a request in a sampled span has a span below it and the header, and the
// caller's request stays unchanged.
//
// Proves TR6.
func TestTransport(t *testing.T) {
	for _, tt := range []struct {
		method, path, want string
	}{
		{"GET", "/api/v1/namespaces/default/configmaps/blue", "GET configmaps"},
		{"PATCH", "/apis/apps/v1/namespaces/default/deployments/blue/status", "PATCH deployments/status"},
		{"POST", "/apis/apps/v1/namespaces/default/deployments", "POST deployments"},
		{"GET", "/api/v1/nodes/blue", "GET nodes"},
		{"GET", "/api/v1/nodes/blue/proxy/blue/blue", "GET nodes/proxy"},
		{"GET", "/api/v1/namespaces", "GET namespaces"},
		{"GET", "/api/v1/namespaces/blue", "GET namespaces"},
		{"PUT", "/api/v1/namespaces/blue/finalize", "PUT namespaces/finalize"},
		{"PUT", "/api/v1/namespaces/blue/status", "PUT namespaces/status"},
		{"GET", "/k8s/clusters/c-1/api/v1/pods", "GET pods"},
		{"GET", "/api", "GET"},
		{"GET", "/apis/apps/v1", "GET"},
		{"GET", "/version", "GET"},
		{"GET", "", "GET"},
		{"", "/api/v1/pods", "GET pods"},
	} {
		r := newRecorder()
		ctx, parent := r.Tracer("x").Start(t.Context(), "parent")
		var header string
		rt := tracing.Transport(roundTrip(func(req *http.Request) (*http.Response, error) {
			header = req.Header.Get("traceparent")
			if sc := trace.SpanContextFromContext(req.Context()); sc.SpanID() == parent.SpanContext().SpanID() {
				t.Error("the inner transport gets the context of the parent")
			}
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}))
		req := request(t, tt.method, tt.path).WithContext(ctx)
		req.Method = tt.method
		if _, err := rt.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		s := r.only(t)
		if s.Name != tt.want || s.Parent.SpanID() != parent.SpanContext().SpanID() || s.SpanKind != trace.SpanKindClient ||
			value(s.Attributes, "http.response.status_code") != "200" || value(s.Attributes, "server.address") != "api.example.com:6443" || s.Status.Code != codes.Unset {
			t.Errorf("%s %s: span %+v, want the name %q", tt.method, tt.path, s, tt.want)
		}
		if want := "00-" + s.SpanContext.TraceID().String() + "-" + s.SpanContext.SpanID().String() + "-01"; header != want {
			t.Errorf("%s: the header is %q, want %q", tt.path, header, want)
		}
		if req.Header.Get("traceparent") != "" {
			t.Error("the caller's request was changed")
		}
		for _, a := range s.Attributes {
			if strings.Contains(a.Value.String(), "blue") {
				t.Errorf("%s: the attribute %s has the name of an object", tt.path, a.Key)
			}
		}
	}
}

// TestTransportErrors: failures are in the span, and the caller gets them unchanged.
func TestTransportErrors(t *testing.T) {
	r := newRecorder()
	ctx, parent := r.Tracer("x").Start(t.Context(), "parent")
	defer parent.End()
	conflict := &http.Response{StatusCode: http.StatusConflict, Body: io.NopCloser(strings.NewReader("blue"))}
	got, err := tracing.Transport(roundTrip(func(*http.Request) (*http.Response, error) { return conflict, nil })).RoundTrip(request(t, "GET", "/").WithContext(ctx))
	if got != conflict || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	refused := errors.New("blue refused")
	if _, err := tracing.Transport(roundTrip(func(*http.Request) (*http.Response, error) { return nil, refused })).RoundTrip(request(t, "GET", "/").WithContext(ctx)); err != refused {
		t.Errorf("got %v", err)
	}
	var status []sdktrace.Status
	for _, s := range r.GetSpans() {
		status = append(status, s.Status)
	}
	if diff := cmp.Diff([]sdktrace.Status{{Code: codes.Error, Description: "Conflict"}, {Code: codes.Error, Description: "no response"}}, status); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTransportPasses: a request without a sampled span passes as it is, without an
// allocation.
//
// Proves TR5.
func TestTransportPasses(t *testing.T) {
	r := newRecorder(sdktrace.WithSampler(sdktrace.NeverSample()))
	ctx, span := r.Tracer("x").Start(t.Context(), "parent")
	defer span.End()
	for name, req := range map[string]*http.Request{"no span": request(t, "GET", "/"), "unsampled": request(t, "GET", "/").WithContext(ctx)} {
		var got *http.Request
		rt := tracing.Transport(roundTrip(func(req *http.Request) (*http.Response, error) {
			got = req
			return nil, nil
		}))
		if n := testing.AllocsPerRun(100, func() { _, _ = rt.RoundTrip(req) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		if got != req || len(req.Header) > 0 {
			t.Errorf("%s: the request was changed", name)
		}
	}
	if len(r.GetSpans()) > 0 {
		t.Errorf("spans %v", names(r.GetSpans()))
	}
	inner, ok := tracing.Transport(nil).(interface{ WrappedRoundTripper() http.RoundTripper })
	if !ok || inner.WrappedRoundTripper() != http.DefaultTransport {
		t.Error("the transport of nil does not wrap http.DefaultTransport")
	}
	var none *http.Transport
	if inner := tracing.Transport(none).(interface{ WrappedRoundTripper() http.RoundTripper }); inner.WrappedRoundTripper() != http.DefaultTransport {
		t.Error("the transport of a nil pointer does not wrap http.DefaultTransport")
	}
}
