// Package parallel calls a function for several items at once.
package parallel

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// Default is the concurrency for 0.
const Default = 8

// ErrGoexit is the error of a call that did not return. Without it, the call of a client that
// ends its goroutine would count as a success, and a prune could follow.
var ErrGoexit = errors.New("the client called runtime.Goexit, as testing.T.FailNow does: return an error instead")

// Each calls f for the items, several at a time, and returns the errors after all calls.
// After an error it makes no more calls. If the context ends, its cause is among the
// errors.
func Each[T any](ctx context.Context, concurrency int, items []T, f func(T) error) []error {
	slots := semaphore.NewWeighted(int64(cmp.Or(concurrency, Default)))
	var wg sync.WaitGroup
	var failed atomic.Bool
	errs := make([]error, len(items), len(items)+1)
	for i, item := range items {
		if slots.Acquire(ctx, 1) != nil || ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		if failed.Load() {
			break
		}
		wg.Go(func() {
			defer slots.Release(1)
			err := ErrGoexit
			defer func() {
				if errs[i] = err; err != nil {
					failed.Store(true)
				}
			}()
			err = f(item)
		})
	}
	wg.Wait()
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}
