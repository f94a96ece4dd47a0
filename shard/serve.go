package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/tenure"
)

// stackLabel is the key of the label of work's goroutines. Its value has the names of the group and
// of the shard.
const stackLabel = "shard"

// rankDelay is the time between the acts of two replicas that could do the same.
const rankDelay = 20 * time.Millisecond

// A run is the work of one shard.
type run struct {
	*ownership
	cancel  context.CancelCauseFunc // of work's context
	lose    context.CancelCauseFunc // of the ownership's context
	stopped bool                    // cancel was called, so that the shard can move
}

// A result is the end of a run.
type result struct {
	run  *run
	err  error
	asks bool // work returned although its context was not done
}

var errGoexit = errors.New("shard: work called runtime.Goexit: return instead")

// A stay is the time of a replica in its group, for one epoch, and until its work has returned.
type stay struct {
	*replica
	e       *epoch
	stopped <-chan struct{}  // the context of Run is done; nil once the replica leaves
	lost    <-chan struct{}  // the epoch is over; nil once that was seen
	drained <-chan time.Time // the work has had its DrainTimeout
	hung    <-chan time.Time // the work has ignored ErrLost since
	leaving bool
	overran bool
	err     error // of Run
}

// serve owns shards for one epoch. It reports whether to join again, and otherwise the
// result of Run.
func (r *replica) serve(ctx context.Context, e *epoch) (again bool, err error) {
	var wg sync.WaitGroup
	renewCtx, stopRenewing := context.WithCancel(e.Context())
	wg.Go(func() { r.renew(renewCtx, e) })
	defer r.report()
	defer wg.Wait()
	defer stopRenewing()

	s := &stay{replica: r, e: e, stopped: ctx.Done(), lost: e.Context().Done()}
	if ctx.Err() != nil {
		s.leave()
	}
	for {
		next, over := s.step()
		if over {
			if s.lost != nil { // all shards were handed over
				stopRenewing()
				wg.Wait()
				e.End()
				r.leaveGroup(ctx)
			}
			return !s.leaving, s.err
		}
		r.report()
		if err := s.wait(next); err != nil {
			return false, errors.Join(s.err, err)
		}
	}
}

// leave begins to hand over all shards.
func (s *stay) leave() {
	if !s.leaving {
		s.leaving, s.stopped, s.e.left = true, nil, time.Now()
		close(s.e.leaving)
		s.drained = time.After(s.DrainTimeout)
	}
}

// step does what is due. It returns the time of the next step, and whether the stay is over: the
// replica leaves and has no shard, or the epoch is over and all work has returned.
func (s *stay) step() (next time.Time, over bool) {
	if s.lost != nil {
		return s.act(s.e, s.leaving)
	}
	if len(s.runs) == 0 { // only this goroutine changes it
		if s.overran {
			s.err = errors.Join(s.err, fmt.Errorf("shard: work did not return within DrainTimeout (%v): raise it or make work stop sooner", s.DrainTimeout))
		}
		return time.Time{}, true
	}
	s.reportOutside()
	return time.Now().Add(s.RetryPeriod), false
}

// wait waits for the time of the next step, or for what makes one necessary before. It returns an
// error if work hangs.
func (s *stay) wait(next time.Time) error {
	timer := time.NewTimer(max(1, time.Until(next)))
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:

	case <-s.stopped:
		s.logger.Info("Stopping, shards are handed over while the work drains", "drainTimeout", s.DrainTimeout)
		s.leave()

	case <-s.drained:
		if len(s.runs) > 0 {
			s.overran = true
			s.hung = time.After(s.StopTimeout)
		}
		s.e.End()

	case <-s.lost:
		s.lost = nil
		s.logger.Info("The Lease is lost, waiting until the work has stopped", "lease", s.leaseName, "shards", len(s.runs))
		if s.leaving {
			s.drained = nil
			if s.hung == nil {
				s.hung = time.After(s.StopTimeout)
			}
		}

	case <-s.hung:
		names := strings.Trim(fmt.Sprint(slices.Sorted(maps.Keys(s.runs))), "[]")
		return fmt.Errorf("shard: work did not return within DrainTimeout and the margin, %v: restart the process; Lease %s/%s expires; shards %s; the stacks of work:\n%s",
			s.DrainTimeout+s.StopTimeout, s.namespace, s.leaseName, names, tenure.Stacks(stackLabel, s.ref))

	case done := <-s.returned:
		s.endAll(done)
	}
	return nil
}

// endAll records the end of a run, and of all others that have ended: one write hands over many
// shards.
func (s *stay) endAll(done result) {
	for {
		s.end(done)
		if done.asks {
			s.leave()
			if s.err == nil {
				s.err = done.err
			}
		}
		select {
		case done = <-s.returned:
		default:
			return
		}
	}
}

