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
	m.received.WithLabelValues(m.informers.label(name)).SetToCurrentTime()
}
