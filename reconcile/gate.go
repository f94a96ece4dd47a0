package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// A key that waits for the gate is logged at this number of ticks of a clock.
const (
	waitTick  = time.Second
	waitTicks = 11 // it has waited for 10s to 11s
)

// waiting is a key that waits for the gate.
type waiting struct {
	since    time.Duration // since the start of Run
	priority int
	ticks    int
	counted  bool // it is one of run.waiting
}

// ready asks the gate. A key that waits for it is in no queue, so ready adds it to parked
// first: the gate can call wake before Ready returns.
func (r *run[K]) ready(key K, priority int) bool {
	if r.gate == nil {
		return true
	}
	r.mu.Lock()
	if w, waits := r.parked[key]; waits { // it already waits for a wake
		w.priority = max(w.priority, priority)
		r.parked[key] = w
		r.mu.Unlock()
		return false
	}
	r.parked[key] = waiting{since: time.Since(r.began), priority: priority}
	r.mu.Unlock()
	ok := r.gate.Ready(key, func() {
		r.mu.Lock()
		defer r.mu.Unlock() // unpark must find the key here or in the queue
		w, parked := r.parked[key]
		r.unparkLocked(key, w)
		switch {
		case !parked:
		case r.restartable == nil && r.Queue.ShuttingDown():
			r.left[key] = struct{}{}
		default:
			r.add(addOptions{Priority: w.priority}, key)
		}
	})
	if ok {
		r.mu.Lock()
		delete(r.parked, key)
		r.mu.Unlock()
		return true
	}
	r.mu.Lock()
	if w, waits := r.parked[key]; waits {
		w.counted = true
		r.parked[key] = w
		r.waiting++
		r.keysLocked()
	}
	r.mu.Unlock()
	select {
	case r.waits <- struct{}{}:
	default: // logWaiting knows already
	}
	return false
}

// unparkLocked ends the wait of a key.
func (r *run[K]) unparkLocked(key K, w waiting) {
	delete(r.parked, key)
	if w.counted {
		r.waiting--
		r.keysLocked()
	}
}

// unpark gives the keys that wait for the gate back to the queue, for the next Run, and forgets
// the parked and the failing ones.
func (r *run[K]) unpark() {
	r.mu.Lock()
	parked := r.parked
	r.parked = map[K]waiting{} // a later wake has no effect
	r.waiting = 0
	clear(r.spent)
	r.keysLocked()
	r.unfailLocked()
	r.mu.Unlock()
	for key, w := range parked {
		r.putBack(key, w.priority)
	}
}

// logWaiting logs each key that waits for the gate for too long, once, until the intake
// ends or all workers have ended. It takes time only while a key waits.
func (r *run[K]) logWaiting(ctx context.Context, finished <-chan struct{}) {
	reasons, _ := r.gate.(interface{ EnsureReady(key K) error })
	var tick <-chan time.Time // nil while no key waits
	for {
		select {
		case <-r.waits:
			if tick == nil {
				tick = time.After(waitTick)
			}
			continue
		case <-tick:
		case <-ctx.Done():
			return
		case <-finished:
			return
		}
		late, more := r.tick()
		for _, key := range late {
			err := errors.New("reconcile: the Gate gives no reason")
			if reasons != nil {
				if err = reasons.EnsureReady(key); err == nil {
					continue // the wake is on its way
				}
				err = kube.PrintableError(err, maxText)
			}
			r.logger.Error(err, "The caches do not show the writes of a key, which waits for them", "key", loggable(key), "after", (waitTicks-1)*waitTick)
		}
		if tick = nil; more {
			tick = time.After(waitTick)
		}
	}
}

// tick counts a tick for each waiting key. It returns the keys that are late since now, and
// whether any waits.
func (r *run[K]) tick() (late []K, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, w := range r.parked {
		w.ticks++
		r.parked[key] = w
		if w.ticks == waitTicks {
			late = append(late, key)
		}
	}
	return late, len(r.parked) > 0
}
