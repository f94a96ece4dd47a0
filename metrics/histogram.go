package metrics

import (
	"math"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The buckets of native histograms: eight between each power of two and the next, from 2^-20
// seconds, which is about a microsecond, to 2^34 seconds, which is above the longest
// time.Duration.
const (
	schema   = 3
	perPower = 1 << schema
	least    = -20 * perPower // index of the bucket whose upper bound is zeroBelow
	most     = 34 * perPower
)

const (
	zeroBelow = 1.0 / (1 << 20)
	longest   = 1 << 34
)

// histogram is a classic and a native histogram of one series, with the last exemplar of each
// classic bucket. client_golang has one with both too. This one has a lock instead of four
// atomic operations and a map, which takes less time.
type histogram struct {
	desc    *prometheus.Desc
	labels  []*dto.LabelPair
	created *timestamppb.Timestamp
	bounds  []float64

	mu        *sync.Mutex // guards the fields below
	sum       float64
	counts    []uint64 // by bound, and one above all bounds
	zero      uint64   // at most zeroBelow
	native    []uint64 // by index, from first
	first     int
	exemplars []*dto.Exemplar // as counts; empty before the first one
}

// histograms are the series of a family.
type histograms struct{ *prometheus.MetricVec }

func newHistograms(name, help string, bounds []float64, labels ...string) histograms {
	desc := prometheus.NewDesc(name, help, labels, nil)
	return histograms{prometheus.NewMetricVec(desc, func(values ...string) prometheus.Metric {
		return newHistogram(new(sync.Mutex), desc, bounds, values...)
	})}
}

// newHistogram returns an empty histogram with the lock mu. The histograms of a controller
// share theirs.
func newHistogram(mu *sync.Mutex, desc *prometheus.Desc, bounds []float64, values ...string) *histogram {
	return &histogram{
		mu: mu, desc: desc, labels: prometheus.MakeLabelPairs(desc, values), created: timestamppb.Now(),
		bounds: bounds, counts: make([]uint64, len(bounds)+1),
	}
}

// WithLabelValues returns the series of the label values, which are valid UTF-8 and as many as
// the labels. It creates the series if necessary.
func (h histograms) WithLabelValues(values ...string) *histogram {
	one, err := h.GetMetricWithLabelValues(values...)
	if err != nil {
		panic(err) // as client_golang
	}
	return one.(*histogram)
}

// Observe counts v.
func (h *histogram) Observe(v float64) { h.observe(v, nil) }

// observe counts v, with an exemplar if e is not nil. It ignores NaN, which no duration is.
//
// The lock is most of its time, and a deferred Unlock would add a tenth.
func (h *histogram) observe(v float64, e *dto.Exemplar) {
	h.mu.Lock()
	h.observeLocked(v, e)
	h.mu.Unlock()
}

func (h *histogram) observeLocked(v float64, e *dto.Exemplar) {
	if math.IsNaN(v) {
		return
	}
	n := 0
	for n < len(h.bounds) && v > h.bounds[n] {
		n++
	}
	h.counts[n]++
	h.sum += v
	if at := index(v); at == least {
		h.zero++
	} else {
		*h.bucketLocked(at)++
	}
	if e != nil {
		if h.exemplars == nil {
			h.exemplars = make([]*dto.Exemplar, len(h.counts))
		}
		h.exemplars[n] = e
	}
}

// index returns the index of the native bucket of v, or least for the zero bucket. As in
// Prometheus, the bucket 0 ends at 1. A value that no duration has counts in the last bucket.
func index(v float64) int {
	switch {
	case v <= zeroBelow:
		return least
	case v > longest:
		return most
	}
	fractions := [perPower]float64{ // 2^(n/8)
		1, 1.0905077326652577, 1.189207115002721, 1.2968395546510096,
		1.414213562373095, 1.5422108254079407, 1.6817928305074288, 1.8340080864093422,
	}
	// The bits of v are its exponent and its fraction. The first three of the fraction
	// are a linear index, which is at most two below the logarithmic one.
	const bits, bias = 52, 1023
	b := math.Float64bits(v)
	frac := math.Float64frombits(b&(1<<bits-1) | bias<<bits) // in [1, 2)
	n := int(b >> (bits - 3) & (perPower - 1))
	for n < perPower && frac > fractions[n] {
		n++
	}
	return n + (int(b>>bits)-bias)*perPower
}

// bucketLocked returns the native bucket. It has a bucket for each index between the lowest
// and the highest used index.
func (h *histogram) bucketLocked(at int) *uint64 {
	switch last := h.first + len(h.native); {
	case len(h.native) == 0:
		h.first, h.native = at, []uint64{0}
	case at < h.first:
		h.native = append(make([]uint64, h.first-at, last-at), h.native...)
		h.first = at
	case at >= last:
		h.native = append(h.native, make([]uint64, at-last+1)...)
	}
	return &h.native[at-h.first]
}

// count returns the number of observations.
func (h *histogram) count() (n uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.counts {
		n += c
	}
	return n
}

func (h *histogram) Desc() *prometheus.Desc { return h.desc }

// Write implements prometheus.Metric.
func (h *histogram) Write(out *dto.Metric) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var count uint64
	buckets := make([]*dto.Bucket, 0, len(h.counts))
	for n, c := range h.counts {
		count += c
		b := &dto.Bucket{CumulativeCount: new(count), UpperBound: new(math.Inf(1))}
		if n < len(h.bounds) {
			b.UpperBound = new(h.bounds[n])
		}
		if len(h.exemplars) > 0 {
			b.Exemplar = h.exemplars[n]
		}
		if n < len(h.bounds) || b.Exemplar != nil { // encoders add the last bucket
			buckets = append(buckets, b)
		}
	}
	out.Label = h.labels
	out.Histogram = &dto.Histogram{
		SampleCount: new(count), SampleSum: new(h.sum), Bucket: buckets, CreatedTimestamp: h.created,
		Schema: new(int32(schema)), ZeroThreshold: new(float64(zeroBelow)), ZeroCount: new(h.zero),
	}
	out.Histogram.PositiveSpan, out.Histogram.PositiveDelta = h.spansLocked()
	return nil
}

// spansLocked returns the native buckets in Prometheus' form: runs of buckets with the
// distance to the previous run, and the difference of each bucket to the previous one.
func (h *histogram) spansLocked() (spans []*dto.BucketSpan, deltas []int64) {
	var last uint64
	next := 0 // index after the last run
	for i, c := range h.native {
		at := h.first + i
		if c == 0 {
			continue
		}
		if n := len(spans); n == 0 || at != next {
			spans = append(spans, &dto.BucketSpan{Offset: new(int32(at - next)), Length: new(uint32)})
		}
		*spans[len(spans)-1].Length++
		deltas = append(deltas, int64(c)-int64(last))
		last, next = c, at+1
	}
	return spans, deltas
}
