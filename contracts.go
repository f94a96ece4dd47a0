package controllerkit

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Object is an API object: a pointer to a typed object, an *unstructured.Unstructured or a
// *metav1.PartialObjectMetadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Getter is the method of a client that reads an object. Clients made by client-gen have it, and
// crd.Dynamic adapts a dynamic client. The metadata client needs an adapter for its subresources.
type Getter[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
}

// Patcher is the method of a client that patches an object. The typed clients, the dynamic
// client and the metadata client of client-go have it. The client of a namespaced resource
// must be the one of the object's namespace.
type Patcher[T any] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// Adder receives the keys of event handlers. Each queue of client-go is one, and so are a
// queue.Queue and a reconcile.Source. Its methods and those of the interfaces below may be
// called concurrently.
type Adder[K comparable] interface{ Add(key K) }

// OptionAdder is the optional method of a queue that adds keys with options.
type OptionAdder[K comparable] interface {
	AddWith(opts AddOptions, keys ...K)
}

// EventAdder is an Adder that also gets the event.
type EventAdder[K comparable] interface {
	Adder[K]
	AddEvent(e Event, opts AddOptions, keys ...K)
}

// Event is an event of an informer. Zero fields mean unknown. Its objects must not be changed.
type Event struct {
	Kind   string        // a word such as "update"
	Object metav1.Object // the object after the event, or the last one before its deletion
	Old    metav1.Object // the object before an update
}

// AddOptions are the options of [OptionAdder] and [EventAdder].
type AddOptions struct {
	Priority    int           // keys with a higher one come first; 0 is that of Add
	After       time.Duration // the delay; 0 and negative values mean none
	RateLimited bool          // the delay is that of the rate limiter, or After if that is longer
}

// The optional methods of a queue that a reconcile.Controller uses, like OptionAdder. A method of
// another signature is silently not used, so assert these interfaces where the queue is defined.
type (
	// ContextGetter waits for a ready key. ok is false if ctx is done, or if the queue is shut
	// down and no key is ready. Without it, Run shuts the queue down, and cannot run again.
	ContextGetter[K comparable] interface {
		GetContext(ctx context.Context) (key K, priority int, ok bool)
	}

	// PriorityGetter is Get that also returns the priority of the key.
	PriorityGetter[K comparable] interface {
		GetWithPriority() (key K, priority int, shutdown bool)
	}

	// PendingLister returns the ready, running and delayed keys, for the last line of log.
	PendingLister[K comparable] interface{ Pending() []K }

	// Clearer removes and returns the ready and delayed keys. After Handle, Run calls it when it ends.
	Clearer[K comparable] interface{ Clear() []K }
)

// Gate delays a key until the caches show the writes of its last call. A consistency.Store is
// one. Begin, Ready and End are called concurrently, but not for one key, and with no lock held.
type Gate[K comparable] interface {
	// Begin is called before each call of the Func, which gets the returned context: ctx or a child.
	Begin(ctx context.Context, key K) context.Context

	// Ready reports whether key may run. If it returns false, the gate must call wake
	// once, when the key may run: without it the key waits until Run ends, whatever events come.
	// wake only adds to the queue, so the gate can call it from any goroutine, inside Ready, and
	// with its own locks held. After the end of Run it has no effect. The next Run can ask for a
	// key whose wake is open. A key that waits for 10s is logged with the error of [ReadyEnsurer].
	Ready(key K, wake func()) bool

	// End is called after each call of the Func, also after a panic.
	End(key K)
}

// ReadyEnsurer is the optional method of a [Gate] that returns what the caches lack for a key, for
// logs, or nil. It is called beside the other methods for the key, which can run in spite of an error.
type ReadyEnsurer[K comparable] interface{ EnsureReady(key K) error }

