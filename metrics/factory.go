package metrics

import "strings"

// The next three methods are those of informer.FactoryMetrics. Their series have the names and labels of Kubernetes.

// InformerQueue returns the number of events that wait for a cache.
func (m *Metrics) InformerQueue(name, group, version, resource string) interface{ Set(items float64) } {
	if m == nil {
		return none{}
	}
	return m.queued.WithLabelValues(m.factoryLabels(name, group, version, resource)...)
}

// InformerLatency returns the histogram of the time that an event takes in a cache and to be passed to handlers.
func (m *Metrics) InformerLatency(name, group, version, resource string) interface{ Observe(seconds float64) } {
	if m == nil {
		return none{}
	}
	return m.processing.WithLabelValues(m.factoryLabels(name, group, version, resource)...)
}

// InformerVersion returns the resource version of a cache.
func (m *Metrics) InformerVersion(name, group, version, resource string) interface{ Set(version float64) } {
	if m == nil {
		return none{}
	}
	return m.stored.WithLabelValues(m.factoryLabels(name, group, version, resource)...)
}

// factoryLabels returns the labels of an informer of client-go.
func (m *Metrics) factoryLabels(labels ...string) []string {
	for i, label := range labels {
		labels[i] = value(label)
	}
	if m.factories.claim(strings.Join(labels, "\x00")) == other {
		return []string{other, other, other, other}
	}
	return labels
}
