package failing

import (
	"slices"
	"testing"
)

// TestKeys: each call changes the counts of its last and its new result.
func TestKeys(t *testing.T) {
	var k Keys[string]
	for _, step := range []struct {
		key, result string
		changed     []string
		a, b        int
	}{
		{"x", "", nil, 0, 0},
		{"x", "a", []string{"a"}, 1, 0},
		{"x", "a", nil, 1, 0},
		{"y", "a", []string{"a"}, 2, 0},
		{"x", "b", []string{"a", "b"}, 1, 1},
		{"z", "", nil, 1, 1},
		{"x", "", []string{"b"}, 1, 0},
	} {
		if got := k.Note(step.key, step.result); !slices.Equal(got, step.changed) || k.Count("a") != step.a || k.Count("b") != step.b {
			t.Errorf("%s %q: changed %q, counts %d and %d, want %q, %d and %d", step.key, step.result, got, k.Count("a"), k.Count("b"), step.changed, step.a, step.b)
		}
	}
	if got := k.Clear(); !slices.Equal(got, []string{"a"}) || k.Count("a") != 0 || k.Clear() != nil {
		t.Errorf("Clear() = %q, and %d are left, want a and none", got, k.Count("a"))
	}
}

// TestBound: further keys are not counted, and the known ones still change.
func TestBound(t *testing.T) {
	var k Keys[int]
	for n := range 2 * maxKeys {
		k.Note(n, "a")
	}
	if got := k.Count("a"); got != maxKeys || len(k.results) != maxKeys {
		t.Errorf("%d keys are counted and %d remembered, want %d", got, len(k.results), maxKeys)
	}
	if got := k.Note(2*maxKeys-1, ""); got != nil {
		t.Errorf("the success of an unknown key changed %q", got)
	}
	k.Note(7, "")
	k.Note(2*maxKeys-1, "b")
	if a, b := k.Count("a"), k.Count("b"); a != maxKeys-1 || b != 1 {
		t.Errorf("the counts are %d and %d, want %d and 1", a, b, maxKeys-1)
	}
}
