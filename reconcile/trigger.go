package reconcile

import (
	"context"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile/internal/triggers"
)

// Source adds keys to the queue of a Controller and remembers why, for [Triggers]. See
// [Controller.Source]. Its methods may be called concurrently.
type Source[K comparable] struct {
	c    *Controller[K]
	name string
}

// Source returns a Source. Event handlers add keys to it instead of the Queue. The name is a
// word for logs, such as the resource that an informer watches:
//
//	_, err := c.Handle(pods, enqueue.Handler(c.Source("pods"), ownerOf))
//
// The Queue must be set before keys are added. Sources can be made and used before, while
// and after Run runs. A controller that has a Source should get all its keys from Sources,
// because a call without a reported event counts as a retry or a requeue. Triggers
// distinguishes 63 kinds of events, by the name and the kind; further ones are "other".
//
// If [Controller.Handle] was called and no Run is active, a Source does not add keys to the
// queue: it keeps them, as Keep does.
func (c *Controller[K]) Source(name string) *Source[K] {
	c.triggers.Expect()
	return &Source[K]{c: c, name: name}
}

// Add adds the key to the controller's queue.
func (s *Source[K]) Add(key K) { s.AddEvent("", controllerkit.AddOptions{}, key) }

// AddEvent adds the keys for an event of the kind, which is a word such as "update". ""
// means unknown. Metrics measures no latency from the kinds "list", of a first list, and
// "resync": the time of the change is unknown. If the queue has no AddWith, only the delay of
// opts is used.
func (s *Source[K]) AddEvent(kind string, opts controllerkit.AddOptions, keys ...K) {
	f := &s.c.feed
	f.mu.RLock()
	defer f.mu.RUnlock() // the end of a Run empties the queue after the adds that began before it
	if f.closedLocked() {
		s.keep(kind, keys...)
		return
	}
	s.c.triggers.Note(s.trigger(kind), keys...)
	adder, _ := s.c.Queue.(controllerkit.OptionAdder[K])
	addTo(s.c.Queue, adder, opts, keys...)
}

// Keep remembers an event of keys for the next Run, for event handlers of a replica that does
// not lead. While a Run is active, Keep is a no-op. It ignores the kinds "list", "resync" and
// "unchanged", which report no change. See [Controller.Handle] for what the next Run does.
func (s *Source[K]) Keep(kind string, keys ...K) {
	s.c.feed.mu.RLock()
	defer s.c.feed.mu.RUnlock()
	if !s.c.feed.open && kind != calls.List {
		s.keep(kind, keys...)
	}
}

func (s *Source[K]) keep(kind string, keys ...K) {
	switch kind {
	case calls.Resync, calls.Unchanged:
	case calls.List:
		s.c.triggers.Keep(&s.c.feed.listed, s.trigger(kind), keys...)
	case calls.Delete:
		s.c.triggers.Keep(&s.c.feed.gone, s.trigger(kind), keys...)
	default:
		s.c.triggers.Keep(&s.c.feed.changed, s.trigger(kind), keys...)
	}
}

func (s *Source[K]) trigger(kind string) triggers.Trigger {
	same := kind == calls.Resync || kind == calls.Unchanged
	return triggers.Trigger{Source: s.name, Kind: kind, Same: same, Undated: same || kind == calls.List}
}

// Triggers returns the reasons of the call that ctx belongs to, for logs: the name and kind
// of each event that a Source reported for the key since its last call, such as "pods
// update", and "resync" if a Resync added the key. Without an event it is "retry" after a
// call that failed, or else "requeue". There are at most 64. It is nil for other contexts,
// and for a controller with neither a Source nor a Resync.
func Triggers(ctx context.Context) []string {
	names, _ := ctx.Value(calls.Triggers{}).([]string)
	return names
}
