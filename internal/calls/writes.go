package calls

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// Versions is the key of a value that is a VersionObserver: package reconcile tells the events of
// a call's own writes from others'.
type Versions struct{}

// VersionObserver learns which versions the writes of a call have made. Its methods are called
// concurrently.
type VersionObserver interface {
	// Sending is called before the request of a write.
	Sending()
	// Answered is called once after Sending, when the write's response is known and before the
	// caller of the request gets it. The zero Version means that the write has made none, or an
	// unknown one.
	Answered(Version)
}

// Version is what a write has made of an object.
type Version struct {
	UID     types.UID
	Version string // the resource version; "" if the object is gone
	Status  bool   // the write was one of the status, which does not change the generation
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

// Bare is the key of a metav1.Object, in the context of an apply: the object that package ssa could not
// compare with the configuration, because it has no managedFields.
type Bare struct{}
