// Package listless marks event handlers that need no first list of their own, because they keep no state of objects.
package listless

// Is reports whether a handler of events may get the objects of a first list later, and not at all those that are
// deleted by then. It then has the method Listless.
func Is(h any) bool {
	l, ok := h.(interface{ Listless() bool })
	return ok && l.Listless()
}
