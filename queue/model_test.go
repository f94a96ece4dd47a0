package queue_test

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"pgregory.net/rapid"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// The model is the queue as one would write it without caring for speed: keys in
// no order, searched each time. machine runs every operation on both and compares
// all that can be seen after each of them.

const modelMaxWait = 10 * time.Second

func modelGroup(key string) string { return key[:1] }

type modelKey struct {
	key, state                        string // state is "ready", "delayed" or "running"
	priority, asked, order            int
	asks, keeps, forgot, wants, again bool // wants: it goes on after Done; again: at once
	at, passed                        time.Time
}

type model struct {
	keys          map[string]*modelKey
	turns         map[string]int // of lanes with ready keys: the lowest is next
	order, served int
	marked        time.Time // last Get that passed over a lower priority
	stopping      bool
}

// The state of a key.

func (m *model) add(key string, asks bool, priority int, after time.Duration) {
	k, at := m.keys[key], time.Now().Add(after)
	switch {
	case m.stopping && (k == nil || k.state != "running" || k.wants):
	case m.stopping:
		k.wants, k.at = true, at
	case k == nil:
		m.keys[key] = &modelKey{key: key, priority: priority}
		m.wait(m.keys[key], after > 0, at)
	case k.state == "running":
		k.keeps = k.keeps || !asks
		if asks && (!k.asks || priority > k.asked) {
			k.asks, k.asked = true, priority
		}
		if !k.wants || !k.again && (after <= 0 || at.Before(k.at)) {
			k.wants, k.again, k.at = true, after <= 0, at
		}
	default:
		rises := asks && priority > k.priority
		if rises {
			k.priority = priority
		}
		if k.state == "ready" && rises || k.state == "delayed" && at.Before(k.at) {
			m.wait(k, k.state == "delayed" && after > 0, at)
		}
	}
}

func (m *model) done(key string) {
	k := m.keys[key]
	if k == nil || k.state != "running" {
		return
	}
	was := *k
	*k = modelKey{key: key, priority: was.priority}
	gives := was.priority // of the adds without a priority
	if was.forgot {
		gives = 0
	}
	switch {
	case was.asks && was.keeps:
		k.priority = max(gives, was.asked)
	case was.keeps:
		k.priority = gives
	default:
		k.priority = was.asked
	}
	if was.wants {
		m.wait(k, !was.again && (m.stopping || was.at.After(time.Now())), was.at)
	} else {
		delete(m.keys, key)
	}
}

func (m *model) expire() {
	for _, k := range m.all("delayed") {
		if !m.stopping && !k.at.After(time.Now()) {
			m.wait(k, false, k.at)
		}
	}
}

// The order of Get.

func (k *modelKey) lane() string        { return fmt.Sprint(k.priority, modelGroup(k.key)) }
func (k *modelKey) age() []int          { return []int{k.order} }
func (m *model) turn(k *modelKey) []int { return []int{-k.priority, m.turns[k.lane()], k.order} }
func (m *model) number() int            { m.order++; return m.order }

// first returns the first of the ready keys that count.
func (m *model) first(by func(*modelKey) []int, counts func(*modelKey) bool) (first *modelKey) {
	for _, k := range m.keys {
		if k.state == "ready" && counts(k) && (first == nil || slices.Compare(by(k), by(first)) < 0) {
			first = k
		}
	}
	return first
}

func (m *model) wait(k *modelKey, delayed bool, at time.Time) {
	k.state, k.at, k.passed = "", at, time.Time{}
	if m.first((*modelKey).age, func(o *modelKey) bool { return o.lane() == k.lane() }) == nil {
		m.turns[k.lane()] = m.number()
	}
	k.order, k.state = m.number(), "ready"
	if delayed {
		k.state = "delayed"
	}
}

func (m *model) get() *modelKey {
	k, now := m.first(m.turn, func(*modelKey) bool { return true }), time.Now()
	low := m.first((*modelKey).age, func(o *modelKey) bool { return o.priority < k.priority })
	m.served++
	if low != nil && m.served > 3 && !low.passed.IsZero() && now.Sub(low.passed) > modelMaxWait {
		k, m.served = m.first(m.turn, func(o *modelKey) bool { return o.priority == low.priority }), 0
	}
	for _, o := range m.keys {
		if low != nil && now != m.marked && o.passed.IsZero() {
			o.passed = now
		}
	}
	if low != nil {
		m.marked = now
	}
	k.state, k.order = "running", m.number()
	m.turns[k.lane()] = m.number()
	return k
}

