package metrics_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// histogram returns the only series of a family.
func histogram(t *testing.T, reg prometheus.Gatherer, name string) *dto.Histogram {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name && len(f.GetMetric()) == 1 {
			return f.GetMetric()[0].GetHistogram()
		}
	}
	t.Fatalf("no family %s with one series", name)
	return nil
}

// classic returns the count of each classic bucket, and the sum.
func classic(h *dto.Histogram) map[string]uint64 {
	counts := map[string]uint64{"+Inf": h.GetSampleCount(), fmt.Sprintf("sum %.9g", h.GetSampleSum()): 1}
	for _, b := range h.GetBucket() {
		counts[fmt.Sprint(b.GetUpperBound())] = b.GetCumulativeCount()
	}
	return counts
}

// native returns the count of each native bucket that is not empty. Index math.MinInt is the
// zero bucket.
func native(h *dto.Histogram) map[int]int64 {
	counts := map[int]int64{math.MinInt: int64(h.GetZeroCount())}
	at, count, deltas := 0, int64(0), h.GetPositiveDelta()
	for _, s := range h.GetPositiveSpan() {
		at += int(s.GetOffset())
		for range s.GetLength() {
			count, deltas = count+deltas[0], deltas[1:]
			if count != 0 {
				counts[at] = count
			}
			at++
		}
	}
	return counts
}

// TestHistogram: classic and native buckets have the counts of client_golang's.
func TestHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m, reg := newMetrics(t)
	theirs := prometheus.NewRegistry()
	want := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "x", Help: "x", NativeHistogramBucketFactor: 1.1, NativeHistogramZeroThreshold: 1.0 / (1 << 20),
		Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800},
	})
	theirs.MustRegister(want)
	durations := []time.Duration{
		time.Second, 0, -time.Second, 1, math.MaxInt64, 953 * time.Nanosecond, 954 * time.Nanosecond, time.Microsecond,
		5 * time.Millisecond, 2 * time.Second, 1800 * time.Second, time.Second / 2, time.Second + 1, time.Second - 1,
	}
	for e := range 60 {
		for range 30 {
			durations = append(durations, time.Duration(r.Int64N(2<<e)))
		}
	}
	for _, d := range durations {
		m.ReconcileFinished(t.Context(), "c", "success", time.Second, d)
		if d >= 0 { // otherwise the reconcile settled nothing
			want.Observe(d.Seconds())
		}
	}
	got, all := histogram(t, reg, "controller_reconcile_latency_seconds"), histogram(t, theirs, "x")
	m.ReconcileFinished(t.Context(), "c", "success", time.Second, time.Second) // what was gathered does not change
	if diff := cmp.Diff(classic(all), classic(got)); diff != "" {
		t.Errorf("classic (-client_golang +got):\n%s", diff)
	}
	if diff := cmp.Diff(native(all), native(got)); diff != "" {
		t.Errorf("native (-client_golang +got):\n%s", diff)
	}
	if got.GetSchema() != all.GetSchema() || got.GetZeroThreshold() != all.GetZeroThreshold() || got.GetCreatedTimestamp() == nil {
		t.Errorf("schema %d, zero threshold %v, created %v; want %d and %v", got.GetSchema(), got.GetZeroThreshold(), got.GetCreatedTimestamp(), all.GetSchema(), all.GetZeroThreshold())
	}
}

// TestNativeBounds: values at the bounds of native buckets, and close to them, count in the
// buckets of client_golang's.
func TestNativeBounds(t *testing.T) {
	m, reg := newMetrics(t)
	ours := m.NewLatencyMetric("q")
	theirs := prometheus.NewRegistry()
	want := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "x", Help: "x", NativeHistogramBucketFactor: 1.1, NativeHistogramZeroThreshold: 1.0 / (1 << 20),
	})
	theirs.MustRegister(want)
	for exp := -20; exp < 34; exp++ {
		for n := range 8 {
			bound := math.Ldexp(math.Pow(2, float64(n)/8), exp)
			for _, v := range []float64{bound, math.Nextafter(bound, 0), math.Nextafter(bound, math.Inf(1)), bound * 1.001, bound * 0.999} {
				ours.Observe(v)
				want.Observe(v)
			}
		}
	}
	got, all := histogram(t, reg, "workqueue_queue_duration_seconds"), histogram(t, theirs, "x")
	if diff := cmp.Diff(native(all), native(got)); diff != "" {
		t.Errorf("native (-client_golang +got):\n%s", diff)
	}
}

// TestHistogramIsBounded: whatever is observed, a series has few native buckets, and values
// that are no durations do no harm.
//
// Proves M1.
func TestHistogramIsBounded(t *testing.T) {
	m, reg := newMetrics(t)
	h := m.NewLatencyMetric("q")
	const n = 1_000_000
	r := rand.New(rand.NewPCG(3, 4))
	for range n {
		h.Observe(math.Float64frombits(r.Uint64()))
	}
	h.Observe(math.NaN())
	h.Observe(math.Inf(1))
	h.Observe(math.Inf(-1))
	got := histogram(t, reg, "workqueue_queue_duration_seconds")
	if len(got.GetPositiveDelta()) > 433 || len(got.GetNegativeDelta()) > 0 || len(got.GetBucket()) != 10 {
		t.Errorf("%d native buckets, %d negative ones and %d classic ones, want at most 433, 0 and 10", len(got.GetPositiveDelta()), len(got.GetNegativeDelta()), len(got.GetBucket()))
	}
	var sum int64
	for _, c := range native(got) {
		sum += c
	}
	if uint64(sum) != got.GetSampleCount() || sum > n+2 || sum < n*9/10 {
		t.Errorf("native buckets have %d of %d observations", sum, got.GetSampleCount())
	}
}

// TestConcurrentHistogram: while it is gathered, no observation is lost.
func TestConcurrentHistogram(t *testing.T) {
	m, reg := newMetrics(t)
	const workers, each = 4, 2000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				m.ReconcileFinished(t.Context(), "c", "success", time.Second, time.Duration(w*i)*time.Millisecond)
				if i%500 == 0 {
					if _, err := reg.Gather(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if got := histogram(t, reg, "controller_reconcile_latency_seconds").GetSampleCount(); got != workers*each {
		t.Errorf("%d observations, want %d", got, workers*each)
	}
}
