package debug

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The bounds of a history. The names of objects in Kubernetes are shorter than maxName.
const (
	maxName     = 256
	maxCause    = 512
	maxTriggers = 8
	maxHeld     = 1000

	copyAtOnce = 128 // records that are copied under the lock of a ring

	// holdTime is twice the longest delay after a failed cleanup. A key without a call for longer may be with
	// another replica.
	holdTime = 30 * time.Minute
)

// kind is the kind of a record. Each kind has a ring of its own, so that a flood of one does
// not displace the others. Calls that failed have one, too. Records of one moment are in the
// order of their kinds.
type kind int

const (
	event kind = iota
	woken
	call
	failure
	write
	blocked
	wait
	kinds
)

func (k kind) String() string {
	return [kinds]string{"event", "wait", "call", "call", "write", "blocked", "wait"}[k]
}

// capacity is the number of records of the kind that a history has.
func (k kind) capacity() int {
	switch k {
	case event, call:
		return 2048
	case failure, write:
		return 1024
	default:
		return 512
	}
}

// record is one thing that happened to a key.
type record struct {
	at       time.Time // when it began
	key      types.NamespacedName
	kind     kind
	took     time.Duration // negative means that it is unknown
	what     string        // event: the source and kind; call: the result; write: the request; wait: the cause; blocked: the finalizer and the steps
	attempt  int           // call
	triggers []string      // call
	status   int           // write: of the response; 0 without one
	version  string        // write: the resource version in the response
}

// history has the newest records of a controller.
type history struct {
	rings [kinds]ring

	mu   sync.Mutex                       // guards held
	held map[types.NamespacedName]holding // at most maxHeld keys whose last call a finalizer blocked
}

// holding is a finalizer that waits for the cleanup of an object.
type holding struct {
	what  string    // the finalizer and the steps
	since time.Time // of the deletion request
	last  time.Time // when the call of the key ended
	final bool      // no other call follows by itself
}

// old reports whether the replica may no longer have the key.
func (held holding) old() bool { return !held.final && time.Since(held.last) > holdTime }

// add adds a record. Its texts must be bounded, except for the key.
func (h *history) add(r record) {
	r.key = types.NamespacedName{Namespace: short(r.key.Namespace), Name: short(r.key.Name)}
	h.rings[r.kind].add(r.kind.capacity(), r)
}

// short returns text, or a copy of its beginning if it is too long for a name.
func short(text string) string {
	if len(text) <= maxName {
		return text
	}
	return strings.Clone(text[:maxName])
}

// ring has the newest records of a kind.
type ring struct {
	mu   sync.Mutex // guards the fields below
	list []record
	n    int // records that were added
}

func (r *ring) add(limit int, what record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) < limit {
		r.list = append(r.list, what)
	} else {
		r.list[r.n%limit] = what
	}
	r.n++
}

// each calls f with copies of the records, the newest first, until f returns false. Workers
// can add records meanwhile: the lock is held only to copy a few.
func (r *ring) each(f func(*record) bool) {
	var some [copyAtOnce]record
	next := -1 // the number of the record that comes next; the first is 0
	for {
		n := 0
		r.mu.Lock()
		if next < 0 {
			next = r.n - 1
		}
		for ; n < len(some) && next >= 0 && next >= r.n-len(r.list); next-- {
			some[n] = r.list[next%len(r.list)]
			n++
		}
		r.mu.Unlock()
		for i := range some[:n] {
			if !f(&some[i]) {
				return
			}
		}
		if n < len(some) {
			return
		}
	}
}

// last returns the newest calls of all keys, or the failed calls.
func (h *history) last(k kind, most int) (list []record) {
	h.rings[k].each(func(r *record) bool {
		list = append(list, *r)
		return len(list) < most
	})
	return list
}

// story returns the newest records of a key, at most that many of each kind, in order of time.
func (h *history) story(key types.NamespacedName, most int) (list []record) {
	key = types.NamespacedName{Namespace: short(key.Namespace), Name: short(key.Name)}
	for k := range h.rings {
		n := 0
		h.rings[k].each(func(r *record) bool {
			if r.key == key {
				list = append(list, *r)
				n++
			}
			return n < most
		})
	}
	slices.SortStableFunc(list, func(a, b record) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.kind, b.kind))
	})
	// A call that failed is in two rings.
	return slices.CompactFunc(list, func(a, b record) bool {
		return a.at.Equal(b.at) && min(a.kind, b.kind) == call && max(a.kind, b.kind) == failure
	})
}

// lasts returns the last call of each of the keys that is known.
func (h *history) lasts(keys map[types.NamespacedName]bool) map[types.NamespacedName]record {
	found := map[types.NamespacedName]record{}
	for _, k := range []kind{call, failure} {
		h.rings[k].each(func(r *record) bool {
			if keys[r.key] {
				if have, ok := found[r.key]; !ok || r.at.After(have.at) {
					found[r.key] = *r
				}
			}
			return true
		})
	}
	return found
}

// hold notes whether a finalizer blocked the key in its last call.
func (h *history) hold(key types.NamespacedName, what *holding) {
	key = types.NamespacedName{Namespace: short(key.Namespace), Name: short(key.Name)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if what == nil {
		delete(h.held, key)
		return
	}
	if len(h.held) >= maxHeld {
		maps.DeleteFunc(h.held, func(_ types.NamespacedName, held holding) bool { return held.old() })
	}
	if _, have := h.held[key]; have || len(h.held) < maxHeld {
		if h.held == nil {
			h.held = map[types.NamespacedName]holding{}
		}
		h.held[key] = *what
	}
}

// holdings returns the keys whose last call was blocked.
func (h *history) holdings() map[types.NamespacedName]holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.held)
}
