package queue_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// Concurrent calls of a queue must look like calls of one goroutine, one after the other.
// Clients record the arguments, the results and the times of their calls. Porcupine searches
// for an order of these calls that the model below allows. Keys are "a" to "d" so that a set of
// keys is a string; priorities are -1, 0 and 1.

// historyCall is an operation as it was called.
type historyCall struct {
	op       string // "Add", "Forget", "Done", "Get", "cancel", "ShutDown", "Len" or "Pending"
	key      string
	priority int  // of Add; 0 also stands for the plain Add
	ctx      int  // of Get and cancel: which context
	late     bool // of Get: the context was done before it was called
}

// historyReturn has the results of an operation.
type historyReturn struct {
	key      string // of Get; of Pending all keys in alphabetical order
	priority int
	ok       bool
	n        int // of Len
}

// historyKey is the model's state of a key that is running or was added.
type historyKey struct {
	priority, asked      int
	running, again, kept bool // kept: added while it ran in a stopped queue
}

// historyState is the model: a queue whose operations come one after the other.
type historyState struct {
	groups    int // 1, or 2: the keys a and c, and b and d
	keys      [4]historyKey
	ready     string     // in the order in which they became ready at their priority
	passed    [3][2]bool // by priority and group: it waits, and the other had a turn since
	cancelled uint64     // a bit for each context
	stopped   bool
}

func (s *historyState) of(key string) *historyKey { return &s.keys[key[0]-'a'] }
func (s *historyState) group(key string) int      { return int(key[0]-'a') % s.groups }

// waiting returns the ready keys of a group and priority, in order.
func (s *historyState) waiting(priority, group int) string {
	return strings.Map(func(c rune) rune {
		if s.of(string(c)).priority == priority && s.group(string(c)) == group {
			return c
		}
		return -1
	}, s.ready)
}

func (s *historyState) arrive(key string, priority int) {
	*s.of(key) = historyKey{priority: priority}
	s.ready += key
}

func (s *historyState) leave(key string) {
	s.ready = strings.Replace(s.ready, key, "", 1)
	if p, g := s.of(key).priority, s.group(key); s.waiting(p, g) == "" {
		s.passed[p+1][g] = false
	}
}

// get returns key if it may come next. A group that waits lets
// the other go first once at most; which of the two begins is left open.
func (s *historyState) get(key string, priority int) bool {
	g, other := s.group(key), 1-s.group(key)
	higher := strings.ContainsFunc(s.ready, func(c rune) bool { return s.of(string(c)).priority > priority })
	if higher || !strings.HasPrefix(s.waiting(priority, g), key) || s.passed[priority+1][other] {
		return false
	}
	s.leave(key)
	s.passed[priority+1][g], s.passed[priority+1][other] = false, s.waiting(priority, other) != ""
	*s.of(key) = historyKey{priority: priority, running: true}
	return true
}

// step runs the operation in the model, and reports whether it is possible.
func (s *historyState) step(in historyCall, out historyReturn) bool {
	switch in.op {
	case "Add":
		switch k := s.of(in.key); {
		case s.stopped:
			k.kept = k.kept || k.running && !k.again
		case k.running && k.again:
			k.asked = max(k.asked, in.priority)
		case k.running:
			k.again, k.asked = true, in.priority
		case !strings.Contains(s.ready, in.key):
			s.arrive(in.key, in.priority)
		case in.priority > k.priority:
			s.leave(in.key)
			s.arrive(in.key, in.priority)
		}
	case "Forget": // changes no priority: each add of a history gives one
	case "Done":
		switch k := *s.of(in.key); {
		case k.running && k.again:
			s.arrive(in.key, k.asked)
		case k.running:
			*s.of(in.key) = historyKey{kept: k.kept}
		}
	case "Get":
		if out.ok {
			return !in.late && s.get(out.key, out.priority)
		}
		return s.cancelled>>in.ctx&1 == 1 || s.stopped && s.ready == ""
	case "cancel":
		s.cancelled |= 1 << in.ctx
	case "ShutDown":
		s.stopped = true
	case "Len":
		return out.n == len(s.ready)
	case "Pending":
		return out.key == s.held()
	}
	return true
}

func (s *historyState) held() (held string) {
	for _, key := range []string{"a", "b", "c", "d"} {
		if k := s.of(key); k.running || k.kept || strings.Contains(s.ready, key) {
			held += key
		}
	}
	return held
}

func historyModel(groups int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return historyState{groups: groups} },
		Step: func(state, in, out any) (bool, any) {
			s := state.(historyState)
			ok := s.step(in.(historyCall), out.(historyReturn))
			return ok, s
		},
	}
}

