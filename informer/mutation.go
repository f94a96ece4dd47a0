package informer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	mutationPeriod  = 10 * time.Second // between two comparisons
	mutationAge     = time.Minute      // after which a sample makes room for another
	mutationRefresh = 5 * time.Minute  // after which it does so without an event
	mutationSamples = 16               // of an informer
	mutationTries   = 32               // in a period, to make a sample
	mutationBytes   = 1 << 20          // of an informer's copies
	mutationValues  = 20_000           // strings, slices, maps and structs of a sample
	maxPathText     = 512              // bytes of a Path
	maxKeyText      = 64               // bytes of a map key in a Path
)

// Mutation is a change of an object in the cache by the program itself. Objects in a cache are
// shared, so a change of one is a data race, and other readers take it for the state of the
// API server.
type Mutation struct {
	Name string // of the informer, as given to Add
	Key  string // namespace/name of the object
	Path string // of the first changed field, such as .metadata.labels["app"]; "" for the whole object
}

// String returns a sentence about the mutation. It contains no value of a field.
func (m Mutation) String() string {
	return fmt.Sprintf("informer: %q: the program changed %s in the cache at %q: make a DeepCopy of an object before a change", m.Name, m.Key, m.Path)
}

// samples are copies of some objects of one informer.
type samples struct {
	mu    sync.Mutex // guards the fields below
	all   []sample
	bytes int64    // of the copies
	tries int      // in this period
	last  Mutation // "" as Name before the first
}

type sample struct {
	key        string
	obj, saved runtime.Object
	bytes      int64
	since      time.Time
}

// OnAdd, OnUpdate and OnDelete implement cache.ResourceEventHandler.
func (s *samples) OnAdd(obj any, _ bool) { s.see(obj, mutationAge) }
func (s *samples) OnUpdate(_, obj any)   { s.see(obj, mutationAge) }
func (s *samples) OnDelete(any)          {}