// startLocked calls work for a shard. All writes of its earlier owners have a resource
// version up to since.
func (r *replica) startLocked(e *epoch, s Shard, since string, work func(context.Context, Shard) error) {
	o := &ownership{Shard: s, epoch: &e.Period}
	owned, lose := context.WithCancelCause(context.WithValue(e.Context(), ownershipKey{}, o))
	ctx, cancel := context.WithCancelCause(calls.WithSince(context.WithValue(owned, calls.Validity{}, owned), since))
	run := &run{ownership: o, cancel: cancel, lose: lose}
	r.runs[s.Index], r.spent[s.Index] = run, s.Term
	r.gained++
	r.logger.V(1).Info("Owning a shard", "shard", s.Index, "term", s.Term)
	tenure.Go(ctx, stackLabel, r.ref+"/"+strconv.Itoa(s.Index), errGoexit, func(ctx context.Context) error {
		if !o.valid() {
			return ErrLost // paused since the decision
		}
		return work(ctx, s)
	}, func(err error) {
		o.over.Store(true)
		r.returned <- result{run: run, err: err, asks: ctx.Err() == nil}
	})
}

// end records that work has returned.
func (r *replica) end(done result) {
	r.mu.Lock()
	delete(r.runs, done.run.Index)
	r.lost++
	r.mu.Unlock()
	done.run.cancel(nil)
	done.run.lose(nil)
	r.logger.V(1).Info("The work of a shard has stopped", tenure.Values(done.err, "shard", done.run.Index, "term", done.run.Term)...)
}

// act starts and stops work, and sends the requests that are due. It returns the time of
// the next one, and whether this replica has left: it is leaving and has no shard.
func (r *replica) act(e *epoch, leaving bool) (next time.Time, left bool) {
	for e.Valid() {
		r.mu.Lock()
		p := plan{replica: r, e: e, leaving: leaving, now: time.Now()}
		p.next = p.now.Add(time.Hour)
		p.makeLocked()
		r.mu.Unlock()
		if p.request == nil {
			return p.next, p.left
		}
		p.request(context.WithoutCancel(e.Context()))
	}
	return time.Now().Add(time.Hour), false
}

// A plan is the next step of a replica, by its view of the group.
type plan struct {
	*replica
	e       *epoch
	leaving bool
	now     time.Time

	candidates []candidate // replicas that take part
	request    func(context.Context)
	next       time.Time // of a request, if request is nil
	left       bool
}

// due sets the request if its time has come, and otherwise plans again then.
func (p *plan) due(at time.Time, request func(context.Context)) {
	switch {
	case at.After(p.now):
		p.wakeAt(at)
	case p.request == nil:
		p.request = request
	}
}

// wakeAt plans again at the time, or earlier. A time that has come has no effect.
func (p *plan) wakeAt(at time.Time) {
	if at.After(p.now) && at.Before(p.next) {
		p.next = at
	}
}

func (p *plan) makeLocked() {
	t := p.table
	if p.tableErr != nil { // nobody can change an owner
		for _, run := range p.runs {
			if p.leaving {
				run.stop()
			}
		}
		p.left = p.leaving && len(p.runs) == 0
		return
	}
	if t == nil {
		p.e.End()
		return
	}
	most := p.max
	if p.leaving {
		most = 0
	}
	p.candidates = []candidate{{p.e.uid, most}}
	for uid, m := range p.members {
		if uid != p.e.uid && m.has(p.rangesText, p.now, p.LeaseDuration) {
			p.candidates = append(p.candidates, candidate{uid, m.max()})
		}
	}
	p.membersLocked()
	p.shardsLocked()
	p.left = p.leaving && len(p.runs) == 0 && !t.has(p.e.uid)
}

// membersLocked ends the epochs of Leases that have expired, and deletes their Leases.
func (p *plan) membersLocked() {
	rank, expired := p.rank(), false
	for uid, m := range p.members {
		expires := m.changed.Add(m.duration(p.LeaseDuration))
		switch {
		case uid == p.e.uid || m.ended && m.absent:
		case m.absent && !p.now.Before(expires):
			m.ended = true
			p.changed = p.now
		case m.absent:
			p.wakeAt(expires)
		case m.ended && !p.table.has(uid):
			at := m.changed.Add(p.RetryPeriod + rank)
			if m.mine {
				at = m.retry
			}
			lease := m.lease // which the watch changes, also while the request runs
			expired = true
			p.due(tenure.Latest(at, m.retry), func(ctx context.Context) { p.try(m, p.remove(ctx, lease)) })
		case !m.ended:
			lease := m.lease
			expired = expired || !p.now.Before(expires)
			p.due(tenure.Latest(expires.Add(rank), m.retry), func(ctx context.Context) {
				err := p.endLease(ctx, lease)
				p.try(m, err)
				if err == nil {
					p.logger.Info("Ended the Lease of a replica that did not renew it", "lease", lease.Name)
				}
			})
		}
	}
	if !expired {
		delete(p.problems, "end")
	}
}