// describeHistory prints a history in the order of the calls, and the longest
// beginning of it that the model allows.
func describeHistory(model porcupine.Model, history []porcupine.Operation) string {
	var b strings.Builder
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	describe := func(i int) {
		o := history[i]
		in, out := o.Input.(historyCall), o.Output.(historyReturn)
		fmt.Fprintf(&b, "  %3d..%-3d client %d  ", o.Call, o.Return, o.ClientId)
		switch in.op {
		case "Add":
			fmt.Fprintf(&b, "Add %s at %d\n", in.key, in.priority)
		case "Get":
			fmt.Fprintf(&b, "Get with context %d", in.ctx)
			if in.late {
				b.WriteString(", which is done")
			}
			if out.ok {
				fmt.Fprintf(&b, " = %s at %d\n", out.key, out.priority)
			} else {
				b.WriteString(" = none\n")
			}
		case "cancel":
			fmt.Fprintf(&b, "cancel context %d\n", in.ctx)
		case "Len":
			fmt.Fprintf(&b, "Len = %d\n", out.n)
		case "Pending":
			fmt.Fprintf(&b, "Pending = %q\n", out.key)
		default:
			fmt.Fprintf(&b, "%s %s\n", in.op, in.key)
		}
	}
	for i := range history {
		describe(i)
	}
	_, info := porcupine.CheckOperationsVerbose(model, history, 0)
	var longest []int
	for _, order := range info.PartialLinearizations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	fmt.Fprintf(&b, "the longest order found that is allowed, %d of %d:\n", len(longest), len(history))
	for _, i := range longest {
		describe(i)
	}
	b.WriteString("never reached:\n")
	for i := range history {
		if !slices.Contains(longest, i) {
			describe(i)
		}
	}
	return b.String()
}

const (
	historyClients  = 5 // and the conductor
	historyContexts = 6
)

// historyRun is one history under way.
type historyRun struct {
	q       *queue.Queue[string]
	keys    int
	clock   atomic.Int64
	arrived atomic.Int64 // clients that have not begun
	ctxs    [historyContexts]context.Context
	cancels [historyContexts]context.CancelFunc
	clients [historyClients + 1]struct {
		operations []porcupine.Operation
		waits      atomic.Int64 // the context of the Get under way, plus 1
		ended      atomic.Bool
	}
}

