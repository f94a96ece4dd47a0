package tenure

import (
	"context"
	"runtime/pprof"

	"github.com/controllerkit/controllerkit/internal/stacks"
)

// Go calls work in a goroutine, and done when it has returned: with exited if it called
// runtime.Goexit. The pprof label marks work's goroutines in profiles, and [Stacks] finds them.
//
// A panic goes on and ends the process, and done is not called: its caller would release the
// Lease, or end the process itself, before the panic is printed.
func Go(ctx context.Context, label, value string, exited error, work func(context.Context) error, done func(error)) {
	go pprof.Do(ctx, pprof.Labels(label, value), func(ctx context.Context) {
		err := exited
		defer func() {
			if v := recover(); v != nil {
				panic(v)
			}
			done(err)
		}()
		err = work(ctx)
	})
}

// Stacks returns the stacks of the goroutines of Go with the label, at most 16 KiB.
func Stacks(label, value string) string { return stacks.Labelled(label, value, 16<<10) }
