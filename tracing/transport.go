package tracing

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Transport returns a transport that makes a span of each request that is sent with the
// context of a sampled span, and adds the header traceparent to it. It has the form of
// rest.Config.Wrap. The provider of the span in the context makes the spans, which end with
// the headers of the response. A retry by client-go has a span of its own. The name of a span
// is the method with the resource and subresource, such as "PATCH websites/status".
//
// All other requests pass unchanged. A nil rt means http.DefaultTransport. For other
// services, otelhttp.NewTransport has more attributes.
func Transport(rt http.RoundTripper) http.RoundTripper {
	if kube.IsNil(rt) {
		rt = http.DefaultTransport
	}
	return &transport{next: rt}
}

type transport struct{ next http.RoundTripper }

// WrappedRoundTripper returns the inner transport. Client-go uses it, for example to close
// idle connections.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	parent := trace.SpanFromContext(req.Context())
	if !parent.IsRecording() || !parent.SpanContext().IsSampled() {
		return t.next.RoundTrip(req)
	}
	method, name := req.Method, req.Method
	if method == "" {
		method, name = http.MethodGet, http.MethodGet
	}
	resource := resourceOf(req.URL.Path)
	if resource != "" {
		name += " " + resource
	}
	ctx, span := parent.TracerProvider().Tracer(scope).Start(req.Context(), name,
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(
			attribute.String("http.request.method", method),
			attribute.String("server.address", req.URL.Host),
			attribute.String("k8s.resource", resource),
		))
	defer func() { span.End() }() // deferred itself, it would record the text of a panic
	req = req.Clone(ctx)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		span.SetStatus(codes.Error, "no response")
		return resp, err
	}
	span.SetAttributes(attribute.Int("http.response.status_code", resp.StatusCode))
	if resp.StatusCode >= http.StatusBadRequest {
		span.SetStatus(codes.Error, http.StatusText(resp.StatusCode))
	}
	return resp, nil
}

// resourceOf returns the resource of an API path, with its subresource, or "". The server can
// have a path of its own before /api and /apis.
func resourceOf(path string) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		var rest []string
		switch s {
		case "api": // VERSION
			rest = segments[min(i+2, len(segments)):]
		case "apis": // GROUP/VERSION
			rest = segments[min(i+3, len(segments)):]
		default:
			continue
		}
		// [namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]], and a Namespace has
		// subresources.
		if len(rest) > 2 && rest[0] == "namespaces" && rest[2] != "status" && rest[2] != "finalize" {
			rest = rest[2:]
		}
		switch {
		case len(rest) == 0:
			return ""
		case len(rest) > 2 && rest[2] != "":
			return rest[0] + "/" + rest[2]
		}
		return rest[0]
	}
	return ""
}
