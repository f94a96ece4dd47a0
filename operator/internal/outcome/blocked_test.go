package outcome_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/operator/internal/outcome"
)

func TestBlocked(t *testing.T) {
	other := errors.New("other")
	waits := &finalizer.BlockedError{Steps: []finalizer.BlockedStep{{Name: "a", Message: "waits"}}, Since: time.Unix(7, 0), After: time.Minute}
	failed := &finalizer.BlockedError{Steps: []finalizer.BlockedStep{{Name: "b", Err: other}}, After: time.Second, Err: errors.Join(other)}
	for name, tt := range map[string]struct {
		err   error
		steps int
		after time.Duration
		alone bool
		fails bool
	}{
		"none":                    {},
		"another":                 {err: other},
		"waits":                   {err: waits, steps: 1, after: time.Minute, alone: true},
		"failed":                  {err: fmt.Errorf("x: %w", failed), steps: 1, after: time.Second, alone: true, fails: true},
		"two":                     {err: fmt.Errorf("x: %w", errors.Join(waits, failed)), steps: 2, after: time.Second, alone: true, fails: true},
		"joined with another":     {err: fmt.Errorf("x: %w", errors.Join(waits, other)), steps: 1, after: time.Minute},
		"wrapped with another":    {err: fmt.Errorf("%w: %w", other, waits), steps: 1, after: time.Minute},
		"aggregated with another": {err: utilerrors.NewAggregate([]error{waits, other}), steps: 1, after: time.Minute},
		"nested":                  {err: errors.Join(fmt.Errorf("y: %w", errors.Join(failed, other)), waits), steps: 2, after: time.Second, fails: true},
	} {
		blocked, alone := outcome.Blocked(tt.err)
		if (blocked != nil) != (tt.steps > 0) || alone != tt.alone {
			t.Errorf("%s: Blocked() = %v, %t, want %d steps and %t", name, blocked, alone, tt.steps, tt.alone)
		}
		if blocked != nil && (len(blocked.Steps) != tt.steps || blocked.After != tt.after || (blocked.Err != nil) != tt.fails) {
			t.Errorf("%s: Blocked() = %d steps after %v, %v", name, len(blocked.Steps), blocked.After, blocked.Err)
		}
	}
	if len(waits.Steps) != 1 || len(failed.Steps) != 1 {
		t.Errorf("the errors have changed: %v, %v", waits, failed)
	}
}
