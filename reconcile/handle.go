package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile/internal/serial"
	"github.com/controllerkit/controllerkit/reconcile/internal/triggers"
)

// A leader may not have acted on an event that it got before its last renewal of the Lease.
const (
	// Its key may wait for a retry, by default for 15 minutes at most, and begins no call while
	// the leader drains.
	unhandled = 20 * time.Minute
	// Later events count for the latency. So those of a backoff do not: they have failed, and a
	// new leader has a first list to work off.
	unseen = time.Minute
)

// Handle adds an event handler to an informer, as its AddEventHandler does, for a handler that
// adds keys with a [Source]:
//
//	_, err := c.Handle(pods, enqueue.Handler(c.Source("pods"), ownerOf))
//
// While no Run is active, such as on a replica that waits for leadership, the informer runs
// and the queue stays empty. Each Run begins with all objects of the informer's store: it
// calls OnAdd of the handler with them, as for a first list. These calls and those of the
// informer come one after another. A handler of package enqueue needs no first list while no Run is active, and gets none.
// Run waits until the registration is synced. At its end, Run
// empties a queue that has the method Clear() []K.
//
// An object that was deleted is not in the store. So the Controller keeps all keys that a Run
// left in the queue, and of the events that Sources report while no Run is active at least the
// latest 4096 keys of deletions, and as many of other kinds. If there were more, a line of log of the
// next Run reports it. With the context of package leader,
// Run adds the kept keys whose last event came less than 20 minutes before the former leader's
// last renewal of the Lease that this replica saw, or later, because that leader may not have
// acted on them. Otherwise Run adds all. Of a first list it adds all keys, however old and many, but not
// those of a single object that was deleted later: a handler that Handle has not added gets its list only once.
// A kept key has the priority -100 if it has no event that may be an edit, such as a key of a first list.
//
// For Metrics an event of the last minute before that renewal counts as of the renewal, and an
// earlier one has no time. Without package leader, an event counts as of the begin of Run.
//
// Handle may be called at any time. The Controller keeps a reference to the informer: for
// an informer that ends earlier than the Controller, use AddEventHandler. Do not remove the
// registration before the last Run has ended: each Run would still call the handler, or wait without a
// limit if the registration was not synced. For a handler that is removed earlier, use AddEventHandler
// too. Handle returns an error if an argument is nil, or that of AddEventHandler.
func (c *Controller[K]) Handle(informer interface {
	AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
	GetStore() cache.Store
}, handler cache.ResourceEventHandler,
) (cache.ResourceEventHandlerRegistration, error) {
	switch {
	case kube.IsNil(informer):
		return nil, errors.New("reconcile: Handle got a nil informer")
	case kube.IsNil(handler):
		return nil, errors.New("reconcile: Handle got a nil handler: use e.g. enqueue.Handler")
	}
	h := &handled{store: informer.GetStore, handler: serial.New(handler, &c.feed.open)}
	c.feed.mu.Lock()
	c.feed.handled = append(c.feed.handled, h) // before its first event
	c.feed.mu.Unlock()
	registration, err := informer.AddEventHandler(h.handler)
	c.feed.mu.Lock()
	defer c.feed.mu.Unlock()
	if err != nil {
		c.feed.handled = slices.DeleteFunc(c.feed.handled, func(other *handled) bool { return other == h })
		return nil, fmt.Errorf("reconcile: Handle: %w", err)
	}
	h.synced = registration.HasSyncedChecker()
	return registration, nil
}

// feed is what a Controller knows of its event handlers.
type feed[K comparable] struct {
	mu      sync.RWMutex // guards the fields below; a Source holds it for reading while it adds keys
	handled []*handled
	open    atomic.Bool // a Run takes keys; set with the lock held

	// The keys of events while no Run takes keys: of deletions, of first lists, and of others.
	gone, listed, changed triggers.Kept[K]
	left                  triggers.Kept[K] // the keys that the last Run left in its queue
}

// handled is a handler that Handle has added.
type handled struct {
	store   func() cache.Store
	handler *serial.Handler
	synced  cache.DoneChecker // nil while it is added
}

// closedLocked reports whether Sources keep their keys, because no Run is active and the next
// one begins with all objects.
func (f *feed[K]) closedLocked() bool { return !f.open.Load() && len(f.handled) > 0 }

// openFeed makes Sources add keys to the queue, and adds what came before. It returns what must
// be done before the first list of all handlers is in the queue.
func (r *run[K]) openFeed(ctx context.Context) []cache.DoneChecker {
	if n := r.Queue.Len(); n > 0 && ctx.Value(calls.Validity{}) != nil && ctx.Value(calls.Fed{}) == nil {
		r.logger.Info("Keys were in the queue before this term: add event handlers with Handle, and keys with a Source, so that the queue of a replica that does not lead stays empty", "keys", n)
	}
	f := &r.feed
	f.mu.Lock()
	f.open.Store(true)
	var handlers []handled
	for _, h := range f.handled {
		handlers = append(handlers, *h)
	}
	f.mu.Unlock()

	w := triggers.Window{From: time.Now()}
	if renewal, ok := ctx.Value(calls.LastRenewal{}).(time.Time); ok {
		w = triggers.Window{After: renewal.Add(-unhandled), Dated: renewal.Add(-unseen), From: renewal}
	}
	gone, _, lost := r.triggers.Deliver(&f.gone, w)
	if lost {
		r.logger.Info("Deletions before this Run were too many to keep: the keys of the earliest do not run", "kept", len(gone))
	}
	left, waiting, _ := r.triggers.Deliver(&f.left, w)
	changed, _, lost := r.triggers.Deliver(&f.changed, w)
	if lost {
		r.logger.Info("Changes before this Run were too many to keep: the keys of the earliest run only if an object in a store of Handle has them", "kept", len(changed))
	}
	_, listed, _ := r.triggers.Deliver(&f.listed, triggers.Window{}) // at any age: see Handle
	// They can be as many as the objects of the stores, and must not delay the keys of changed objects either.
	if r.adder == nil { // the queue has no priorities, so they come last
		changed, waiting, listed = slices.Concat(changed, waiting, listed), nil, nil
	}
	r.add(controllerkit.AddOptions{Priority: resyncPriority}, slices.Concat(waiting, listed)...)
	// After the objects of the stores: the keys of old deletions can be many.
	defer r.add(controllerkit.AddOptions{}, slices.Concat(gone, left, changed)...)

	var checkers []cache.DoneChecker
	for _, h := range handlers {
		if h.synced != nil {
			checkers = append(checkers, h.synced)
		}
		store := h.store()
		for _, key := range store.ListKeys() {
			if ctx.Err() != nil {
				return nil
			}
			h.handler.Replay(store, key)
		}
	}
	return checkers
}

// closeFeed makes Sources keep their keys, also those that are still in the queue: the next Run
// may be another leader's, or begins with all objects.
func (r *run[K]) closeFeed() {
	f := &r.feed
	f.mu.Lock()
	f.open.Store(false)
	closed := f.closedLocked()
	f.mu.Unlock()
	queue, ok := r.Queue.(controllerkit.Clearer[K])
	if !closed || !ok {
		return
	}
	left := queue.Clear()
	for _, key := range left {
		r.Queue.Forget(key)
	}
	r.triggers.KeepTaken(&f.left, func(key K) bool { return r.streaks[key].Event != 0 }, left...)
}
