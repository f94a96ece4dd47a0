package echoes

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile/internal/triggers"
)

// world is a model of one key: its object, the cache and the handler of an informer, a gate, a
// queue and a loop. Only the Memory is real. To read a failure: the operations are in order, and
// the number in the text is that of the operation.
type world struct {
	m        Memory[string]
	versions []version // of the object; the first is another's
	cache    int       // the version that the store has reached
	events   [][2]int  // of the store, which the handler has not seen: from and to a version
	written  int       // the newest version that the gate knows of

	queued, timer, late bool // the key is ready; it runs at a deadline; it runs after 15 minutes
	call                *call
	read                int // the version in the cache when the last call began

	foreign bool   // an event of another's write came since the last call began
	wrote   bool   // the last call made a version
	lag     bool   // it began although the cache did not show the writes before it
	was     string // how it ended
	bad     string // the broken rule
}

type version struct {
	own        bool
	told       bool // its response has come
	seen       bool // and a call has read it
	lost       bool // its response is lost
	passes     bool // of another's write, which a write that changed nothing got in its response
	generation int64
}

// call is the running call.
type call struct {
	writes []write
	added  bool // the key was added during the call
}

// write is a write without a response.
type write struct {
	version int // that it has made, or found
	floor   int // the version that the store had reached
	made    bool
	status  bool
}

// ops are the operations by name. They return false if they are not possible.
func (w *world) ops() map[string]func() bool {
	running := func(f func()) func() bool {
		return func() bool {
			if w.call == nil {
				return false
			}
			f()
			return true
		}
	}
	return map[string]func() bool{
		"begin":                 func() bool { return w.begin(false, false) },
		"begin beside an event": func() bool { return len(w.events) > 0 && w.begin(false, true) },
		"late begin": func() bool { // the gate's MaxWait is over
			return w.cache < w.written && w.begin(true, false)
		},
		"write":           running(func() { w.write(true, false) }),
		"write status":    running(func() { w.write(true, true) }),
		"write nothing":   running(func() { w.write(false, false) }),
		"status nothing":  running(func() { w.write(false, true) }),
		"answer":          func() bool { return w.answer(false) },
		"lose the answer": func() bool { return w.answer(true) },
		"another writes": func() bool {
			w.put(version{generation: w.versions[len(w.versions)-1].generation + 1})
			return true
		},
		"another labels": func() bool {
			w.put(version{generation: w.versions[len(w.versions)-1].generation})
			return true
		},
		"watch":    func() bool { return w.watch(w.cache + 1) },
		"relist":   func() bool { return w.watch(len(w.versions) - 1) },
		"event":    w.event,
		"succeed":  running(func() { w.end("success", Confirm) }),
		"fail":     running(func() { w.end("failure", Wait) }),
		"give up":  running(func() { w.end("terminal", Late) }),
		"deadline": func() bool { return w.fire(&w.timer) },
		"15m":      func() bool { return w.fire(&w.late) },
	}
}

func newWorld() *world {
	return &world{versions: []version{{generation: 1}}, queued: true, was: "new"}
}

func (w *world) broken(format string, args ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf(format, args...)
	}
}

func (w *world) put(v version) { w.versions = append(w.versions, v) }

func (w *world) fire(timer *bool) bool {
	if !*timer {
		return false
	}
	*timer, w.queued = false, true
	w.foreign = true // not an echo's doing
	return true
}

func (w *world) begin(late, beside bool) bool {
	if !w.queued || w.call != nil {
		return false
	}
	w.m.Take("a")
	if !late && w.cache < w.written {
		w.m.Release("a")
		return false // it stays in the queue until the cache has caught up
	}
	if !w.foreign && w.was != "new" {
		switch {
		case w.was != "success":
			w.broken("an echo runs the key after a %s", w.was)
		case !w.wrote && !w.lag:
			w.broken("an echo runs the key after a call that wrote nothing")
		}
	}
	w.call, w.read = &call{}, w.cache
	w.queued, w.timer, w.late, w.foreign, w.wrote, w.lag = false, false, false, false, false, late
	if beside {
		w.event()
	}
	w.m.Begin("a", !late)
	if !late && slices.ContainsFunc(w.versions, func(v version) bool { return v.told && !v.seen }) {
		for n := range w.versions { // those that an earlier call has read are forgotten
			v := &w.versions[n]
			v.told, v.seen = v.told && !v.seen, v.told && !v.seen
		}
	}
	return true
}

func (w *world) write(makes, status bool) {
	w.m.Sending("a")
	if makes {
		w.put(version{own: true, generation: w.versions[len(w.versions)-1].generation})
		w.wrote = true
	}
	w.call.writes = append(w.call.writes, write{len(w.versions) - 1, w.cache, makes, status})
}

func (w *world) answer(lost bool) bool {
	if w.call == nil || len(w.call.writes) == 0 {
		return false
	}
	o := w.call.writes[0]
	w.call.writes = w.call.writes[1:]
	v := &w.versions[o.version]
	if lost {
		v.lost = v.lost || o.made
		w.m.Answered("a", calls.Version{})
		return true
	}
	w.written = max(w.written, o.version)
	if o.version <= o.floor {
		w.m.Answered("a", calls.Version{})
		return true
	}
	v.told, v.seen = true, false
	w.wrote = true // or has found a version that another call made
	if !v.own {    // a new generation does not pass for a write of the status
		v.passes = v.passes || !o.status || w.versions[o.version-1].generation == v.generation
	}
	w.m.Answered("a", calls.Version{UID: "u", Version: fmt.Sprint(o.version + 1), Status: o.status})
	return true
}

