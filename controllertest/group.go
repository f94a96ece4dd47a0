package controllertest

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A group is the failing plans with the same kind of finding and the same families of
// faults, which one defect causes as a rule. The report joins groups that share an operation.
type group struct {
	Failure                    // of the best plan
	shape   plan               // the best plan
	others  map[string]Finding // by key: the first finding of each kind, of any plan
}

// enter stores a failing run, whose plan ran that often, in its group.
func (x *explorer) enter(r *run, findings []Finding, runs int, after time.Duration) {
	for n := range findings {
		findings[n].Failed = max(1, findings[n].Failed)
	}
	// The findings of every run come first, as they were found.
	slices.SortStableFunc(findings, func(a, b Finding) int { return cmp.Compare(b.Failed, a.Failed) })
	f := x.failure(r)
	f.Findings, f.Runs, f.First = findings, runs, after
	key := f.first().key() + " under " + r.plan.families()
	x.mu.Lock()
	g := x.groups[key]
	isNew := g == nil
	if isNew {
		g = &group{Failure: f, shape: r.plan, others: map[string]Finding{}}
		x.groups[key] = g
	}
	for _, other := range findings {
		if _, ok := g.others[other.key()]; !ok {
			other.Text = fmt.Sprintf("under %s: %s", f.Plan, other.Text)
			g.others[other.key()] = other
		}
	}
	plans, first := g.Plans, min(g.First, after)
	if better(f, r.plan, g) {
		g.Failure, g.shape = f, r.plan
	}
	g.Plans, g.First = append(plans, f.Plan), first
	x.found[f.Plan] = g
	x.mu.Unlock()
	if isNew {
		x.log("FAIL %s\n%s", f.Plan, f.brief())
	}
}

// better reports whether a failure shows its group's defect more simply than the present
// one: in every run, with fewer faults, in fewer letters.
func better(f Failure, p plan, than *group) bool {
	if f.flaky() != than.flaky() {
		return !f.flaky()
	}
	if (f.Runs > 1) != (than.Runs > 1) { // one that was confirmed
		return f.Runs > 1
	}
	return cmp.Or(cmp.Compare(len(p), len(than.shape)), cmp.Compare(len(f.Plan), len(than.Plan)), cmp.Compare(f.Plan, than.Plan)) < 0
}

// known reports whether the failures have the run's plan with all its findings.
func (x *explorer) known(r *run) bool {
	found := r.found()
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.found[r.plan.String()]
	return g != nil && !slices.ContainsFunc(found, func(f Finding) bool {
		_, ok := g.others[f.key()]
		return !ok
	})
}

// confirmed reports whether another plan has confirmed the run's first finding under the
// same families of faults.
func (x *explorer) confirmed(r *run) bool {
	found := r.found()
	if len(found) == 0 {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.groups[found[0].key()+" under "+r.plan.families()]
	return g != nil && g.Runs > 1 && !g.flaky()
}

// failures returns the groups in the order of their sections and sizes.
func (x *explorer) failures() []Failure {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := []Failure{}
	for _, g := range x.causesLocked() {
		f := g.all()
		f.Plans = slices.SortedFunc(slices.Values(f.Plans), func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		f.Plans = slices.Compact(f.Plans)
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(a.section(), b.section()), cmp.Compare(len(b.Plans), len(a.Plans)))
	})
	return all
}

// causesLocked joins the groups with the same kind of finding that share an operation: one wrong write
// shows under each family of faults.
func (x *explorer) causesLocked() []*group {
	var causes []*group
	for _, key := range slices.Sorted(maps.Keys(x.groups)) {
		joined := x.groups[key].clone()
		for n := 0; n < len(causes); {
			if c := causes[n]; c.first().key() == joined.first().key() && c.shares(joined) {
				c.join(joined)
				joined, causes = c, slices.Delete(causes, n, n+1)
				n = 0 // the joined group can share an operation with an earlier one
				continue
			}
			n++
		}
		causes = append(causes, joined)
	}
	return causes
}

func (g *group) clone() *group {
	c := *g
	c.Plans, c.others = slices.Clone(g.Plans), maps.Clone(g.others)
	return &c
}

// shares reports whether plans of two groups have a fault at the same operation.
func (g *group) shares(with *group) bool {
	operations := g.operations()
	for signature := range with.operations() {
		if operations[signature] {
			return true
		}
	}
	return false
}

// operations returns the operations of the plans, without their numbers.
func (g *group) operations() map[string]bool {
	all := map[string]bool{}
	for _, text := range g.Plans {
		p, _ := parsePlan(text) // "" is the plan without faults
		for _, j := range p {
			all[signatureOf(j.at)] = true
		}
	}
	return all
}

