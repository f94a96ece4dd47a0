// Package size estimates the memory of objects, from the sizes of their strings, slices, maps
// and pointers. Other users write the objects, so it visits a bounded number of values.
package size

import (
	"math/bits"
	"reflect"
	"sync"
	"time"
)

const maxDepth = 500 // keeps the stack small

// Of estimates the bytes of an object in the heap. It visits at most the given number of
// strings, slices, maps and structs, and reports whether it has visited all.
func Of(obj any, values int) (bytes int64, complete bool) {
	s := sizer{left: values}
	bytes = s.boxed(reflect.ValueOf(obj))
	return bytes, !s.over
}

type sizer struct {
	left, depth int
	over        bool // something did not count
}

// boxed returns the bytes of the value in an interface.
func (s *sizer) boxed(v reflect.Value) int64 {
	switch v.Kind() {
	case reflect.Invalid, reflect.Bool, reflect.Uint8, reflect.Int8:
		return 0 // the runtime has these values ready
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return s.below(v)
	}
	return allocated(int64(v.Type().Size())) + s.below(v)
}

// below returns the bytes that a value refers to.
func (s *sizer) below(v reflect.Value) int64 {
	if s.left--; s.left <= 0 || s.depth == maxDepth {
		s.over = true
		return 0
	}
	s.depth++
	bytes := s.inside(v)
	s.depth--
	return bytes
}

// inside is below without the bounds.
func (s *sizer) inside(v reflect.Value) (bytes int64) {
	switch v.Kind() {
	case reflect.String:
		return allocated(int64(v.Len()))
	case reflect.Pointer:
		if v.IsNil() {
			return 0
		}
		return allocated(int64(v.Type().Elem().Size())) + s.below(v.Elem())
	case reflect.Interface:
		return s.boxed(v.Elem())
	case reflect.Slice:
		bytes = allocated(int64(v.Cap()) * int64(v.Type().Elem().Size()))
		fallthrough
	case reflect.Array:
		if refers(v.Type().Elem()) == nil {
			return bytes
		}
		for i := 0; i < v.Len() && s.left > 0; i++ {
			bytes += s.below(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		key, value := v.Type().Key(), v.Type().Elem()
		bytes = table(v.Len(), int64(key.Size())+int64(value.Size()))
		if refers(key) == nil && refers(value) == nil {
			return bytes
		}
		for entries := v.MapRange(); s.left > 0 && entries.Next(); {
			bytes += s.below(entries.Key()) + s.below(entries.Value())
		}
	case reflect.Struct:
		for _, i := range refers(v.Type()) {
			bytes += s.below(v.Field(i))
		}
	}
	return bytes
}

// table returns the bytes of a map: groups of eight entries, each with a word of control,
// filled to seven eighths once there are several.
func table(entries int, entry int64) int64 {
	const header, directory = 48, 40
	const group = 8
	switch {
	case entries == 0:
		return header
	case entries <= group:
		return header + allocated(group+group*entry)
	}
	groups := int64(1) << bits.Len(uint((entries*8/7-1)/group))
	return header + directory + allocated(groups*(group+group*entry))
}

// allocated rounds up to about the next size class of the runtime.
func allocated(n int64) int64 {
	switch {
	case n <= 16:
		return n // small values without pointers share blocks
	case n <= 256:
		return (n + 15) &^ 15
	}
	const page = 8192
	step := min(page, int64(1)<<(bits.Len64(uint64(n-1))-4)) // an eighth of the power of two below
	return (n + step - 1) &^ (step - 1)
}

// referring has the fields of a struct that refer to other memory, by type. The types of an API
// are few.
var referring sync.Map //nolint:gochecknoglobals // reflect.Type → []int, which does not change

// refers returns the fields of a struct that refer to other memory, {0} for any other type
// that does, and nil for a type without references.
func refers(t reflect.Type) []int {
	switch t.Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
		return []int{0}
	case reflect.Array:
		return refers(t.Elem())
	case reflect.Struct:
	default:
		return nil
	}
	if t == reflect.TypeFor[time.Time]() {
		return nil // its Location is shared
	}
	if known, ok := referring.Load(t); ok {
		return known.([]int)
	}
	var found []int
	for i := range t.NumField() {
		if refers(t.Field(i).Type) != nil {
			found = append(found, i)
		}
	}
	referring.Store(t, found)
	return found
}
