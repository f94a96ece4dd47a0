package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// Concurrent goroutines can only run the lock sections of a queue in some order. TestOrders
// runs the sections of all programs of a number of operations in every order, on the queue
// and on the model.
//
// An operation is an Add, an AddWith of higher priority, one AddAfter, one
// ShutDown or Drain, a Get, one end of the context of a Get, or a Done; two
// workers call Get and Done. The number of producers does not matter, because each of their
// operations is one section and the queue does not know its caller. Keys and workers without
// an operation are interchangeable for the same reason. Between operations their effects
// come, in every order too: a woken Get continues, a delay ends.
const orderOperations = 7

var orderKeys = []string{"a1", "a2", "b1"}

// world has a queue, the model, and the states of the workers.
type world struct {
	*machine
	workers [2]worker
	used    int  // keys
	after   bool // AddAfter was called
	drains  bool // Drain was called
	ended   bool // a context has ended
}

type worker struct {
	holds string
	waits *queue.Waiter
	ended bool // the context of its Get is done
	gone  bool // Get has returned shutdown
}

func (w worker) String() string {
	switch {
	case w.gone:
		return "gone"
	case w.holds != "":
		return "holds " + w.holds
	case w.waits != nil:
		return fmt.Sprintf("waits, woken %v, ended %v", w.waits.Woken(), w.ended)
	}
	return "free"
}

// A step is an operation, in upper case, or the effect of one.
type step struct {
	name   string
	key    string
	worker int
}

func (s step) operation() bool { return s.name[0] < 'a' }

func (s step) String() string {
	switch s.name {
	case "Get", "Done", "End", "goes on":
		return fmt.Sprintf("worker %d: %s", s.worker, s.name)
	}
	return s.name + " " + s.key
}

func (w *world) steps(operations int) (steps []step) {
	for i, o := range w.workers {
		if o.waits != nil && (o.ended || o.waits.Woken()) {
			steps = append(steps, step{name: "goes on", worker: i})
		}
	}
	if !w.m.stopping && w.count("delayed") > 0 {
		steps = append(steps, step{name: "delay ends"})
	}
	if operations == orderOperations {
		return steps
	}
	for _, key := range orderKeys[:min(w.used+1, len(orderKeys))] {
		steps = append(steps, step{name: "Add", key: key}, step{name: "AddWith", key: key})
		if !w.after {
			steps = append(steps, step{name: "AddAfter", key: key})
		}
	}
	if !w.m.stopping {
		steps = append(steps, step{name: "ShutDown"}, step{name: "Drain"})
	}
	free := false
	for i, o := range w.workers {
		switch {
		case o.holds != "":
			steps = append(steps, step{name: "Done", worker: i})
		case o.waits != nil && !w.ended:
			steps = append(steps, step{name: "End", worker: i})
		case o.waits == nil && !o.gone && !free:
			free = true
			steps = append(steps, step{name: "Get", worker: i})
		}
	}
	return steps
}

func (w *world) run(s step) {
	o := &w.workers[s.worker]
	if i := slices.Index(orderKeys, s.key); i >= w.used {
		w.used = i + 1
	}
	switch s.name {
	case "Add":
		w.Add(s.key)
	case "AddWith":
		w.AddWith(controllerkit.AddOptions{Priority: 5}, s.key)
	case "AddAfter":
		w.after = true
		w.AddAfter(s.key, time.Hour)
	case "ShutDown":
		w.q.ShutDown()
		w.m.stopping = true
	case "Drain":
		w.q.Stop()
		w.drains, w.m.stopping = true, true
	case "delay ends":
		w.Advance(time.Hour)
	case "End":
		w.ended, o.ended = true, true
	case "Done":
		w.Done(o.holds)
		o.holds = ""
	case "Get":
		w.got(o, false, w.q.TryGet)
	case "goes on":
		waits := o.waits
		o.waits = nil
		w.got(o, o.ended, func(ended bool) (string, bool, *queue.Waiter) { return w.q.Arrive(waits, ended) })
	}
}

