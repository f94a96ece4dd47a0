package reconcile

import (
	"context"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile/internal/echoes"
	"github.com/controllerkit/controllerkit/reconcile/internal/queues"
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
// queue: it keeps them, as Keep does. Those of managerkit.Complete add the keys of first lists.
func (c *Controller[K]) Source(name string) *Source[K] {
	c.triggers.Expect()
	return &Source[K]{c: c, name: name}
}

// Add adds the key to the controller's queue.
func (s *Source[K]) Add(key K) { s.AddEvent(controllerkit.Event{}, controllerkit.AddOptions{}, key) }

// AddEvent adds the keys for an event. Metrics measures no latency from the kinds "list", of a
// first list, and "resync": the time of the change is unknown. If the queue has no AddWith, only
// the delay of opts is used.
//
// If the event has its object, the loop knows the writes of a key's own calls. The event of one
// adds the key once after a call that succeeded. After a call that failed it adds nothing, because
// the key runs at its deadline. After a terminal error, and of a parked key, it adds the key after
// 10 to 15 minutes. An event with a new generation of the object that the key names resets the
// key's backoff. A key names an object if it is its types.NamespacedName or cache.ObjectName, or if
// its text is namespace/name.
func (s *Source[K]) AddEvent(e controllerkit.Event, opts controllerkit.AddOptions, keys ...K) {
	f := &s.c.feed
	f.mu.RLock()
	defer f.mu.RUnlock() // the end of a Run empties the queue after the adds that began before it
	// An event of managerkit.Complete that can be of a first list comes once, at the begin of the term.
	if f.closedLocked() && e.Kind != calls.Unchanged {
		s.keep(e, keys...)
		return
	}
	s.c.addEvent(s.name, e, opts, keys...)
}

// addEvent adds those of the keys to the queue that are to run because of the event.
func (c *Controller[K]) addEvent(source string, e controllerkit.Event, opts controllerkit.AddOptions, keys ...K) {
	adder, _ := c.Queue.(controllerkit.OptionAdder[K])
	generation := echoes.NewGeneration(e)
	if !generation && !c.echoes.Used() {
		c.triggers.Note(trigger(source, e.Kind), keys...)
		queues.Add(c.Queue, adder, opts, keys...)
		return
	}
	why := c.triggers.Reason(trigger(source, e.Kind))
	for _, key := range keys {
		why.Anew = generation && echoes.Names(key, e.Object)
		switch verdict := c.echoes.Judge(e, key, echoes.Event{Why: why, Options: opts}); verdict {
		case echoes.Foreign:
			c.triggers.Put(why, key)
			queues.Add(c.Queue, adder, opts, key)
		case echoes.Confirm, echoes.Late:
			c.addEcho(verdict, opts.Priority, key)
		case echoes.Held, echoes.Wait, echoes.Seen:
		}
	}
}

// addEcho adds a key for the events of its last call's own writes.
func (c *Controller[K]) addEcho(verdict echoes.Verdict, priority int, key K) {
	opts := controllerkit.AddOptions{Priority: priority}
	switch verdict {
	case echoes.Confirm:
	case echoes.Late: // as a rejected call in the end
		opts.After = between(rejectedMax, rejectedMax+rejectedMax/2)
	default:
		return
	}
	c.triggers.Note(triggers.Trigger{Source: "echo", Same: true, Undated: true}, key)
	adder, _ := c.Queue.(controllerkit.OptionAdder[K])
	queues.Add(c.Queue, adder, opts, key)
}

// Keep remembers an event of keys for the next Run, for event handlers of a replica that does
// not lead. While a Run is active, Keep is a no-op. It ignores the kinds "list", "resync" and
// "unchanged", which report no change. See [Controller.Handle] for what the next Run does.
func (s *Source[K]) Keep(kind string, keys ...K) {
	s.c.feed.mu.RLock()
	defer s.c.feed.mu.RUnlock()
	if !s.c.feed.open.Load() && kind != calls.List {
		s.keep(controllerkit.Event{Kind: kind}, keys...)
	}
}

func (s *Source[K]) keep(e controllerkit.Event, keys ...K) {
	switch what := trigger(s.name, e.Kind); e.Kind {
	case calls.Resync, calls.Unchanged:
	case calls.List:
		s.c.triggers.KeepListed(&s.c.feed.listed, what, e.Object, keys...)
	case calls.Delete:
		s.c.feed.listed.Forget(s.name, e.Object, keys...)
		s.c.triggers.Keep(&s.c.feed.gone, what, keys...)
	default:
		s.c.triggers.Keep(&s.c.feed.changed, what, keys...)
	}
}

func trigger(source, kind string) triggers.Trigger {
	same := kind == calls.Resync || kind == calls.Unchanged
	return triggers.Trigger{Source: source, Kind: kind, Same: same, Undated: same || kind == calls.List}
}

// Triggers returns the reasons of the call that ctx belongs to, for logs: the name and kind
// of each event that a Source reported for the key since its last call, such as "pods
// update", "echo" for those of the last call's own writes, and "resync" if a Resync added the key. Without an event it is "retry" after a
// call that failed, or else "requeue". There are at most 64. It is nil for other contexts,
// and for a controller with neither a Source nor a Resync.
func Triggers(ctx context.Context) []string {
	names, _ := ctx.Value(calls.Triggers{}).([]string)
	return names
}