func (h *historyRun) do(client int, in historyCall) (out historyReturn) {
	c := &h.clients[client]
	call := h.clock.Add(1)
	switch in.op {
	case "Add":
		if in.priority == 0 {
			h.q.Add(in.key)
		} else {
			h.q.AddWith(controllerkit.AddOptions{Priority: in.priority}, in.key)
		}
	case "Forget":
		h.q.Forget(in.key)
	case "Done":
		h.q.Done(in.key)
	case "Get":
		in.late = h.ctxs[in.ctx].Err() != nil
		c.waits.Store(int64(in.ctx) + 1)
		out.key, out.priority, out.ok = h.q.GetContext(h.ctxs[in.ctx])
		c.waits.Store(0)
	case "cancel":
		h.cancels[in.ctx]()
	case "ShutDown":
		h.q.ShutDown()
	case "Len":
		out.n = h.q.Len()
	case "Pending":
		keys := h.q.Pending()
		slices.Sort(keys)
		out.key = strings.Join(keys, "")
	}
	ret := h.clock.Add(1)
	c.operations = append(c.operations, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
	return out
}

// client runs some operations. It mostly finishes its keys, sometimes twice, and sometimes it
// leaves a key running.
func (h *historyRun) client(client, operations int, r *rand.Rand) {
	defer h.clients[client].ended.Store(true)
	h.arrived.Add(-1)
	for h.arrived.Load() > 0 { // all begin at once
		runtime.Gosched()
	}
	held := ""
	for range operations {
		if r.IntN(2) == 0 {
			runtime.Gosched() // there may be fewer processors than clients
		}
		key := string(rune('a' + r.IntN(h.keys)))
		switch n := r.IntN(40); {
		case n < 6:
			h.do(client, historyCall{op: "Add", key: key})
		case n < 13:
			h.do(client, historyCall{op: "Add", key: key, priority: r.IntN(2)*2 - 1})
		case n < 19 && held != "": // added again while it runs
			h.do(client, historyCall{op: "Add", key: held, priority: r.IntN(3) - 1})
		case n < 28 && held != "":
			h.do(client, historyCall{op: "Done", key: held})
			held = ""
		case n < 32 && held == "" || n < 30:
			if out := h.do(client, historyCall{op: "Get", ctx: r.IntN(historyContexts)}); out.ok {
				held = out.key
			}
		case n < 34 && held != "":
			h.do(client, historyCall{op: "Forget", key: held})
		case n < 35:
			h.do(client, historyCall{op: "Done", key: key})
		case n < 36:
			h.do(client, historyCall{op: "cancel", ctx: r.IntN(historyContexts)})
		case n < 37:
			h.do(client, historyCall{op: "Len"})
		case n < 38:
			h.do(client, historyCall{op: "Pending"})
		case n < 39 && r.IntN(3) == 0:
			h.do(client, historyCall{op: "ShutDown"})
		}
	}
	if held != "" && r.IntN(4) != 0 {
		h.do(client, historyCall{op: "Done", key: held})
	}
}

// waiting returns the number of clients that have not ended. If all goroutines are blocked,
// these clients wait in Get, which is a fault if a key is ready or the context is done.
func (h *historyRun) waiting(t *testing.T) (n int) {
	synctest.Wait()
	for i := range historyClients {
		c := &h.clients[i]
		if c.ended.Load() {
			continue
		}
		n++
		if ctx := c.waits.Load() - 1; ctx < 0 {
			t.Errorf("client %d waits, but not in Get", i)
		} else if h.ctxs[ctx].Err() != nil {
			t.Errorf("client %d waits in Get with context %d, which is done", i, ctx)
		}
	}
	if ready := h.q.Len(); n > 0 && ready > 0 {
		t.Errorf("%d clients wait in Get, and %d keys are ready", n, ready)
	}
	return n
}

// yieldingContext lets others run when it is looked at, as the Group of a history
// does: both are called in the middle of an operation, so that operations overlap
// on one processor as well.
type yieldingContext struct{ context.Context }

func (c yieldingContext) Err() error {
	runtime.Gosched()
	return c.Context.Err()
}

// recordHistory runs one history in a bubble of synctest, so that the conductor can wait
// until all clients are blocked.
func recordHistory(t *testing.T, groups int, r *rand.Rand) []porcupine.Operation {
	cfg := queue.Config[string]{MaxWait: -1}
	if groups > 1 {
		cfg.Group = func(key string) string {
			runtime.Gosched()
			return strconv.Itoa(int(key[0]-'a') % groups)
		}
	}
	h := &historyRun{q: queue.New(cfg), keys: 2 + r.IntN(3)}
	for i := range h.ctxs {
		h.ctxs[i], h.cancels[i] = context.WithCancel(context.Background())
		h.ctxs[i] = yieldingContext{h.ctxs[i]}
	}
	clients := 2 + r.IntN(historyClients-1)
	h.arrived.Store(int64(clients))
	for client := range historyClients {
		if client >= clients {
			h.clients[client].ended.Store(true)
			continue
		}
		own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		operations := 3 + own.IntN(4)
		go h.client(client, operations, own)
	}
	for range 3 { // let some waiting clients continue
		if h.waiting(t) == 0 {
			break
		}
		if r.IntN(3) == 0 {
			h.do(historyClients, historyCall{op: "cancel", ctx: r.IntN(historyContexts)})
		} else {
			h.do(historyClients, historyCall{op: "Add", key: string(rune('a' + r.IntN(h.keys))), priority: r.IntN(3) - 1})
		}
	}
	h.do(historyClients, historyCall{op: "ShutDown"})
	if n := h.waiting(t); n > 0 {
		t.Errorf("%d clients wait in Get of a queue that was shut down", n)
	}
	h.do(historyClients, historyCall{op: "Pending"})
	for _, cancel := range h.cancels {
		cancel()
	}
	synctest.Wait()
	var history []porcupine.Operation
	for i := range h.clients {
		history = append(history, h.clients[i].operations...)
	}
	return history
}

// TestLinearizable tests that concurrent callers see the documented results of one call after
// the other. With -operations it runs longer.
//
// It proves Q1, Q2, Q3, Q7 and Q5.
func TestLinearizable(t *testing.T) {
	histories := max(8_000, int(*stressOperations/1000))
	begin := time.Now()
	var operations, overlaps, checks int
	synctest.Test(t, func(t *testing.T) {
		for i := range histories {
			r := rand.New(rand.NewPCG(rand.Uint64(), uint64(i)))
			groups := 1 + i%2
			model := historyModel(groups)
			history := recordHistory(t, groups, r)
			if !porcupine.CheckOperations(model, history) {
				t.Errorf("history %d, with %d groups, is not linearizable:\n%s", i, groups, describeHistory(model, history))
			}
			if t.Failed() {
				return
			}
			operations += len(history)
			checks++
			for _, o := range history {
				if o.Return > o.Call+1 && o.Input.(historyCall).op != "Get" {
					overlaps++
				}
			}
		}
	})
	if overlaps < histories/20 && !t.Failed() {
		t.Errorf("%d operations of %d histories overlap others without waiting: too few to say anything", overlaps, histories)
	}
	t.Logf("%d histories, %d operations, %d of them overlap others without waiting, in %v", checks, operations, overlaps, time.Since(begin).Round(time.Millisecond))
}
