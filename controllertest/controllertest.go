package controllertest

import (
	"os"
	"strings"
	"testing"
)

// Explore runs the scenario without faults and then under every plan that the
// options allow, and fails the test for each plan under which something is wrong.
// If t is a *testing.T, each kind of fault is a subtest.
func Explore(t testing.TB, s Scenario, o Options) {
	t.Helper()
	if s.Name == "" {
		s.Name = t.Name()
	}
	if replay := os.Getenv(ReplayVariable); replay != "" {
		text, ok := strings.CutPrefix(replay, s.Name+": ")
		if !ok {
			t.Skipf("%s is not about %s", ReplayVariable, s.Name)
		}
		o.Plans = []string{text}
	}
	report, err := explore(t.Context(), s, o, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	report.tell(t)
	if len(o.Plans) > 0 && len(report.Invalid) > 0 {
		t.Errorf("these plans were asked for, and their faults did not happen; the names of operations are those of Report.Operations:\n\t%s", strings.Join(report.Invalid, "\n\t"))
	}
}

// tell reports to a test.
func (r *Report) tell(t testing.TB) {
	t.Helper()
	t.Log(r)
	// A plan that was made shorter may begin with a kind that no other plan does.
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
			t.Error("no plan was run: none of Options.Faults makes sense at any operation of the controller, or Options.Budget is too short")
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
	if limit := r.Plans / 50; len(r.Invalid) > max(limit, 1) {
		t.Errorf("%d of %d plans are invalid, more than 2%%: their faults did not happen, so they say nothing; such as:\n\t%s",
			len(r.Invalid), r.Plans, strings.Join(r.Invalid[:min(5, len(r.Invalid))], "\n\t"))
	}
}

// kind is that of the first fault, "" without one.
func (f Failure) kind() Kind {
	kind, _, _ := strings.Cut(f.Plan, "@")
	kind, _, _ = strings.Cut(kind, "(")
	return Kind(kind)
}

// cure says what to do about a scenario that fails without faults.
func (f Failure) cure() string {
	for _, finding := range f.Findings {
		switch finding.Oracle {
		case Liveness:
			return "the scenario does not converge without faults: mend the controller, or Converged, or give it more time with Options.Settle\n"
		case Quiescence:
			return "the controller does not come to rest without faults: it writes again and again, or needs a longer Options.Quiet, or leaves its queue filled\n"
		case Health:
			return "the controller or the script does not work without faults\n"
		case EndState, Events, Invariance:
			return "the scenario is wrong without faults\n"
		}
	}
	return ""
}
