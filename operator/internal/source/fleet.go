package source

import (
	"reflect"
	"slices"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/status/fleet"
)

// Own makes the source count its objects, which a controller reconciles, in front of the next handler. So a call
// that follows an event finds it counted. typ is their Go type: if it has conditions, they are counted by these. needsReady is
// whether the controller gives each object the condition Ready, and pausable whether it obeys the annotations.
// A second controller changes nothing, unless it alone obeys them.
func (s *Source) Own(typ reflect.Type, needsReady, pausable bool, a pause.Annotations, m *metrics.Metrics) {
	if pausable && s.Paused == nil {
		s.Paused = &pause.Set{Annotations: a}
		m.FleetPaused(s.String(), s.Paused.Len)
		s.first = append(s.first, s.Paused)
	}
	if !s.counted && conditioned(typ) {
		s.counted = true
		objects := &fleet.Tracker{Resource: s.String(), NeedsReady: needsReady}
		objects.Report(m)
		s.first = append(s.first, objects)
	}
}

// A chain calls handlers one after another.
type chain []cache.ResourceEventHandler

// MetadataAlone reports whether all of them need no more than metadata.
func (c chain) MetadataAlone() bool {
	return !slices.ContainsFunc(c, func(h cache.ResourceEventHandler) bool { return !headers.Alone(h) })
}

// OnAdd implements cache.ResourceEventHandler.
func (c chain) OnAdd(obj any, isInInitialList bool) {
	for _, h := range c {
		h.OnAdd(obj, isInInitialList)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (c chain) OnUpdate(old, obj any) {
	for _, h := range c {
		h.OnUpdate(old, obj)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (c chain) OnDelete(obj any) {
	for _, h := range c {
		h.OnDelete(obj)
	}
}

// conditioned reports whether objects of the type have conditions.
func conditioned(typ reflect.Type) bool {
	if typ.Kind() != reflect.Pointer {
		return false
	}
	status, _, ok := kube.JSONField(typ.Elem(), "status")
	if !ok {
		return false
	}
	inner := status.Type
	if inner.Kind() == reflect.Pointer {
		inner = inner.Elem()
	}
	_, _, ok = kube.JSONField(inner, "conditions")
	return ok
}
