package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"pgregory.net/rapid"

	"github.com/controllerkit/controllerkit/queue"
)

// The model is the queue as one would write it without caring for speed: plain
// slices, searched from the front. machine runs every operation on both and
// compares all that can be seen after each of them.

const modelMaxWait = 10 * time.Second

type modelKey struct {
	key, state   string // state is "ready", "running" or "delayed"
	priority     int
	again, later bool
	asks, forgot bool
	asked        int
	at           time.Time // ready: since when it is ready; delayed or later: due
	added        time.Time
	started      time.Time
}

type model struct {
	ready, running, delayed []*modelKey // each in order; ready in order of arrival at its priority
	turns                   map[int][]string
	served                  int
	stopping                bool
	failures                map[string]int
}

func modelGroup(key string) string { return key[:1] }

func (m *model) find(key string) *modelKey {
	for _, l := range [][]*modelKey{m.ready, m.running, m.delayed} {
		for _, k := range l {
			if k.key == key {
				return k
			}
		}
	}
	return nil
}

func without(l []*modelKey, k *modelKey) []*modelKey {
	return slices.DeleteFunc(l, func(o *modelKey) bool { return o == k })
}

func (m *model) groupIsReady(priority int, group string) bool {
	return slices.ContainsFunc(m.ready, func(k *modelKey) bool {
		return k.priority == priority && modelGroup(k.key) == group
	})
}

func (m *model) arrive(k *modelKey) {
	k.state = "ready"
	if !m.groupIsReady(k.priority, modelGroup(k.key)) {
		m.turns[k.priority] = append(m.turns[k.priority], modelGroup(k.key))
	}
	m.ready = append(m.ready, k)
}

func (m *model) leave(k *modelKey) {
	m.ready = without(m.ready, k)
	if !m.groupIsReady(k.priority, modelGroup(k.key)) {
		m.turns[k.priority] = slices.DeleteFunc(m.turns[k.priority], func(g string) bool { return g == modelGroup(k.key) })
	}
}

func (m *model) delay(k *modelKey) {
	k.state = "delayed"
	m.delayed = append(m.delayed, k)
	sort.SliceStable(m.delayed, func(i, j int) bool { return m.delayed[i].at.Before(m.delayed[j].at) })
}

func (m *model) add(key string, asks bool, priority int, after time.Duration) {
	now := time.Now()
	k := m.find(key)
	if m.stopping {
		if k != nil && k.state == "running" && !k.again && !k.later {
			k.later, k.at = true, now.Add(after)
		}
		return
	}
	if k == nil {
		k = &modelKey{key: key, priority: priority, at: now.Add(after), added: now}
		if after > 0 {
			m.delay(k)
		} else {
			m.arrive(k)
		}
		return
	}
	switch k.state {
	case "ready":
		if asks && priority > k.priority {
			m.leave(k)
			k.priority = priority
			m.arrive(k)
		}
	case "delayed":
		if asks && priority > k.priority {
			k.priority = priority
		}
		if after <= 0 {
			m.delayed = without(m.delayed, k)
			k.at, k.added = now, now
			m.arrive(k)
		} else if now.Add(after).Before(k.at) {
			m.delayed = without(m.delayed, k)
			k.at = now.Add(after)
			m.delay(k)
		}
	case "running":
		if asks && (!k.asks || priority > k.asked) {
			k.asks, k.asked = true, priority
		}
		switch {
		case k.again:
		case after <= 0:
			k.again, k.later, k.added = true, false, now
		case !k.later || now.Add(after).Before(k.at):
			k.later, k.at = true, now.Add(after)
		}
	}
}

// order returns the ready keys as they would be handed out without starvation.
func (m *model) order() (order []*modelKey) {
	var priorities []int
	for _, k := range m.ready {
		priorities = append(priorities, k.priority)
	}
	sort.Sort(sort.Reverse(sort.IntSlice(priorities)))
	for _, p := range slices.Compact(priorities) {
		rest := slices.DeleteFunc(slices.Clone(m.ready), func(k *modelKey) bool { return k.priority != p })
		for len(rest) > 0 {
			for _, g := range m.turns[p] {
				if i := slices.IndexFunc(rest, func(k *modelKey) bool { return modelGroup(k.key) == g }); i >= 0 {
					order = append(order, rest[i])
					rest = slices.Delete(rest, i, i+1)
				}
			}
		}
	}
	return order
}

