package pause

import (
	"cmp"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// A Set has the keys of the paused objects of an informer. It is a cache.ResourceEventHandler for one informer, for a
// metric and for the page of package debug. An informer of package compact does not decode objects for it. The zero
// value is ready to use. A Set must not be copied. Its methods may be called concurrently.
type Set struct {
	// Annotations are the annotations of the controller. The zero value has the prefix Domain.
	Annotations Annotations

	mu     sync.Mutex // guards paused
	paused map[types.NamespacedName]struct{}
}

// MetadataAlone reports that the Set reads only metadata. See package headers.
func (*Set) MetadataAlone() bool { return true }

// OnAdd implements cache.ResourceEventHandler.
func (s *Set) OnAdd(obj any, _ bool) { s.set(obj) }

// OnUpdate implements cache.ResourceEventHandler.
func (s *Set) OnUpdate(_, obj any) { s.set(obj) }

// OnDelete implements cache.ResourceEventHandler.
func (s *Set) OnDelete(obj any) {
	var key types.NamespacedName
	switch o := obj.(type) {
	case cache.DeletedFinalStateUnknown:
		namespace, name, err := cache.SplitMetaNamespaceKey(o.Key)
		if err != nil {
			return // of no object
		}
		key = types.NamespacedName{Namespace: namespace, Name: name}
	case metav1.Object:
		key = types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.paused, key)
}

func (s *Set) set(obj any) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return
	}
	key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	// A deletion is cleaned up in spite of the annotation.
	paused := s.Annotations.Paused(o) && o.GetDeletionTimestamp() == nil
	s.mu.Lock()
	defer s.mu.Unlock()
	if !paused {
		delete(s.paused, key)
		return
	}
	if s.paused == nil {
		s.paused = map[types.NamespacedName]struct{}{}
	}
	s.paused[key] = struct{}{}
}

// Len returns the number of paused objects. Objects in deletion do not count.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.paused)
}

// Has reports whether the object of the key is paused.
func (s *Set) Has(key types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.paused[key]
	return ok
}

// Keys returns the first keys in the order of namespaces and names, at most limit.
func (s *Set) Keys(limit int) []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first []types.NamespacedName // sorted
	for key := range s.paused {
		i, _ := slices.BinarySearchFunc(first, key, compare)
		if i < limit {
			first = slices.Insert(first, i, key)
			first = first[:min(len(first), limit)]
		}
	}
	return first
}

func compare(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
