package calls_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/internal/calls"
)

// TestMemory: a Memory has each check for an hour, and at most 65,536.
func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := context.WithValue(t.Context(), calls.Checks{}, &calls.Memory{})
		const n = 70_000
		for i := range n {
			calls.Passed(ctx, "a", strconv.Itoa(i))
		}
		known := 0
		for i := range n {
			if calls.HasPassed(ctx, "a", strconv.Itoa(i)) {
				known++
			}
		}
		last := strconv.Itoa(n - 1)
		if known != 1<<16 || !calls.HasPassed(ctx, "a", last) {
			t.Errorf("%d checks of %d are known, and the last one: %t", known, n, calls.HasPassed(ctx, "a", last))
		}
		if calls.HasPassed(ctx, "b", last) || calls.HasPassed(ctx, "a", "x") || calls.HasPassed(t.Context(), "a", last) {
			t.Error("a check of another subject, value or context has passed")
		}
		time.Sleep(time.Hour - time.Nanosecond)
		if !calls.HasPassed(ctx, "a", last) {
			t.Error("after less than an hour, the check is not known")
		}
		if time.Sleep(time.Nanosecond); calls.HasPassed(ctx, "a", last) {
			t.Error("after an hour, the check is known")
		}
	})
}
