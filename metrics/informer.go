package metrics

import "time"

// InformerListed counts a list request of the informer and its duration.
func (m *Metrics) InformerListed(name string, d time.Duration) {
	if m == nil {
		return
	}
	name = m.informers.label(name)
	m.lists.WithLabelValues(name).Inc()
	m.listing.WithLabelValues(name).Observe(d.Seconds())
}

// InformerWatched counts a watch of the informer that has ended, and its duration.
func (m *Metrics) InformerWatched(name string, d time.Duration) {
	if m == nil {
		return
	}
	name = m.informers.label(name)
	m.watches.WithLabelValues(name).Inc()
	m.watching.WithLabelValues(name).Observe(d.Seconds())
}

// InformerReceived sets the time of the informer's last data to now.
func (m *Metrics) InformerReceived(name string) {
	if m == nil {
		return
	}
	m.receipts.Store(m.informers.label(name), time.Now())
}

// InformerLast sets the function that returns when the informer last received data, for
// controller_informer_last_event_age_seconds, instead of InformerReceived. While it returns
// the zero Time, the series is absent. Each collection of the metrics calls last, which must be safe for concurrent use. A
// later last of the same name replaces it.
func (m *Metrics) InformerLast(name string, last func() time.Time) {
	if m == nil || last == nil {
		return
	}
	m.receipts.Store(m.informers.label(name), last)
}

// InformerServed sets whether the API server serves the resource of an informer that runs without it, too. Package
// operator calls it for the optional resources of its function Reads.
func (m *Metrics) InformerServed(name string, served bool) {
	if m == nil {
		return
	}
	value := 0.0
	if served {
		value = 1
	}
	m.served.WithLabelValues(m.informers.label(name)).Set(value)
}

// InformerMutated counts changes of objects in the informer's cache by the program itself.
func (m *Metrics) InformerMutated(name string, mutations int) {
	if m == nil {
		return
	}
	m.mutations.WithLabelValues(m.informers.label(name)).Add(float64(max(0, mutations)))
}

// InformerMalformed sets the function that returns the number of objects that do not fit the
// informer's Go type, for controller_informer_malformed_objects. Each collection of the metrics
// calls it. It must be safe for concurrent use. A later one of the same name replaces it.
func (m *Metrics) InformerMalformed(name string, malformed func() int) {
	if m == nil || malformed == nil {
		return
	}
	m.misfits.Store(m.informers.label(name), malformed)
}

// InformerHolds sets the function that returns the number of objects in the informer's cache
// and the bytes that they take in the heap, for controller_informer_objects and
// controller_informer_bytes. Each collection of the metrics calls holds, which must be safe for
// concurrent use. A later holds of the same name replaces it. Package operator calls
// InformerHolds for its informers.
func (m *Metrics) InformerHolds(name string, holds func() (objects, bytes int64)) {
	if m == nil || holds == nil {
		return
	}
	m.caches.Store(m.informers.label(name), holds)
}

// measureCaches sets the gauges of the informers' data and caches, before they are collected.
func (m *Metrics) measureCaches() {
	for name, malformed := range m.misfits.Range {
		m.malformed.WithLabelValues(name.(string)).Set(float64(malformed.(func() int)()))
	}
	for name, last := range m.receipts.Range {
		at, ok := last.(time.Time)
		if !ok {
			at = last.(func() time.Time)()
		}
		if at.IsZero() {
			m.received.DeleteLabelValues(name.(string))
			continue
		}
		// An age, because a Unix time would be wrong until the next data after each step of the wall clock.
		m.received.WithLabelValues(name.(string)).Set(max(0, time.Since(at).Seconds()))
	}
	for name, holds := range m.caches.Range {
		objects, bytes := holds.(func() (objects, bytes int64))()
		m.held.WithLabelValues(name.(string)).Set(float64(objects))
		m.heldBytes.WithLabelValues(name.(string)).Set(float64(bytes))
	}
}
