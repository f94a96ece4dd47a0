package operator

import (
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
)

// sampled is how rarely seen estimates the size of an object: once in so many events, after
// the first that many, because the estimate takes longer than the event.
const sampled = 64

// seen is the first handler of an informer, and knows what its cache holds.
type seen struct {
	cache.ResourceEventHandler

	timed         bool // note the time of events, for the page
	objects, last atomic.Int64

	events int          // only the informer's goroutine uses it
	mean   atomic.Int64 // bytes of an object; only the informer's goroutine sets it
}

// holds returns the number of objects, and about the bytes that they take.
func (s *seen) holds() (objects, bytes int64) {
	objects = s.objects.Load()
	return objects, objects * s.mean.Load()
}

func (s *seen) note(objects int64, obj any) {
	s.objects.Add(objects)
	if s.timed {
		s.last.Store(time.Now().UnixNano())
	}
	if obj == nil {
		return
	}
	if s.events++; s.events <= sampled || s.events%sampled == 0 {
		mean := s.mean.Load()
		s.mean.Store(mean + (informer.Size(obj)-mean)/int64(min(s.events, sampled)))
	}
}

// OnAdd implements cache.ResourceEventHandler.
func (s *seen) OnAdd(obj any, isInInitialList bool) {
	s.note(1, obj)
	s.ResourceEventHandler.OnAdd(obj, isInInitialList)
}

// OnUpdate implements cache.ResourceEventHandler.
func (s *seen) OnUpdate(old, obj any) {
	s.note(0, obj)
	s.ResourceEventHandler.OnUpdate(old, obj)
}

// OnDelete implements cache.ResourceEventHandler.
func (s *seen) OnDelete(obj any) {
	s.note(-1, nil)
	s.ResourceEventHandler.OnDelete(obj)
}
