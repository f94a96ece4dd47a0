package watcher

import (
	"context"
	"errors"
	"iter"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	defaultBaseDelay      = 500 * time.Millisecond
	defaultMaxDelay       = 30 * time.Second
	defaultSilenceTimeout = 3 * time.Minute

	// shortWatch is the age below which a watch that ended without an event counts
	// as failed: if a server closes at once, client-go returns an empty watch.
	shortWatch = time.Second
	// healthyWatch is the age at which a watch without an event counts as healthy. The
	// API server sends bookmarks about once a minute.
	healthyWatch = time.Minute
	// minWatchTimeout and twice as much bound the random timeout that each watch requests,
	// so that load moves to new servers gradually.
	minWatchTimeout = 5 * time.Minute

	pageSize = 500
)

// Types of events in addition to Added, Modified, Deleted and Bookmark of apimachinery's
// watch package.
const (
	// Synced follows the last event of a list: the consumer's state is complete.
	Synced watch.EventType = "SYNCED"
	// Reset precedes the events of a list if the watcher cannot know which objects were
	// deleted: the events up to Synced are all existing objects. It is sent only for the
	// first list after a start from a ResourceVersion.
	Reset watch.EventType = "RESET"
	// Retrying reports a failure. The watcher tries again after Event.RetryAfter.
	Retrying watch.EventType = "RETRYING"
)

// ErrRestored is the Err of a Retrying event if the server's history lacks changes that
// it has reported: its storage was restored from a backup.
var ErrRestored = errors.New("watcher: the server's storage was restored from a backup")

// ErrStalled is the Err of a Retrying event for a server that was silent for
// SilenceTimeout. The watcher then lists, and skips versions that the list does not have.
var ErrStalled = errors.New("watcher: no event, bookmark or response within SilenceTimeout")

// Event is one element of the sequence.
type Event[T controllerkit.Object] struct {
	// Type is watch.Added, Modified, Deleted or Bookmark, or Synced, Reset or Retrying.
	Type watch.EventType

	// Object is set for Added, Modified and Deleted, otherwise nil. Do not modify it: the
	// watcher may send it again as the last state of a deleted object.
	Object T

	// Synthetic marks an event that comes from a list, not from a watch. It may stand for
	// several changes. The object of a synthetic Deleted is in the last delivered state.
	Synthetic bool

	// ResourceVersion is the version to resume from after this event. It is "" within a
	// list, which cannot be resumed, after ErrRestored, and after the server called the version
	// too large; see LastResourceVersion.
	ResourceVersion string

	// Err is the failure of a Retrying event. It wraps the error of the client, for
	// apierrors.IsForbidden and the like. Its text is bounded, and control characters are
	// escaped.
	Err error

	// RetryAfter is the pause before the next attempt, for Retrying. It is 0 if the
	// client itself repeats a request that the server delays: the client does not expose
	// its pause.
	RetryAfter time.Duration
}

// RetryWatcher watches a collection for as long as the consumer wants, and resumes after
// every failure. Each loop over Events reads the fields when it starts. A RetryWatcher
// must not be copied.
type RetryWatcher[T controllerkit.Object] struct {
	// Source lists and watches the collection. Client returns one. Required.
	Source Source[T]

	// LabelSelector and FieldSelector narrow the collection. "" means all objects.
	LabelSelector, FieldSelector string

	// ResourceVersion is the version to resume from: an earlier Event.ResourceVersion or
	// LastResourceVersion. "" and "0" mean to list first.
	ResourceVersion string

	// BaseDelay is the pause after the first failure. It doubles with each further failure
	// in a row, up to MaxDelay. Failures 401, 403, 404 and 405 wait for MaxDelay at once.
	// Retry-After of the server makes a pause longer. A new event or a watch of a minute
	// resets the pause; a list alone does not. 0 means 500ms, or MaxDelay if that is less.
	BaseDelay time.Duration

	// MaxDelay is the longest pause, except Retry-After. 0 means 30s, or BaseDelay if that
	// is more.
	MaxDelay time.Duration

	// Jitter is the random part of a pause: it lasts between (1-Jitter) times its length
	// and its length. 0 means 0.5. A negative value disables it; more than 1 means 1.
	Jitter float64

	// SilenceTimeout is how long the server may be silent: no event, bookmark or response
	// to a request. After that the watcher lists the collection again. A watch request
	// that the server delays (Retry-After) is not silence. 0 means 3m. A negative value
	// disables the timeout.
	SilenceTimeout time.Duration

	// Metrics observes the requests under Name. A Metrics of package metrics fits, whose alert on
	// the last event expects a watcher that runs as long as the process. nil disables metrics.
	Metrics Metrics

	// Name is for Metrics: use the resource, such as "deployments.apps", and no name that an
	// informer has. Required with Metrics.
	Name string

	mu      sync.Mutex // guards the fields below
	running bool
	ranged  bool // last is set
	last    string
}

