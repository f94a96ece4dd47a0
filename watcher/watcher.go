package watcher

import (
	"context"
	"errors"
	"iter"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	defaultBaseDelay      = 500 * time.Millisecond
	defaultMaxDelay       = 30 * time.Second
	defaultSilenceTimeout = 3 * time.Minute

	// shortWatch is the age below which a watch that ended without an event counts
	// as failed: client-go turns a server that closes at once into an empty watch.
	shortWatch = time.Second
	// healthyWatch is the age at which a watch counts as good without an event. The
	// API server sends bookmarks about once a minute.
	healthyWatch = time.Minute
	// minWatchTimeout and twice as much are the limits of the random age at which the
	// server is asked to end a watch, so that load moves to new servers gradually.
	minWatchTimeout = 5 * time.Minute

	pageSize = 500
)

// Types of events beside Added, Modified, Deleted and Bookmark of apimachinery's
// watch package.
const (
	// Synced follows the last event of a list: the consumer's state is complete.
	Synced watch.EventType = "SYNCED"
	// Reset precedes the events of a list when what was deleted cannot be known: the
	// events up to Synced are all objects there are. It is sent at the first list
	// after a start from a ResourceVersion, and only then.
	Reset watch.EventType = "RESET"
	// Retrying reports a failure that is being retried.
	Retrying watch.EventType = "RETRYING"
)

// ErrRestored is the Err of a Retrying event for a server whose history does not hold
// what it reported before: its storage was restored from a backup.
var ErrRestored = errors.New("watcher: the server's storage was restored from a backup")

// ErrStalled is the Err of a Retrying event for a server that said nothing for
// SilenceTimeout.
var ErrStalled = errors.New("watcher: neither event nor bookmark within the silence timeout")

// Object is what can be watched: pointers to typed objects,
// *unstructured.Unstructured, *metav1.PartialObjectMetadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Event is one element of the sequence.
type Event[T Object] struct {
	// Type is watch.Added, Modified, Deleted or Bookmark, or Synced, Reset or Retrying.
	Type watch.EventType

	// Object is set for Added, Modified and Deleted, else nil. It is shared with the
	// watcher, which may send it again as the last known state of a deleted object:
	// do not modify it.
	Object T

	// Synthetic marks an event that was derived from a list instead of being reported
	// by the server. Several changes may be behind it; for a Deleted the object is the
	// last state that was delivered, not the last there was.
	Synthetic bool

	// ResourceVersion is from where to resume once this event has been handled. It is
	// "" within a list, where there is no such version: start over.
	ResourceVersion string

	// Err is what went wrong, for Retrying, and apierrors.IsForbidden and the like apply.
	Err error

	// RetryAfter is the pause before the next attempt, for Retrying.
	RetryAfter time.Duration
}

// RetryWatcher watches a collection for as long as the consumer wants to, through
// every failure. The fields are read when Events is ranged over. Use it by pointer.
type RetryWatcher[T Object] struct {
	// Source is what is watched, usually made by Client. It must be set.
	Source Source[T]

	// LabelSelector and FieldSelector narrow the collection. "" means all.
	LabelSelector, FieldSelector string

	// ResourceVersion is from where to resume: what Event.ResourceVersion or
	// LastResourceVersion said before. "" means list first, as does "0".
	ResourceVersion string

	// BaseDelay is the pause after the first failure; it doubles with every further
	// one up to MaxDelay, which is also the pause where waiting is all one can do
	// (401, 403, 404, 405). Retry-After of the server makes it longer. 0 means 500ms,
	// or MaxDelay if that is less.
	BaseDelay time.Duration

	// MaxDelay is the longest pause the watcher takes by itself. 0 means 30s, or
	// BaseDelay if that is more.
	MaxDelay time.Duration

	// Jitter is the part of the pause that is random: a pause is between (1-Jitter)
	// times its length and all of it. 0 means 0.5; a negative value means none; more
	// than 1 means 1.
	Jitter float64

	// SilenceTimeout is how long the server may send nothing, neither event nor
	// bookmark nor an answer to a request, before the connection is given up as dead
	// and the collection is listed anew. 0 means 3 min; a negative value means for ever.
	SilenceTimeout time.Duration

	mu      sync.Mutex // guards what follows
	running bool
	ranged  bool // last is set
	last    string
}

