package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxCombinations bounds the series of the conditions of a resource. A fleet.Tracker has fewer.
const maxCombinations = 600

// A fleet reads the objects of a resource.
type fleet struct {
	conditions func(yield func(condition, status, reason string, objects int))
	notReady   func() (objects int, oldest time.Time)
	labels     *names
	replaces   *sync.Once // removes the series of earlier functions
}

// FleetObjects sets the functions for controller_object_conditions, controller_not_ready_objects and
// controller_not_ready_oldest_seconds of a resource. Each collection of the metrics calls them, so they must be
// safe for concurrent use. Later functions of the same resource replace them, and the series of the
// earlier ones are removed. A fleet.Tracker calls FleetObjects.
func (m *Metrics) FleetObjects(resource string, conditions func(yield func(condition, status, reason string, objects int)), notReady func() (objects int, oldest time.Time)) {
	if m == nil || conditions == nil || notReady == nil {
		return
	}
	m.fleets.Store(m.resources.label(resource), fleet{conditions, notReady, &names{limit: maxCombinations}, &sync.Once{}})
}

// FleetPaused sets the function that returns the number of paused objects of a resource, for
// controller_paused_objects. Each collection of the metrics calls paused, which must be safe for
// concurrent use. A later one of the same resource replaces it. Package operator calls FleetPaused for the
// resources of its function Kind, with the method Len of a pause.Set.
func (m *Metrics) FleetPaused(resource string, paused func() int) {
	if m == nil || paused == nil {
		return
	}
	m.pauses.Store(m.resources.label(resource), paused)
}

// measureFleets sets the gauges of the objects of resources, before they are collected.
func (m *Metrics) measureFleets(now time.Time) {
	for resource, paused := range m.pauses.Range {
		m.paused.WithLabelValues(resource.(string)).Set(float64(paused.(func() int)()))
	}
	for resource, f := range m.fleets.Range {
		resource, f := resource.(string), f.(fleet)
		f.replaces.Do(func() { m.conditions.DeletePartialMatch(prometheus.Labels{"resource": resource}) })
		var others int
		f.conditions(func(condition, status, reason string, objects int) {
			condition, status, reason = value(condition), value(status), value(reason)
			if f.labels.claim(condition+"\x00"+status+"\x00"+reason) == other {
				others += objects
				m.conditions.WithLabelValues(resource, other, other, other).Set(float64(others))
				return
			}
			m.conditions.WithLabelValues(resource, condition, status, reason).Set(float64(objects))
		})
		objects, oldest := f.notReady()
		age := time.Duration(0)
		if objects > 0 {
			age = max(0, now.Sub(oldest))
		}
		m.unready.WithLabelValues(resource).Set(float64(objects))
		m.unreadyFor.WithLabelValues(resource).Set(age.Seconds())
	}
}
