package rows_test

import (
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/internal/bench/rows"
)

// TestQuantile checks that p99 of a few hand-overs is the slowest.
func TestQuantile(t *testing.T) {
	upTo := func(n int) []time.Duration {
		var sorted []time.Duration
		for i := range n {
			sorted = append(sorted, time.Duration(i+1))
		}
		return sorted
	}
	for _, tt := range []struct {
		n    int
		q    float64
		want time.Duration
	}{
		{n: 1, q: 0.5, want: 1},
		{n: 1, q: 1, want: 1},
		{n: 4, q: 0.5, want: 2},
		{n: 4, q: 0.99, want: 4},
		{n: 100, q: 0.5, want: 50},
		{n: 100, q: 0.99, want: 99},
		{n: 100, q: 1, want: 100},
	} {
		if got := rows.Quantile(upTo(tt.n), tt.q); got != tt.want {
			t.Errorf("quantile %v of 1 to %d = %d, want %d", tt.q, tt.n, got, tt.want)
		}
	}
}
