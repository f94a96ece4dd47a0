package elections

import (
	"slices"
	"time"
)

// A failover is the time without a leader after a crash without other faults. If no
// replica took over, missing names the begin of the wait.
type failover struct {
	from, to time.Time
	missing  string
}

// failover waits for a leader, kills it, and waits for the next.
func (r *run) failover() failover {
	cleared := time.Now()
	// A replica that has just started reads the Lease when its requests that the weather
	// swallowed have timed out.
	sleep(r.ctx, cleared.Add(r.script.RenewDeadline))
	deadline := time.After(patience)
	var victim *process
	for victim == nil {
		r.mu.Lock()
		changed := r.leads
		for _, p := range r.alive {
			// Skips a replica that has just lost the Lease and is still draining.
			if p.leading > 0 && slices.ContainsFunc(r.tenures, func(t *tenure) bool { return t.who == p.name && t.ended.IsZero() }) {
				victim = p
			}
		}
		r.mu.Unlock()
		if victim != nil {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			return failover{cleared, time.Now(), "the faults ended"}
		case <-r.ctx.Done():
			return failover{}
		}
	}
	// Somewhere between two renewals.
	sleep(r.ctx, time.Now().Add(time.Duration(r.script.Seed%7)*r.script.RetryPeriod/5))
	r.mu.Lock()
	before := len(r.tenures)
	r.mu.Unlock()
	crashed := time.Now()
	close(victim.crash)
	deadline = time.After(patience)
	for {
		r.mu.Lock()
		changed, died := r.leads, victim.died
		var next *tenure
		for _, t := range r.tenures[before:] {
			if t.who != victim.name {
				next = t
			}
		}
		r.mu.Unlock()
		if next != nil && !died.IsZero() {
			return failover{from: died, to: next.start}
		}
		select {
		case <-changed:
		case <-deadline:
			return failover{crashed, time.Now(), victim.name + " crashed"}
		case <-r.ctx.Done():
			return failover{}
		}
	}
}
