package calls

import "context"

// The kinds of writes.
const (
	Apply  = "apply"
	Status = "status"
)

// Writes is the key of a value that is a WriteObserver: package reconcile counts the writes of
// a call that the packages ssa and status sent or skipped.
type Writes struct{}

// WriteObserver is called for writes.
type WriteObserver interface {
	// Wrote is called before each request, and with false in place of a request that was
	// not needed.
	Wrote(kind string, sent bool)
}

// NoteWrite calls the WriteObserver of ctx, if it has one.
func NoteWrite(ctx context.Context, kind string, sent bool) {
	if o, ok := ctx.Value(Writes{}).(WriteObserver); ok {
		o.Wrote(kind, sent)
	}
}
