package tracing

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/calls"
)

const (
	maxKeys   = 1 << 16         // whose events are remembered
	maxWait   = 5 * time.Minute // after which a key may be forgotten if there are too many
	sweeps    = time.Minute     // between two searches for such keys
	maxTraces = 1 << 12         // whose first time is remembered
	maxLinks  = 8               // of a call
)

// Events returns a predicate that passes all events, and notes for c which traces they carry
// and when. keys is the function that the handler of the events uses. Pass it to operator.For,
// Owns or Watches after all other predicates, or to enqueue.Filter:
//
//	enqueue.Filter(enqueue.Handler(q, keys), tracing.Events(t, keys))
//
// An annotation that is too long, or is not the traceparent of a sampled span, counts as
// absent. Without Events all calls but retries and requeues begin a trace. If Ratio is below
// 1, pass the events of all resources of the controller through Events, because Ratio decides
// about an event in place of its call. If the handler adds its keys to the queue and not to a
// Source of the loop, Ratio decides about both. Of the events of a key from before this process led,
// Ratio decides once, and the span has no time in the queue. Events panics if keys is nil.
func Events[T metav1.Object, K comparable](c *Controller[K], keys func(T) []K) enqueue.Predicate[T] {
	if keys == nil {
		panic("tracing: Events: keys is nil: pass the function of the handler")
	}
	if c != nil {
		c.events.noted.Store(true)
	}
	return func(e enqueue.Event[T]) bool {
		if c == nil {
			return true
		}
		c.init()
		if c.tracer == nil {
			return true
		}
		chosen := !c.leavesOut()
		if !chosen && !goesOn(c, e) {
			return true // it begins no trace
		}
		now := time.Now()
		why := cause{since: now, caused: true, chosen: chosen}
		if e.Deleted {
			c.events.add(why, carried(e.Old), false, keys(e.Old)...)
			return true
		}
		if version := e.New.GetResourceVersion(); !e.Created && version != "" && version == e.Old.GetResourceVersion() {
			return true // a resync
		}
		sc, recent := carried(e.New), true
		switch {
		case e.Initial: // the object can be old
			recent = now.Sub(e.New.GetCreationTimestamp().Time) < c.window()
		case !e.Created:
			recent = sc.IsValid() && e.New.GetAnnotations()[annotation] != e.Old.GetAnnotations()[annotation]
			c.events.add(why, sc, recent, keys(e.Old)...)
		}
		c.events.add(why, sc, recent, keys(e.New)...)
		return true
	}
}

// goesOn reports whether an event may continue a sampled trace, so that Ratio does not decide
// about it. It does not allocate.
func goesOn[T metav1.Object, K comparable](c *Controller[K], e enqueue.Event[T]) bool {
	obj := e.New
	if e.Deleted {
		obj = e.Old
	}
	value := obj.GetAnnotations()[annotation]
	switch {
	case !maySample(value):
		return false
	case e.Initial:
		if time.Since(obj.GetCreationTimestamp().Time) < c.window() {
			return true
		}
	case !e.Deleted && (e.Created || e.Old.GetAnnotations()[annotation] != value):
		return true
	}
	return c.events.knows(value, c.window())
}

// events remembers what caused the next call of each key. The zero value is empty.
type events[K comparable] struct {
	size  atomic.Int64 // of keys
	noted atomic.Bool  // there is a predicate of Events

	mu     sync.Mutex // guards the fields below
	keys   map[K]cause
	swept  time.Time                   // when keys was last searched for old ones
	traces map[trace.TraceID]time.Time // when each of the latest traces was first seen
	order  []trace.TraceID             // the keys of traces; once full, a ring
	oldest int                         // in order, once it is full
}

// cause is the origin of a call.
type cause struct {
	since   time.Time           // of the first event; zero if the loop itself runs the key again
	latest  time.Time           // when it was last noted
	caused  bool                // by an event, or is a retry of such a call
	chosen  bool                // Ratio leaves out not all of the events
	carried []trace.SpanContext // by the events, without repetitions, at most maxLinks
}

