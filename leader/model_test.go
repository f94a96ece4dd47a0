package leader_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A modelProtocol is the election as the model below plays it: its timings in ticks
// and what each rule of it says. The zero value of a rule is this package's.
type modelProtocol struct {
	renewDeadline uint8 // lead's context ends that long after a renewal was sent
	leaseDuration uint8 // others wait that long after they saw the record change
	stop          uint8 // the work goes on that long after its context ended
	skewEvery     uint8 // of that many ticks one clock may miss one; 0 means that none does
	deletions     uint8 // how often somebody deletes the Lease

	fromResponse  bool  // validity counts from the response to a renewal
	retryPeriod   uint8 // and a new round that may take renewDeadline begins that long after it
	callTimeout   uint8 // a response later than that is not heard; 0 means that any may be
	releaseEarly  bool  // the Lease may be released before lead has returned
	releaseBlind  bool  // who has seen no leader since it led releases whatever record is there
	nameIsOwn     bool  // both have one identity, and a record with it is taken for the own
	sameNumber    bool  // a term taken over the own record has the number of that
	afterDeletion uint8 // one of the next constants
}

const (
	waitUnlessValid = iota // a Lease that was seen and is gone is waited for, except by its valid leader
	trustLastSeen          // taken at once if the record last seen was free or the own
	takeAtOnce             // taken at once
)

// validity is how long a renewal counts.
func (p modelProtocol) validity() uint8 {
	if p.fromResponse {
		return p.renewDeadline + p.retryPeriod
	}
	return p.renewDeadline
}

// A modelState is all that there is at one moment. Times are ages by the clock of
// the replica that counts them. Versions and numbers of terms have no bound, so
// only what they are compared for is kept: whether a version is still the stored
// one, and how much a number is above the highest that led. That makes the states
// finite without a bound on time, terms or requests.
type modelState struct {
	holder    uint8 // 0 or 1, or one of the next constants
	thisRun   bool  // the holder's present Run wrote the record, not an earlier one
	above     uint8 // the record's number - the highest that led, at most 2
	deletions uint8 // left
	skew      uint8 // ticks since a clock missed one, at most skewEvery
	broken    uint8 // the promise that the step to this state broke
	replica   [2]modelReplica
}

const (
	holderFree = 2 + iota // released
	holderGone            // there is no Lease
)

type modelReplica struct {
	phase  uint8
	age    uint8 // leads or drains: since the last renewal that counts
	rest   uint8 // lost: how long the work still goes on
	view   uint8 // what was last read
	fresh  bool  // and is still stored
	waited uint8 // since that was seen, at most leaseDuration

	sent   uint8 // the write whose response it waits for
	stored bool  // sent was stored
	kept   bool  // and what it stored was not replaced since
	since  uint8 // sent was sent that long ago
	above  uint8 // a claim that was stored: as in modelState

	// Writes over the stored version that nobody waits for any more and that may
	// be stored all the same. Several of a kind do what one does.
	lateClaim, lateRenewal bool // of this Run
	ghost, ghostRelease    bool // of an earlier Run: puts its record, or releases it
}

const ( // phases
	phaseDown      = iota // there is no Run
	phaseCampaigns        // wants the Lease
	phaseLeads            // the context of lead is open
	phaseDrains           // was asked to stop, lead goes on
	phaseLost             // leadership is over, lead has not returned
	phaseReleases         // lead has returned, its Run gives the Lease up and ends
)

const ( // views
	viewNone = iota // nothing was read in this Run
	viewGone
	viewFree
	viewOwn
	viewOther
)

const ( // writes
	writeNone = iota
	writeClaim
	writeRenewal
	writeRelease
)

var modelWrites = [...]string{writeClaim: "the claim", writeRenewal: "the renewal", writeRelease: "the release"}

const ( // promises
	unbroken = iota
	oneWorks
	releasesOwn
	numbersGrow
)

var modelPromises = [...]string{
	oneWorks:    "two replicas are in guarded work",
	releasesOwn: "a foreign record is released",
	numbersGrow: "the number of the term did not grow",
}