// all returns the keys of a state in order.
func (m *model) all(state string) (keys []*modelKey) {
	for _, k := range m.keys {
		if k.state == state {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b *modelKey) int {
		if state == "delayed" && !a.at.Equal(b.at) {
			return a.at.Compare(b.at)
		}
		return a.order - b.order
	})
	return keys
}

// drain is a Drain under way.
type drain struct {
	ended chan struct{}
	left  []string
	err   error
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

type machine struct {
	t      fataler
	q      *queue.Queue[string]
	m      *model
	drains []*drain

	failures map[string]int
}

func (c *machine) count(state string) int { return len(c.m.all(state)) }

func (c *machine) keys() []string { return slices.Sorted(maps.Keys(c.m.keys)) }

// order returns the ready keys as they would be handed out without starvation:
// all that are first in their lane, then all that are second.
func (c *machine) order() []*modelKey {
	ready := c.m.all("ready")
	rank, n := map[*modelKey]int{}, map[string]int{}
	for _, k := range ready {
		rank[k] = n[k.lane()]
		n[k.lane()]++
	}
	slices.SortFunc(ready, func(a, b *modelKey) int {
		return stdcmp.Or(b.priority-a.priority, rank[a]-rank[b], c.m.turns[a.lane()]-c.m.turns[b.lane()])
	})
	return ready
}

func (c *machine) state() controllerkit.QueueState {
	s := controllerkit.QueueState{Ready: c.count("ready"), Running: c.count("running"), Delayed: c.count("delayed"), ShuttingDown: c.m.stopping}
	for _, k := range slices.Concat(c.m.all("running"), c.order(), c.m.all("delayed")) {
		ks := controllerkit.QueueKey{Key: k.key, State: k.state, Group: modelGroup(k.key), Priority: k.priority, Again: k.wants && k.again, Attempts: c.failures[k.key]}
		if k.state == "delayed" || k.wants && !k.again {
			ks.Until = k.at
		}
		s.Keys = append(s.Keys, ks)
	}
	return s
}

func newMachine(t fataler) *machine {
	return &machine{
		t: t,
		q: queue.New(queue.Config[string]{
			Group:   modelGroup,
			MaxWait: modelMaxWait,
			// client-go's limiter: no jitter, so that the model knows the delay.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 8*time.Second),
		}),
		m:        &model{keys: map[string]*modelKey{}, turns: map[string]int{}},
		failures: map[string]int{},
	}
}

func (c *machine) fail(key string) time.Duration {
	d := min(time.Second<<min(c.failures[key], 10), 8*time.Second)
	c.failures[key]++
	return d
}

func (c *machine) Add(key string) {
	c.q.Add(key)
	c.m.add(key, true, 0, 0)
}

func (c *machine) AddWith(o controllerkit.AddOptions, keys ...string) {
	c.q.AddWith(o, keys...)
	for _, key := range keys {
		after := o.After
		if o.RateLimited {
			after = max(after, c.fail(key))
		}
		c.m.add(key, true, o.Priority, after)
	}
}

func (c *machine) AddAfter(key string, d time.Duration) {
	c.q.AddAfter(key, d)
	c.m.add(key, false, 0, d)
}

func (c *machine) AddRateLimited(key string) {
	c.q.AddRateLimited(key)
	c.m.add(key, false, 0, c.fail(key))
}

func (c *machine) Forget(key string) {
	c.q.Forget(key)
	delete(c.failures, key)
	if k := c.m.keys[key]; k != nil && k.state == "running" {
		k.forgot = true
	}
}

func (c *machine) Done(key string) {
	c.q.Done(key)
	c.m.done(key)
}

// Get takes a key. Without a ready key it waits for the next delay to end, and
// without a delay for its context.
func (c *machine) Get() {
	c.t.Helper()
	waits := c.count("ready") == 0 && !c.m.stopping
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	if !waits || c.count("delayed") > 0 {
		cancel()
		ctx, cancel = context.WithCancel(context.Background())
	}
	defer cancel()
	key, priority, ok := c.q.GetContext(ctx)
	if waits && c.count("delayed") > 0 {
		synctest.Wait()
		c.m.expire()
	}
	if c.count("ready") == 0 {
		if ok {
			c.t.Fatalf("GetContext: got %q, want none", key)
		}
		return
	}
	want := c.m.get()
	if !ok || key != want.key || priority != want.priority {
		c.t.Fatalf("GetContext: got (%q, %d, %v), want (%q, %d, true)", key, priority, ok, want.key, want.priority)
	}
}

func (c *machine) GetCancelled() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if key, _, ok := c.q.GetContext(ctx); ok {
		c.t.Fatalf("GetContext with a context that is done: got %q, want none", key)
	}
}

