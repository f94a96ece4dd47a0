package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/controllerkit/controllerkit"
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

// ready asks the gate. A key that waits for it is in no queue, so ready adds it to gated
// first: the gate can call wake before Ready returns.
func (r *run[K]) ready(key K, priority int) bool {
	if r.gate == nil {
		return true
	}
	r.mu.Lock()
	if w, waits := r.gated[key]; waits { // it already waits for a wake
		w.priority = max(w.priority, priority)
		r.gated[key] = w
		r.mu.Unlock()
		return false
	}
	r.gated[key] = waiting{since: time.Since(r.began), priority: priority}
	r.mu.Unlock()
	ok := r.gate.Ready(key, func() {
		r.mu.Lock()
		defer r.mu.Unlock() // unpark must find the key here or in the queue
		w, waits := r.gated[key]
		r.ungateLocked(key, w)
		switch {
		case !waits:
		case r.restartable == nil && r.Queue.ShuttingDown():
			r.left[key] = struct{}{}
		default:
			r.add(controllerkit.AddOptions{Priority: w.priority}, key)
		}
	})
	if ok {
		r.mu.Lock()
		delete(r.gated, key)
		r.mu.Unlock()
		return true
	}
	r.mu.Lock()
	if w, waits := r.gated[key]; waits {
		w.counted = true
		r.gated[key] = w
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

// ungateLocked ends the wait of a key.
func (r *run[K]) ungateLocked(key K, w waiting) {
	delete(r.gated, key)
	if w.counted {
		r.waiting--
		r.keysLocked()
	}
}

// ungate gives the keys that wait for the gate back to the queue, for the next Run, and forgets
// the parked and the failing ones.
func (r *run[K]) ungate() {
	r.mu.Lock()
	gated := r.gated
	r.gated = map[K]waiting{} // a later wake has no effect
	r.waiting = 0
	clear(r.parked)
	r.keysLocked()
	r.unfailLocked()
	r.mu.Unlock()
	for key, w := range gated {
		r.putBack(key, w.priority)
	}
}

// logWaiting logs each key that waits for the gate for too long, once, until the intake
// ends or all workers have ended. It takes time only while a key waits.
func (r *run[K]) logWaiting(ctx context.Context, finished <-chan struct{}) {
	reasons, _ := r.gate.(controllerkit.ReadyEnsurer[K])
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
	for key, w := range r.gated {
		w.ticks++
		r.gated[key] = w
		if w.ticks == waitTicks {
			late = append(late, key)
		}
	}
	return late, len(r.gated) > 0
}