// join adds the plans and findings of another group.
func (g *group) join(other *group) {
	plans, first, others := append(g.Plans, other.Plans...), min(g.First, other.First), other.others
	if better(other.Failure, other.shape, g) {
		others = g.others
		g.Failure, g.shape, g.others = other.Failure, other.shape, other.others
	}
	g.Plans, g.First = plans, first
	for key, f := range others {
		if _, ok := g.others[key]; !ok {
			g.others[key] = f
		}
	}
}

// all returns the failure of the best plan with the findings that only other plans have.
func (g *group) all() Failure {
	f := g.Failure
	f.Findings = slices.Clone(f.Findings)
	own := map[string]bool{}
	for _, finding := range f.Findings {
		own[finding.key()] = true
	}
	for _, key := range slices.Sorted(maps.Keys(g.others)) {
		if other := g.others[key]; !own[key] {
			other.Failed = f.Runs // it is not flaky because this plan does not have it
			f.Findings = append(f.Findings, other)
		}
	}
	return f
}

// A section of the report.
type section int

const (
	confirmed section = iota
	oldLists
	flaky
)

func (s section) String() string {
	switch s {
	case oldLists:
		return "restarts on old lists"
	case flaky:
		return "flaky"
	case confirmed:
	}
	return "failing"
}

func (f Failure) section() section {
	switch {
	case f.flaky():
		return flaky
	case strings.Contains(f.Plan, string(TimeTravel)+"("):
		return oldLists
	}
	return confirmed
}

// flaky reports whether not all runs of the plan have its first finding.
func (f Failure) flaky() bool { return f.first().Failed < f.Runs }

func (f Failure) first() Finding {
	if len(f.Findings) == 0 {
		return Finding{}
	}
	return f.Findings[0]
}

// key is equal for findings that usually have the same cause.
func (f Finding) key() string {
	kind, _, _ := strings.Cut(f.Object, "/")
	return fmt.Sprintf("%s of %s", f.Oracle, strings.TrimSpace(kind+" "+numbers.ReplaceAllString(f.Field, "N")))
}

var numbers = regexp.MustCompile(`[0-9]+`)

// families are the kinds of faults of a plan, without details.
func (p plan) families() string {
	var all []string
	for _, j := range p {
		all = append(all, j.kind.family())
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " and ")
}

func (k Kind) family() string {
	switch k {
	case CrashBefore, CrashAfter:
		return "crashes"
	case TimeTravel:
		return "old lists"
	case DropRequest, LostResponse, ResetConns, Slow, Truncated:
		return "network faults"
	case Conflict, Forbidden, Invalid, TooManyRequests, Unavailable, CommitThen503, InternalError, Timeout:
		return "error responses"
	case Hold, HoldRelist, Gone, GoneAtStart, NoBookmark, Stall, NextStep:
		return "watch faults"
	case Pause, Freeze, SlowRenewal:
		return "pauses"
	case UserDelete, UserEdit, UserRecreate, StepBefore, TwoSteps:
		return "user actions"
	case DriftDelete, DriftEdit:
		return "drift"
	case Outage:
		return "outages"
	}
	return string(k)
}

const (
	existence = "existence" // the field of an object that is absent or surplus
	more      = "  ..."     // stands for the differences that are left out
)

// about names the object and the field of a difference of states, such as
// "  ~ configmaps/a .data.k: w, without faults v".
func about(difference string) (object, field string) {
	if difference == more {
		return "", "more differences"
	}
	path, _, _ := strings.Cut(difference[min(len("  + "), len(difference)):], ": ")
	object, field, _ = strings.Cut(path, " .")
	if field = cmp.Or(field, existence); field != existence {
		field = "." + field
	}
	return copies.ReplaceAllString(object, ""), field
}

var copies = regexp.MustCompile(` \([0-9]+ of [0-9]+\)$`)

// accept removes the findings that Scenario.Accept accepts, and of many differences all but
// the first ones.
func (r *run) accept() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var left []Finding
	differ := 0
	for _, f := range r.findings {
		if accepts := r.x.scenario.Accept; accepts != nil {
			if reason := accepts(f, r.plan.String()); reason != "" {
				if !slices.Contains(r.accepted, reason) {
					r.accepted = append(r.accepted, reason)
				}
				continue
			}
		}
		if f.Oracle == EndState {
			if differ++; differ > shownDifferences {
				continue
			}
		}
		left = append(left, f)
	}
	if differ > shownDifferences {
		object, field := about(more)
		left = append(left, Finding{Oracle: EndState, Object: object, Field: field, Text: "there are more differences"})
	}
	r.findings = left
}