func (w *world) watch(to int) bool {
	if to >= len(w.versions) || to <= w.cache {
		return false
	}
	w.events = append(w.events, [2]int{w.cache, to})
	w.cache = to
	return true
}

func (w *world) object(n int) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: fmt.Sprint(n + 1), Generation: w.versions[n].generation}}
}

func (w *world) add() {
	if w.call != nil {
		w.call.added = true
	} else {
		w.queued = true
	}
}

func (w *world) event() bool {
	if len(w.events) == 0 {
		return false
	}
	e := w.events[0]
	w.events = w.events[1:]
	v := w.versions[e[1]]
	verdict := w.m.Judge(controllerkit.Event{Kind: "update", Old: w.object(e[0]), Object: w.object(e[1])}, "a", Event{Why: triggers.Reason{Mask: uint64(e[0])<<32 | uint64(e[1])}})
	switch verdict {
	case Foreign:
		if v.own && v.told && v.generation == w.versions[e[0]].generation {
			w.broken("the echo of version %d passes for another's event", e[1])
		}
		w.foreign = true
		w.add()
	case Held:
		if w.call == nil {
			w.broken("an event is held without a call")
		}
	case Confirm:
		w.add()
	case Late:
		w.late = true
	case Wait:
		if w.call == nil && !w.timer && !w.queued {
			w.broken("an echo waits for a call that nothing brings")
		}
	case Seen:
		if w.read < e[1] {
			w.broken("an event of version %d is dropped, and the last call has read %d", e[1], w.read)
		}
	}
	if !v.own {
		w.foreign = true // also one that passes for an echo
	}
	if !v.own && !v.passes && verdict != Foreign && verdict != Held {
		w.broken("another's event has the verdict %d", verdict)
	}
	return true
}

func (w *world) end(how string, echo Verdict) {
	w.was, w.timer = how, echo == Wait
	foreign, verdict := w.m.End("a", echo)
	added := w.call.added
	w.call = nil
	if added {
		w.queued = true
	}
	for _, e := range foreign {
		from, to := e.Why.Mask>>32, uint32(e.Why.Mask)
		if v := w.versions[to]; v.own && v.told && v.generation == w.versions[from].generation {
			w.broken("the echo of version %d, which was held, passes for another's event", to)
		}
		w.foreign, w.queued = true, true
	}
	switch verdict {
	case Confirm:
		w.queued = true
	case Late:
		w.late = true
	case Foreign, Held, Wait, Seen:
	}
}

// settle lets all that is under way come to its end, and checks that a call has read the last
// version of another.
func (w *world) settle() {
	for range 100 {
		ops := w.ops()
		if w.call != nil {
			for ops["answer"]() {
			}
			ops["succeed"]()
			continue
		}
		if ops["watch"]() || ops["event"]() || ops["begin"]() || ops["deadline"]() || ops["15m"]() {
			continue
		}
		break
	}
	for n, v := range w.versions {
		if !v.own && n > w.read {
			w.broken("no call has read version %d of another", n)
		}
	}
}

// names are the operations in order.
var names = []string{
	"begin", "write", "watch", "event", "answer", "fail", "succeed", "another writes", "relist", "deadline", "write status",
	"write nothing", "status nothing", "another labels", "late begin", "begin beside an event", "lose the answer", "give up", "15m",
}

var walks = flag.Int("walks", 3000, "random orders of operations")

// TestModel: in every order of up to six operations, and in random longer ones, each version of
// another is followed by a call that has read it, an echo does not run a key after a failure, and
// runs it once after a success.
//
// It proves R12 and R13.
func TestModel(t *testing.T) {
	run := func(sequence []string) (bad string, possible bool) {
		w := newWorld()
		for n, name := range sequence {
			if !w.ops()[name]() {
				return "", false
			}
			if w.bad != "" {
				return fmt.Sprintf("%d: %s", n, w.bad), true
			}
		}
		w.settle()
		return w.bad, true
	}
	const depth = 6
	tried := 0
	var all func(sequence []string)
	all = func(sequence []string) {
		bad, possible := run(sequence)
		if !possible || t.Failed() {
			return
		}
		tried++
		if bad != "" {
			t.Errorf("%s after: %s", bad, strings.Join(sequence, ", "))
			return
		}
		if len(sequence) < depth {
			for _, name := range names[:11] {
				all(append(sequence[:len(sequence):len(sequence)], name))
			}
		}
	}
	all([]string{"begin"})
	for seed := range uint64(*walks) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		w := newWorld()
		var done []string
		for len(done) < 40 && w.bad == "" {
			name := names[rnd.IntN(len(names))]
			if w.ops()[name]() {
				done = append(done, name)
			}
		}
		if w.bad == "" {
			w.settle()
		}
		if w.bad != "" {
			t.Fatalf("seed %d: %s after: %s", seed, w.bad, strings.Join(done, ", "))
		}
	}
	t.Logf("%d sequences and %d walks", tried, *walks)
}