func (r *modelReplica) holds() bool { return r.phase == phaseLeads || r.phase == phaseDrains }

func (r *modelReplica) works() bool { return r.holds() || r.phase == phaseLost && r.rest > 0 }

// A modelStep leads from one state to the next. who is -1 if no replica acts.
type modelStep struct {
	who  int
	what string
	to   modelState
}

// next yields every possible step of a state.
func (p modelProtocol) next(from modelState, yield func(modelStep)) {
	from.broken = unbroken
	for i := range from.replica {
		p.nextOf(from, i, yield)
	}
	on := func(possible bool, what string, do func(s *modelState)) {
		if possible {
			s := from
			do(&s)
			yield(modelStep{-1, what, s})
		}
	}
	skewed := p.skewEvery > 0 && from.skew == p.skewEvery
	on(true, "one tick", func(s *modelState) { p.tick(s, true, true) })
	on(skewed, "one tick, missed by A's clock", func(s *modelState) { p.tick(s, false, true) })
	on(skewed, "one tick, missed by B's clock", func(s *modelState) { p.tick(s, true, false) })
	// A replica that never saw the deleted Lease cannot know of its leader.
	seen := from.replica[0].view != viewNone && from.replica[1].view != viewNone
	on(from.deletions > 0 && from.holder != holderGone && seen, "somebody deletes the Lease", func(s *modelState) {
		s.deletions--
		s.put(holderGone, false)
	})
}

// nextOf yields the steps of replica i, and of its requests.
func (p modelProtocol) nextOf(from modelState, i int, yield func(modelStep)) {
	on := func(possible bool, what string, do func(s *modelState, r *modelReplica)) {
		if !possible {
			return
		}
		s := from
		do(&s, &s.replica[i])
		if s.replica[0].works() && s.replica[1].works() {
			s.broken = oneWorks
		}
		yield(modelStep{i, what, s})
	}
	r := from.replica[i]
	idle := r.sent == writeNone

	// The network.
	on(!idle && !r.stored, modelWrites[r.sent]+" is stored", func(s *modelState, _ *modelReplica) { p.store(s, i) })
	on(r.lateRenewal, "a renewal it gave up on is stored", func(s *modelState, _ *modelReplica) { s.put(uint8(i), true) })
	on(r.lateClaim, "a claim it gave up on is stored", func(s *modelState, _ *modelReplica) {
		s.above = min(s.above+1, 2)
		s.put(uint8(i), true)
	})
	on(r.ghost, "a write of its earlier Run is stored", func(s *modelState, _ *modelReplica) { s.put(uint8(i), false) })
	on(r.ghostRelease, "the release of its earlier Run is stored", func(s *modelState, _ *modelReplica) { s.free(i) })
	on(r.stored && (p.callTimeout == 0 || r.since <= p.callTimeout), "hears that "+modelWrites[r.sent]+" was stored",
		func(s *modelState, _ *modelReplica) { p.hear(s, i) })

	// The process.
	if r.phase == phaseDown {
		// One that starts while the Lease is gone could not know of its leader either.
		on(p.deletions == 0 || from.holder != holderGone, "starts", func(_ *modelState, r *modelReplica) { r.phase = phaseCampaigns })
		return
	}
	on(true, "crashes", func(s *modelState, _ *modelReplica) { s.end(i) })
	on(!idle, "gives up on "+modelWrites[r.sent], func(s *modelState, r *modelReplica) {
		r.giveUp()
		if p.releaseBlind && r.phase == phaseReleases {
			s.end(i) // client-go's elector does not try again
		}
	})
	on(!r.fresh && (idle || r.holds()) && r.phase != phaseReleases, "reads the Lease", func(s *modelState, _ *modelReplica) { p.read(s, i) })
	switch r.phase {
	case phaseCampaigns:
		may := r.view == viewFree || r.view == viewOwn || (r.view == viewOther || r.view == viewGone) && r.waited == p.leaseDuration
		on(idle && r.fresh && may, "claims the Lease", func(_ *modelState, r *modelReplica) { r.send(writeClaim) })
		on(true, "is asked to stop", func(_ *modelState, r *modelReplica) { r.giveUp(); r.phase = phaseReleases })
	case phaseLeads, phaseDrains:
		on(idle && r.fresh && r.view == viewOwn, "renews", func(_ *modelState, r *modelReplica) { r.send(writeRenewal) })
		on(r.phase == phaseLeads, "is asked to stop, the work goes on", func(_ *modelState, r *modelReplica) { r.phase = phaseDrains })
		on(r.phase == phaseDrains, "ends its term at DrainTimeout", func(_ *modelState, r *modelReplica) { r.lose(p.stop) })
		on(r.phase == phaseDrains && p.releaseEarly && idle && from.holder < holderFree, "releases the Lease while lead drains",
			func(_ *modelState, r *modelReplica) { r.send(writeRelease) })
		on(true, "lead returns", func(_ *modelState, r *modelReplica) { r.giveUp(); r.phase, r.age = phaseReleases, 0 })
	case phaseLost:
		on(r.rest == 0 && !p.releaseBlind, "lead returns, its Run campaigns again", func(_ *modelState, r *modelReplica) { r.phase = phaseCampaigns })
		on(r.rest == 0 && p.releaseBlind, "lead returns, its Run gives the Lease up", func(_ *modelState, r *modelReplica) { r.phase = phaseReleases })
	case phaseReleases:
		own := p.is(&from, i) == viewOwn || p.releaseBlind && r.view == viewOwn && from.holder < holderFree
		on(idle && own, "reads the Lease and releases it", func(_ *modelState, r *modelReplica) { r.send(writeRelease) })
	}
}

