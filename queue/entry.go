package queue

import "github.com/controllerkit/controllerkit/queue/internal/arena"

// ref is the number of an entry.
type ref = arena.Ref

// entries are the entries of a queue.
type entries = arena.Blocks[entry]

// entry is the state of one key. A key has at most one entry, and an entry is in
// exactly one of the three states. It has no pointers, so that the garbage collector
// does not scan it.
type entry struct {
	next  ref // ready: in its lane; running: in Queue.running
	prev  ref
	group uint32 // in groups
	place int32  // delayed: in delays

	state keyState

	// Running: the adds since Get.
	then   then
	asks   bool // asked is set
	keeps  bool // an add gave no priority: the key keeps its own, or gets a higher one
	forgot bool // Forget was called: the key does not keep its priority
	asked  int  // the highest priority that an add gave

	priority int

	at    int64 // with a delay: when it ends; otherwise, with metrics: when the key was added
	order int64 // ready, delayed: its number in that order; running: when it started
}

type keyState uint8

const (
	stateReady   keyState = iota // in ready
	stateDelayed                 // in delays
	stateRunning                 // in running: between Get and Done
)

// then is the state of a running key after Done.
type then uint8

const (
	thenForgotten then = iota
	thenReady
	thenDelayed // until entry.at
)

// list is a linked list of entries, so that a key can be added and removed anywhere
// in constant time and without allocation. An entry is in one list at most.
type list struct {
	head, tail ref
	n          int
}

func (l *list) push(s entries, r ref, e *entry) {
	e.next, e.prev = 0, l.tail
	if l.tail == 0 {
		l.head = r
	} else {
		s.At(l.tail).next = r
	}
	l.tail = r
	l.n++
}

func (l *list) remove(s entries, e *entry) {
	if e.prev == 0 {
		l.head = e.next
	} else {
		s.At(e.prev).next = e.next
	}
	if e.next == 0 {
		l.tail = e.prev
	} else {
		s.At(e.next).prev = e.prev
	}
	l.n--
}
