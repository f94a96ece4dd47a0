package controllertest

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// An Oracle is what a finding is judged by.
type Oracle string

// The oracles.
const (
	EndState   Oracle = "end state"  // a state at rest differs from that of the runs without faults
	Events     Oracle = "events"     // an object was created or deleted more often than without faults
	Invariance Oracle = "invariant"  // a Scenario's invariant was violated
	Liveness   Oracle = "liveness"   // the cluster does not converge
	Quiescence Oracle = "quiescence" // writes without end, or a queue that is not empty at rest
	Health     Oracle = "health"     // a panic, a process that ends by itself or does not stop, goroutines left
)

// A Finding is one thing that is wrong in a run.
type Finding struct {
	Oracle Oracle
	Text   string
}

// A Failure is a plan under which the controller does something wrong.
type Failure struct {
	Plan     string // in the form that Options.Plans takes
	Findings []Finding
	Timeline string // operations, faults and events, in the order of time
	Replay   string // the environment variable that makes Explore run this plan only
}

// A Report is the outcome of an exploration.
type Report struct {
	Scenario   string
	Operations []string // those at which faults were injected, as plans name them
	Skipped    []string // operations that the runs without faults do not agree on
	Plans      int      // that were run
	Valid      int      // plans whose faults all happened
	Invalid    []string // plans some of whose faults did not happen, which says nothing about the controller
	TooEarly   []string // steps after which Converged returned nil before the state was that of the runs without faults, and the fields that it does not check
	Failures   []Failure
	Kinds      map[Kind]Count // by the kind of the first fault
	Duration   time.Duration  // of the plans; the runs without faults are not in it
	Complete   bool           // every plan that was enumerated was run
}

// Count counts the plans of a kind.
type Count struct{ Plans, Valid, Failing int }

func (x *explorer) failure(r *run) Failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := Failure{Plan: r.plan.String(), Findings: slices.Clone(r.findings), Replay: x.replay(r.plan)}
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

// ReplayVariable is the environment variable that makes [Explore] run one plan
// only, as the line of a failure says.
const ReplayVariable = "CONTROLLERTEST_REPLAY"

func (x *explorer) replay(p plan) string {
	if len(p) == 0 {
		return ""
	}
	return fmt.Sprintf("%s='%s: %s'", ReplayVariable, x.scenario.Name, p)
}

// brief is the failure without its timeline.
func (f Failure) brief() string {
	var b strings.Builder
	for _, finding := range f.Findings {
		fmt.Fprintf(&b, "%s: %s\n", finding.Oracle, finding.Text)
	}
	return b.String()
}

// String is the whole story of a failure.
func (f Failure) String() string {
	name := f.Plan
	if name == "" {
		name = "without any fault"
	}
	s := name + "\n" + f.brief()
	if f.Timeline != "" {
		s += "timeline:\n" + f.Timeline
	}
	if f.Replay != "" {
		s += "replay: " + f.Replay + "\n"
	}
	return s
}

// String is the table of a report, without its failures.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d plans in %v (%.1f a second): %d valid, %d failing, %d invalid", r.Scenario, r.Plans, r.Duration.Round(time.Millisecond),
		float64(r.Plans)/max(r.Duration.Seconds(), 0.001), r.Valid, len(r.Failures), len(r.Invalid))
	if !r.Complete {
		b.WriteString("; more were enumerated than run")
	}
	fmt.Fprintf(&b, "\n%d operations", len(r.Operations))
	if len(r.Skipped) > 0 {
		fmt.Fprintf(&b, ", %d left out because not every run without faults makes them", len(r.Skipped))
	}
	b.WriteString("\n")
	for _, early := range r.TooEarly {
		b.WriteString(early + "\n")
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "first fault\tplans\tvalid\tfailing\n")
	for _, kind := range AllFaults() {
		if c, ok := r.Kinds[kind]; ok {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", kind, c.Plans, c.Valid, c.Failing)
		}
	}
	_ = w.Flush()
	return b.String()
}