// tick moves the clocks that do not miss it.
func (p modelProtocol) tick(s *modelState, clocks ...bool) {
	s.skew = min(s.skew+1, p.skewEvery)
	for i, runs := range clocks {
		r := &s.replica[i]
		if !runs {
			s.skew = 1
			continue
		}
		if r.phase == phaseLost && r.rest > 0 {
			r.rest--
		}
		if r.holds() {
			if r.age++; r.age == p.validity() {
				r.lose(p.stop)
			}
		}
		if r.view == viewOther || r.view == viewGone {
			r.waited = min(r.waited+1, p.leaseDuration)
		}
		if r.sent == writeClaim || r.sent == writeRenewal {
			r.since = min(r.since+1, p.validity())
		}
	}
}

// is what replica i sees when it reads.
func (p modelProtocol) is(s *modelState, i int) uint8 {
	switch {
	case s.holder == holderGone:
		return viewGone
	case s.holder == holderFree:
		return viewFree
	case int(s.holder) == i && s.thisRun, p.nameIsOwn:
		return viewOwn
	}
	return viewOther
}

// read is also the effect of an event of the watch, at any time or never.
func (p modelProtocol) read(s *modelState, i int) {
	r := &s.replica[i]
	before, now := r.view, p.is(s, i)
	r.view, r.fresh = now, true
	if now != viewGone || before != viewGone {
		r.waited = 0
	}
	if now == viewGone {
		valid := before == viewOwn && r.holds()
		last := before == viewOwn || before == viewFree
		if before == viewNone || valid || last && p.afterDeletion == trustLastSeen || p.afterDeletion == takeAtOnce {
			r.waited = p.leaseDuration
		}
	}
	if r.holds() && now != viewOwn {
		r.lose(p.stop)
	}
}

// send sends a write over the version that is stored. One over another version
// would be refused whenever it arrives, so it is not sent.
func (r *modelReplica) send(write uint8) {
	r.sent, r.stored, r.kept, r.since, r.above = write, false, false, 0, 0
}

// giveUp: the response is not waited for. What was not stored yet may be later.
func (r *modelReplica) giveUp() {
	if !r.stored {
		r.lateClaim = r.lateClaim || r.sent == writeClaim
		r.lateRenewal = r.lateRenewal || r.sent == writeRenewal
		r.ghostRelease = r.ghostRelease || r.sent == writeRelease
	}
	r.send(writeNone)
}

// lose ends the term, and with it the context of lead.
func (r *modelReplica) lose(stop uint8) {
	r.giveUp()
	r.phase, r.age, r.rest = phaseLost, 0, stop
}

