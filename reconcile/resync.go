package reconcile

import (
	"context"
	"hash/maphash"
	"time"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/reconcile/internal/triggers"
)

// resyncPriority is the priority of keys that are not urgent, such as the keys of an
// initial list.
const resyncPriority = -100

// resyncParts is the number of parts of a Resync. Only the keys of one part wait in the
// queue, so that a resync of many keys needs little memory.
const resyncParts = 64

// resync adds each key once in every Resync until the intake ends or all workers have
// ended. The moment of a key is a hash with a seed of this Run. It is the same in each
// Resync, so that a key waits for one Resync at most, and differs between processes.
func (r *run[K]) resync(ctx context.Context, finished <-chan struct{}) {
	seed := maphash.MakeSeed()
	part := r.Resync / resyncParts
	timer := time.NewTimer(part) // Reset below, before it counts
	defer timer.Stop()
	for {
		began := time.Now()
		parts := make([][]turn[K], resyncParts)
		for _, key := range r.Keys() {
			at := time.Duration(maphash.Comparable(seed, key) % uint64(part*resyncParts))
			parts[at/part] = append(parts[at/part], turn[K]{key, at % part})
		}
		for n := range parts {
			for _, t := range parts[n] {
				r.triggers.Note(triggers.Trigger{Source: triggers.Resync, Same: true, Undated: true}, t.key)
				r.add(controllerkit.AddOptions{Priority: resyncPriority, After: t.after}, t.key)
			}
			parts[n] = nil
			timer.Reset(max(1, time.Until(began.Add(part*time.Duration(n+1)))))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			case <-finished:
				return
			}
		}
	}
}

// turn is the moment of a key in its part.
type turn[K comparable] struct {
	key   K
	after time.Duration
}