// Metrics observes the requests of a RetryWatcher by its Name. Implementations must be safe for
// concurrent use and must not block. It is the same interface as package informer's Metrics,
// because the requests are the same.
type Metrics interface {
	// InformerListed is called at the end of a list request that took d, also if it failed.
	// Lists in pages have several requests.
	InformerListed(name string, d time.Duration)

	// InformerWatched is called at the end of a watch request that took d, also if it failed.
	// The time includes the time of the consumer.
	InformerWatched(name string, d time.Duration)

	// InformerReceived is called for each page of a list, and for each event or bookmark.
	InformerReceived(name string)
}

// LastResourceVersion returns the version to resume from: the version of the last event
// whose loop body ran to its end, or "" within a list, and between ErrRestored, or the server's
// error that the version is too large, and the list.
// If the body leaves the loop, its event is not handled and is delivered again after
// resuming; to prevent that, use Event.ResourceVersion. Before the first loop, it returns the
// version at which Events starts. It may be called concurrently.
//
// A consumer that starts from "" must forget all objects that it knows, as after Reset: the
// watcher then reports existing objects only, and not which ones were deleted.
func (w *RetryWatcher[T]) LastResourceVersion() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ranged {
		return w.start()
	}
	return w.last
}

// start returns the version to start from, "" for a list.
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

// Events returns the sequence of events. It ends when ctx is done, the consumer leaves
// the loop, the server rejects the first request as invalid, or the watcher is misused.
// The error is nil except in the last element: the cause of ctx, or an error that names
// the mistake. Other failures of the server are events of type Retrying; a consumer that
// takes one as final leaves the loop.
//
// Lists are read from the server's storage in pages of 500, never from an older cache.
// If a list expires between two pages, the next list has one page.
//
// After a watch that ended before its time, the watcher finds out whether the server's
// storage was restored from a backup: it compares up to 100 objects, or the newest one
// and the last deletion, with the server's. That costs one small list request, or up to
// three if objects have changed.
//
// Each loop starts again from the field ResourceVersion. Two loops at the same time are
// an error.
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
	case kube.IsNil(w.Source):
		return nil, errors.New("watcher: RetryWatcher.Source is nil: set it, for example with Client")
	case w.BaseDelay < 0:
		return nil, errors.New("watcher: RetryWatcher.BaseDelay is negative: 0 means 500ms")
	case w.maxDelay() < w.baseDelay():
		return nil, errors.New("watcher: RetryWatcher.MaxDelay is less than BaseDelay: 0 means 30s")
	case math.IsNaN(w.Jitter):
		return nil, errors.New("watcher: RetryWatcher.Jitter is not a number: 0 means 0.5")
	case !kube.IsNil(w.Metrics) && w.Name == "":
		return nil, errors.New("watcher: RetryWatcher.Name is empty: set it to the resource, Metrics needs it")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running {
		return nil, errors.New("watcher: a loop over Events is already running: use a second RetryWatcher")
	}
	l := &loop[T]{w: w, yield: yield, known: map[types.UID]T{}, rv: w.start()}
	l.mustList = l.rv == ""
	l.complete = l.rv == "" // the consumer knows no object
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

// requested notes the end of a request that began at start.
func (w *RetryWatcher[T]) requested(watch bool, start time.Time) {
	switch {
	case kube.IsNil(w.Metrics):
	case watch:
		w.Metrics.InformerWatched(w.Name, time.Since(start))
	default:
		w.Metrics.InformerListed(w.Name, time.Since(start))
	}
}

// received notes data of the server.
func (w *RetryWatcher[T]) received() {
	if !kube.IsNil(w.Metrics) {
		w.Metrics.InformerReceived(w.Name)
	}
}

// jittered returns d with its random part.
func (w *RetryWatcher[T]) jittered(d time.Duration) time.Duration {
	jitter := w.Jitter
	if jitter == 0 {
		jitter = 0.5
	}
	jitter = min(max(jitter, 0), 1)
	return d - time.Duration(rand.Float64()*jitter*float64(d))
}
