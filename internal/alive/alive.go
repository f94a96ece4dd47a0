// Package alive observes the requests of an informer. The package informer puts an Informer
// into the context with which an informer runs, client-go passes the context on to the
// requests, and the transport of informer.EndSilentWatches finds it there.
package alive

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Informer has the times of one informer's requests. Its methods may be called concurrently.
type Informer struct {
	start    time.Time    // the times below are durations since start, so that they are monotonic
	active   atomic.Int64 // the last request, response or data
	received atomic.Int64 // the last data; 0 before the first
	observed atomic.Bool  // a request was seen
	metrics  Metrics

	mu     sync.Mutex // guards the fields below
	relist bool       // the next watch must expire
	end    func()     // ends the current watch; nil until the first
	lists  lists
}

// Metrics is called with the observations of an Informer. A nil function is not called.
type Metrics struct {
	Ended    func(watch bool, d time.Duration) // a request and the reading of its response
	Received func()                            // data was received and decoded
	Refused  func(error)                       // a watch is sent again after a pause
}

// New returns the Informer of an informer that starts now.
func New(m Metrics) *Informer { return &Informer{start: time.Now(), metrics: m} }

type key struct{}

// Context returns a context whose requests are the informer's.
func (i *Informer) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, key{}, i)
}

// From returns the Informer of a request's context, or nil.
func From(ctx context.Context) *Informer {
	i, _ := ctx.Value(key{}).(*Informer)
	return i
}

// Kind is the kind of a request.
type Kind int

// The kinds of requests.
const (
	List         Kind = iota
	Watch             // from a version
	InitialWatch      // begins with a list
)

// Begin notes the start of a request, and returns a function to be called once at its end. For
// a nil Informer, both are no-ops.
func (i *Informer) Begin(kind Kind) (end func()) {
	if i == nil {
		return func() {}
	}
	i.observed.Store(true)
	i.touch()
	i.began(kind)
	start := time.Now()
	return sync.OnceFunc(func() {
		i.touch()
		if i.metrics.Ended != nil {
			i.metrics.Ended(kind != List, time.Since(start))
		}
	})
}

// Refused notes the error of a request that is sent again. For a nil Informer, it is a no-op.
func (i *Informer) Refused(err error) {
	if i != nil && i.metrics.Refused != nil {
		i.metrics.Refused(err)
	}
}

// Relist ends the current watch, and makes the next one expire, so that the informer lists.
func (i *Informer) Relist() {
	i.mu.Lock()
	i.relist = true
	end := i.end
	i.mu.Unlock()
	if end != nil {
		end()
	}
}

// Watch notes a watch that end can end. initial is true if it begins with a list. If Watch
// returns true, the watch must not be sent: it has expired. A nil Informer ignores the watch.
func (i *Informer) Watch(initial bool, end func()) (expired bool) {
	if i == nil {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	expired = i.relist && !initial
	i.relist = false
	if !expired {
		i.end = end
	}
	return expired
}

// touch notes activity and returns its time.
func (i *Informer) touch() int64 {
	now := int64(time.Since(i.start))
	i.active.Store(now)
	return now
}

// Idle returns the time since the informer was active, and whether a request was observed.
func (i *Informer) Idle() (idle time.Duration, observed bool) {
	return time.Since(i.start) - time.Duration(i.active.Load()), i.observed.Load()
}

// LastReceived returns the time of the last data that was decoded, or the zero Time before the
// first.
func (i *Informer) LastReceived() time.Time {
	if at := i.received.Load(); at > 0 {
		return i.start.Add(time.Duration(at))
	}
	return time.Time{}
}

// Body returns the body of a response to the informer. Data is noted when it is decoded. Close
// calls end. A nil Informer returns body itself.
func (i *Informer) Body(body io.ReadCloser, kind Kind, end func()) io.ReadCloser {
	if i == nil {
		return body
	}
	return &reader{ReadCloser: body, informer: i, kind: kind, end: end, split: kind == InitialWatch && i.failing()}
}