// try records the result of a request about a member.
func (p *plan) try(m *member, err error) {
	p.mu.Lock()
	m.mine = m.mine || err == nil
	m.retry = time.Now().Add(tenure.Jittered(p.RetryPeriod))
	if err == nil {
		m.retry = time.Time{}
	}
	p.mu.Unlock()
	p.note("end", err)
}

// shardsLocked starts and stops work, and plans the next version of the table.
//
// A table of other Ranges is replaced only if each entry has no holder, or the epoch of its
// holder has ended. To this replica it is an empty table of its own Ranges.
func (p *plan) shardsLocked() {
	t, ownerless := p.table, p.ownerlessLocked(p.now)
	if t.ranges.equal(p.ranges) {
		delete(p.problems, "ranges")
	} else {
		p.waitLocked()
		t = &table{t.lease, p.ranges, make([]entry, p.ranges.N)}
	}
	wanted, surplus := p.wantedLocked(t)
	p.measureLocked(ownerless, surplus, p.now)
	if ownerless > 0 {
		p.wakeAt(p.now.Add(p.RetryPeriod)) // to measure again
	}
	// Replicas that join within a RetryPeriod get their shards together.
	settled := p.joined.Add(p.RetryPeriod)
	joining := p.now.Before(settled)
	if joining {
		p.wakeAt(settled)
		if t.free() {
			wanted = make([]types.UID, len(t.entries))
		}
	}
	entries := slices.Clone(t.entries)
	changed, urgent := false, false
	for s, cur := range t.entries {
		run, holder := p.runs[s], p.members[cur.holder]
		f := facts{
			runs:   run != nil,
			own:    cur.holder == p.e.uid,
			wanted: wanted[s] == p.e.uid,
			moves:  cur.holder != wanted[s],
			free:   cur.holder == "" || holder != nil && holder.ended,
			unused: cur.term > p.spent[s],
			stays:  joining && !p.leaving,
		}
		f.same = f.runs && f.own && run.Term == cur.term && run.Table == t.lease.UID
		switch f.decide() {
		case keep:
		case stopWork:
			run.stop()
		case loseWork: // another user has changed the entry
			run.lose(ErrLost) // before Check fails: work may return its error
			run.over.Store(true)
		case startWork:
			p.startLocked(p.e, Shard{Index: s, Table: t.lease.UID, Term: cur.term}, t.lease.ResourceVersion, p.work)
		case changeEntry:
			entries[s] = entry{wanted[s], t.number() + 1}
			changed = true
			urgent = urgent || f.own || holder != nil && holder.mine
		}
	}
	if !changed {
		delete(p.problems, "table")
		return
	}
	p.due(p.writeTimeLocked(t, urgent), func(ctx context.Context) { p.replace(ctx, t, entries) })
}

// wantedLocked returns the holder that each shard should have, "" for none, and the number of
// shards that must move because their holders have more than their share.
func (p *plan) wantedLocked(t *table) (wanted []types.UID, surplus int) {
	index := map[types.UID]int{}
	for i, c := range p.candidates {
		index[c.uid] = i
	}
	owners := make([]int, len(t.entries))
	for s, cur := range t.entries {
		owners[s] = -1
		if i, ok := index[cur.holder]; ok {
			owners[s] = i
		}
	}
	wanted = make([]types.UID, len(t.entries))
	for s, c := range assign(owners, p.candidates) {
		if c >= 0 {
			wanted[s] = p.candidates[c].uid
		}
		if owners[s] >= 0 && owners[s] != c {
			surplus++
		}
	}
	return wanted, surplus
}

// facts are what a replica knows of one shard when it decides.
type facts struct {
	runs   bool // this replica works on the shard, or its work has not returned
	same   bool // that work is of the entry's term
	own    bool // this replica is the holder
	wanted bool // this replica should be the holder
	moves  bool // the holder is not the one that should be
	free   bool // the entry has no holder, or the epoch of its holder has ended
	unused bool // no work of this replica has used the entry's term
	stays  bool // no work is stopped, because the shards move again when all have joined
}

// A decision is what a replica does about one shard.
type decision int

const (
	keep decision = iota
	stopWork
	loseWork
	startWork
	changeEntry
)

