// Package alive observes the requests of an informer. The package informer puts an Informer
// into the context with which an informer runs, client-go passes the context on to the
// requests, and the transport of informer.EndSilentWatches finds it there.
package alive

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Informer has the times of one informer's requests. Its methods may be called concurrently.
type Informer struct {
	start    time.Time    // the times below are durations since start, so that they are monotonic
	active   atomic.Int64 // the last request, response or data
	received atomic.Int64 // the last data that was decoded; 0 before the first
	read     atomic.Int64 // the last data, decoded or not; 0 before the first
	observed atomic.Bool  // a request was seen
	resting  atomic.Bool  // between Rest and its end
	rests    atomic.Int64 // calls of Rest
	metrics  Metrics
	name     string    // of a part
	whole    *Informer // that the part belongs to; nil for an Informer of New

	mu       sync.Mutex // guards the fields below
	relist   bool       // the next watch must expire
	silent   int        // watches in a row that were answered and brought no data
	end      func()     // ends the current watch; nil until the first
	lists    lists
	composed bool // the requests are those of parts
	parts    map[*Informer]struct{}
	blocked  func() error // the reason why the informer is not synced, or nil if it is not known; may be nil
	refused  refusals
}

// The refusals since the last other response are told if they have lasted for tellAfter, and then
// at each tellEvery. With the transport's pauses the first one is told within 10s.
const (
	tellAfter = 3 * time.Second
	tellEvery = time.Minute
)

type refusals struct {
	since, told time.Time // zero if there are none
	n           int
}

// Metrics is called with the observations of an Informer. A nil function is not called.
type Metrics struct {
	Ended   func(watch bool, d time.Duration) // a request and the reading of its response
	Refused func(error)                       // a request is sent again after a pause
}

// New returns the Informer of an informer that starts now.
func New(m Metrics) *Informer { return &Informer{start: time.Now(), metrics: m} }

// Compose notes that the requests of the informer are those of its parts, of which it has none
// yet. For a nil Informer, it is a no-op.
func (i *Informer) Compose() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.composed = true
}

// Part returns the Informer of a new part. A nil Informer returns one without a whole.
func (i *Informer) Part(name string) *Informer {
	part := &Informer{start: time.Now(), name: name}
	if i == nil {
		return part
	}
	part.metrics, part.whole = i.metrics, i
	i.mu.Lock()
	defer i.mu.Unlock()
	i.composed = true
	if i.parts == nil {
		i.parts = map[*Informer]struct{}{}
	}
	i.parts[part] = struct{}{}
	return part
}

// End removes a part that has stopped from its whole.
func (i *Informer) End() {
	if i.whole == nil {
		return
	}
	i.whole.mu.Lock()
	defer i.whole.mu.Unlock()
	delete(i.whole.parts, i)
}

// IsPart reports whether the Informer is a part.
func (i *Informer) IsPart() bool { return i != nil && i.whole != nil }

// Name returns the name of a part, and "" otherwise.
func (i *Informer) Name() string { return i.name }

// Parts returns the parts in the order of their start, or the Informer itself if it is not
// composed.
func (i *Informer) Parts() []*Informer {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.composed {
		return []*Informer{i}
	}
	return slices.SortedFunc(maps.Keys(i.parts), func(a, b *Informer) int { return a.start.Compare(b.start) })
}

// Block sets the function that returns the reason why the informer is not synced, or nil if it is
// not known. For a nil Informer, it is a no-op.
func (i *Informer) Block(reason func() error) {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.blocked = reason
}

// Blocked returns the reason of Block.
func (i *Informer) Blocked() error {
	i.mu.Lock()
	reason := i.blocked
	i.mu.Unlock()
	if reason == nil {
		return nil
	}
	return reason()
}

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

// Refused notes the error of a request that is sent again. It returns the number of refusals since
// the last other response, and their time, and reports whether to log them. For a nil Informer, it
// is a no-op.
func (i *Informer) Refused(err error) (n int, lasting time.Duration, tell bool) {
	if i == nil {
		return 0, 0, false
	}
	if i.metrics.Refused != nil {
		i.metrics.Refused(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	r, now := &i.refused, time.Now()
	if r.n++; r.n == 1 {
		r.since, r.told = now, now.Add(tellAfter-tellEvery)
	}
	if tell = now.Sub(r.told) >= tellEvery; tell {
		r.told = now
	}
	return r.n, now.Sub(r.since), tell
}

// Answered notes a response that is no refusal. For a nil Informer, it is a no-op.
func (i *Informer) Answered() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refused = refusals{}
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

// maxSilent is the number of watches in a row without data after which the informer lists. The API
// server sends a bookmark about each minute, but after a restore of etcd no event and no bookmark up to
// the version of the watch.
const maxSilent = 2

// Silent notes a watch that ended because it has brought no data since its response. If it returns
// true, the next watch expires, so that the informer lists. For a nil Informer, it is a no-op.
func (i *Informer) Silent() (lists bool) {
	if i == nil {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.silent++; i.silent < maxSilent {
		return false
	}
	i.silent, i.relist = 0, true
	return true
}

// Heard notes the first data of a watch. For a nil Informer, it is a no-op.
func (i *Informer) Heard() {
	if i == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.silent = 0
}

// touch notes activity and returns its time.
func (i *Informer) touch() int64 {
	now := int64(time.Since(i.start))
	i.active.Store(now)
	return now
}

// Rest notes that the informer must not send requests until the returned function is called. For a
// nil Informer, both are no-ops.
func (i *Informer) Rest() (end func()) {
	if i == nil {
		return func() {}
	}
	i.rests.Add(1)
	i.resting.Store(true)
	return func() {
		i.touch()
		i.resting.Store(false)
	}
}

// Rests returns the number of rests. A failure for which the informer rests does not count. For a nil
// Informer it is 0.
func (i *Informer) Rests() int64 {
	if i == nil {
		return 0
	}
	return i.rests.Load()
}

// Idle returns the time since the informer was active, or 0 while it rests, and whether a request
// was observed.
func (i *Informer) Idle() (idle time.Duration, observed bool) {
	if i.resting.Load() {
		return 0, i.observed.Load()
	}
	return time.Since(i.start) - time.Duration(i.active.Load()), i.observed.Load()
}

// Last returns LastReceived of the part that has received nothing for the longest time, since its
// start if it has received nothing. Without parts it is the zero Time. If the Informer is not
// composed, it is LastReceived.
func (i *Informer) Last() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.composed {
		return i.LastReceived()
	}
	var oldest time.Time
	for p := range i.parts {
		at := p.start.Add(time.Duration(p.received.Load()))
		if oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	return oldest
}

// LastReceived returns the time of the last data that was decoded, or the zero Time before the
// first.
func (i *Informer) LastReceived() time.Time {
	if at := i.received.Load(); at > 0 {
		return i.start.Add(time.Duration(at))
	}
	return time.Time{}
}

// LastRead returns the time of the last data, whether or not it was decoded, or the zero Time before
// the first. decoding is true from the end of a list to its next request, unless the list failed.
func (i *Informer) LastRead() (at time.Time, decoding bool) {
	if read := i.read.Load(); read > 0 {
		at = i.start.Add(time.Duration(read))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return at, i.lists.complete
}

// Body returns the body of a response to the informer. Data is noted when it is decoded. Close
// calls end. A nil Informer returns body itself.
func (i *Informer) Body(body io.ReadCloser, kind Kind, end func()) io.ReadCloser {
	if i == nil {
		return body
	}
	return &reader{ReadCloser: body, informer: i, kind: kind, end: end, split: kind == InitialWatch && i.failing()}
}
