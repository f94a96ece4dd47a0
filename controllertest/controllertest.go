package controllertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Explore runs the scenario without faults and then under the plans that the options
// select. The test fails for each plan with findings. If t is a *testing.T, each kind of
// fault is a subtest.
//
// If the environment variable CONTROLLERTEST_REPLAY is set, as in Failure.Replay, Explore runs
// only its plan.
//
// Explore ends before the -timeout of go test, and then the test fails with the findings until then.
//
// With go test -short, Explore skips the test, because an exploration takes minutes and a server.
func Explore(t testing.TB, s Scenario, o Options) {
	t.Helper()
	if testing.Short() {
		t.Skip("controllertest: -short leaves out explorations")
	}
	if s.Name == "" {
		s.Name = t.Name()
	}
	if replay := os.Getenv(replayVariable); replay != "" {
		text, ok := strings.CutPrefix(replay, s.Name+": ")
		if !ok {
			t.Skipf("%s is not about %s", replayVariable, s.Name)
		}
		o.Plans, o.replays = []string{text}, 1
		if i := strings.LastIndex(text, " x"); i > strings.LastIndex(text, "#") { // a plan ends in #1
			count, err := strconv.Atoi(text[i+len(" x"):])
			if err != nil || count < 1 || count > maxReplays {
				t.Fatal(fmt.Errorf("controllertest: %s: %q is no number of runs: write x1 to x%d after the plan", replayVariable, text[i+1:], maxReplays))
			}
			o.Plans, o.replays = []string{text[:i]}, count
		}
	}
	ctx, cancel := inTime(t)
	defer cancel()
	report, err := explore(ctx, s, o, t.Logf)
	if err != nil {
		if report != nil {
			t.Log(report)
			for _, f := range report.Failures {
				t.Error(f)
			}
		}
		t.Fatal(err)
	}
	report.failTest(t)
	if len(o.Plans) > 0 && len(report.Invalid) > 0 {
		t.Errorf("controllertest: the faults of these plans did not happen: use the names of Report.Operations%s:\n\t%s", recount(report.Invalid), strings.Join(report.Invalid, "\n\t"))
	}
}

// inTime returns the context of a test, which ends so long before the -timeout of go test that the
// exploration can stop and report. At the -timeout, go test ends the process without a report.
func inTime(t testing.TB) (context.Context, context.CancelFunc) {
	if limited, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, ok := limited.Deadline(); ok {
			return context.WithDeadlineCause(t.Context(), end.Add(-min(maxReserve, time.Until(end)/4)), errTimeout)
		}
	}
	return context.WithCancel(t.Context())
}

// maxReserve bounds the time between the end of an exploration and the -timeout of go test.
const maxReserve = 2 * time.Minute

var errTimeout = errors.New("the -timeout of go test is nearly over: set a longer one, or Options.Budget")

// recount returns the cure of a plan whose second fault is at the second occurrence of the
// operation of its first fault, or "" if the plans have no such fault.
func recount(plans []string) string {
	for _, text := range plans {
		p, _ := parsePlan(text)
		for n := 1; n < len(p); n++ {
			if signature := signatureOf(p[n].at); signature == signatureOf(p[n-1].at) && p[n].at != signature+"#1" {
				return fmt.Sprintf("; the number after # counts from the fault before, so the next %q after a fault is #1 again", signature)
			}
		}
	}
	return ""
}

// maxReplays bounds the runs of a plan of replayVariable.
const maxReplays = 10000

// failTest reports the findings to a test.
func (r *Report) failTest(t testing.TB) {
	t.Helper()
	t.Log(r)
	// The first kind of a shortened plan may be in no other plan.
	byKind := map[Kind][]Failure{}
	for _, f := range r.Failures {
		kind := f.kind()
		byKind[kind] = append(byKind[kind], f)
	}
	for _, f := range byKind[""] {
		t.Errorf("%s%s", f, f.cure())
	}
	if r.Plans == 0 {
		if len(r.Failures) == 0 {
			t.Error("controllertest: no plan ran: Options.Faults has no kind that fits an operation of the controller, or Options.Budget is too short")
		}
		return
	}
	kinds, _ := t.(*testing.T)
	for _, kind := range AllFaults() {
		count, ok := r.Kinds[kind]
		failures := byKind[kind]
		if !ok && len(failures) == 0 {
			continue
		}
		sub := func(t testing.TB) {
			t.Helper()
			t.Logf("%d plans, %d valid", count.Plans, count.Valid)
			for _, f := range failures {
				t.Error(f)
			}
		}
		if kinds != nil {
			kinds.Run(string(kind), func(t *testing.T) { sub(t) })
		} else {
			sub(t)
		}
	}
	if r.Valid == 0 && len(r.Failures) == 0 {
		unjudged := slices.Concat(r.Unjudged, r.Invalid)
		t.Errorf("controllertest: no plan could be judged: the faults of %d of %d plans did not happen, and %d plans have no outcome, for example:\n\t%s",
			len(r.Invalid), r.Plans, len(r.Unjudged), strings.Join(unjudged[:min(5, len(unjudged))], "\n\t"))
	}
}

// kind returns the kind of the first fault, or "" without faults.
func (f Failure) kind() Kind {
	kind, _, _ := strings.Cut(f.Plan, "@")
	kind, _, _ = strings.Cut(kind, "(")
	return Kind(kind)
}

// cure returns what to change in a scenario that fails without faults.
func (f Failure) cure() string {
	if f.flaky() {
		return fmt.Sprintf("the runs without faults have different outcomes, because of a race in the controller or the script: %d of %d have this one, and the others do not: mend the race, or let Converged wait for the slower outcome\n", f.first().Failed, f.Runs)
	}
	for _, finding := range f.Findings {
		switch finding.Oracle {
		case Liveness:
			return "the scenario does not converge without faults: mend the controller or Converged, or set a longer Options.ConvergeTimeout\n"
		case Quiescence:
			return "the controller does not come to rest without faults: mend its endless writes or its queue, or set a longer Options.QuietPeriod\n"
		case Health:
			return "the controller or the script fails without faults: mend it\n"
		case EndState, Events, Invariance:
			return "the scenario fails without faults: mend the controller or the scenario\n"
		}
	}
	return ""
}
