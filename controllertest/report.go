package controllertest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// An Oracle is the rule that a finding violates.
type Oracle string

// The oracles.
const (
	EndState   Oracle = "end state"  // the state at rest differs from the runs without faults
	Events     Oracle = "events"     // an object was created or deleted more often than without faults
	Invariance Oracle = "invariant"  // a Scenario's invariant was violated
	Liveness   Oracle = "liveness"   // the cluster does not converge
	Quiescence Oracle = "quiescence" // endless writes, or a queue that is not empty at rest
	Upgrade    Oracle = "upgrade"    // a new version changes what the user has not asked for: see Scenario.From
	Health     Oracle = "health"     // a panic, a process that ends early or does not stop, leaked goroutines, a request that an operator does not declare
)

// A Finding is one violation of an oracle in a run.
type Finding struct {
	Oracle Oracle
	Object string // the object as "resource/name", without the parts of a name that differ in each run; "" if the finding is about none
	Field  string // the field of the object, "created", "deleted", or what else the finding is about, in a few words
	Text   string
	Failed int // how many of Failure.Runs have it
}

// A Failure is a group of failing plans with the same oracle, resource and field in their
// first finding, and the same family of faults or a common operation. It shows the simplest plan, and the findings
// that only other plans of the group have.
type Failure struct {
	Plan     string        // in the form of Options.Plans; "" for a run without faults
	Plans    []string      // all plans of the group, shortened
	Runs     int           // how often Plan ran, with the runs that confirm it
	First    time.Duration // from the beginning of the plans to the first failing one
	Findings []Finding     // findings of all runs first
	Timeline string        // operations, faults and events in their order
	Replay   string        // the environment variable with which Explore runs only this plan; " x10" at the end of its value means ten runs
}

// A Report is the result of an exploration.
type Report struct {
	Scenario   string
	Operations []string       // at which faults were injected, in the form of plans
	Skipped    []string       // operations that not all runs without faults make, and steps that cannot begin early
	Plans      int            // the number of plans that ran
	Valid      int            // the number of plans whose faults all happened
	Invalid    []string       // plans with a fault that did not happen
	Unjudged   []string       // plans whose outcome the controller did not decide, such as on a busy machine, each with the reason
	Passed     []string       // valid plans without a finding
	Enumerated int            // the number of plans with one fault, or of Options.Plans
	Ran        int            // how many of them ran
	TooEarly   []string       // steps after which Converged accepted a state before the runs without faults would, and the fields that it does not check
	Reordered  []string       // lists with the same elements as without faults in another order, which is no finding
	Failures   []Failure      // the confirmed ones first, then those with old lists, then the flaky ones
	Accepted   map[string]int // plans by reason of Scenario.Accept
	Kinds      map[Kind]Count // by the kind of the first fault
	Duration   time.Duration  // of the plans, without the runs without faults
	Complete   bool           // Ran is Enumerated
}

// Count counts the plans of a kind.
type Count struct{ Plans, Valid, Failing int }

func (x *explorer) failure(r *run) Failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := Failure{Plan: r.plan.String(), Replay: x.replay(r.plan)}
	var b strings.Builder
	lines := r.timeline
	if len(lines) > timelineLines {
		fmt.Fprintf(&b, "... %d lines left out\n", len(lines)-timelineLines)
		lines = lines[len(lines)-timelineLines:]
	}
	for _, m := range lines {
		fmt.Fprintf(&b, "%8.3fs %s\n", m.at.Seconds(), m.text)
	}
	f.Timeline = b.String()
	return f
}

const timelineLines = 150

// replayVariable is the environment variable with which [Explore] runs one plan only, as
// in Failure.Replay.
const replayVariable = "CONTROLLERTEST_REPLAY"

func (x *explorer) replay(p plan) string {
	if len(p) == 0 {
		return ""
	}
	return fmt.Sprintf("%s='%s: %s'", replayVariable, x.scenario.Name, p)
}

// brief is the failure without its timeline.
func (f Failure) brief() string {
	var b strings.Builder
	for _, finding := range f.Findings {
		if finding.Failed < f.Runs {
			fmt.Fprintf(&b, "flaky, in %d of %d runs: ", finding.Failed, f.Runs)
		}
		fmt.Fprintf(&b, "%s: %s\n", finding.Oracle, finding.Text)
	}
	return b.String()
}

// String returns all fields of the failure as text.
func (f Failure) String() string {
	name := f.Plan
	if name == "" {
		name = "without any fault"
	}
	s := name + "\n" + f.brief()
	if f.Runs > 1 {
		s += f.counts() + "\n"
	}
	if len(f.Plans) > 1 {
		s += "other plans:\n"
		for _, p := range f.Plans[:min(len(f.Plans), 10)] {
			if p != f.Plan {
				s += "  " + p + "\n"
			}
		}
	}
	if f.Timeline != "" {
		s += "timeline:\n" + f.Timeline
	}
	if f.Replay != "" {
		s += "replay: " + f.Replay + "\n"
	}
	return s
}

// counts returns the numbers of the failure as text.
func (f Failure) counts() string {
	return fmt.Sprintf("failed in %d of %d runs; %d plans fail like this, the first after %v", f.first().Failed, f.Runs, len(f.Plans), f.First.Round(time.Millisecond))
}

// failing returns the number of failing plans.
func (r *Report) failing() (n int) {
	for _, count := range r.Kinds {
		n += count.Failing
	}
	return n
}

// String returns the numbers of the report as a table, and a line for each failure.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d plans in %v (%.1f a second): %d valid, %d failing, %d invalid", r.Scenario, r.Plans, r.Duration.Round(time.Millisecond),
		float64(r.Plans)/max(r.Duration.Seconds(), 0.001), r.Valid, r.failing(), len(r.Invalid))
	if len(r.Unjudged) > 0 {
		fmt.Fprintf(&b, ", %d not judged", len(r.Unjudged))
	}
	if !r.Complete {
		fmt.Fprintf(&b, "; %d of %d enumerated plans ran", r.Ran, r.Enumerated)
	}
	fmt.Fprintf(&b, "\n%d operations", len(r.Operations))
	if len(r.Skipped) > 0 {
		fmt.Fprintf(&b, ", and %d that not all runs without faults make", len(r.Skipped))
	}
	b.WriteString("\n")
	for _, early := range r.TooEarly {
		b.WriteString(early + "\n")
	}
	for _, list := range r.Reordered {
		fmt.Fprintf(&b, "in another order than without faults: %s\n", list)
	}
	for _, unjudged := range r.Unjudged[:min(len(r.Unjudged), 5)] {
		fmt.Fprintf(&b, "not judged: %s\n", unjudged)
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "first fault\tplans\tvalid\tfailing\n")
	for _, kind := range AllFaults() {
		if c, ok := r.Kinds[kind]; ok {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", kind, c.Plans, c.Valid, c.Failing)
		}
	}
	_ = w.Flush()
	last := section(-1)
	for _, f := range r.Failures {
		if f.section() != last {
			last = f.section()
			fmt.Fprintf(&b, "%s:\n", last)
		}
		fmt.Fprintf(&b, "  %s: %s: %s\n", f.first().key(), f.counts(), cmp.Or(f.Plan, "without any fault"))
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Accepted)) {
		fmt.Fprintf(&b, "accepted in %d plans: %s\n", r.Accepted[reason], reason)
	}
	return b.String()
}