func (m *model) get() *modelKey {
	order := m.order()
	k := order[0]
	m.served++
	if m.served > 3 {
		m.served = 3
		var oldest *modelKey
		for _, low := range order {
			if low.priority < k.priority && (oldest == nil || low.at.Before(oldest.at)) {
				oldest = low
			}
		}
		if oldest != nil && time.Since(oldest.at) > modelMaxWait {
			m.served = 0
			k = order[slices.IndexFunc(order, func(o *modelKey) bool { return o.priority == oldest.priority })]
		}
	}
	p, g := k.priority, modelGroup(k.key)
	m.leave(k)
	if m.groupIsReady(p, g) { // its turn is over
		m.turns[p] = append(slices.DeleteFunc(m.turns[p], func(o string) bool { return o == g }), g)
	}
	k.state, k.started = "running", time.Now()
	m.running = append(m.running, k)
	return k
}

func (m *model) done(key string) {
	k := m.find(key)
	if k == nil || k.state != "running" {
		return
	}
	m.running = without(m.running, k)
	again, later := k.again, k.later
	switch {
	case k.forgot && k.asks:
		k.priority = k.asked
	case k.forgot:
		k.priority = 0
	case k.asks:
		k.priority = max(k.priority, k.asked)
	}
	k.again, k.later, k.asks, k.forgot, k.asked = false, false, false, false, 0
	now := time.Now()
	switch {
	case again:
		k.at = now
		m.arrive(k)
	case later && (m.stopping || k.at.After(now)):
		m.delay(k)
	case later:
		k.at, k.added = now, now
		m.arrive(k)
	}
}

// expire ends the delays that are due, each at its own time.
func (m *model) expire() {
	for !m.stopping && len(m.delayed) > 0 && !m.delayed[0].at.After(time.Now()) {
		k := m.delayed[0]
		m.delayed = m.delayed[1:]
		k.added = k.at
		m.arrive(k)
	}
}

func (m *model) keys() (keys []string) {
	for _, l := range [][]*modelKey{m.running, m.ready, m.delayed} {
		for _, k := range l {
			keys = append(keys, k.key)
		}
	}
	slices.Sort(keys)
	return keys
}

func (m *model) state() queue.State {
	s := queue.State{Ready: len(m.ready), Running: len(m.running), Delayed: len(m.delayed), ShuttingDown: m.stopping}
	for _, k := range slices.Concat(m.running, m.order(), m.delayed) {
		ks := queue.KeyState{Key: k.key, State: k.state, Group: modelGroup(k.key), Priority: k.priority, Again: k.again, Attempts: m.failures[k.key]}
		switch k.state {
		case "ready":
			ks.Since = k.added
		case "delayed":
			ks.Until = k.at
		case "running":
			ks.Since = k.started
			if k.later {
				ks.Until = k.at
			}
		}
		s.Keys = append(s.Keys, ks)
	}
	return s
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
		m: &model{turns: map[int][]string{}, failures: map[string]int{}},
	}
}

func (c *machine) fail(key string) time.Duration {
	d := min(time.Second<<min(c.m.failures[key], 10), 8*time.Second)
	c.m.failures[key]++
	return d
}

func (c *machine) Add(key string) {
	c.q.Add(key)
	c.m.add(key, true, 0, 0)
}