// end ends the Run, with its process or without.
func (s *modelState) end(i int) {
	r := &s.replica[i]
	r.giveUp()
	*r = modelReplica{ghost: r.ghost || r.lateClaim || r.lateRenewal, ghostRelease: r.ghostRelease}
	if int(s.holder) == i {
		s.thisRun = false
	}
}

// put makes another version the stored one. Every other write that was on its way
// is over an older version now and will be refused: it is forgotten.
func (s *modelState) put(holder uint8, thisRun bool) {
	s.holder, s.thisRun = holder, thisRun
	for i := range s.replica {
		r := &s.replica[i]
		r.fresh, r.kept = false, false
		r.lateClaim, r.lateRenewal, r.ghost, r.ghostRelease = false, false, false, false
		if !r.stored {
			r.send(writeNone)
		}
	}
}

// store stores the write that replica i waits for.
func (p modelProtocol) store(s *modelState, i int) {
	r := &s.replica[i]
	if r.sent == writeRelease {
		s.free(i)
		if r.phase == phaseReleases {
			s.end(i)
		}
		return
	}
	if r.sent == writeClaim {
		if !p.sameNumber || r.view != viewOwn {
			s.above = min(s.above+1, 2)
		}
		r.above = s.above
	}
	r.stored = true
	s.put(uint8(i), true)
	r.kept = true
}

// free stores a release by replica i.
func (s *modelState) free(i int) {
	if int(s.holder) != i {
		s.broken = releasesOwn
	}
	s.put(holderFree, false)
}

// hear delivers the response to the write that was stored.
func (p modelProtocol) hear(s *modelState, i int) {
	r, other := &s.replica[i], &s.replica[1-i]
	write, age, above := r.sent, r.since, r.above
	r.view, r.fresh, r.waited = viewOwn, r.kept, 0
	r.send(writeNone)
	if p.fromResponse {
		age = 0
	}
	switch {
	case write == writeRenewal:
		r.age = age
	case age < p.validity(): // later than that it is too late to lead
		r.phase, r.age = phaseLeads, age
		if above == 0 && p.deletions == 0 { // the numbers of two Leases are not compared
			s.broken = numbersGrow
		}
		s.above -= min(above, s.above)
		other.above -= min(above, other.above)
	}
}

// explore visits every state, nearest first. It returns their number, and the
// shortest way to break the given promise if there is one; unbroken means any.
func (p modelProtocol) explore(promise uint8) (states int, trace []modelStep) {
	start := modelState{holder: holderGone, deletions: p.deletions, skew: p.skewEvery}
	if p.deletions > 0 {
		start.holder = holderFree
	}
	known := map[modelState]bool{start: true}
	all, parent := []modelStep{{to: start}}, []int{-1}
	for n := 0; n < len(all); n++ {
		if b := all[n].to.broken; b != unbroken && (promise == unbroken || promise == b) {
			for at := n; at > 0; at = parent[at] {
				trace = append(trace, all[at])
			}
			slices.Reverse(trace)
			break
		}
		p.next(all[n].to, func(next modelStep) {
			if !known[next.to] {
				known[next.to] = true
				all, parent = append(all, next), append(parent, n)
			}
		})
	}
	return len(all), trace
}

