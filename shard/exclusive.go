package shard

import (
	"context"
	"errors"
	"math"
	"strconv"
)

const (
	// allAnnotation asks for all shards. It holds the number of the table's version that
	// the replica saw when it first asked.
	allAnnotation = "controllerkit.github.io/shard-all"
	// allShards is the Index of a Shard that stands for all.
	allShards = -1
)

// A claim is a call of Exclusive.
type claim struct {
	f       func(context.Context, Shard) error
	ctx     context.Context // of the call
	number  int64
	started bool
	done    chan error
}

// Exclusive calls f while this replica owns all shards and no work runs in any replica. It
// is a barrier: all work that began before has returned, and f has returned before other
// work begins. Call it for rare work that needs all shards, because each call moves each
// shard to this replica and back.
//
// While Exclusive waits, the other replicas stop their work and hand their shards over. If
// several calls wait, they run one by one. MaxShards does not limit them.
//
// The context of f is like that of work, so [Shard.Check] and [Guard] work with it. It also
// ends if ctx is done. Its Shard has the Index -1, and a Term that is at least that of any
// work before and lower than that of any work after.
//
// Exclusive returns the error of f. If f was not called, it returns the cause of ctx,
// ErrLost, or an error if Run has not begun or returns. A call with the context of work
// returns an error, because Exclusive would wait for that work.
func (g *Group) Exclusive(ctx context.Context, f func(ctx context.Context, s Shard) error) error {
	g.mu.Lock()
	r, running := g.replica, g.running
	g.mu.Unlock()
	_, inWork := From(ctx)
	switch {
	case f == nil:
		return errors.New("shard: the function of Exclusive is nil: pass the function that needs all shards")
	case inWork:
		return errors.New("shard: Exclusive got the context of work, for whose end it would wait: call it in another goroutine with another context")
	case !running:
		return errNotRunning
	}
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.over:
		return errNotRunning
	}
	defer func() { <-r.turn }()
	c := &claim{f: f, ctx: ctx, done: make(chan error, 1)}
	r.claimAll(c)
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
	case <-r.over:
	}
	if r.withdraw(c) {
		return <-c.done
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errNotRunning
}

var errNotRunning = errors.New("shard: Exclusive needs a Group that runs: call it while Run has not returned")

// claimAll asks for all shards, with the next renewal.
func (r *replica) claimAll(c *claim) {
	r.mu.Lock()
	c.number, r.claim = r.number, c
	r.mu.Unlock()
	r.renewNow()
}

// withdraw no longer asks for all shards. It reports whether f was called.
func (r *replica) withdraw(c *claim) (started bool) {
	r.mu.Lock()
	r.claim, started = nil, c.started
	r.mu.Unlock()
	r.renewNow()
	return started
}

func (r *replica) renewNow() {
	select {
	case r.claimed <- struct{}{}:
	default:
	}
}

// exclusive returns f as the work of all shards.
func (r *replica) exclusive(c *claim) func(context.Context, Shard) error {
	return func(ctx context.Context, s Shard) error {
		err := errGoexit
		defer func() {
			if v := recover(); v != nil {
				panic(v) // it ends the process
			}
			r.withdraw(c)
			c.done <- err
		}()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })()
		if err = s.Check(ctx); err == nil { // it may have been paused since the decision
			err = c.f(ctx, s)
		}
		return err
	}
}

// claim returns the number with which the replica asks for all shards.
func (m *member) claim() (number int64, ok bool) {
	if m == nil || m.lease == nil {
		return 0, false
	}
	number, err := strconv.ParseInt(m.lease.Annotations[allAnnotation], 10, 64)
	return number, err == nil && number >= 0
}

// claimLocked leaves all shards to the first replica that asks for them.
func (p *plan) claimLocked() {
	first, least := -1, int64(math.MaxInt64)
	for i, c := range p.candidates {
		number, ok := p.members[c.uid].claim()
		if ok && c.max != 0 && (number < least || number == least && (first < 0 || c.uid < p.candidates[first].uid)) {
			first, least = i, number
		}
	}
	if first < 0 {
		return
	}
	for i := range p.candidates {
		p.candidates[i].max = 0
	}
	p.candidates[first].max = -1
	p.all = p.candidates[first].uid == p.e.uid
}

// exclusiveLocked is the plan while f runs, or while the Lease still asks for all shards
// although f has returned: no entry changes.
func (p *plan) exclusiveLocked() (keep bool) {
	t, f := p.table, p.runs[allShards]
	if f == nil {
		return p.all && p.claim == nil
	}
	for s, cur := range t.entries {
		if cur.holder != p.e.uid || cur.term != p.spent[s] || t.lease.UID != f.Table { // another user has changed it
			f.lose(ErrLost)
			f.over.Store(true)
			return true
		}
	}
	if p.leaving {
		f.stop()
	}
	return true
}

// startAllLocked calls f, if this replica owns all shards in terms that no work has used.
func (p *plan) startAllLocked(owned int) {
	t, c := p.table, p.claim
	if owned < len(t.entries) || c == nil || c.started || len(p.runs) > 0 {
		return
	}
	s := Shard{Index: allShards, Table: t.lease.UID}
	for i, cur := range t.entries {
		s.Term, p.spent[i] = max(s.Term, cur.term), cur.term
	}
	c.started = true
	p.startLocked(p.e, s, t.lease.ResourceVersion, p.exclusive(c))
}

// working returns the number of shards whose work runs or drains.
func working(runs map[int]*run) int {
	if runs[allShards] != nil {
		return 0
	}
	return len(runs)
}
