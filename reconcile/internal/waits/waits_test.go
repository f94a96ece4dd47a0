package waits

import (
	"context"
	"testing"
)

// TestEnd: End ends the contexts that were made before it, and no later one.
func TestEnd(t *testing.T) {
	var w Waits
	parent, cancel := context.WithCancel(t.Context())
	cancel() // which does not matter
	w.End()
	one, two := w.Context(parent), w.Context(parent)
	if one.Err() != nil || two.Err() != nil {
		t.Errorf("before End: %v, %v", one.Err(), two.Err())
	}
	w.End()
	if later := w.Context(parent); one.Err() == nil || two.Err() == nil || later.Err() != nil {
		t.Errorf("after End: %v, %v, and a later one %v", one.Err(), two.Err(), later.Err())
	}
}
