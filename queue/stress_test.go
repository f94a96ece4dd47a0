package queue_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/queue"
)

// For a night: go test -race -run '^TestStress$' ./queue -operations 100000000 -timeout 0
var stressOperations = flag.Int64("operations", 1_000_000,
	"how many operations TestStress does; TestLinearizable and TestNoWakeUpIsLost take their share from it")

const (
	stressKeys    = 64 // a set of keys is a uint64
	stressWorkers = 4
	stressAdders  = 4
	stressRound   = 4_000 // operations of each adder; a round is one queue
)

// stressOp counts the operations by kind.
type stressOp int

const (
	opAdd stressOp = iota
	opAddWith
	opAddAfter
	opAddRateLimited
	opForget
	opGet
	opGetContext
	opGetWithPriority
	opDone
	opLen
	opPending
	opSnapshot
	opDrain
	opShutDown
	opShutDownWithDrain
	stressOps
)

func (o stressOp) String() string {
	return [...]string{"Add", "AddWith", "AddAfter", "AddRateLimited", "Forget", "Get", "GetContext", "GetWithPriority",
		"Done", "Len", "Pending", "Snapshot", "Drain", "ShutDown", "ShutDownWithDrain"}[o]
}

// stress is one round. Versions show which adds a run has seen: an adder increments begun
// before it adds a key, and a worker stores the version as seen when it gets the key, so that
// a run never claims a later add. The adds that returned before the first stop are owed: a run
// sees them, or the queue holds the key.
type stress struct {
	t        *testing.T
	q        *queue.Queue[int]
	provider *provider // nil means none

	running           [stressKeys]atomic.Int32
	begun, seen, owed [stressKeys]atomic.Int64
	stopping          atomic.Bool // set before the queue is stopped
	quieting          atomic.Bool // no more retries, so that the queue becomes empty
	quiet             chan struct{}
	quietOnce         sync.Once
	terms             [stressWorkers]atomic.Pointer[context.CancelFunc]
	ended             atomic.Int64 // terms that ended
	done              [stressOps]atomic.Int64
}

// newStress makes a round, each with another kind of queue.
func newStress(t *testing.T, round int) *stress {
	s := &stress{t: t, quiet: make(chan struct{})}
	cfg := queue.Config[int]{RateLimiter: queue.Exponential[int](time.Microsecond, time.Millisecond)}
	if round%2 == 1 {
		cfg.Group = func(key int) string { return "abcde"[key%5 : key%5+1] }
	}
	if round%3 == 1 {
		cfg.MaxWait = time.Microsecond
	}
	if round%4 == 3 {
		s.provider = newProvider()
		cfg.Name, cfg.MetricsProvider = "stress", s.provider
	}
	s.q = queue.New(cfg)
	return s
}

// set turns keys into a set, and fails if one is there twice.
func (s *stress) set(from string, keys []int) (set uint64) {
	for _, key := range keys {
		if set>>key&1 == 1 {
			s.t.Errorf("%s: key %d is there twice in %v", from, key, keys)
		}
		set |= 1 << key
	}
	return set
}

// check fails if an add was lost. owed must have been read before held.
func (s *stress) check(from string, owed *[stressKeys]int64, held uint64) {
	for key := range stressKeys {
		if seen := s.seen[key].Load(); seen < owed[key] && held>>key&1 == 0 {
			s.t.Errorf("%s: add %d of key %d returned, its last run saw %d, and it is not held", from, owed[key], key, seen)
		}
	}
}

func (s *stress) owe() (owed [stressKeys]int64) {
	for key := range owed {
		owed[key] = s.owed[key].Load()
	}
	return owed
}

// pending compares the adds that have returned with the keys that the queue holds.
func (s *stress) pending() {
	owed := s.owe()
	s.check("Pending", &owed, s.set("Pending", s.q.Pending()))
}

func (s *stress) snapshot() {
	state := s.q.Snapshot()
	if n := state.Ready + state.Running + state.Delayed; n > stressKeys || state.Running > stressWorkers || len(state.Keys) != n {
		s.t.Errorf("Snapshot: %d ready, %d running, %d delayed, %d listed, of %d keys and %d workers",
			state.Ready, state.Running, state.Delayed, len(state.Keys), stressKeys, stressWorkers)
	}
	var listed uint64
	for _, k := range state.Keys {
		var key int
		for _, digit := range k.Key {
			key = key*10 + int(digit-'0')
		}
		if listed>>key&1 == 1 {
			s.t.Errorf("Snapshot: key %d is there twice", key)
		}
		listed |= 1 << key
	}
}