// The states of a queue and of a loop at one moment, for logs and debug pages.
type (
	// QueueState has the number of keys in each state and the first 100 of each: those that
	// run longest, the ready ones in their order, and the delayed ones, shortest delay first.
	QueueState struct {
		Name         string     `json:"name,omitempty"`
		Ready        int        `json:"ready"`
		Running      int        `json:"running"`
		Delayed      int        `json:"delayed"` // without running keys
		ShuttingDown bool       `json:"shuttingDown,omitempty"`
		Keys         []QueueKey `json:"keys,omitempty"`
	}

	// QueueKey is the state of a key in a queue. Its texts are cut to 512 bytes.
	QueueKey struct {
		Key      string    `json:"key"`   // as fmt.Sprint formats it
		State    string    `json:"state"` // "running", "ready" or "delayed"
		Group    string    `json:"group,omitempty"`
		Priority int       `json:"priority"`
		Since    time.Time `json:"since,omitzero"`  // running: when it started, without metrics up to 1s late; ready: when it was added or its delay ended, zero without metrics
		Until    time.Time `json:"until,omitzero"`  // when its delay ends; zero without a delay
		Again    bool      `json:"again,omitempty"` // it runs, and becomes ready at Done
		Attempts int       `json:"attempts"`        // NumRequeues
	}

	// LoopState has the number of keys in each state and up to 100 keys of each, in no order.
	// A key in two states is counted in both and listed in the first.
	LoopState struct {
		Name    string    `json:"name"`
		Running bool      `json:"running"` // Run runs; without it there are no keys
		Workers int       `json:"workers"` // of Run
		Busy    int       `json:"busy"`    // workers with a call
		Gated   int       `json:"gated"`   // keys that wait for the Gate
		Parked  int       `json:"parked"`  // keys that MaxAttempts parked
		Hot     int       `json:"hot"`     // keys that ran too often in the last seconds; 100 means 100 or more
		Failing int       `json:"failing"` // keys whose last call did not succeed, without parked and terminal ones
		Keys    []LoopKey `json:"keys,omitempty"`
	}

	// LoopKey is the state of a key in a loop. Its texts are cut to 512 bytes.
	LoopKey struct {
		Key      string    `json:"key"`                // as fmt.Sprint formats it
		State    string    `json:"state,omitempty"`    // "gated", "parked", "hot", "failing" or ""; the first that is true
		Since    time.Time `json:"since,omitzero"`     // of a gated key: when the wait began
		Reason   string    `json:"reason,omitempty"`   // of a gated key: the error of ReadyEnsurer
		Attempts int       `json:"attempts,omitempty"` // calls since the last success
		Class    string    `json:"class,omitempty"`    // of the last call, if it did not succeed
		Triggers []string  `json:"triggers,omitempty"` // events since the last call
	}
)

// The results of a call, in metrics and for hooks. The comment of reconcile.Result has what follows from each.
const (
	ResultSuccess     = "success"
	ResultRequeue     = "requeue"
	ResultConflict    = "conflict"
	ResultServerDelay = "server_delay"
	ResultStale       = "stale"
	ResultTerminal    = "terminal"
	ResultNotFound    = "not_found"
	ResultRejected    = "rejected"
	ResultForbidden   = "forbidden"
	ResultTimeout     = "timeout"
	ResultPanic       = "panic"
	ResultCancelled   = "cancelled"
	ResultError       = "error" // any other
)

// Results returns all results. The last is ResultError.
func Results() [13]string {
	return [...]string{
		ResultSuccess, ResultRequeue, ResultConflict, ResultServerDelay, ResultStale, ResultTerminal, ResultNotFound,
		ResultRejected, ResultForbidden, ResultTimeout, ResultPanic, ResultCancelled, ResultError,
	}
}

// The errors that packages and users mark for each other. A mark counts if its method returns
// true, also in a wrapped error: see errors.As.
type (
	// StaleError means an old cache. The key waits for the Gate or, without one, for 0.1 to 7.5s.
	StaleError interface{ Stale() bool }

	// TerminalError is an error that no retry can cure. The key runs at its next event.
	TerminalError interface{ Terminal() bool }

	// RejectedError lasts until something else changes. It is retried after 1s to 15m, or at the next event.
	RejectedError interface{ Rejected() bool }

	// WaitingError is no failure: the work goes on elsewhere. The key runs again after the time. 0 is no mark.
	WaitingError interface{ Waits() time.Duration }

	// UnsentError is the error of a request that never left, so that nothing has changed.
	UnsentError interface{ NotSent() bool }

	// LostError is the cause of a context whose leadership or shard another replica can have.
	LostError interface{ LeadershipLost() bool }
)
