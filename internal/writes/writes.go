// Package writes reports the writes of a call to the loop that made its context:
// package reconcile counts writes that the packages ssa and status sent or skipped.
package writes

import "context"

// The kinds of writes.
const (
	Apply  = "apply"
	Status = "status"
)

// Key is the key of the context value that is an Observer.
type Key struct{}

// Observer is called for writes.
type Observer interface {
	// Wrote is called before each request, and with false in place of a request that was
	// not needed.
	Wrote(kind string, sent bool)
}

// Note calls the Observer of ctx, if it has one.
func Note(ctx context.Context, kind string, sent bool) {
	if o, ok := ctx.Value(Key{}).(Observer); ok {
		o.Wrote(kind, sent)
	}
}