// drain checks the keys that Drain returns, as pending does.
func (s *stress) drain(ctx context.Context) error {
	s.stopping.Store(true)
	owed := s.owe()
	left, err := s.q.Drain(ctx)
	s.check("Drain", &owed, s.set("Drain", left))
	return err
}

// stop stops the queue in one of the ways there are.
func (s *stress) stop(r *rand.Rand, ops *[stressOps]int64) {
	s.stopping.Store(true)
	switch r.IntN(3) {
	case 0:
		ops[opDrain]++
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(1000))*time.Microsecond)
		defer cancel()
		if err := s.drain(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, queue.ErrShutDown) {
			s.t.Errorf("Drain: got %v, want the deadline or ErrShutDown", err)
		}
	case 1:
		ops[opShutDown]++
		s.q.ShutDown()
	case 2:
		ops[opShutDownWithDrain]++
		s.q.ShutDownWithDrain()
	}
}

// returned runs after an add. If no stop has begun, the add is owed.
func (s *stress) returned(key int, version int64) {
	for !s.stopping.Load() {
		old := s.owed[key].Load()
		if old >= version || s.owed[key].CompareAndSwap(old, version) {
			return
		}
	}
}

// adder adds keys, looks at the queue, and ends the terms of workers. With
// stopAt it stops the queue then, and goes on.
func (s *stress) adder(r *rand.Rand, stopAt int) {
	var ops [stressOps]int64
	defer s.count(&ops)
	for i := range stressRound {
		if i == stopAt {
			s.stop(r, &ops)
		}
		bits := r.Uint64()
		if bits>>60 < 12 {
			runtime.Gosched() // or the adders have the lock to themselves and add what is ready anyway
		}
		key, n, arg := int(bits%stressKeys), bits>>8%128, bits>>16
		if n < 110 {
			version := s.begun[key].Add(1)
			switch {
			case n < 50:
				ops[opAdd]++
				s.q.Add(key)
			case n < 74:
				ops[opAddWith]++
				s.q.AddWith(controllerkit.AddOptions{Priority: int(arg%3) - 1}, key)
			case n < 80:
				ops[opAddWith]++
				s.q.AddWith(controllerkit.AddOptions{Priority: int(arg % 3), After: time.Duration(arg>>8%50) * time.Microsecond, RateLimited: arg>>16%2 == 0}, key)
			case n < 98:
				ops[opAddAfter]++
				s.q.AddAfter(key, time.Duration(arg%100)*time.Microsecond)
			default:
				ops[opAddRateLimited]++
				s.q.AddRateLimited(key)
			}
			s.returned(key, version)
			continue
		}
		switch {
		case n < 118:
			ops[opLen]++
			if length := s.q.Len(); length < 0 || length > stressKeys {
				s.t.Errorf("Len: got %d, of %d keys", length, stressKeys)
			}
		case n < 122:
			ops[opForget]++
			s.q.Forget(key)
		case n < 124:
			ops[opDone]++ // of a key that does not run: only its worker may end a running key
			s.q.Done(stressKeys)
		case n < 125:
			ops[opPending]++
			s.pending()
		case n < 126:
			ops[opSnapshot]++
			s.snapshot()
		default:
			if cancel := s.terms[arg%stressWorkers].Load(); cancel != nil {
				(*cancel)()
			}
		}
	}
}