// Advance lets time pass. Delays end one by one, each at its time.
func (c *machine) Advance(d time.Duration) {
	until := time.Now().Add(d)
	for {
		next := until
		if !c.m.stopping && c.count("delayed") > 0 && c.m.all("delayed")[0].at.Before(until) {
			next = c.m.all("delayed")[0].at
		}
		time.Sleep(time.Until(next))
		synctest.Wait()
		c.m.expire()
		if next.Equal(until) {
			return
		}
	}
}

func (c *machine) ShutDown() {
	c.t.Helper()
	c.q.ShutDown()
	c.m.stopping = true
	synctest.Wait()
	for _, d := range c.drains {
		c.ended(d, true)
	}
	c.drains = nil
}

func (c *machine) Drain() {
	d := &drain{ended: make(chan struct{})}
	c.drains = append(c.drains, d)
	go func() {
		defer close(d.ended)
		d.left, d.err = c.q.Drain(context.Background())
	}()
	synctest.Wait()
	c.m.stopping = true
}

func (c *machine) DrainCancelled() {
	c.t.Helper()
	cause := errors.New("out of time")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	left, err := c.q.Drain(ctx)
	c.m.stopping = true
	if idle := c.count("ready")+c.count("running") == 0; idle != (err == nil) || !idle && !errors.Is(err, cause) {
		c.t.Fatalf("Drain with a context that is done: got error %v, with %d ready and %d running", err, c.count("ready"), c.count("running"))
	}
	slices.Sort(left)
	if diff := cmp.Diff(c.keys(), left); diff != "" {
		c.t.Fatalf("Drain with a context that is done: left (-want +got):\n%s", diff)
	}
}

// Clear removes all keys that do not run.
func (c *machine) Clear() {
	c.t.Helper()
	var want []string
	for key, k := range c.m.keys {
		if k.state != "running" {
			want = append(want, key)
			delete(c.m.keys, key)
		}
	}
	slices.Sort(want)
	got := c.q.Clear()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		c.t.Fatalf("Clear() = %q, want %q", got, want)
	}
}

// ended checks a Drain that has ended or must have.
func (c *machine) ended(d *drain, shutDown bool) {
	c.t.Helper()
	select {
	case <-d.ended:
	default:
		c.t.Fatalf("Drain waits, with %d ready and %d running keys, ShutDown called: %v", c.count("ready"), c.count("running"), shutDown)
	}
	idle := c.count("ready")+c.count("running") == 0
	if idle != (d.err == nil) || !idle && !errors.Is(d.err, queue.ErrShutDown) {
		c.t.Fatalf("Drain: got error %v, with %d ready and %d running", d.err, c.count("ready"), c.count("running"))
	}
	slices.Sort(d.left)
	if diff := cmp.Diff(c.keys(), d.left); diff != "" {
		c.t.Fatalf("Drain: left (-want +got):\n%s", diff)
	}
}

// Check compares everything that can be seen.
func (c *machine) Check() {
	c.t.Helper()
	synctest.Wait()
	got := c.q.Snapshot()
	for i := range got.Keys {
		got.Keys[i].Since = time.Time{} // TestSince checks it
	}
	if diff := cmp.Diff(c.state(), got); diff != "" {
		c.t.Fatalf("Snapshot (-model +queue):\n%s", diff)
	}
	if got, want := c.q.Len(), c.count("ready"); got != want {
		c.t.Fatalf("Len: got %d, want %d", got, want)
	}
	pending := c.q.Pending()
	slices.Sort(pending)
	if diff := cmp.Diff(c.keys(), pending); diff != "" {
		c.t.Fatalf("Pending (-model +queue):\n%s", diff)
	}
	if got := c.q.ShuttingDown(); got != c.m.stopping {
		c.t.Fatalf("ShuttingDown: got %v, want %v", got, c.m.stopping)
	}
	if c.count("ready")+c.count("running") == 0 {
		for _, d := range c.drains {
			c.ended(d, false)
		}
		c.drains = nil
	}
	for _, d := range c.drains {
		select {
		case <-d.ended:
			c.t.Fatalf("Drain returned %v, %v with %d ready and %d running keys", d.left, d.err, c.count("ready"), c.count("running"))
		default:
		}
	}
}