// decide is the protocol. An entry changes only in three cases: it has no holder; the epoch of
// its holder has ended; its holder is this replica, which does not work on the shard and will
// not in the same term.
func (f facts) decide() decision {
	switch {
	case f.same && !f.wanted && !f.stays:
		return stopWork
	case f.same:
		return keep
	case f.runs:
		return loseWork
	case f.own && f.wanted && f.unused:
		return startWork
	case f.own, f.moves && f.free:
		return changeEntry
	}
	return keep
}

// writeTimeLocked returns when this replica may write the table t. urgent is true if no other
// replica can make one of the changes.
func (p *plan) writeTimeLocked(t *table, urgent bool) time.Time {
	at := p.changed
	if m := p.members[p.e.uid]; p.leaving && m != nil && m.max() != 0 {
		// Others that do not know yet that this replica leaves would give shards back.
		at = p.e.left.Add(p.RetryPeriod)
	}
	if !urgent {
		at = at.Add(p.rank())
	}
	if t.lease.ResourceVersion == p.failedOver {
		return tenure.Latest(at, p.failed.Add(p.RetryPeriod/2))
	}
	return tenure.Latest(at, p.nextWrite)
}

// waitLocked leaves no shard to any replica with the Ranges of this one, while a replica with
// those of the table owns shards or can own some.
func (p *plan) waitLocked() {
	theirs := p.table.ranges.describe()
	waits := slices.ContainsFunc(p.table.entries, func(e entry) bool {
		m := p.members[e.holder]
		return e.holder != "" && (m == nil || !m.ended)
	})
	for _, m := range p.members {
		waits = waits || m.has(theirs, p.now, p.LeaseDuration) && m.max() != 0 // it is not leaving
	}
	if !waits {
		return
	}
	p.candidates = nil
	if p.problems["ranges"] == nil {
		p.logger.Info("Waiting until no replica has the Ranges of the table", "ranges", p.rangesText, "table", theirs)
	}
	p.problems["ranges"] = fmt.Errorf("shard: the Ranges are (%s), but Lease %s has the Ranges (%s): waiting until the replicas with those are stopped or restarted with the same", p.rangesText, p.ref, theirs)
}

// replace writes the next version of the table.
func (p *plan) replace(ctx context.Context, t *table, entries []entry) {
	p.mu.Lock()
	for s, cur := range t.entries {
		if cur.holder == p.e.uid && entries[s] != cur {
			// The write may be stored without a response, so this term never runs again.
			p.spent[s] = cur.term
		}
	}
	lease, err := encode(t.lease, t.number()+1, t.ranges, entries, p.nameLocked)
	p.mu.Unlock()
	if err == nil {
		_, err = p.write(ctx, "update", lease)
	}
	if err == nil {
		p.tries = 0
	} else {
		p.failedOver, p.failed = t.lease.ResourceVersion, time.Now()
		p.nextWrite = p.failed.Add(rand.N(rankDelay << min(p.tries, 6)))
		p.tries++
	}
	p.note("table", err)
}

// nameLocked returns the name of a holder for readers.
func (r *replica) nameLocked(uid types.UID) string {
	if m := r.members[uid]; m != nil && m.lease != nil {
		return ptr.Deref(m.lease.Spec.HolderIdentity, "")
	}
	return ""
}

// rank returns the time that this replica leaves others for an act that several could do.
// Another replica is the first in each version of the table.
func (p *plan) rank() time.Duration {
	before, own := 0, score(seed(p.e.uid), int(p.table.number()))
	for _, c := range p.candidates {
		if score(seed(c.uid), int(p.table.number())) < own {
			before++
		}
	}
	return min(time.Duration(before)*rankDelay, p.RetryPeriod/2)
}

// stop asks the work to end, so that the shard can move.
func (r *run) stop() {
	r.stopped = true
	r.cancel(errMoves)
}

// leaveGroup ends the Lease of this replica, which works on no shard.
func (r *replica) leaveGroup(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.RenewDeadline)
	defer cancel()
	for tries := 1; ; tries++ {
		var err error
		if r.unsure || tries > 1 {
			_, err = r.list(ctx)
		}
		r.mu.Lock()
		lease, ended := r.ownLocked()
		r.mu.Unlock()
		if err == nil && lease == nil {
			return
		}
		if err == nil && !ended {
			err = r.endLease(ctx, lease)
		}
		if err == nil {
			err = r.remove(ctx, lease)
		}
		if err == nil {
			return
		}
		if !tenure.IsConflict(err) || tries == 3 {
			r.logger.Error(tenure.Printable(err), "Could not end the Lease, it expires", "lease", r.leaseName)
			return
		}
	}
}
