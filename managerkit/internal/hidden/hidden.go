// Package hidden reads fields of controller-runtime's types that it does not export.
package hidden

import (
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// IsSet reports whether a field of a builder is set. The builder does not export it, and a
// later controller-runtime may not have it.
func IsSet(b any, field string) bool {
	f := reflect.ValueOf(b).Elem().FieldByName(field)
	return f.IsValid() && !f.IsZero()
}

// Elects reports whether the manager has a lock of its own. No method of a manager reports
// that, so Elects reads the field of controller-runtime's manager. Other types pass.
func Elects(mgr manager.Manager) bool {
	v := reflect.Indirect(reflect.ValueOf(mgr))
	if v.Kind() != reflect.Struct {
		return false
	}
	lock := v.FieldByName("resourceLock")
	return lock.IsValid() && lock.Kind() == reflect.Interface && !lock.IsNil()
}
