package controllertest

import (
	"slices"
	"time"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/controllertest/internal/outage"
)

// A failing outage is one that has begun.
type failing struct {
	*outage.Outage
	until time.Time
	ended chan struct{} // its last request has failed
}

// outageLocked begins an outage and returns the fault of its first request.
func (r *run) outageLocked(text string) fault.Fault {
	o, _ := outage.Parse(text) // as the plan was
	bound, _ := o.Time()
	f := &failing{Outage: o, until: time.Now().Add(bound), ended: make(chan struct{})}
	r.outages = append(r.outages, f)
	first := r.failLocked(f)
	first.Before = func() { r.during(f) }
	return first
}

// during postpones rest until the end of an outage.
func (r *run) during(f *failing) {
	done := r.begin()
	r.goes(func() {
		defer done()
		timer := time.NewTimer(time.Until(f.until))
		defer timer.Stop()
		select {
		case <-f.ended:
		case <-timer.C:
		}
		r.mu.Lock()
		r.endLocked(f)
		r.noteLocked("the outage ends")
		r.mu.Unlock()
		if _, after := f.Time(); after > 0 {
			time.Sleep(after + holdTime)
		}
	})
}

func (r *run) endLocked(f *failing) {
	r.outages = slices.DeleteFunc(r.outages, func(other *failing) bool { return other == f })
}

// failsLocked returns the fault of a request during an outage.
func (r *run) failsLocked(verb, resource, subresource string) (_ fault.Fault, fails bool) {
	for _, f := range r.outages {
		if f.Covers(verb, resource, subresource) && time.Now().Before(f.until) {
			return r.failLocked(f), true
		}
	}
	return fault.Fault{}, false
}

// failLocked returns the fault of a request of an outage. After its last request it is over.
func (r *run) failLocked(f *failing) fault.Fault {
	fails, last := f.Fail(time.Until(f.until))
	if last {
		r.endLocked(f)
		close(f.ended)
	}
	return fails
}
