// Package pause waits for a time or for the end of a context.
package pause

import (
	"context"
	"time"
)

// For waits for d, and reports whether ctx is not done.
func For(ctx context.Context, d time.Duration) bool { return Until(ctx, d, nil) }

// Until waits for d or until the channel is closed, and reports whether ctx is not done.
func Until(ctx context.Context, d time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(max(d, 1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-done:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