func (c *machine) AddWith(o queue.AddOptions, keys ...string) {
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
	delete(c.m.failures, key)
	if k := c.m.find(key); k != nil && k.state == "running" {
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
	waits := len(c.m.ready) == 0 && !c.m.stopping
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	if !waits || len(c.m.delayed) > 0 {
		cancel()
		ctx, cancel = context.WithCancel(context.Background())
	}
	defer cancel()
	key, priority, ok := c.q.GetContext(ctx)
	if waits && len(c.m.delayed) > 0 {
		synctest.Wait()
		c.m.expire()
	}
	if len(c.m.ready) == 0 {
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
		if !c.m.stopping && len(c.m.delayed) > 0 && c.m.delayed[0].at.Before(until) {
			next = c.m.delayed[0].at
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
	if idle := len(c.m.ready)+len(c.m.running) == 0; idle != (err == nil) || !idle && !errors.Is(err, cause) {
		c.t.Fatalf("Drain with a context that is done: got error %v, with %d ready and %d running", err, len(c.m.ready), len(c.m.running))
	}
	slices.Sort(left)
	if diff := cmp.Diff(c.m.keys(), left); diff != "" {
		c.t.Fatalf("Drain with a context that is done: left (-want +got):\n%s", diff)
	}
}

// ended checks a Drain that has ended or must have.
func (c *machine) ended(d *drain, shutDown bool) {
	c.t.Helper()
	select {
	case <-d.ended:
	default:
		c.t.Fatalf("Drain waits, with %d ready and %d running keys, ShutDown called: %v", len(c.m.ready), len(c.m.running), shutDown)
	}
	idle := len(c.m.ready)+len(c.m.running) == 0
	if idle != (d.err == nil) || !idle && !errors.Is(d.err, queue.ErrShutDown) {
		c.t.Fatalf("Drain: got error %v, with %d ready and %d running", d.err, len(c.m.ready), len(c.m.running))
	}
	slices.Sort(d.left)
	if diff := cmp.Diff(c.m.keys(), d.left); diff != "" {
		c.t.Fatalf("Drain: left (-want +got):\n%s", diff)
	}
}

// Check compares everything that can be seen.
func (c *machine) Check() {
	c.t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(c.m.state(), c.q.Snapshot()); diff != "" {
		c.t.Fatalf("Snapshot (-model +queue):\n%s", diff)
	}
	if got, want := c.q.Len(), len(c.m.ready); got != want {
		c.t.Fatalf("Len: got %d, want %d", got, want)
	}
	pending := c.q.Pending()
	slices.Sort(pending)
	if diff := cmp.Diff(c.m.keys(), pending); diff != "" {
		c.t.Fatalf("Pending (-model +queue):\n%s", diff)
	}
	if got := c.q.ShuttingDown(); got != c.m.stopping {
		c.t.Fatalf("ShuttingDown: got %v, want %v", got, c.m.stopping)
	}
	if len(c.m.ready)+len(c.m.running) == 0 {
		for _, d := range c.drains {
			c.ended(d, false)
		}
		c.drains = nil
	}
	for _, d := range c.drains {
		select {
		case <-d.ended:
			c.t.Fatalf("Drain returned %v, %v with %d ready and %d running keys", d.left, d.err, len(c.m.ready), len(c.m.running))
		default:
		}
	}
}

// Finish drains what is left: every ready key is handed out, and no more.
func (c *machine) Finish() {
	c.t.Helper()
	c.Drain()
	for len(c.m.ready)+len(c.m.running) > 0 {
		if len(c.m.ready) > 0 {
			c.Get()
		}
		c.Done(c.m.running[0].key)
		c.Check()
	}
	c.Get()
	c.Check()
	c.ShutDown()
}

var (
	modelKeys       = []string{"a1", "a2", "a3", "b1", "b2", "c1"}
	modelPriorities = []int{queue.LowPriority, -1, 0, 5}
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
					c.AddWith(queue.AddOptions{
						Priority:    rapid.SampledFrom(modelPriorities).Draw(rt, "priority"),
						After:       seconds.Draw(rt, "after"),
						RateLimited: rapid.Bool().Draw(rt, "rateLimited"),
					}, rapid.SliceOfN(key, 0, 3).Draw(rt, "keys")...)
				},
				"AddWithPriority": func(rt *rapid.T) {
					c.AddWith(queue.AddOptions{Priority: rapid.SampledFrom(modelPriorities).Draw(rt, "priority")},
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
						c.AddWith(queue.AddOptions{Priority: modelPriorities[(first+i)%len(modelPriorities)]}, key)
					}
				},
				"Work": func(rt *rapid.T) {
					for range rapid.IntRange(1, 8).Draw(rt, "n") {
						if len(c.m.ready) == 0 {
							return
						}
						c.Get()
						worked := c.m.running[len(c.m.running)-1]
						c.Done(worked.key)
						if worked.priority > 0 {
							c.AddWith(queue.AddOptions{Priority: worked.priority}, worked.key)
						}
					}
				},
				"GetCancelled": func(rt *rapid.T) { c.GetCancelled() },
				"Done":         func(rt *rapid.T) { c.Done(key.Draw(rt, "key")) },
				"DoneRunning": func(rt *rapid.T) {
					if len(c.m.running) == 0 {
						rt.Skip("none runs")
					}
					c.Done(rapid.SampledFrom(c.m.running).Draw(rt, "running").key)
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
				"": func(*rapid.T) { c.Check() },
			}
			rt.Repeat(actions)
			c.Finish()
		})
	})
}

func (k *modelKey) String() string { return fmt.Sprintf("%s(%s %d)", k.key, k.state, k.priority) }
