// Package calls has the keys of the values in the context of a reconcile call. Packages
// observe the call by them, without an import of package reconcile.
package calls

import (
	"context"
	"time"
)

// Triggers is the key of the reasons of the call, a []string.
type Triggers struct{}

// Changed is the key of a bool: a Source reported an event for the call whose kind is neither
// Resync nor Unchanged.
type Changed struct{}

// The kinds of events of an informer that a Source distinguishes. List, Resync and Unchanged
// report no change, or one of an unknown time.
const (
	Add       = "add"
	Delete    = "delete"
	List      = "list"      // of the first list
	Resync    = "resync"    // of an informer
	Unchanged = "unchanged" // of the first list or of a resync, which an event handler does not distinguish
)

// LiveRead is the key of a bool: the call must not decide by the cache.
type LiveRead struct{}

// WithSince returns a context of work that begins now. A cache that has reached the resource version
// shows all that earlier owners of the work have written.
func WithSince(ctx context.Context, version string) context.Context {
	return context.WithValue(ctx, sinceKey{}, since{version, time.Now()})
}

// Since returns the version of WithSince, "" without one, and when the work began.
func Since(ctx context.Context) (version string, begun time.Time) {
	s, _ := ctx.Value(sinceKey{}).(since)
	return s.version, s.begun
}

type sinceKey struct{}

type since struct {
	version string
	begun   time.Time
}

// LastRenewal is the key of a time.Time: when this replica saw the last write of the former
// leader to the Lease. A leader that has seen no former one has the begin of its campaign.
type LastRenewal struct{}

// Validity is the key of a context in the context of a term of a leader or shard: the one that
// ends when leadership is over. If the term's own context is cancelled to drain, it ends later.
type Validity struct{}

// Term returns the channel that is closed when the term of a leader or shard of ctx is over. It
// identifies the term, and is nil outside of one. A term derives its contexts from that of Validity at its begin, so
// the channel is never the one that contexts share which were canceled before Done was called.
func Term(ctx context.Context) <-chan struct{} {
	if validity, ok := ctx.Value(Validity{}).(context.Context); ok {
		return validity.Done()
	}
	return nil
}

// Fed is the key of a value in the context of a Run whose queue is filled by sources that begin in
// the same term, before Run. nil means that a queue with keys was filled before the term.
type Fed struct{}

// Explored is the key of the function with which package controllertest learns of the queue of
// a loop and of the number of keys that wait for its Gate:
//
//	func(queue interface{ Len() int }, gated func() int) (end func())
type Explored struct{}

// Finding is the key of the function with which package controllertest learns of a mistake of
// the program that an operator logs:
//
//	func(text string)
type Finding struct{}

// Attempt is the key of the number of the call since the last success, an int.
type Attempt struct{}

// Metrics is the key of the Metrics of the controller that the call belongs to.
type Metrics struct{}

// Cleanup is the key of a value that is a CleanupObserver.
type Cleanup struct{}

// CleanupObserver is called for cleanups that a finalizer waits for.
type CleanupObserver interface {
	// Blocked is called when a cleanup was not done. steps has the names of the steps
	// that block it, if it has steps, and since is the time of the deletion request.
	Blocked(finalizer string, steps []string, since time.Time)
}

// NoteCleanup calls the CleanupObserver of ctx, if it has one.
func NoteCleanup(ctx context.Context, finalizer string, steps []string, since time.Time) {
	if o, ok := ctx.Value(Cleanup{}).(CleanupObserver); ok {
		o.Blocked(finalizer, steps, since)
	}
}

// Preview is the key of a function in the context of a call whose writes are dry runs. It gets a text
// that says which effect outside of the API server the call has left out:
//
//	func(text string)
type Preview struct{}

// InPreview returns the function Preview of ctx, and whether it has one.
func InPreview(ctx context.Context) (note func(text string), on bool) {
	note, on = ctx.Value(Preview{}).(func(text string))
	return note, on
}

// Previewed is the key of a function in the context of a call whose writes are dry runs. It gets a write
// that is not sent, because it would fail without the effects of earlier writes:
//
//	func(write Unsent)
type Previewed struct{}

// Unsent is a write that a preview reports and does not send.
type Unsent struct {
	Action                    string // of package preview
	Resource, Namespace, Name string // Resource has its group, such as deployments.apps
	Note                      string // why it is not sent
}

// NoteUnsent reports a write to the preview of ctx, if it has one.
func NoteUnsent(ctx context.Context, write Unsent) {
	if note, ok := ctx.Value(Previewed{}).(func(Unsent)); ok {
		note(write)
	}
}
