// Package writes tells the loop that made a context what a call did with it: package
// reconcile counts writes that the packages ssa and status sent or skipped.
package writes

import "context"

// The kinds of writes.
const (
	Apply  = "apply"
	Status = "status"
)

// Key is the key of the context value that is an Observer.
type Key struct{}

// Observer is told of writes.
type Observer interface {
	// Wrote is called before each request, and with false in place of one that was not
	// needed.
	Wrote(kind string, sent bool)
}

// Note tells the Observer of ctx, if there is one.
func Note(ctx context.Context, kind string, sent bool) {
	if o, ok := ctx.Value(Key{}).(Observer); ok {
		o.Wrote(kind, sent)
	}
}
