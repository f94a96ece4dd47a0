package calls

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

// Written is the key of a function that gets the responses of the writes of a call, which the
// packages ssa, status, finalizer, owner and external sent:
//
//	func(obj metav1.Object)
type Written struct{}

// NoteWritten calls the function Written of ctx, if it has one and obj is an object.
func NoteWritten(ctx context.Context, obj any) {
	if written, ok := ctx.Value(Written{}).(func(obj metav1.Object)); ok {
		if o, ok := obj.(metav1.Object); ok {
			written(o)
		}
	}
}
