// Package pause waits for a time or for the end of a context.
package pause

import (
	"context"
	"time"
)

// For waits for d, and reports whether ctx is not done.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(max(d, 1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
