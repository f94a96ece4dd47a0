// Package echoes tells the events of a call's own writes, their echoes, from others'.
//
// The transport of a consistency.Store reports which version each write of a call has made, and
// each event has the version of its object. An event can come before the response of the write
// that has caused it. So an event that comes while a write is under way is judged at the end of
// the call.
//
// An echo may hide a change of somebody else: a watch that begins again shows the last of several
// versions, and a write that changes nothing returns the version of another one. So an echo is
// never lost: a call that read the cache after the cache had shown the write comes after it.
package echoes

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile/internal/triggers"
)

const (
	// lifetime is how long a version is known after the key's last write. It is long compared with
	// the time by which an informer's handlers are behind its store. Later it passes for another's
	// event, such as that of a new list after the watch had lost the first one.
	lifetime = time.Minute

	// maxKeys bounds the keys of each of the two maps of a Memory, maxHeld the events of a key
	// that wait for the end of its call, and maxVersions each list of its versions. What is beyond
	// passes for another's event.
	maxKeys     = 1 << 15
	maxHeld     = 256
	maxVersions = 1 << 10
)

// A Verdict says what an event does.
type Verdict int

// The verdicts.
const (
	Foreign Verdict = iota // another has written: the key runs
	Held                   // End judges the event
	Confirm                // an echo: the key runs, when the cache shows all writes of its last call
	Wait                   // an echo: the key runs later in any case
	Late                   // an echo: nothing else makes the key run
	Seen                   // an echo of a write that a call has read
)

// An Event is one that End has judged to be another's.
type Event struct {
	Why     triggers.Reason
	Options controllerkit.AddOptions
}

// A Memory has the versions that the latest calls of each key have made. The zero value is empty.
// It is safe for concurrent use.
type Memory[K comparable] struct {
	used atomic.Bool // there is an entry

	mu         sync.Mutex // guards the fields below
	seed       maphash.Seed
	young, old map[K]*entry // old was young until young was full or as old as lifetime
	turned     time.Time    // when old was young
}

// entry is what is known of a key. A version in it is a hash, whose lowest bit is set for a write
// of the status.
type entry struct {
	running  bool      // from Take to End or Release
	at       time.Time // of the last write
	underWay int       // writes of the call without a response
	made     []uint64  // by calls, not known to be in a cache that a call has read
	seen     []uint64  // by calls, in a cache that a call has read
	held     []held    // events of the call
	echoed   bool      // one of them is an echo
	echo     Verdict   // of an echo after the last call
}

type held struct {
	Event
	version    uint64
	generation bool
}

// Used reports whether there are own writes to tell from others'.
func (m *Memory[K]) Used() bool { return m.used.Load() }

// Take notes that the key was taken from the queue for a call.
func (m *Memory[K]) Take(key K) {
	if !m.used.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entryLocked(key); e != nil {
		e.running = true
	}
}

// Release undoes a Take: the call does not begin, and the key runs later in any case.
func (m *Memory[K]) Release(key K) {
	if !m.used.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entryLocked(key); e != nil {
		e.running, e.echoed, e.echo = false, false, Wait
	}
}

// Begin notes that the call begins. If shown is true, the cache shows all that was written for
// the key before.
func (m *Memory[K]) Begin(key K, shown bool) {
	if !shown || !m.used.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entryLocked(key); e != nil && len(e.made) > 0 {
		e.seen, e.made = e.made, e.seen[:0]
		e.echoed = false
	}
}

// Sending notes that the key's call begins a write.
func (m *Memory[K]) Sending(key K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.young[key]
	if e == nil {
		e = m.youngLocked(key)
	}
	e.running = true
	e.underWay++
}

// Answered notes the response of a write of Sending.
func (m *Memory[K]) Answered(key K, v calls.Version) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entryLocked(key)
	if e == nil {
		return // cleared
	}
	e.underWay--
	e.at = time.Now()
	if v.UID == "" || len(e.made) >= maxVersions {
		return
	}
	hash := m.hashLocked(v.UID, v.Version)
	if v.Status {
		hash |= 1
	}
	e.made = append(e.made, hash)
}

