package rows_test

import (
	"testing"

	"github.com/controllerkit/controllerkit/internal/bench/rows"
)

// TestLife checks that all contenders of life/requests reach exactly the same state. It
// also checks that the library sends only the seven necessary requests: add the
// finalizer, apply four children, write the status, remove the finalizer.
func TestLife(t *testing.T) {
	const (
		n    = 3
		ours = "controllerkit"
	)
	world := rows.OpenLifeWorld(t)
	want, counts := world.Live(t, ours, n)
	for _, tt := range []struct {
		figure string
		each   int64
	}{
		{figure: "requests", each: 7},
		{figure: "requests, creation", each: 6},
		{figure: "requests, steady", each: 0},
		{figure: "requests, deletion", each: 1},
		{figure: "requests, refused", each: 0},
	} {
		if got := counts[tt.figure]; got != n*tt.each {
			t.Errorf("%s: %d for %d lives, want %d", tt.figure, got, n, n*tt.each)
		}
	}
	for _, contender := range rows.LifeKinds() {
		if contender == ours {
			continue
		}
		got, counts := world.Live(t, contender, n)
		if len(want) != n*5 || len(got) != len(want) {
			t.Fatalf("%s ends with %d objects and %s with %d, want %d", contender, len(got), ours, len(want), n*5)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s ends with another object than %s:\n got %s\nwant %s", contender, ours, got[i], want[i])
			}
		}
		if least := int64(n * 7); counts["requests"] < least {
			t.Errorf("%s: %d requests for %d lives; no life needs less than 7", contender, counts["requests"], n)
		}
	}
}
