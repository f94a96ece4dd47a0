package rows

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// QueueRow is a row about queues, for tests.
type QueueRow struct{ row queueRow }

// QueueRows returns the rows about queues.
func QueueRows() []QueueRow {
	var rows []QueueRow
	for _, row := range queueRows {
		rows = append(rows, QueueRow{row})
	}
	return rows
}

// Name is the row's name.
func (r QueueRow) Name() string { return r.row.Name }

// Sizes returns the amount of work against each rival.
func (r QueueRow) Sizes() []int {
	return []int{r.row.besideClientGo, r.row.besideControllerRuntime}
}

// Contenders returns the names of the row's contenders.
func (r QueueRow) Contenders() []string { return append(r.row.rivals(), "controllerkit") }

// Check does the row's work on a contender with string keys or struct keys. It fails
// the test if the queue does not return the keys as the row declares.
func (r QueueRow) Check(t *testing.T, contender string, structs bool, size int) {
	t.Helper()
	if structs {
		check(t, r.row, structKind(), r.row.structs, contender, size)
	} else {
		check(t, r.row, stringKind(), r.row.strings, contender, size)
	}
}

func check[K comparable](t *testing.T, row queueRow, k *kind[K], do work[K], contender string, size int) {
	t.Helper()
	open := k.contenders(row.metrics)[contender]
	m := &bench.Meter{Quick: true}
	r := &recorder[K]{t: t, marker: k.marker, handed: map[K]int{}, left: map[K]int{}}
	ops := do(m, k, func(keys []K) target[K] {
		r.open(open(keys), keys)
		return r
	}, size)
	want := row.handedOut(m, ops)
	if got := len(r.handed); got != want.keys {
		t.Errorf("%d different keys were handed out, want %d", got, want.keys)
	}
	each := func(what string, counts map[K]int, want int) {
		for key, n := range counts {
			if n != want {
				lowest, highest := slices.Min(slices.Collect(maps.Values(counts))), slices.Max(slices.Collect(maps.Values(counts)))
				t.Errorf("%v was %s %d times (others %d to %d times), want %d", key, what, n, lowest, highest, want)
				return
			}
		}
	}
	each("handed out", r.handed, want.each)
	if want.left == 0 {
		if len(r.left) > 0 {
			t.Errorf("%d keys were left in a queue at its end, want none", len(r.left))
		}
		return
	}
	if got := len(r.left); got != want.keys {
		t.Errorf("%d keys were left in a queue at its end, want %d", got, want.keys)
	}
	each("left in a queue", r.left, want.left)
}

// recorder wraps one queue after another and records their calls and keys. Before a
// shutdown it takes all remaining keys out of the queue. Time is synctest's, so it can
// wait for any delay.
type recorder[K comparable] struct {
	t      *testing.T
	marker K

	target[K]
	keys []K
	lost *time.Timer

	mu      sync.Mutex // guards all below
	inside  map[K]bool // added, and not handed out since
	running map[K]bool
	handed  map[K]int
	left    map[K]int // how often a key was inside at the end
	ended   bool      // the queue's keys are being taken out
}

func (r *recorder[K]) open(queue target[K], keys []K) {
	r.target, r.keys, r.ended = queue, keys, false
	r.inside, r.running = map[K]bool{}, map[K]bool{}
	// synctest does not report a Get that waits for a lost key as a deadlock, because
	// the rivals' queues have tickers.
	r.lost = time.AfterFunc(longest, func() { panic("a key was lost, or a delay does not end") })
}

func (r *recorder[K]) added(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside[key] = true
}

func (r *recorder[K]) add(i int) {
	r.added(r.keys[i])
	r.target.add(i)
}

func (r *recorder[K]) addAfter(i int, delay time.Duration) {
	r.added(r.keys[i])
	r.target.addAfter(i, delay)
}

func (r *recorder[K]) addRateLimited(i int) {
	r.added(r.keys[i])
	r.target.addRateLimited(i)
}

func (r *recorder[K]) get() K {
	key := r.target.get()
	r.mu.Lock()
	defer r.mu.Unlock()
	if key == r.marker {
		return key // from worker to worker, or once
	}
	if !r.inside[key] {
		r.t.Errorf("%v was handed out and not added before", key)
	}
	if r.running[key] {
		r.t.Errorf("%v was handed out twice at once", key)
	}
	delete(r.inside, key)
	r.running[key] = true
	r.handed[key]++
	if r.ended {
		r.left[key]++
	}
	return key
}

func (r *recorder[K]) done(key K) {
	r.mu.Lock()
	delete(r.running, key)
	r.mu.Unlock()
	r.target.done(key)
}

func (r *recorder[K]) shutDown() {
	if len(r.running) > 0 {
		r.t.Errorf("%d keys are not done at the end", len(r.running))
	}
	r.ended = true
	for range len(r.inside) {
		r.done(r.get())
	}
	if n := r.len(); n > 0 {
		r.t.Errorf("%d keys are ready, and more than were added", n)
	}
	r.lost.Stop()
	r.target.shutDown()
}

// longest is longer than any delay in the rows.
const longest = 48 * time.Hour

// Spread returns the number of groups for both kinds of keys, and the number of groups
// that use both priorities.
func Spread(n int) (groups, both [2]int) {
	groups[0], both[0] = spread(stringKind(), n)
	groups[1], both[1] = spread(structKind(), n)
	return groups, both
}

func spread[K comparable](k *kind[K], n int) (groups, both int) {
	seen := map[string][2]bool{}
	for i, key := range k.keys(n) {
		s := seen[k.group(key)]
		s[i%2] = true
		seen[k.group(key)] = s
	}
	for _, s := range seen {
		if s[0] && s[1] {
			both++
		}
	}
	return len(seen), both
}

// Order adds the keys with the given indexes by the given method. It returns the order
// in which the contender returns them after their delays.
func Order(contender, method string, indexes ...int) []int {
	k := stringKind()
	keys := k.keys(slices.Max(indexes) + 1)
	q := k.contenders(false)[contender](keys)
	defer q.shutDown()
	for _, i := range indexes {
		switch method {
		case "add":
			q.add(i)
		case "addAfter":
			q.addAfter(i, time.Hour)
		case "addRateLimited":
			q.addRateLimited(i)
		}
	}
	time.Sleep(longest)
	var order []int
	for range indexes {
		key := q.get()
		order = append(order, slices.Index(keys, key))
		q.done(key)
	}
	return order
}