// origin is where the span of a call belongs.
type origin struct {
	since  time.Time
	caused bool
	chosen bool
	parent trace.SpanContext // not valid if the span begins a trace
	links  []trace.SpanContext
}

// before reports whether the first event is older than the term of the call: a standby also notes
// events, whose keys do not run before it leads.
func (o origin) before(call context.Context) bool {
	renewal, ok := call.Value(calls.LastRenewal{}).(time.Time)
	return ok && o.since.Before(renewal) && !o.since.IsZero()
}

// add notes a cause of the keys that carries sc, which need not be valid. recent reports that
// the trace of sc goes on here.
func (e *events[K]) add(why cause, sc trace.SpanContext, recent bool, keys ...K) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if recent && sc.IsValid() {
		e.seeLocked(sc.TraceID())
	}
	if e.keys == nil {
		e.keys = map[K]cause{}
	}
	now := time.Now()
	for _, key := range keys {
		have, ok := e.keys[key]
		if !ok && !e.hasRoomLocked(now) {
			continue
		}
		have.latest = now
		if have.since.IsZero() {
			have.since = why.since
		}
		have.caused = have.caused || why.caused
		have.chosen = have.chosen || why.chosen
		switch {
		case !sc.IsValid() || slices.ContainsFunc(have.carried, sc.Equal):
		case len(have.carried) < maxLinks:
			have.carried = append(have.carried, sc)
		case sc.TraceID() != have.carried[0].TraceID():
			have.carried[maxLinks-1] = sc // so that the call sees a second trace
		}
		e.keys[key] = have
	}
	e.size.Store(int64(len(e.keys)))
}

// hasRoomLocked reports whether one more key can be remembered. If there are too many, it first
// forgets those without a recent event: a standby notes keys of objects that are deleted before
// it leads, and they never run.
func (e *events[K]) hasRoomLocked(now time.Time) bool {
	if len(e.keys) >= maxKeys && now.Sub(e.swept) >= sweeps {
		e.swept = now
		maps.DeleteFunc(e.keys, func(_ K, c cause) bool { return now.Sub(c.latest) >= maxWait })
	}
	return len(e.keys) < maxKeys
}

// see notes that the trace goes on here: later events of its objects continue it.
func (e *events[K]) see(id trace.TraceID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seeLocked(id)
}

func (e *events[K]) seeLocked(id trace.TraceID) {
	if e.traces == nil {
		e.traces = map[trace.TraceID]time.Time{}
	}
	if _, ok := e.traces[id]; ok {
		return
	}
	if len(e.order) < maxTraces {
		e.order = append(e.order, id)
	} else {
		delete(e.traces, e.order[e.oldest])
		e.order[e.oldest] = id
		e.oldest = (e.oldest + 1) % maxTraces
	}
	e.traces[id] = time.Now()
}

// knows reports whether the trace of an annotation was first seen in the window.
func (e *events[K]) knows(value string, window time.Duration) bool {
	id, ok := traceOf(value)
	if !ok {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.knowsLocked(id, window)
}

func (e *events[K]) knowsLocked(id trace.TraceID, window time.Duration) bool {
	first, ok := e.traces[id]
	return ok && time.Since(first) < window
}

// empty reports whether no call has a cause, which is so for most calls of a controller that
// samples few of them.
func (e *events[K]) empty() bool { return e.size.Load() == 0 }

// take returns the origin of the key's call, and forgets its cause.
func (e *events[K]) take(key K, window time.Duration) origin {
	e.mu.Lock()
	defer e.mu.Unlock()
	have, ok := e.keys[key]
	if !ok {
		return origin{}
	}
	delete(e.keys, key)
	e.size.Store(int64(len(e.keys)))
	o := origin{since: have.since, caused: have.caused, chosen: have.chosen}
	one := len(have.carried) > 0
	for _, sc := range have.carried {
		one = one && sc.TraceID() == have.carried[0].TraceID() && e.knowsLocked(sc.TraceID(), window)
	}
	if one {
		o.parent, o.links = have.carried[0], have.carried[1:]
	} else {
		o.links = have.carried
	}
	return o
}
