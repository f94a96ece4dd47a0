package triggers

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// keptKeys is the number of the latest keys of Keep that Kept has at least. It has at most twice as
// many.
const keptKeys = 4096

// Kept has the keys of events that came while no loop ran. The zero value is empty. It is safe
// for concurrent use.
type Kept[K comparable] struct {
	mu         sync.Mutex // guards the fields below
	young, old map[K]kept // old was young until young had keptKeys
	dropped    time.Time  // no event after this moment was dropped; zero: none was
	turned     time.Time  // when old was young
}

// kept is the reason of a key. Its Event is the first one.
type kept struct {
	Reason
	last  time.Duration // when the last event came, also one that is Undated
	dated bool          // there was an event that is not Undated, also one that Deliver gives no time
	of    *object       // that all events of KeepListed had; nil if several, or none that is known
}

type object struct {
	source, namespace, name string
	uid                     types.UID
}

func objectOf(source string, o metav1.Object) *object {
	if o == nil {
		return nil
	}
	return &object{source, o.GetNamespace(), o.GetName(), o.GetUID()}
}

func (o *object) is(other *object) bool { return o != nil && other != nil && *o == *other }

// Keep remembers an event of the keys in k.
func (m *Memory[K]) Keep(k *Kept[K], what Trigger, keys ...K) {
	m.keep(k.putLocked, k, what, nil, keys)
}

// KeepListed is Keep of an object, which Forget can name. nil means that it is not known. It keeps all
// keys, because the objects of a list come once, and an informer's cache has them.
func (m *Memory[K]) KeepListed(k *Kept[K], what Trigger, o metav1.Object, keys ...K) {
	m.keep(k.addLocked, k, what, objectOf(what.Source, o), keys)
}

func (m *Memory[K]) keep(addLocked func(K, kept), k *Kept[K], what Trigger, of *object, keys []K) {
	m.mu.Lock()
	why := m.reasonLocked(what)
	now := time.Since(m.began)
	m.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		addLocked(key, kept{why, now, why.Event != 0, of})
	}
}

// KeepTaken remembers in k what Take returns of the keys, as events of this moment. It keeps all
// keys, because a queue had them. failed reports whether a key has an event whose calls have failed.
func (m *Memory[K]) KeepTaken(k *Kept[K], failed func(K) bool, keys ...K) {
	for _, key := range keys {
		why := m.Take(key)
		m.Called(why)
		why.first = false
		m.mu.Lock()
		m.beginLocked()
		now := time.Since(m.began)
		m.mu.Unlock()
		k.mu.Lock()
		k.addLocked(key, kept{why, now, why.Event != 0 || failed(key), nil})
		k.mu.Unlock()
	}
}

// Forget forgets those of the keys that k has because of this object of the source alone.
func (k *Kept[K]) Forget(source string, o metav1.Object, keys ...K) {
	of := objectOf(source, o)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		for _, part := range []map[K]kept{k.young, k.old} {
			if part[key].of.is(of) {
				delete(part, key)
			}
		}
	}
}

func (k *Kept[K]) addLocked(key K, e kept) {
	have, ok := k.young[key]
	if !ok {
		have, ok = k.old[key]
		delete(k.old, key)
	}
	if ok && !have.of.is(e.of) {
		e.of = nil
	}
	e.Mask |= have.Mask
	e.Event, e.dated = Earlier(e.Event, have.Event), e.dated || have.dated
	if k.young == nil {
		k.young = map[K]kept{}
	}
	k.young[key] = e
}

func (k *Kept[K]) putLocked(key K, e kept) {
	k.addLocked(key, e)
	if len(k.young) < keptKeys {
		return
	}
	if len(k.old) > 0 {
		k.dropped = k.turned
	}
	k.old, k.young, k.turned = k.young, nil, time.Now()
}

// Window says which keys Deliver returns.
type Window struct {
	After time.Time // events until then are forgotten; zero: none
	Dated time.Time // an event until then has no time
	From  time.Time // an earlier event counts as of this moment
}

// Deliver forgets the keys of k. It notes those whose last event came after the moment After, and
// returns them: dated has those with an event that is not Undated, and undated the others, such as those of a first
// list. lost is true if k has dropped other keys with events after that moment.
func (m *Memory[K]) Deliver(k *Kept[K], w Window) (dated, undated []K, lost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beginLocked()
	until := func(t time.Time, last time.Duration) bool { return !t.IsZero() && last <= t.Sub(m.began) }
	for _, part := range []map[K]kept{k.old, k.young} {
		for key, e := range part {
			if until(w.After, e.last) {
				continue
			}
			switch {
			case until(w.Dated, e.last):
				e.Event = 0
			case e.Event != 0:
				e.Event = max(e.Event, w.From.Sub(m.began))
			}
			if e.Mask != 0 {
				m.putLocked(e.Reason, key)
			}
			if e.dated {
				dated = append(dated, key)
			} else {
				undated = append(undated, key)
			}
		}
	}
	lost = k.dropped.After(w.After)
	k.young, k.old, k.dropped = nil, nil, time.Time{}
	return dated, undated, lost
}
