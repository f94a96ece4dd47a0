// Package samples finds changes of cached objects by the program itself: it copies some objects
// of a cache, and compares the copies with the objects later. Other users write the objects,
// so their number, memory and depth are bounded.
package samples

import (
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/internal/size"
)

const (
	maxAge     = time.Minute // after which a sample makes room for another
	maxSamples = 16          // of an informer
	maxTries   = 32          // between two comparisons, to make a sample
	maxBytes   = 1 << 20     // of an informer's copies
	maxValues  = 20_000      // strings, slices, maps and structs of a sample
)

// Change is a change of an object of the cache.
type Change struct {
	Key  string // namespace/name of the object
	Path string // of the first changed field; "" for the whole object
}

// Samples are copies of some objects of one informer. The zero value is ready to use.
type Samples struct {
	mu    sync.Mutex // guards the fields below
	all   []sample
	bytes int64  // of the copies
	tries int    // in this period
	last  Change // the zero value before the first
}

type sample struct {
	key        string
	obj, saved runtime.Object
	bytes      int64
	since      time.Time
}

// OnAdd implements cache.ResourceEventHandler.
func (s *Samples) OnAdd(obj any, _ bool) { s.see(obj, maxAge) }

// OnUpdate implements cache.ResourceEventHandler.
func (s *Samples) OnUpdate(_, obj any) { s.see(obj, maxAge) }

// OnDelete implements cache.ResourceEventHandler. Compare forgets the object.
func (s *Samples) OnDelete(any) {}

// see makes a sample of an object of the cache if there is room, or a sample that is older.
func (s *Samples) see(obj any, older time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tries >= maxTries {
		return
	}
	old := -1
	if len(s.all) == maxSamples {
		if old = rand.IntN(len(s.all)); time.Since(s.all[old].since) < older {
			return
		}
	}
	o, ok := obj.(runtime.Object)
	m, meta := obj.(metav1.Object)
	if !ok || !meta || reflect.TypeOf(obj).Kind() != reflect.Pointer {
		return
	}
	for _, have := range s.all {
		if have.obj == o {
			return
		}
	}
	s.tries++
	free := int64(maxBytes) - s.bytes
	if old >= 0 {
		free += s.all[old].bytes
	}
	n, complete := size.Of(obj, maxValues)
	if !complete || n > free {
		return
	}
	saved := copied(o)
	if reflect.TypeOf(saved) != reflect.TypeOf(obj) {
		return
	}
	if old >= 0 {
		s.dropLocked(old)
	}
	s.all = append(s.all, sample{cache.MetaObjectToName(m).String(), o, saved, n, time.Now()})
	s.bytes += n
}

// copied returns a copy of an object, or nil if its DeepCopyObject panics.
func copied(obj runtime.Object) (c runtime.Object) {
	defer func() {
		if recover() != nil {
			c = nil
		}
	}()
	return obj.DeepCopyObject()
}

func (s *Samples) dropLocked(n int) {
	last := len(s.all) - 1
	s.bytes -= s.all[n].bytes
	s.all[n] = s.all[last]
	s.all[last] = sample{}
	s.all = s.all[:last]
}

// Compare returns the changes of the samples' objects, and forgets these samples and the
// samples of objects that the cache no longer has.
func (s *Samples) Compare(store cache.Store) (found []Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries = 0
	for n := len(s.all) - 1; n >= 0; n-- {
		have := s.all[n]
		path, differs := changed(have.obj, have.saved)
		if differs {
			s.last = Change{have.key, path}
			found = append(found, s.last)
		}
		if now, ok, err := store.GetByKey(have.key); differs || !ok || err != nil || now != any(have.obj) {
			s.dropLocked(n)
		}
	}
	return found
}

// Refresh samples random objects of the cache.
func (s *Samples) Refresh(store cache.Store) {
	keys := store.ListKeys()
	for range min(len(keys), maxSamples/2) {
		if obj, ok, err := store.GetByKey(keys[rand.IntN(len(keys))]); ok && err == nil {
			s.see(obj, maxAge)
		}
	}
}

// Last returns the last change that Compare found, and false before the first.
func (s *Samples) Last() (last Change, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.last != Change{}
}
