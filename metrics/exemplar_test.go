package metrics_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/metrics"
)

type traceKey struct{}

// inTrace returns a context in the trace.
func inTrace(ctx context.Context, trace string) context.Context {
	return context.WithValue(ctx, traceKey{}, map[string]string{"trace_id": trace, "a": "b"})
}

func labelsOf(ctx context.Context) map[string]string {
	labels, _ := ctx.Value(traceKey{}).(map[string]string)
	return labels
}

// exemplars returns the exemplars of a series, by the bound of their buckets.
func exemplars(h *dto.Histogram) map[string]string {
	all := map[string]string{}
	for _, b := range h.GetBucket() {
		if e := b.GetExemplar(); e != nil {
			var labels []string
			for _, l := range e.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			all[fmt.Sprint(b.GetUpperBound())] = fmt.Sprint(strings.Join(labels, " "), " ", e.GetValue())
		}
	}
	return all
}

// TestExemplars: the last exemplar of each bucket has the labels of the context, and
// Handler serves it in OpenMetrics. Without Exemplar there is neither.
func TestExemplars(t *testing.T) {
	m, reg := newMetrics(t)
	m.Exemplar = labelsOf
	ctx := t.Context()
	m.ReconcileFinished(inTrace(ctx, "1"), "c", "success", 20*time.Millisecond, -1)
	m.ReconcileFinished(inTrace(ctx, "2"), "c", "success", 21*time.Millisecond, -1)
	m.ReconcileFinished(ctx, "c", "success", 22*time.Millisecond, -1) // not in a trace
	m.ReconcileFinished(inTrace(ctx, "3"), "c", "success", time.Hour, time.Second)
	if _, err := m.Transport(status(200)).RoundTrip(request("GET", "https://api/x").WithContext(inTrace(ctx, "5"))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"0.025": "a=b trace_id=2 0.021", "+Inf": "a=b trace_id=3 3600"}, exemplars(histogram(t, reg, "controller_reconcile_duration_seconds"))); diff != "" {
		t.Errorf("exemplars of the duration (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"1": "a=b trace_id=3 1"}, exemplars(histogram(t, reg, "controller_reconcile_latency_seconds"))); diff != "" {
		t.Errorf("exemplars of the latency (-want +got):\n%s", diff)
	}
	if got := exemplars(histogram(t, reg, "rest_client_request_duration_seconds")); len(got) != 1 {
		t.Errorf("exemplars of the request: %v, want one", got)
	}

	const text, open = "text/plain", "application/openmetrics-text;version=1.0.0"
	plain, err := metrics.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	plain.ReconcileFinished(inTrace(ctx, "6"), "c", "success", time.Second, time.Second)
	for _, tc := range []struct {
		name, accept  string
		m             *metrics.Metrics
		want, without string
	}{
		{"OpenMetrics", open, m, `latency_seconds_bucket{controller="c",le="1.0"} 1 # {a="b",trace_id="3"} 1.0`, `le="1"`},
		{"text", text, m, `latency_seconds_bucket{controller="c",le="1"} 1` + "\n", "trace_id"},
		{"OpenMetrics without Exemplar", open, plain, `latency_seconds_bucket{controller="c",le="1"} 1` + "\n", "trace_id"},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody)
		r.Header.Set("Accept", tc.accept)
		tc.m.Handler().ServeHTTP(w, r)
		if body := w.Body.String(); !strings.Contains(body, tc.want) || strings.Contains(body, tc.without) {
			t.Errorf("%s: /metrics lacks %q or has %q", tc.name, tc.want, tc.without)
		}
	}
}

// TestBadExemplars: labels that Prometheus does not accept are dropped, the first one with a
// line of log. The observation counts.
func TestBadExemplars(t *testing.T) {
	many := map[string]string{}
	for i := range 100_000 {
		many[fmt.Sprint("a", i)] = ""
	}
	for _, tc := range []struct {
		name   string
		labels map[string]string
		want   string // in the log; "" means that the exemplar is valid
	}{
		{name: "128 runes", labels: map[string]string{"a": strings.Repeat("é", 127)}},
		{name: "underscore and digit", labels: map[string]string{"a_1": "x\n\"\\"}},
		{name: "129 runes", labels: map[string]string{"a": strings.Repeat("é", 128)}, want: "shorten their names and values"},
		{name: "129 runes together", labels: map[string]string{"a": strings.Repeat("x", 60), "b": strings.Repeat("x", 67)}, want: "more than 128 runes"},
		{name: "1 MiB", labels: map[string]string{"a": strings.Repeat("x", 1<<20)}, want: "more than 128 runes"},
		{name: "name of 1 MiB", labels: map[string]string{strings.Repeat("x", 1<<20): ""}, want: "more than 128 runes"},
		{name: "100,000 labels", labels: many, want: "more than 128 runes"},
		{name: "no UTF-8", labels: map[string]string{"a": "\xff"}, want: "use UTF-8"},
		{name: "empty name", labels: map[string]string{"": "x"}, want: "the label name"},
		{name: "reserved name", labels: map[string]string{"__name__": "x"}, want: "the label name"},
		{name: "digit first", labels: map[string]string{"1a": "x"}, want: "the label name"},
		{name: "newline", labels: map[string]string{"a\nb": "x"}, want: "the label name"},
		{name: "accent", labels: map[string]string{"é": "x"}, want: "the label name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, reg := newMetrics(t)
			m.Exemplar = labelsOf
			var log bytes.Buffer
			ctx := klog.NewContext(t.Context(), testlog.Text(&log, 0))
			ctx = context.WithValue(ctx, traceKey{}, tc.labels)
			for range 2 {
				m.ReconcileFinished(ctx, "c", "success", time.Second, time.Second)
			}
			h := histogram(t, reg, "controller_reconcile_latency_seconds")
			if h.GetSampleCount() != 2 {
				t.Errorf("%d observations, want 2", h.GetSampleCount())
			}
			if n := len(exemplars(h)); (n == 1) != (tc.want == "") {
				t.Errorf("%d exemplars", n)
			}
			switch lines := strings.Count(log.String(), "\n"); {
			case tc.want == "" && lines != 0:
				t.Errorf("log:\n%s", log.String())
			case tc.want != "" && (lines != 1 || !strings.Contains(log.String(), tc.want) || log.Len() > 2000):
				t.Errorf("%d lines of log with %d bytes, want one that contains %q: %.500s", lines, log.Len(), tc.want, log.String())
			}
		})
	}
}
