package controllertest

import (
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/controllerkit/controllerkit/controllertest/internal/outage"
)

// single enumerates the plans with one fault.
func (x *explorer) single(ref *reference) []plan {
	var plans []plan
	for _, kind := range x.options.Faults {
		for n, op := range ref.operations {
			for _, j := range x.injections(kind, op) {
				plans = append(plans, plan{j})
			}
			if kind == TimeTravel {
				plans = append(plans, x.travels(ref.operations, n)...)
			}
		}
		if kind.scope() == madeObject {
			plans = append(plans, drifts(kind, ref.rests[x.scenario.formerSteps():])...)
		}
	}
	return plans
}

// inTurn orders plans so that each kind has its turn: the first plans of all kinds, then the
// second ones. So a kind with few plans is tried whole in a short exploration, and in a sample.
// In a turn are three plans with a step before a write, because no other kind finds what they do.
func inTurn(plans []plan) []plan {
	turns := make(map[*injection]int, len(plans))
	seen := map[Kind]int{}
	for _, p := range plans {
		kind := p[0].kind
		turns[&p[0]] = seen[kind]
		if kind == StepBefore || kind == TwoSteps {
			turns[&p[0]] /= 3
		}
		seen[kind]++
	}
	slices.SortStableFunc(plans, func(a, b plan) int { return turns[&a[0]] - turns[&b[0]] })
	return plans
}

// injections are the faults of a kind at an operation.
func (x *explorer) injections(kind Kind, op operation) []injection {
	if kind == SlowRenewal {
		if !x.leases.Load() || !op.write {
			return nil
		}
		return []injection{{kind: kind, at: op.id}}
	}
	if kind == TimeTravel || !x.hasNext(op.step, kind.steps()) || !kind.fits(op) {
		return nil
	}
	var all []injection
	switch kind.scope() {
	case anyOperation:
		all = append(all, injection{kind: kind, at: op.id})
	case watchedResource:
		for _, resource := range op.watched {
			all = append(all, injection{kind: kind, about: resource, at: op.id})
		}
	case userObject:
		for _, user := range op.users {
			all = append(all, injection{kind: kind, about: user, at: op.id})
		}
	case madeObject:
		if x.restores(kind, op.resource) {
			all = append(all, injection{kind: kind, about: op.made, at: op.id})
		}
	case failedRequests:
		for _, text := range outage.At(op.id, op.write) {
			all = append(all, injection{kind: kind, about: text, at: op.id})
		}
	}
	return all
}

// travels are the restarts at an operation with an old list of one resource. Two
// old lists, or an old list and the present one, are the same if no object of the
// resource was written between them. One of them is enough.
func (x *explorer) travels(ops []operation, n int) []plan {
	if !TimeTravel.fits(ops[n]) {
		return nil
	}
	var plans []plan
	for _, resource := range slices.Sorted(maps.Keys(x.watched)) {
		from, before := "start", operation{write: true, resource: resource}
		for _, op := range ops[:n+1] {
			if !op.write {
				continue // the number of reads depends on when events arrive
			}
			// At the beginning of a step the user writes.
			if before.resource == resource || before.step != op.step {
				plans = append(plans, plan{{kind: TimeTravel, about: resource, from: from, at: ops[n].id}})
				from = op.id
			}
			before = op
		}
	}
	return plans
}

// maxFaults bounds the faults of a random plan.
const maxFaults = 4

// longer adds faults to a plan. They are chosen during the run, because the operations
// after a fault are not known before.
func (x *explorer) longer(p plan, rng *rand.Rand) plan {
	p = slices.Clone(p)
	own := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
	for faults := 1 + rng.IntN(maxFaults-1); faults > 0; faults-- {
		p = append(p, injection{after: 1 + own.IntN(12), rng: own})
	}
	return p
}

// chooseLocked chooses the next fault at an operation, if its turn has come.
func (r *run) chooseLocked(op operation) {
	j := &r.plan[r.next]
	if j.after--; j.after > 0 {
		return
	}
	faults := r.x.options.Faults
	for _, n := range j.rng.Perm(len(faults)) {
		if all := r.x.injections(faults[n], op); len(all) > 0 {
			*j = all[j.rng.IntN(len(all))]
			return
		}
	}
	j.after = 1 // no kind fits this operation
}
