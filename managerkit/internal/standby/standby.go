// Package standby is how managerkit.Complete and the sources of its packages agree about the
// controller that only keeps the informers of a standby running.
package standby

import "reflect"

// A Source is a raw source of a builder that can be started a second time, with a [Queue]. Then it keeps
// its informers running and adds no key.
type Source interface{ Standby() }

// Queue is embedded by the queue of the controller of a standby.
type Queue struct{}

func (Queue) standby() {}

// Is reports whether a queue is that of the controller of a standby.
func Is(queue any) bool {
	_, ok := queue.(interface{ standby() })
	return ok
}

// Cold reports whether a builder has a raw source that is not a Source. The builder does not export
// them, and a later controller-runtime may have none.
func Cold(builder any) bool {
	sources := reflect.ValueOf(builder).Elem().FieldByName("rawSources")
	if !sources.IsValid() || sources.Kind() != reflect.Slice {
		return sources.IsValid() && !sources.IsZero()
	}
	for i := range sources.Len() {
		source := sources.Index(i)
		if source.Kind() == reflect.Interface {
			source = source.Elem()
		}
		if !source.IsValid() || !source.Type().Implements(reflect.TypeFor[Source]()) {
			return true
		}
	}
	return false
}