// Judge judges an event of the key. If the verdict is Held, End returns hold if the event is
// another's.
func (m *Memory[K]) Judge(e controllerkit.Event, key K, hold Event) Verdict {
	if !m.used.Load() || e.Object == nil {
		return Foreign
	}
	uid, version := e.Object.GetUID(), e.Object.GetResourceVersion()
	switch e.Kind {
	case calls.List, calls.Resync, calls.Unchanged:
		return Foreign // it reports no write
	case calls.Delete:
		version = ""
	default:
		if version == "" {
			return Foreign
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.entryLocked(key)
	if of == nil || uid == "" {
		return Foreign
	}
	if older(e) { // a restore of etcd, whose new history uses versions again
		of.made, of.seen = nil, nil
		return Foreign
	}
	h := held{Event: hold, version: m.hashLocked(uid, version), generation: NewGeneration(e)}
	mine, seen := of.own(h)
	if !mine && e.Kind == calls.Delete { // the object can come back in a version that a call has read
		of.made, of.seen = nil, nil
	}
	switch {
	case !mine && of.underWay > 0 && len(of.held) < maxHeld:
		of.held = append(of.held, h)
		return Held
	case !mine, time.Since(of.at) > lifetime:
		return Foreign
	case seen:
		return Seen
	case of.running:
		of.echoed = true
		return Wait
	default:
		return of.once()
	}
}

// once returns the verdict of an echo after the last call. Only the first one confirms: another
// informer's event can add the key after the confirming call has begun.
func (e *entry) once() Verdict {
	verdict := e.echo
	if verdict == Confirm {
		e.echo = Wait
	}
	return verdict
}

// NewGeneration reports whether an event shows an object with another spec than before.
func NewGeneration(e controllerkit.Event) bool {
	switch {
	case e.Object == nil:
		return false
	case e.Old == nil:
		return e.Kind == calls.Add
	default:
		return e.Object.GetGeneration() != e.Old.GetGeneration() || e.Object.GetUID() != e.Old.GetUID()
	}
}

// older reports whether an update shows a version that is not above the one before.
func older(e controllerkit.Event) bool {
	if e.Old == nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(e.Object.GetResourceVersion(), e.Old.GetResourceVersion())
	return err != nil || order <= 0
}

// own reports whether an event is an echo, and whether a call has read the write.
func (e *entry) own(h held) (mine, seen bool) {
	is := func(made uint64) bool {
		return made&^1 == h.version && (made&1 == 0 || !h.generation) // a write of the status does not change the generation
	}
	if slices.ContainsFunc(e.made, is) {
		return true, false
	}
	seen = slices.ContainsFunc(e.seen, is)
	return seen, seen
}

// End notes the end of the key's call. echo is the verdict of later echoes: Confirm, Wait or Late.
// End returns the events that came during the call and are others', and the verdict of those that
// are echoes, or Seen if there is none.
func (m *Memory[K]) End(key K, echo Verdict) (foreign []Event, verdict Verdict) {
	if !m.used.Load() {
		return nil, Seen
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entryLocked(key)
	if e == nil {
		return nil, Seen
	}
	for _, h := range e.held {
		if mine, seen := e.own(h); !mine {
			foreign = append(foreign, h.Event)
		} else if !seen {
			e.echoed = true
		}
	}
	verdict = Seen
	e.echo = echo
	if e.echoed {
		verdict = e.once()
	}
	e.running, e.underWay, e.held, e.echoed = false, 0, nil, false
	return foreign, verdict
}

// Clear forgets all keys.
func (m *Memory[K]) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.young, m.old = nil, nil
	m.used.Store(false)
}

func (m *Memory[K]) entryLocked(key K) *entry {
	if e := m.young[key]; e != nil {
		return e
	}
	return m.old[key]
}

// youngLocked returns the entry of a key that writes, and forgets those whose last write was long
// ago.
func (m *Memory[K]) youngLocked(key K) *entry {
	if now := time.Now(); m.young == nil || len(m.young) >= maxKeys || now.Sub(m.turned) >= lifetime {
		if m.young == nil {
			m.seed = maphash.MakeSeed()
		}
		last := m.old
		m.old, m.young, m.turned = m.young, map[K]*entry{}, now
		maps.DeleteFunc(last, func(_ K, e *entry) bool { return !e.running })
		maps.Copy(m.young, last)
	}
	e := m.entryLocked(key)
	if e == nil {
		e = &entry{echo: Wait}
	}
	delete(m.old, key)
	m.young[key] = e
	m.used.Store(true)
	return e
}

// hashLocked returns the hash of a version of an object, whose lowest bit is 0. If two are equal,
// which is as likely as 1 in 10^18, another's event passes for an echo.
func (m *Memory[K]) hashLocked(uid types.UID, version string) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	_, _ = h.WriteString(string(uid))
	_ = h.WriteByte(0)
	_, _ = h.WriteString(version)
	return h.Sum64() &^ 1
}
