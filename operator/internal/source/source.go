// Package source has the informers of an operator, one for each resource.
package source

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/operator/internal/served"
)

// A Source is one resource with its informer, for all controllers.
type Source struct {
	served.Resource // with the name of the first controller
	Informer        cache.SharedIndexInformer
	Handlers        []cache.ResourceEventHandlerRegistration
	Held            Held
	Paused          *pause.Set // nil if no controller obeys annotations

	counted bool // by Own
	first   chain
	id      <-chan struct{} // of the informer, which a factory wraps again for each caller
}

// A Set has the sources of an operator, in the order of their registration.
type Set []*Source

// Of returns the source of a resource, a new one for the first controller. It returns an error
// if the resource has another informer, or the informer another resource.
func (s *Set) Of(r served.Resource, informer cache.SharedIndexInformer) (*Source, error) {
	id := informer.HasSyncedChecker().Done()
	for _, other := range *s {
		switch {
		case other.GroupResource == r.GroupResource && other.id == id:
			return other, nil
		case other.GroupResource == r.GroupResource:
			return nil, fmt.Errorf("%s has two informers, in controller %q and controller %q: use one informer for both, as their scopes could differ", r.GroupResource, other.Controller, r.Controller)
		case other.id == id:
			return nil, fmt.Errorf("%s and %s have the same informer: pass each resource with its own", other.GroupResource, r.GroupResource)
		}
	}
	added := &Source{Resource: r, Informer: informer, id: id}
	*s = append(*s, added)
	return added, nil
}

// AddEventHandler adds a handler to the informer. Held sees the events of the first one.
func (s *Source) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if len(s.first) > 0 {
		handler, s.first = append(s.first, handler), nil
	}
	switch {
	case len(s.Handlers) > 0:
	case headers.Decodes(s.GetStore()) && !headers.Alone(handler):
		// A handler of decoded objects would not see what the cache holds.
		if err := s.holdAlone(); err != nil {
			return nil, err
		}
	default:
		s.Held.next = handler
		handler = &s.Held
	}
	registration, err := s.Informer.AddEventHandler(handler)
	if err != nil {
		return nil, fmt.Errorf("add a handler to the informer of %s: %w", s.GroupResource, err)
	}
	registration = named{registration, s.String()}
	s.Handlers = append(s.Handlers, registration)
	return registration, nil
}

// Shared returns the informer for handlers that return at once. Those that are added before it runs share
// the goroutine of Held, because client-go's queue of a handler costs more than their calls.
func (s *Source) Shared() cache.SharedIndexInformer { return shared{s.Informer, s} }

type shared struct {
	cache.SharedIndexInformer
	source *Source
}

// AddEventHandler implements cache.SharedInformer.
func (i shared) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if len(i.source.Handlers) == 0 || headers.Decodes(i.GetStore()) && !headers.Alone(handler) {
		return i.SharedIndexInformer.AddEventHandler(handler)
	}
	i.source.Held.before = append(i.source.Held.before, handler)
	return i.source.Handlers[0], nil
}

// RemoveEventHandler implements cache.SharedInformer. A handler that shares the goroutine of Held stays.
func (i shared) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	if handle == i.source.Handlers[0] {
		return nil
	}
	return i.SharedIndexInformer.RemoveEventHandler(handle)
}

// named is a registration that a log line names by the resource. client-go names it by Go types, which
// are those of this library for every resource.
type named struct {
	cache.ResourceEventHandlerRegistration
	resource string
}

func (n named) HasSyncedChecker() cache.DoneChecker {
	return checker{n.ResourceEventHandlerRegistration.HasSyncedChecker(), n.resource}
}

type checker struct {
	cache.DoneChecker
	resource string
}

func (c checker) Name() string { return "the handlers of " + c.resource }

// holdAlone adds Held as a handler of its own.
func (s *Source) holdAlone() error {
	s.Held.next = headers.Wake(func() {})
	registration, err := s.Informer.AddEventHandler(&s.Held)
	if err != nil {
		return fmt.Errorf("add a handler to the informer of %s: %w", s.GroupResource, err)
	}
	s.Handlers = append(s.Handlers, named{registration, s.String()})
	return nil
}

// GetStore returns the store of the informer.
func (s *Source) GetStore() cache.Store { return s.Informer.GetStore() }

// Holds reports whether an informer holds the object, of this name and UID.
func (s *Set) Holds(obj metav1.Object) bool {
	key := cache.MetaObjectToName(obj).String()
	return slices.ContainsFunc(*s, func(source *Source) bool {
		o, ok := headers.Get(source.GetStore(), key)
		return ok && o.GetUID() == obj.GetUID()
	})
}

// HoldsAny reports whether an informer holds objects of the resource.
func (s *Set) HoldsAny(resource schema.GroupResource) bool {
	return slices.ContainsFunc(*s, func(source *Source) bool { return source.GroupResource == resource })
}