// Finish drains the queue: Get returns every ready key, and no other.
func (c *machine) Finish() {
	c.t.Helper()
	c.Drain()
	for c.count("ready")+c.count("running") > 0 {
		if c.count("ready") > 0 {
			c.Get()
		}
		c.Done(c.m.all("running")[0].key)
		c.Check()
	}
	c.Get()
	c.Check()
	c.ShutDown()
}

var (
	modelKeys       = []string{"a1", "a2", "a3", "b1", "b2", "c1"}
	modelPriorities = []int{lowPriority, -1, 0, 5}
)

// TestModel proves Q2.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Without the method Deadline, which may not be called in a bubble.
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			c := newMachine(rt)
			key := rapid.SampledFrom(modelKeys)
			seconds := rapid.Custom(func(rt *rapid.T) time.Duration {
				return time.Duration(rapid.IntRange(0, 15).Draw(rt, "seconds")) * time.Second
			})
			stopping := rapid.IntRange(0, 9) // seldom, or nothing else is tested
			actions := map[string]func(*rapid.T){
				"Add": func(rt *rapid.T) { c.Add(key.Draw(rt, "key")) },
				"AddWith": func(rt *rapid.T) {
					c.AddWith(controllerkit.AddOptions{
						Priority:    rapid.SampledFrom(modelPriorities).Draw(rt, "priority"),
						After:       seconds.Draw(rt, "after"),
						RateLimited: rapid.Bool().Draw(rt, "rateLimited"),
					}, rapid.SliceOfN(key, 0, 3).Draw(rt, "keys")...)
				},
				"AddWithPriority": func(rt *rapid.T) {
					c.AddWith(controllerkit.AddOptions{Priority: rapid.SampledFrom(modelPriorities).Draw(rt, "priority")},
						rapid.SliceOfN(key, 1, 3).Draw(rt, "keys")...)
				},
				"AddAfter":       func(rt *rapid.T) { c.AddAfter(key.Draw(rt, "key"), seconds.Draw(rt, "after")) },
				"AddRateLimited": func(rt *rapid.T) { c.AddRateLimited(key.Draw(rt, "key")) },
				"Get":            func(rt *rapid.T) { c.Get() },
				"Get2":           func(rt *rapid.T) { c.Get(); c.Get() },
				// Enough of it in a row for turns, and for priorities that wait too long.
				"Spread": func(rt *rapid.T) {
					first := rapid.IntRange(0, 3).Draw(rt, "first")
					for i, key := range modelKeys {
						c.AddWith(controllerkit.AddOptions{Priority: modelPriorities[(first+i)%len(modelPriorities)]}, key)
					}
				},
				"Work": func(rt *rapid.T) {
					for range rapid.IntRange(1, 8).Draw(rt, "n") {
						if c.count("ready") == 0 {
							return
						}
						c.Get()
						running := c.m.all("running")
						worked := running[len(running)-1]
						c.Done(worked.key)
						if worked.priority > 0 {
							c.AddWith(controllerkit.AddOptions{Priority: worked.priority}, worked.key)
						}
					}
				},
				"GetCancelled": func(rt *rapid.T) { c.GetCancelled() },
				"Done":         func(rt *rapid.T) { c.Done(key.Draw(rt, "key")) },
				"DoneRunning": func(rt *rapid.T) {
					if c.count("running") == 0 {
						rt.Skip("none runs")
					}
					c.Done(rapid.SampledFrom(c.m.all("running")).Draw(rt, "running").key)
				},
				"Forget":  func(rt *rapid.T) { c.Forget(key.Draw(rt, "key")) },
				"Advance": func(rt *rapid.T) { c.Advance(seconds.Draw(rt, "time")) },
				"Stop": func(rt *rapid.T) {
					switch stopping.Draw(rt, "how") {
					case 0:
						c.ShutDown()
					case 1:
						c.Drain()
					case 2:
						c.DrainCancelled()
					default:
						rt.Skip("not now")
					}
				},
				"Clear": func(rt *rapid.T) {
					if stopping.Draw(rt, "how") > 1 {
						rt.Skip("not now")
					}
					c.Clear()
				},
				"": func(*rapid.T) { c.Check() },
			}
			rt.Repeat(actions)
			c.Finish()
		})
	})
}

func (k *modelKey) String() string { return fmt.Sprintf("%s(%s %d)", k.key, k.state, k.priority) }
