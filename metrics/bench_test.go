package metrics_test

import (
	"testing"
	"time"
)

func BenchmarkReconcile(b *testing.B) {
	m, _ := newMetrics(b)
	m.ReconcileWorkers("widgets", 1)
	b.ReportAllocs()
	for b.Loop() {
		m.ReconcileStarted("widgets")
		m.ReconcileFinished(b.Context(), "widgets", "success", time.Millisecond, time.Second)
	}
}

func BenchmarkReconcileParallel(b *testing.B) {
	m, _ := newMetrics(b)
	m.ReconcileWorkers("widgets", 1)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m.ReconcileStarted("widgets")
			m.ReconcileFinished(b.Context(), "widgets", "success", time.Millisecond, time.Second)
		}
	})
}

func BenchmarkQueueDepth(b *testing.B) {
	m, _ := newMetrics(b)
	depth := m.NewDepthMetric("q")
	b.ReportAllocs()
	for b.Loop() {
		depth.Inc()
		depth.Dec()
	}
}

func BenchmarkRequest(b *testing.B) {
	m, _ := newMetrics(b)
	rt := m.Transport(status(200))
	req := request("GET", "https://api/api/v1/pods?limit=500")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := rt.RoundTrip(req); err != nil {
			b.Fatal(err)
		}
	}
}