// worker runs keys until the queue is stopped. One of four uses Get, one
// GetWithPriority, the others come and go by context, as leaders do.
func (s *stress) worker(w int, r *rand.Rand) {
	var ops [stressOps]int64
	defer s.count(&ops)
	ctx, cancel := context.WithCancel(context.Background())
	first := cancel // cancel changes from term to term, and others read what is stored
	s.terms[w].Store(&first)
	for {
		var key int
		var ok bool
		switch w {
		case 0:
			ops[opGet]++
			k, shutdown := s.q.Get()
			key, ok = k, !shutdown
		case 1:
			ops[opGetWithPriority]++
			k, _, shutdown := s.q.GetWithPriority()
			key, ok = k, !shutdown
		default:
			ops[opGetContext]++
			key, _, ok = s.q.GetContext(ctx)
		}
		if !ok {
			ended := w > 1 && ctx.Err() != nil
			if !ended && !s.q.ShuttingDown() {
				s.t.Errorf("worker %d got no key, its context goes on and the queue is not stopped", w)
			}
			cancel()
			if !ended {
				return
			}
			s.ended.Add(1)
			next, stop := context.WithCancel(context.Background())
			ctx, cancel = next, stop
			s.terms[w].Store(&stop)
			continue
		}
		if n := s.running[key].Add(1); n != 1 {
			s.t.Errorf("key %d is with %d workers", key, n)
		}
		s.seen[key].Store(s.begun[key].Load())
		if !s.quieting.Load() {
			if r.IntN(2) == 0 {
				runtime.Gosched() // others add it while it runs
			}
			switch r.IntN(16) {
			case 0:
				ops[opAddRateLimited]++
				s.q.AddRateLimited(key)
			case 1:
				ops[opAddAfter]++
				s.q.AddAfter(key, 10*time.Microsecond)
			case 2:
				ops[opForget]++
				s.q.Forget(key)
			case 3:
				version := s.begun[key].Add(1)
				ops[opAdd]++
				s.q.Add(key)
				s.returned(key, version)
			}
		}
		s.running[key].Add(-1)
		ops[opDone]++
		s.q.Done(key)
		s.noteQuiet()
	}
}

// noteQuiet runs after each Done. When no more keys are added, the last Done leaves the queue
// empty.
func (s *stress) noteQuiet() {
	if s.quieting.Load() && len(s.q.Pending()) == 0 {
		s.quietOnce.Do(func() { close(s.quiet) })
	}
}

func (s *stress) count(ops *[stressOps]int64) {
	for op, n := range ops {
		s.done[op].Add(n)
	}
}

// awaitQuiet waits until everything that was added is done, and looks whether
// the queue is empty then.
func (s *stress) awaitQuiet() {
	s.quieting.Store(true)
	s.noteQuiet()
	<-s.quiet
	if state := s.q.Snapshot(); state.Ready+state.Running+state.Delayed+len(state.Keys)+s.q.Len() != 0 {
		s.t.Errorf("everything is done, and Snapshot is not empty: %+v", state)
	}
	if s.provider != nil && s.provider.depth.get() != 0 {
		s.t.Errorf("everything is done, and the depth is %v", s.provider.depth.get())
	}
	owed := s.owe()
	s.check("quiet", &owed, 0)
}

// round runs all operations at once, stops the queue, and checks the remaining keys. In one
// round of three the stop comes after all other operations.
func (s *stress) round(round int) {
	hangs := time.AfterFunc(time.Minute, func() { // go test may have no time limit
		debug.SetTraceback("all")
		panic(fmt.Sprintf("round %d hangs for a minute: %+v", round, s.q.Snapshot()))
	})
	defer hangs.Stop()
	var work, add sync.WaitGroup
	for w := range stressWorkers {
		r := rand.New(rand.NewPCG(rand.Uint64(), uint64(w)))
		work.Go(func() { s.worker(w, r) })
	}
	for a := range stressAdders {
		r := rand.New(rand.NewPCG(rand.Uint64(), uint64(a)))
		stopAt := -1
		if round%3 != 0 && a <= round%stressAdders {
			stopAt = stressRound/2 + r.IntN(stressRound/2)
		}
		add.Go(func() { s.adder(r, stopAt) })
	}
	add.Wait()
	if round%3 == 0 {
		s.awaitQuiet()
	}
	if err := s.drain(context.Background()); err != nil {
		s.t.Errorf("Drain: %v", err)
	}
	s.done[opDrain].Add(1)
	work.Wait()
	held := s.set("Pending", s.q.Pending())
	owed := s.owe()
	s.check("end", &owed, held)
	state := s.q.Snapshot()
	if state.Ready+state.Running != 0 || state.Delayed != len(s.q.Pending()) || round%3 == 0 && held != 0 {
		s.t.Errorf("the queue is drained, and Snapshot is %+v", state)
	}
}

