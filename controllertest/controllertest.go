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
}

// tell reports to a test.
func (r *Report) tell(t testing.TB) {
	t.Helper()
	t.Log(r)
	if r.Plans == 0 {
		for _, f := range r.Failures {
			t.Errorf("%s%s", f, f.cure())
		}
		return
	}
	kinds, _ := t.(*testing.T)
	for _, kind := range AllFaults() {
		count, ok := r.Kinds[kind]
		if !ok {
			continue
		}
		sub := func(t testing.TB) {
			t.Helper()
			t.Logf("%d plans, %d valid", count.Plans, count.Valid)
			for _, f := range r.Failures {
				if strings.HasPrefix(f.Plan, string(kind)+"@") || strings.HasPrefix(f.Plan, string(kind)+"(") {
					t.Error(f)
				}
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