// LastResourceVersion returns from where to resume to get what the loop over Events
// has not handled: the version of the last event whose loop body ran to its end, ""
// if that is a list that is not complete. An event in whose body the loop was left
// counts as not handled and is delivered again; where that is not wanted, use
// Event.ResourceVersion. Before the first loop it is where that will start. It may be
// called from anywhere.
func (w *RetryWatcher[T]) LastResourceVersion() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ranged {
		return w.start()
	}
	return w.last
}

// start is the version to begin after, "" for a list.
func (w *RetryWatcher[T]) start() string {
	if w.ResourceVersion == "0" {
		return ""
	}
	return w.ResourceVersion
}

func (w *RetryWatcher[T]) handled(rv string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = rv
}

// Events returns the sequence of events, which goes on until ctx is done, the loop is
// left, or the watcher is misused. The error is nil except in the last element: then
// it is the cause of ctx, or says what to correct. Failures of the server do not end
// the sequence; they are events of type Retrying, and a consumer for which one of them
// is final leaves the loop.
//
// All work is done by the loop itself: a body that takes long holds back the server,
// which ends the watch if it must buffer too much, and then the watcher resumes. When
// the loop has ended, nothing of it runs any more. Every range starts anew from the
// field ResourceVersion; ranging twice at the same time is an error.
func (w *RetryWatcher[T]) Events(ctx context.Context) iter.Seq2[Event[T], error] {
	return func(yield func(Event[T], error) bool) {
		l, err := w.newLoop(yield)
		if err != nil {
			yield(Event[T]{}, err)
			return
		}
		defer func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.running = false
		}()
		if err := l.run(ctx); !errors.Is(err, errLeft) {
			yield(Event[T]{}, err)
		}
	}
}

func (w *RetryWatcher[T]) newLoop(yield func(Event[T], error) bool) (*loop[T], error) {
	switch {
	case w.Source == nil:
		return nil, errors.New("watcher: RetryWatcher.Source must be set, for instance with Client")
	case w.BaseDelay < 0:
		return nil, errors.New("watcher: RetryWatcher.BaseDelay must not be negative; 0 means 500ms")
	case w.maxDelay() < w.baseDelay():
		return nil, errors.New("watcher: RetryWatcher.MaxDelay must not be less than BaseDelay; 0 means 30s")
	case math.IsNaN(w.Jitter):
		return nil, errors.New("watcher: RetryWatcher.Jitter must be a number; 0 means 0.5")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running {
		return nil, errors.New("watcher: Events is being ranged over already; use a second RetryWatcher")
	}
	l := &loop[T]{w: w, yield: yield, known: map[types.UID]T{}, rv: w.start()}
	l.mustList = l.rv == ""
	l.complete = l.rv == "" // who starts without a version knows of no object
	w.running, w.ranged, w.last = true, true, l.rv
	return l, nil
}

func (w *RetryWatcher[T]) baseDelay() time.Duration {
	switch {
	case w.BaseDelay != 0:
		return w.BaseDelay
	case w.MaxDelay > 0:
		return min(defaultBaseDelay, w.MaxDelay)
	}
	return defaultBaseDelay
}

func (w *RetryWatcher[T]) maxDelay() time.Duration {
	if w.MaxDelay == 0 {
		return max(defaultMaxDelay, w.baseDelay())
	}
	return w.MaxDelay
}

func (w *RetryWatcher[T]) silence() time.Duration {
	if w.SilenceTimeout == 0 {
		return defaultSilenceTimeout
	}
	return w.SilenceTimeout
}

// jittered makes a random part of a pause random.
func (w *RetryWatcher[T]) jittered(d time.Duration) time.Duration {
	jitter := w.Jitter
	if jitter == 0 {
		jitter = 0.5
	}
	jitter = min(max(jitter, 0), 1)
	return d - time.Duration(rand.Float64()*jitter*float64(d))
}