// see makes a sample of an object of the cache if there is room, or a sample that is older.
func (s *samples) see(obj any, older time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tries >= mutationTries {
		return
	}
	old := -1
	if len(s.all) == mutationSamples {
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
	free := int64(mutationBytes) - s.bytes
	if old >= 0 {
		free += s.all[old].bytes
	}
	size := sizer{left: mutationValues}
	n := size.boxed(reflect.ValueOf(obj))
	if size.over || n > free {
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

func (s *samples) dropLocked(n int) {
	last := len(s.all) - 1
	s.bytes -= s.all[n].bytes
	s.all[n] = s.all[last]
	s.all[last] = sample{}
	s.all = s.all[:last]
}

// compare returns the mutations of the samples, and forgets these samples and the samples of
// objects that the cache no longer has.
func (s *samples) compare(name string, store cache.Store) (found []Mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries = 0
	for n := len(s.all) - 1; n >= 0; n-- {
		have := s.all[n]
		path, changed := mutated(have.obj, have.saved)
		if changed {
			s.last = Mutation{name, have.key, path}
			found = append(found, s.last)
		}
		if now, ok, err := store.GetByKey(have.key); changed || !ok || err != nil || now != any(have.obj) {
			s.dropLocked(n)
		}
	}
	return found
}

// refresh samples random objects of the cache.
func (s *samples) refresh(store cache.Store) {
	keys := store.ListKeys()
	for range min(len(keys), mutationSamples/2) {
		if obj, ok, err := store.GetByKey(keys[rand.IntN(len(keys))]); ok && err == nil {
			s.see(obj, mutationAge)
		}
	}
}

// findMutations compares the samples until ctx is done, and a last time after that.
func (s *Set) findMutations(ctx context.Context, members []*member) {
	for refreshed, runs := time.Now(), true; runs; {
		runs = pause(ctx, mutationPeriod)
		refresh := time.Since(refreshed) >= mutationRefresh
		if refresh {
			refreshed = time.Now()
		}
		for _, m := range members {
			store := m.informer.GetStore()
			found := m.samples.compare(m.name, store)
			for _, mutation := range found {
				s.Mutated(mutation)
			}
			if !kube.IsNil(s.Metrics) {
				s.Metrics.InformerMutated(m.name, len(found))
			}
			if refresh {
				m.samples.refresh(store)
			}
		}
	}
}

// LastMutations returns, by the name of the informer, the last mutation that Mutated was called
// with.
func (s *Set) LastMutations() map[string]Mutation {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := map[string]Mutation{}
	for _, m := range s.members {
		m.samples.mu.Lock()
		if m.samples.last.Name != "" {
			last[m.name] = m.samples.last
		}
		m.samples.mu.Unlock()
	}
	return last
}

// mutated reports whether an object differs from its copy, and where.
func mutated(obj, saved runtime.Object) (path string, changed bool) {
	a, b := reflect.ValueOf(obj), reflect.ValueOf(saved)
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if v, ok := saved.(*unstructured.Unstructured); ok {
			a, b = reflect.ValueOf(u.Object), reflect.ValueOf(v.Object)
		}
	}
	c := comparer{left: 2 * mutationValues} // it can have grown
	path, same := c.same(a, b)
	return kube.Printable(path, maxPathText), !same
}

// comparer compares values and stays within bounds. It leaves out unexported fields: some types
// cache results of their methods in them.
type comparer struct{ left, depth int }

// same reports whether two values of one type are the same, and otherwise the path of the first
// difference.
func (c *comparer) same(a, b reflect.Value) (path string, same bool) {
	if c.left--; c.left < 0 || c.depth == maxDepth {
		return "", true
	}
	c.depth++
	defer func() { c.depth-- }()
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() || a.Elem().Type() != b.Elem().Type() {
			return "", a.IsNil() && b.IsNil()
		}
		if a.Kind() == reflect.Pointer && a.Pointer() == b.Pointer() {
			return "", true
		}
		return c.same(a.Elem(), b.Elem())
	case reflect.Struct:
		return c.sameStruct(a, b)
	case reflect.Map:
		return c.sameMap(a, b)
	case reflect.Slice:
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return "", false
		}
		if a.Type().Elem().Kind() == reflect.Uint8 {
			return "", bytes.Equal(a.Bytes(), b.Bytes())
		}
		fallthrough
	case reflect.Array:
		for i := range a.Len() {
			if path, same := c.same(a.Index(i), b.Index(i)); !same {
				return fmt.Sprintf("[%d]%s", i, path), false
			}
		}
		return "", true
	case reflect.Float32, reflect.Float64:
		return "", a.Float() == b.Float() || a.Float() != a.Float() && b.Float() != b.Float() // NaN
	case reflect.Func, reflect.Chan, reflect.UnsafePointer, reflect.Invalid:
		return "", true
	}
	return "", a.Equal(b)
}

func (c *comparer) sameStruct(a, b reflect.Value) (path string, same bool) {
	switch x := a.Interface().(type) {
	case time.Time:
		return "", x.Equal(b.Interface().(time.Time))
	case resource.Quantity: // String keeps its result in the Quantity
		return "", x.Cmp(b.Interface().(resource.Quantity)) == 0
	}
	t := a.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		if path, same := c.same(a.Field(i), b.Field(i)); !same {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "" && f.Anonymous:
				return path, false
			case name == "" || name == "-":
				name = f.Name
			}
			return "." + name + path, false
		}
	}
	return "", true
}

func (c *comparer) sameMap(a, b reflect.Value) (path string, same bool) {
	if a.IsNil() != b.IsNil() {
		return "", false
	}
	for entries := a.MapRange(); entries.Next(); {
		other := b.MapIndex(entries.Key())
		if !other.IsValid() {
			return inMap(entries.Key()), false
		}
		if path, same := c.same(entries.Value(), other); !same {
			return inMap(entries.Key()) + path, false
		}
		if c.left < 0 {
			return "", true
		}
	}
	if a.Len() == b.Len() {
		return "", true
	}
	for entries := b.MapRange(); entries.Next(); {
		if !a.MapIndex(entries.Key()).IsValid() {
			return inMap(entries.Key()), false
		}
	}
	return "", true
}

// inMap returns a key as a part of a path.
func inMap(key reflect.Value) string {
	text, err := json.Marshal(kube.Printable(fmt.Sprint(key), maxKeyText))
	if err != nil {
		return "[?]"
	}
	return "[" + string(text) + "]"
}
