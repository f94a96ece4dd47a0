package reconcile

import "context"

// exploredKey is the key of the context value with which package controllertest learns of
// the queue of a loop and of the keys that wait for its Gate. It is an alias of an unnamed
// type, so that no package imports the other.
type exploredKey = struct{ ControllertestQueue struct{} }

// explored registers the loop with package controllertest, if ctx comes from an
// exploration. end takes it back.
func (r *run[K]) explored(ctx context.Context) (end func()) {
	register, ok := ctx.Value(exploredKey{}).(func(queue interface{ Len() int }, gated func() int) (end func()))
	if !ok {
		return func() {}
	}
	return register(r.Queue, func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.parked)
	})
}