// writtenTrace is a trace as a person reads it.
func writtenTrace(trace []modelStep) string {
	var b strings.Builder
	tick := 0
	for _, s := range trace {
		who := ""
		if s.who >= 0 {
			who = string(rune('A'+s.who)) + ": "
		}
		if strings.HasPrefix(s.what, "one tick") {
			if tick++; s.what == "one tick" {
				continue
			}
		}
		fmt.Fprintf(&b, "  tick %d  %s%s", tick, who, s.what)
		if s.to.broken != unbroken {
			fmt.Fprintf(&b, ": %s", strings.ToUpper(modelPromises[s.to.broken]))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestModel plays the protocol of this package in discrete time and visits every
// state that two replicas can reach, with a network between them and the API
// server and a clock each: at every moment each may start, crash, stop, drain,
// lose, renew, or do nothing; each write may be stored at once, late, or never,
// also after its sender gave up or crashed, and its response may come late or
// never. In all states at most one replica is in guarded work, a release replaces
// nothing but a record of the replica that sent it, and the number of each term
// that begins is higher than all before.
//
// Guarded work is more here than Term.Check lets through: it lasts from the start
// of lead until some ticks after its context has ended.
//
// Left out because it adds nothing: a slow read is one that happens when it is
// served, after which the replica does nothing for a while; the watch is a read at
// any time, and old news of it only makes a replica wait longer or write in vain;
// a write over a version that was replaced is refused, so it is not sent; periods
// and timeouts of calls, because everything may happen at any time or never; a
// write that arrives twice, because the second is over an old version.
//
// Left out although it matters: more than two replicas; hand edits; clocks that
// jump; a process that stands still while its clock runs on, for which
// TestServerFrozenProcess is; and the code, which the other tests run.
//
// Proves L1.
func TestModel(t *testing.T) {
	for _, tt := range []struct {
		name string
		modelProtocol
	}{
		{name: "clocks that drift", modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, stop: 1, skewEvery: 5}},
		{name: "the Lease is deleted", modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 4, stop: 1, deletions: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Now()
			states, trace := tt.explore(unbroken)
			t.Logf("%d states in %v", states, time.Since(began).Round(time.Millisecond))
			if trace != nil {
				t.Errorf("the promise is broken:\n%s", writtenTrace(trace))
			}
			if states < 100_000 {
				t.Errorf("only %d states: the model does not move as it should", states)
			}
		})
	}
}

// TestModelFindsBrokenRules: for each rule that TestModel relies on, the model
// without it finds how the promise is broken, in as few steps as possible.
func TestModelFindsBrokenRules(t *testing.T) {
	for _, tt := range []struct {
		name string
		modelProtocol
		want uint8
	}{
		{
			name:          "validity from the response, and a round of RenewDeadline after it, as client-go's elector has it",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, fromResponse: true, retryPeriod: 1, callTimeout: 2},
			want:          oneWorks,
		},
		{
			name:          "validity from the response",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, fromResponse: true},
			want:          oneWorks,
		},
		{
			name:          "no margin, and a clock that drifts",
			modelProtocol: modelProtocol{renewDeadline: 4, leaseDuration: 4, skewEvery: 4},
			want:          oneWorks,
		},
		{
			name:          "a margin for drift alone, and work that needs time to stop",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 4, stop: 1, skewEvery: 4},
			want:          oneWorks,
		},
		{
			name:          "a clock that drifts more than the margin allows",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, stop: 1, skewEvery: 4},
			want:          oneWorks,
		},
		{
			name:          "released before lead has returned",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, stop: 1, releaseEarly: true},
			want:          oneWorks,
		},
		{
			name:          "a late release of whatever record is there, as client-go's elector does it",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, stop: 1, releaseBlind: true},
			want:          releasesOwn,
		},
		{
			name:          "an equal identity counts as the own",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, stop: 1, nameIsOwn: true},
			want:          oneWorks,
		},
		{
			name:          "the number stays when the holder acquires again",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, stop: 1, sameNumber: true},
			want:          numbersGrow,
		},
		{
			name:          "a Lease that was deleted is taken at once",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, stop: 1, deletions: 1, afterDeletion: takeAtOnce},
			want:          oneWorks,
		},
		{
			name:          "a Lease that was deleted is taken at once by who last saw it free",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, stop: 1, deletions: 1, afterDeletion: trustLastSeen},
			want:          oneWorks,
		},
		{
			name:          "a Lease that is deleted twice, which is more than a candidate can see",
			modelProtocol: modelProtocol{renewDeadline: 3, leaseDuration: 5, stop: 1, deletions: 2},
			want:          oneWorks,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			states, trace := tt.explore(tt.want)
			if trace == nil {
				t.Fatalf("no counter-example in all %d states, want one to %q", states, modelPromises[tt.want])
			}
			t.Logf("after %d states:\n%s", states, writtenTrace(trace))
		})
	}
}
