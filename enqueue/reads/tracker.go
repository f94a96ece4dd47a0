package reads

import (
	"context"
	"hash/maphash"
	"sync"
)

// A Tracker remembers what the last call of each key has read by the Readers that [From] has made of
// it. Use one for each controller. The zero value is ready to use. It must not be copied. Its methods are safe
// for concurrent use.
//
// A remembered read takes about 100 bytes, however long the names are, and a selector is stored once.
// A key is forgotten after a call that has read nothing, such as that of a deleted object.
type Tracker[K comparable] struct {
	mu      sync.Mutex
	graph   graph[K]
	lists   lists
	sources uint16
}

// Track returns a function that calls f and remembers what it reads with its context. f is a Func of package
// reconcile, or of another loop that does not run one key twice at once.
func Track[K comparable, R any](t *Tracker[K], f func(ctx context.Context, key K) (R, error)) func(context.Context, K) (R, error) {
	return func(ctx context.Context, key K) (R, error) {
		call := t.Begin(ctx, key)
		returned := false
		defer func() { call.End(returned) }()
		res, err := f(call, key)
		returned = true
		return res, err
	}
}

// Begin returns the context of a call with key, for loops that call no function. Each Begin needs an End.
func (t *Tracker[K]) Begin(ctx context.Context, key K) *Call[K] {
	return &Call[K]{Context: ctx, t: t, key: key}
}

// Len returns the number of remembered reads.
func (t *Tracker[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.graph.used
}

// A Call is one call of a reconcile, and its context. [Tracker.Begin] makes one.
type Call[K comparable] struct {
	context.Context //nolint:containedctx // it is that context

	t   *Tracker[K]
	key K

	// The lock of t guards the rest.
	ended        bool
	slot, number uint32 // slot is 0 before the first read
	index        map[uint64]uint32
}

// callKey is the key of the *Call in its context.
type callKey struct{}

// Value implements context.Context.
func (c *Call[K]) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// End ends the call. returned is whether its function has returned, and has not panicked. If it has, and the
// context of the call is not done, what earlier calls have read is forgotten. Later reads with the
// context are errors. A second End has no effect.
func (c *Call[K]) End(returned bool) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	replace := returned && c.Err() == nil
	switch {
	case c.slot != 0:
		c.t.graph.leave(c.slot, c.number, replace, c.t.lists.gone)
	case replace && c.t.graph.used > 0:
		c.t.graph.forget(c.key, c.t.lists.gone)
	}
	c.index = nil
}

// callOf returns the call of ctx.
func (t *Tracker[K]) callOf(ctx context.Context) (*Call[K], error) {
	call, ok := ctx.Value(callKey{}).(*Call[K])
	switch {
	case !ok:
		return nil, errReject("the context is not that of a call: pass on the one that the reconcile got")
	case call.t != t:
		return nil, errReject("the context is that of another controller's call: give each controller its own Reader")
	}
	return call, nil
}

// errReject is a mistake of the caller.
type errReject string

func (e errReject) Error() string { return string(e) }

// Rejected makes the reconcile loop class the error as rejected: the same call gets it again.
func (errReject) Rejected() bool { return true }

// read remembers that a call reads what the ref, which is called with the lock held, returns.
func (t *Tracker[K]) read(ctx context.Context, source uint16, refs ...func() uint64) error {
	call, err := t.callOf(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if call.ended {
		return errReject("the call of the context has returned: wait for goroutines before the reconcile returns")
	}
	if call.slot == 0 {
		call.slot, call.number = t.graph.enter(call.key)
	}
	for _, ref := range refs {
		t.graph.read(call.slot, call.number, ref(), source, &call.index)
	}
	return nil
}

// source returns the number of a new source.
func (t *Tracker[K]) source() uint16 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sources == 0 {
		t.graph.seed = maphash.MakeSeed()
		t.lists.hasher = t.graph.hasher
	}
	t.sources++
	return t.sources
}

// name is what is hashed for an object, or for the value of an index.
type name struct {
	source uint16
	index  bool
	a, b   string // namespace and name, or index and value
}

func (t *Tracker[K]) hash(n name) uint64 { return hashOf(t.lists.hasher, n) }