// TestStress runs all operations at once, in real time and in rounds, each with a queue of
// its own. At most one worker has a key. Each key that was added before the stop reaches a
// worker or stays in the queue, once. A round leaves no goroutine and no memory behind.
//
// It proves Q1, Q2 and Q8.
func TestStress(t *testing.T) {
	before := goleak.IgnoreCurrent() // e.g. the goroutines of the API server of other tests
	begin := time.Now()
	var total, ended int64
	var done [stressOps]int64
	var heap uint64
	const settled = 12 // rounds: every kind of queue was there
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	rounds := 0
	for ; (total < *stressOperations || rounds <= settled) && !t.Failed(); rounds++ {
		if rounds == settled {
			heap = memory()
		}
		s := newStress(t, rounds)
		s.round(rounds)
		for op := range done {
			n := s.done[op].Load()
			done[op] += n
			total += n
		}
		ended += s.ended.Load()
	}
	if err := testserver.Leak(before); err != nil {
		t.Error(err)
	}
	if after := memory(); rounds > settled && after > heap+256<<10 {
		t.Errorf("%d rounds hold %d KiB", rounds-settled, (after-heap)>>10)
	}
	if ended == 0 {
		t.Error("no worker ended by its context")
	}
	var counts strings.Builder
	for op, n := range done {
		fmt.Fprintf(&counts, " %v %d,", stressOp(op), n)
		if n == 0 && !t.Failed() {
			t.Errorf("%v was never called", stressOp(op))
		}
	}
	took := time.Since(begin)
	t.Logf("%d operations in %d rounds and %v, %.0f a second:%s %d terms ended",
		total, rounds, took.Round(time.Millisecond), float64(total)/took.Seconds(), counts.String(), ended)
}

// TestNoWakeUpIsLost adds one key while workers wait, and ends the contexts of some of them at
// the same moment. When all goroutines are blocked, another worker must have the key, and the
// workers with ended contexts must have returned. The contexts have children: while these are
// cancelled, a worker can see that its context is done before its channel is closed.
//
// It proves Q7.
func TestNoWakeUpIsLost(t *testing.T) {
	const workers, children = 4, 10
	adds := max(20_000, int(*stressOperations/200))
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(queue.Config[int]{})
		var taken, away atomic.Int64 // the last key; workers whose context ended
		var terms [workers]context.CancelFunc
		var again [workers]chan context.Context
		begin := func(w int) {
			var ctx context.Context
			ctx, terms[w] = context.WithCancel(context.Background())
			for range children {
				_ = context.AfterFunc(ctx, func() {})
			}
			again[w] <- ctx
		}
		var work sync.WaitGroup
		for w := range workers {
			again[w] = make(chan context.Context, 1)
			work.Go(func() {
				for ctx := range again[w] {
					key, _, ok := q.GetContext(ctx)
					for ; ok; key, _, ok = q.GetContext(ctx) {
						taken.Store(int64(key))
						q.Done(key)
					}
					away.Add(1)
				}
			})
			begin(w)
		}
		ended := 0
		for key := 1; key <= adds; key++ {
			synctest.Wait() // every worker waits
			leave := rand.Perm(workers)[:rand.IntN(workers)]
			ended += len(leave)
			var events sync.WaitGroup
			for i, w := range leave {
				if i == len(leave)/2 {
					events.Go(func() { q.Add(key) })
				}
				events.Go(terms[w])
			}
			if len(leave) == 0 {
				q.Add(key)
			}
			events.Wait()
			synctest.Wait()
			if got := taken.Load(); got != int64(key) {
				t.Errorf("key %d was added, %d workers wait, and the last key taken is %d: %+v", key, workers-len(leave), got, q.Snapshot())
				break
			}
			if got := away.Swap(0); got != int64(len(leave)) {
				t.Errorf("the contexts of %d workers ended, and %d of them returned", len(leave), got)
				break
			}
			for _, w := range leave { // back, and half of the times away again while it comes
				begin(w)
				if key%2 == 0 {
					events.Go(terms[w])
				}
			}
			if key%2 == 0 {
				events.Wait()
				synctest.Wait()
				if got := away.Swap(0); got != int64(len(leave)) {
					t.Errorf("the contexts of %d workers ended as they came, and %d of them returned", len(leave), got)
					break
				}
				for _, w := range leave {
					begin(w)
				}
			}
		}
		q.ShutDown()
		for w := range workers {
			terms[w]()
			close(again[w])
		}
		work.Wait()
		t.Logf("%d keys were added and taken one at a time, %d contexts ended", taken.Load(), ended)
	})
}
