package fleet

import (
	"cmp"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// The bounds of a Tracker. Together they are about 500 counts.
const (
	maxTypes      = 20  // of conditions
	maxReasons    = 20  // pairs of a status and a reason, for each type
	maxConditions = 100 // of an object
	maxText       = 128 // bytes of a type or a reason
)

const (
	ready  = "Ready"
	paused = "Paused"
	other  = "other"
)

// Metrics receives the counts of a Tracker. *metrics.Metrics implements it.
type Metrics interface {
	// FleetObjects sets the functions of a resource, which each collection of the metrics calls.
	FleetObjects(resource string, conditions func(yield func(condition, status, reason string, objects int)), notReady func() (objects int, oldest time.Time))
}

// A Tracker counts the objects of an informer. It is a cache.ResourceEventHandler for one informer, whose objects
// are a pointer to a struct or an *unstructured.Unstructured. The zero value is ready to use. The fields must not change
// after the first event. A Tracker must not be copied. Its methods may be called concurrently.
type Tracker struct {
	// Resource labels the counts, such as websites.example.com. "" is a label, too.
	Resource string

	// NeedsReady is for objects whose controller gives each of them the condition Ready. An object without it
	// counts as Unknown, and is not ready since its creation. false means that such an object has no count.
	NeedsReady bool

	mu     sync.Mutex // guards the rest
	layout layout     // of the last object

	// objects has the hashes of the names and not the names, which would take most of the memory of a
	// Tracker and keep decoded objects. It lacks objects with the zero memory. Two objects with one hash are
	// counted as one: among a million objects there are two such with a chance of about 1 in 37 million.
	objects map[uint64]object
	seed    maphash.Seed // of the hashes; made with objects

	numbers map[count]uint16 // the index of a count in counts
	counts  []counted
	types   map[string]int // the counts of each type with a reason of their own
}

// An object is the memory of one object. It is zero if the object is ready and has no counts.
type object struct {
	counts unique.Handle[string] // the numbers of its counts, two bytes each; zero if there are none
	since  int64                 // the time in Unix milliseconds when it became not ready; 0 if it is ready
}

type count struct{ condition, status, reason string }

type counted struct {
	count
	objects int
}

// Report makes m read the Tracker. It panics if m is nil.
func (t *Tracker) Report(m Metrics) {
	m.FleetObjects(t.Resource, t.Conditions, t.NotReady)
}

// Conditions calls yield with the number of objects for each type of condition, status and reason, in no order.
func (t *Tracker) Conditions(yield func(condition, status, reason string, objects int)) {
	t.mu.Lock()
	counts := make([]counted, len(t.counts))
	copy(counts, t.counts)
	t.mu.Unlock()
	for _, c := range counts {
		yield(c.condition, c.status, c.reason, c.objects)
	}
}

// NotReady returns the number of objects that are not ready, and since when the oldest of them is not. Without
// one it returns the zero Time.
func (t *Tracker) NotReady() (objects int, oldest time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := int64(math.MaxInt64)
	for _, o := range t.objects {
		if o.since != 0 {
			objects++
			first = min(first, o.since)
		}
	}
	if objects == 0 {
		return 0, time.Time{}
	}
	return objects, time.UnixMilli(first)
}

// OnAdd implements cache.ResourceEventHandler.
func (t *Tracker) OnAdd(obj any, _ bool) { t.set(obj) }

// OnUpdate implements cache.ResourceEventHandler.
func (t *Tracker) OnUpdate(_, obj any) { t.set(obj) }

// OnDelete implements cache.ResourceEventHandler.
func (t *Tracker) OnDelete(obj any) {
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
	t.mu.Lock()
	defer t.mu.Unlock()
	t.storeLocked(key, func(object) object { return object{} })
}

// set counts an object as it is now.
func (t *Tracker) set(obj any) {
	o, ok := obj.(metav1.Object)
	if !ok {
		return
	}
	key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.storeLocked(key, func(former object) object { return t.readLocked(o, former) })
}

// storeLocked replaces the memory of an object, and counts it.
func (t *Tracker) storeLocked(key types.NamespacedName, change func(former object) object) {
	if t.objects == nil {
		t.objects, t.seed = map[uint64]object{}, maphash.MakeSeed()
	}
	hash := maphash.Comparable(t.seed, key)
	former := t.objects[hash]
	now := change(former)
	t.addLocked(former, -1)
	t.addLocked(now, 1)
	if now != (object{}) {
		t.objects[hash] = now
		return
	}
	if delete(t.objects, hash); len(t.objects) == 0 {
		t.objects = nil // a map does not shrink
	}
}

// addLocked adds n to the counts of an object.
func (t *Tracker) addLocked(o object, n int) {
	if o.counts == (unique.Handle[string]{}) {
		return
	}
	for numbers := o.counts.Value(); len(numbers) > 0; numbers = numbers[2:] {
		t.counts[int(numbers[0])|int(numbers[1])<<8].objects += n
	}
}

// readLocked returns the memory of an object. former is the memory before the event.
func (t *Tracker) readLocked(o metav1.Object, former object) object {
	var numbers [2 * (maxConditions + 1)]byte
	var readiness, pause condition
	types, n := make([]string, 0, 8), 0
	note := func(c condition) {
		number := t.numberLocked(c)
		numbers[n], numbers[n+1] = byte(number), byte(number>>8)
		n += 2
	}
	t.layout.read(o, func(c condition) bool {
		for _, known := range types {
			if known == c.kind {
				return true // a type that is listed twice
			}
		}
		types = append(types, c.kind)
		switch c.kind {
		case ready:
			readiness = c
		case paused:
			pause = c
		}
		note(c)
		return len(types) < maxConditions
	})
	if readiness.kind == "" && t.NeedsReady {
		readiness = condition{kind: ready, status: string(metav1.ConditionUnknown)}
		note(readiness)
	}
	var now object
	if n > 0 {
		now.counts = unique.Make(string(numbers[:n]))
	}
	if at := since(o, readiness, pause.status == string(metav1.ConditionTrue), former.since); !at.IsZero() {
		now.since = cmp.Or(at.UnixMilli(), 1)
	}
	return now
}

// since returns the time since when an object is not ready, which is zero if it is ready. former is the one before
// the event.
func since(o metav1.Object, readiness condition, paused bool, former int64) time.Time {
	created, at := o.GetCreationTimestamp().Time, readiness.since
	switch deleted := o.GetDeletionTimestamp(); {
	case deleted != nil:
		return deleted.Time
	case paused || readiness.kind == "":
		return time.Time{}
	case readiness.status != string(metav1.ConditionTrue):
	case readiness.generation != 0 && readiness.generation < o.GetGeneration():
		if at = time.Now(); former != 0 {
			at = time.UnixMilli(former)
		}
	default:
		return time.Time{}
	}
	if at.Before(created) { // or zero, or an invention
		at = created
	}
	if now := time.Now(); at.IsZero() || at.After(now) { // some fakes set no time, and a clock can be wrong
		at = now
		if former != 0 && former < now.UnixMilli() {
			at = time.UnixMilli(former)
		}
	}
	return at
}

// numberLocked returns the number of the count of a condition.
func (t *Tracker) numberLocked(c condition) uint16 {
	id := count{cut(c.kind), c.status, cut(c.reason)}
	switch metav1.ConditionStatus(c.status) {
	case metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown:
	default:
		id.status = other
	}
	if number, known := t.numbers[id]; known {
		return number
	}
	if t.numbers == nil {
		t.numbers, t.types = map[count]uint16{}, map[string]int{ready: 0}
	}
	reasons, known := t.types[id.condition]
	switch {
	case !known && len(t.types) >= maxTypes:
		id.condition, id.reason = other, other
	case reasons >= maxReasons:
		id.reason = other
	default:
		id.condition = strings.Clone(id.condition) // not a part of an object
		t.types[id.condition]++
	}
	if number, known := t.numbers[id]; known {
		return number
	}
	id.condition, id.status, id.reason = strings.Clone(id.condition), strings.Clone(id.status), strings.Clone(id.reason)
	number := uint16(len(t.counts))
	t.numbers[id] = number
	t.counts = append(t.counts, counted{count: id})
	return number
}

// cut bounds a text.
func cut(text string) string { return text[:min(len(text), maxText)] }
