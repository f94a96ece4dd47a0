package kube_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/internal/kube"
)

type waiting time.Duration

func (w waiting) Error() string        { return fmt.Sprint("waits ", time.Duration(w)) }
func (w waiting) Waits() time.Duration { return time.Duration(w) }

func TestWaits(t *testing.T) {
	failure := errors.New("a failure")
	for name, tt := range map[string]struct {
		err  error
		want time.Duration
	}{
		"none":                {},
		"a failure":           {err: failure},
		"a wait":              {err: waiting(time.Second), want: time.Second},
		"wrapped":             {err: fmt.Errorf("create: %w", waiting(time.Second)), want: time.Second},
		"the shortest":        {err: errors.Join(waiting(time.Minute), waiting(time.Second)), want: time.Second},
		"beside a failure":    {err: errors.Join(waiting(time.Second), failure)},
		"no time":             {err: errors.Join(waiting(time.Second), waiting(0))},
		"joined and wrapped":  {err: fmt.Errorf("create: %w", errors.Join(waiting(time.Hour), waiting(time.Minute))), want: time.Minute},
		"a joined one within": {err: errors.Join(errors.Join(waiting(time.Minute), failure), waiting(time.Second))},
	} {
		if got := kube.Waits(tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { kube.Waits(nil) }); n != 0 {
		t.Errorf("no error: %v allocations, want none", n)
	}
}
