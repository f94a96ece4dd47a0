package source

import (
	"fmt"
	"reflect"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/status/fleet"
)

// Own makes the source count its objects, which a controller reconciles. typ is their Go type: if it has conditions,
// they are counted by these. needsReady is whether the controller gives each object the condition Ready, and
// pausable whether it obeys the annotations. A second controller changes nothing, unless it alone obeys them.
func (s *Source) Own(typ reflect.Type, needsReady, pausable bool, a pause.Annotations, m *metrics.Metrics) error {
	if pausable && s.Paused == nil {
		s.Paused = &pause.Set{Annotations: a}
		m.FleetPaused(s.String(), s.Paused.Len)
		if err := s.see(s.Paused); err != nil {
			return err
		}
	}
	if s.counted || !conditioned(typ) {
		return nil
	}
	s.counted = true
	objects := &fleet.Tracker{Resource: s.String(), NeedsReady: needsReady}
	objects.Report(m)
	return s.see(objects)
}

// see adds a handler that works on each replica, also without a term.
func (s *Source) see(handler cache.ResourceEventHandler) error {
	if _, err := s.AddEventHandler(handler); err != nil {
		return fmt.Errorf("count the objects of %s: %w", s.GroupResource, err)
	}
	return nil
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
