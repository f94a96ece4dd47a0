package rows_test

import (
	"slices"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
	"github.com/controllerkit/controllerkit/internal/bench/rows"
)

// TestLatencies checks which sight ends the latency of an update.
func TestLatencies(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	sight := func(name, version string, ms int) contender.Sight {
		return contender.Sight{Name: name, Version: version, At: begin.Add(time.Duration(ms) * time.Millisecond).UnixNano()}
	}
	for _, tt := range []struct {
		name    string
		sights  []contender.Sight
		want    []time.Duration // of updates of a to version 9 at 0 ms and to 10 at 5 ms
		missing int
	}{
		{name: "each version", sights: []contender.Sight{sight("a", "9", 2), sight("a", "10", 8)}, want: []time.Duration{2 * time.Millisecond, 3 * time.Millisecond}},
		{name: "one for both", sights: []contender.Sight{sight("a", "10", 8)}, want: []time.Duration{3 * time.Millisecond, 8 * time.Millisecond}},
		{name: "the first counts", sights: []contender.Sight{sight("a", "10", 8), sight("a", "10", 50)}, want: []time.Duration{3 * time.Millisecond, 8 * time.Millisecond}},
		{name: "before the response", sights: []contender.Sight{sight("a", "9", -1), sight("a", "10", 4)}, want: []time.Duration{0, 0}},
		{name: "older version", sights: []contender.Sight{sight("a", "8", 1), sight("a", "9", 2)}, want: []time.Duration{2 * time.Millisecond}, missing: 1},
		{name: "another object", sights: []contender.Sight{sight("b", "10", 1)}, missing: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, missing := rows.Latencies([]rows.Update{{Name: "a", Version: "9", At: begin}, {Name: "a", Version: "10", At: begin.Add(5 * time.Millisecond)}}, tt.sights)
			if !slices.Equal(got, tt.want) || missing != tt.missing {
				t.Errorf("got %v and %d missing, want %v and %d", got, missing, tt.want, tt.missing)
			}
		})
	}
}