func (w *world) got(o *worker, ended bool, get func(bool) (string, bool, *queue.Waiter)) {
	key, ok, waits := get(ended)
	o.ended = false
	switch ready := w.count("ready") > 0; {
	case ok && (!ready || ended):
		w.t.Fatalf("got %q, want none", key)
	case ok:
		if want := w.m.get().key; key != want {
			w.t.Fatalf("got %q, want %q", key, want)
		}
		o.holds = key
	case waits != nil && (ready || w.m.stopping || ended):
		w.t.Fatalf("waits, with ready keys: %v, stopped: %v, ended: %v", ready, w.m.stopping, ended)
	case waits == nil && !ended && !(w.m.stopping && !ready):
		w.t.Fatalf("got none, with ready keys: %v, stopped: %v", ready, w.m.stopping)
	case waits == nil:
		o.gone = !ended
	}
	o.waits = waits
}

// check checks the invariants between two sections.
func (w *world) check() {
	w.Check()
	idle, onTheWay := 0, 0
	for _, o := range w.workers {
		switch {
		case o.waits != nil && (o.ended || o.waits.Woken()):
			onTheWay++
		case o.waits != nil:
			idle++
		}
	}
	if idle > 0 && onTheWay == 0 && w.count("ready") > 0 {
		w.t.Fatalf("lost wake-up: %d keys are ready, and %d workers wait for ever", w.count("ready"), idle)
	}
	if idle > 0 && w.m.stopping {
		w.t.Fatalf("lost wake-up: the queue is stopped, and %d workers wait for ever", idle)
	}
	if want := !w.m.stopping && w.count("delayed") > 0; want && !w.q.Armed() || w.m.stopping && w.q.Armed() {
		w.t.Fatalf("the timer is set: %v, want %v", !want, want)
	}
	if want := w.m.stopping && w.count("ready")+w.count("running") == 0; w.q.Idle() != want {
		w.t.Fatalf("idle: got %v, want %v", !want, want)
	}
	if w.drains && w.q.Idle() {
		left, err := w.q.Left()
		slices.Sort(left)
		if diff := cmp.Diff(w.keys(), left); diff != "" || err != nil {
			w.t.Fatalf("Drain: error %v, left (-want +got):\n%s", err, diff)
		}
	}
}

// inside is all that the future of the queue and of the model depends on.
func (w *world) inside(operations int) string {
	waits := map[*queue.Waiter]string{}
	workers := make([]string, 0, len(w.workers))
	for _, o := range w.workers {
		workers = append(workers, o.String())
		if o.waits != nil {
			waits[o.waits] = o.String()
		}
	}
	slices.Sort(workers)
	var model []string
	for _, k := range w.m.keys {
		model = append(model, fmt.Sprint(k.key, k.state, k.priority, k.asks, k.keeps, k.asked, k.forgot, k.wants, k.again))
	}
	slices.Sort(model)
	return fmt.Sprint(operations, w.used, w.after, w.drains, w.ended, workers, model, w.q.Inside(waits))
}

type orders struct {
	t      *testing.T
	path   []step
	counts map[string]uint64 // by inside: how many orders there are from here on
}

func (o *orders) Helper() { o.t.Helper() }

func (o *orders) Fatalf(format string, args ...any) {
	o.t.Helper()
	var lines []string
	for _, s := range o.path {
		lines = append(lines, s.String())
	}
	o.t.Fatalf("%s\nafter:\n  %s", fmt.Sprintf(format, args...), strings.Join(lines, "\n  "))
}

// explore runs all that can follow the path so far, on a new queue each time, and
// returns how many orders that are.
func (o *orders) explore(operations int) uint64 {
	w := &world{machine: newMachine(o)}
	for _, s := range o.path {
		w.run(s)
	}
	inside := w.inside(operations)
	n, known := o.counts[inside]
	if known {
		w.q.ShutDown()
		return n
	}
	w.check()
	steps := w.steps(operations)
	w.q.ShutDown()
	for _, s := range steps {
		o.path = append(o.path, s)
		if s.operation() {
			n += o.explore(operations + 1)
		} else {
			n += o.explore(operations)
		}
		o.path = o.path[:len(o.path)-1]
	}
	n = max(n, 1)
	o.counts[inside] = n
	return n
}

// TestOrders proves Q1, Q2 and Q7.
func TestOrders(t *testing.T) {
	if testing.Short() {
		t.Skip("explores for 4s")
	}
	withoutRaceDetector(t) // one goroutine at a time
	synctest.Test(t, func(t *testing.T) {
		o := &orders{t: t, counts: map[string]uint64{}}
		n := o.explore(0)
		if n < 1_000_000 {
			t.Errorf("%d orders: most are missing", n)
		}
		t.Logf("%d orders of the lock sections of all programs of %d operations, %d different states", n, orderOperations, len(o.counts))
	})
}
