package metrics

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	maxObjects = 10_000 // that finalizers block; the rest is not counted
	// If a user removes the finalizer by hand, no further pass reports the object. It is
	// forgotten after twice the delay until its next pass, and this.
	objectGrace = 10 * time.Minute
	// No further pass comes after a terminal error either. ControllerFinalizerStuck needs the
	// object for an hour and a quarter.
	leastKept = 2 * time.Hour
)

// objects has the objects that finalizers block.
type objects struct {
	mu    sync.Mutex // guards the fields below
	known map[object]blocked
	steps map[step]struct{} // with a series, which stays and becomes 0
}

type (
	object struct{ finalizer, uid string }
	step   struct{ finalizer, name string }
)

// blocked is an object that steps of a finalizer block.
type blocked struct {
	steps []step
	since time.Time       // of the deletion request
	until time.Time       // when the object is forgotten
	after time.Time       // when it is, if its Run has ended: no later than until
	ended bool            // a Run has ended since the last call of FinalizerObject
	term  <-chan struct{} // of FinalizerTerm; nil if none is known
}

// over reports whether the Run of the object can have ended.
func (b *blocked) over() bool {
	select {
	case <-b.term:
		return true
	default:
		return b.ended && b.term == nil
	}
}

// FinalizerObject sets the steps that block the finalizer of the object, which has been in
// deletion for age. A finalizer.Plan calls it. Without steps, the object is not blocked any
// more. again is the delay until the next call for the object: without one, the object is
// forgotten after twice that time and ten minutes, but not within two hours. When the Run of the
// last running controller ends, all objects are forgotten, because another replica may go on. When
// another Run ends, the two hours do not apply to the objects until their next call, except those
// of FinalizerTerm. At most 10,000 objects are counted in all, and further ones are ignored.
func (m *Metrics) FinalizerObject(finalizer string, uid types.UID, steps []string, age, again time.Duration) {
	if m == nil {
		return
	}
	key, now := object{value(finalizer), value(string(uid))}, time.Now()
	o := &m.objects
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.known[key]; len(steps) == 0 || !ok && len(o.known) >= maxObjects {
		delete(o.known, key)
		return
	}
	if o.known == nil {
		o.known, o.steps = map[object]blocked{}, map[step]struct{}{}
	}
	late := objectGrace + 2*min(again, 365*24*time.Hour)
	b := blocked{since: now.Add(-age), until: now.Add(max(leastKept, late)), after: now.Add(late)}
	for _, name := range steps {
		f, n := m.part(finalizer, name)
		b.steps = append(b.steps, step{f, n})
		o.steps[step{f, n}] = struct{}{}
	}
	o.known[key] = b
}

// FinalizerTerm sets the term of a shard or leader in which the last FinalizerObject of the object was
// called, so that the end of another shard does not count for it. When term is closed, the two hours do
// not apply to the object. Package finalizer calls FinalizerTerm.
func (m *Metrics) FinalizerTerm(finalizer string, uid types.UID, term <-chan struct{}) {
	if m == nil {
		return
	}
	key := object{value(finalizer), value(string(uid))}
	o := &m.objects
	o.mu.Lock()
	defer o.mu.Unlock()
	if b, ok := o.known[key]; ok {
		b.term = term
		o.known[key] = b
	}
}

// forgetObjects forgets all objects after the last Run. After another Run it shortens the time of the objects without
// a known term: they do not show whose they are, and another replica may go on with those of the Run.
func (m *Metrics) forgetObjects(last bool) {
	o := &m.objects
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, b := range o.known {
		b.ended = true
		o.known[key] = b
	}
	if last {
		clear(o.known)
	}
}

// countObjects sets the gauges of the blocked objects, before they are collected.
func (m *Metrics) countObjects(now time.Time) {
	o := &m.objects
	o.mu.Lock()
	defer o.mu.Unlock()
	number, oldest := map[step]int{}, map[step]time.Duration{}
	for key, b := range o.known {
		if now.After(b.until) || b.over() && now.After(b.after) {
			delete(o.known, key)
			continue
		}
		for _, s := range b.steps {
			number[s]++
			oldest[s] = max(oldest[s], now.Sub(b.since))
		}
	}
	for s := range o.steps {
		m.stuck.WithLabelValues(s.finalizer, s.name).Set(float64(number[s]))
		m.oldest.WithLabelValues(s.finalizer, s.name).Set(oldest[s].Seconds())
	}
}
