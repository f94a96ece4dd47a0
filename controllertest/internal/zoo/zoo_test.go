package zoo_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/internal/zoo"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var (
	update = flag.Bool("update", false, "write docs/zoo.md")
	family = flag.String("family", "", "explore this family only")
)

// families returns the families to explore.
func families() []zoo.Family {
	all := zoo.Families()
	if *family != "" {
		all = slices.DeleteFunc(all, func(f zoo.Family) bool { return f.Name != *family })
	}
	return all
}

// budget is how long to explore beyond what make test does; 0 means not at all.
func budget(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("EXPLORE_BUDGET")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("EXPLORE_BUDGET: %v", err)
	}
	return d
}

// A verdict is the outcome of an exploration.
type verdict struct {
	report *controllertest.Report
	err    error
}

// explore runs many explorations at once: most of the time each of them waits.
// Those with elections come last and few at a time, as leases of two seconds are
// lost on a machine that is busy. It repeats an exploration that is wrong, three times at
// most, because what some controllers do depends on what comes first by a hair. nil means
// that none is wrong.
func explore(t *testing.T, scenarios []controllertest.Scenario, o func(n int) controllertest.Options, wrong func(n int, r *controllertest.Report) error) []verdict {
	t.Helper()
	verdicts := make([]verdict, len(scenarios))
	for _, batch := range []struct {
		elections bool
		slots     int
	}{{false, 12}, {true, 5}} {
		slots := make(chan struct{}, batch.slots)
		var wg sync.WaitGroup
		for n, s := range scenarios {
			if (s.Replicas > 1) != batch.elections {
				continue
			}
			options := o(n)
			options.Config, options.KeepNamespaces = testserver.Config(t), true
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				v := &verdicts[n]
				for range 3 {
					v.report, v.err = controllertest.Run(t.Context(), s, options)
					if v.err != nil || wrong == nil || wrong(n, v.report) == nil {
						break
					}
				}
			})
		}
		wg.Wait()
	}
	return verdicts
}

// class takes together what differs by a hair: whether a controller that goes on for
// ever pauses long enough to be asked whether it has converged.
func class(o controllertest.Oracle) controllertest.Oracle {
	if o == controllertest.Quiescence {
		return controllertest.Liveness
	}
	return o
}

// TestMutants: each bug is found by its plan in at most three tries, in the way that
// is written beside it, and not all runs without faults show it. Without a budget it takes a
// random sixth of the bugs, and make explore-scenarios takes all.
//
// Proves X6.
func TestMutants(t *testing.T) {
	var mutants []zoo.Mutant
	var scenarios []controllertest.Scenario
	for _, f := range families() {
		for _, m := range f.Mutants {
			s := f.Scenario(m.Bug)
			s.Name = f.Name + "/" + m.Bug
			mutants, scenarios = append(mutants, m), append(scenarios, s)
		}
	}
	if budget(t) == 0 {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(mutants), func(i, k int) {
			mutants[i], mutants[k] = mutants[k], mutants[i]
			scenarios[i], scenarios[k] = scenarios[k], scenarios[i]
		})
		mutants, scenarios = mutants[:len(mutants)/6], scenarios[:len(scenarios)/6]
	}
	wrong := func(n int, r *controllertest.Report) error {
		m := mutants[n]
		if len(r.Failures) == 0 {
			return fmt.Errorf("it lives: %d plans, invalid: %q", r.Plans, r.Invalid)
		}
		failure := r.Failures[0]
		if (failure.Plan == "") != (m.Plan == "") {
			return fmt.Errorf("killed by %q, want %q: %s", failure.Plan, m.Plan, failure)
		}
		if !slices.ContainsFunc(failure.Findings, func(f controllertest.Finding) bool { return class(f.Oracle) == class(m.Oracle) }) {
			return fmt.Errorf("killed by another oracle than %q: %s", m.Oracle, failure)
		}
		return nil
	}
	verdicts := explore(t, scenarios, func(n int) controllertest.Options {
		o := controllertest.Options{ConvergeTimeout: 8 * time.Second, Parallel: 4, Confirm: -1}
		if budget(t) > 0 {
			o.Confirm = 9
		}
		if scenarios[n].Replicas > 1 {
			o.ConvergeTimeout = 15 * time.Second
		}
		if plan := mutants[n].Plan; plan != "" {
			o.Plans = []string{plan}
		}
		return o
	}, wrong)
	replayed, plans := 0, 0
	for n, m := range mutants {
		if report := verdicts[n].report; report != nil && m.Plan != "" && len(report.Failures) > 0 && budget(t) > 0 {
			f := report.Failures[0]
			if plans++; f.Findings[0].Failed >= 9 {
				replayed++
			} else {
				t.Logf("%s fails in %d of %d runs", scenarios[n].Name, f.Findings[0].Failed, f.Runs)
			}
		}
		t.Run(scenarios[n].Name, func(t *testing.T) {
			report, err := verdicts[n].report, verdicts[n].err
			if err != nil {
				t.Fatal(err)
			}
			if err := wrong(n, report); err != nil {
				t.Error(err)
			}
		})
	} // Beyond make test, all plans run ten times.
	if plans > 0 {
		t.Logf("%d of %d failing plans fail in 9 of 10 runs", replayed, plans)
	}
	if replayed*100 < plans*95 {
		t.Errorf("%d of %d failing plans fail in 9 of 10 runs, want 95%%", replayed, plans)
	}
}

// TestTwins: no plan fails for the correct controllers: a sample of those with one
// fault, and all of them where there is a budget.
//
// Proves X6.
func TestTwins(t *testing.T) {
	if budget(t) == 0 {
		t.Parallel()
	}
	var scenarios []controllertest.Scenario
	for _, f := range families() {
		s := f.Scenario("")
		s.Name = f.Name
		scenarios = append(scenarios, s)
	}
	seed := uint64(time.Now().UnixNano())
	if budget(t) > 0 {
		for _, s := range scenarios {
			t.Run(s.Name, func(t *testing.T) {
				controllertest.Explore(t, s, controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, ConvergeTimeout: time.Minute})
			})
		}
		return
	}
	verdicts := explore(t, scenarios, func(int) controllertest.Options {
		return controllertest.Options{Sample: 6, ConvergeTimeout: time.Minute, Parallel: 5, Seed: seed}
	}, nil)
	for n, v := range verdicts {
		t.Run(scenarios[n].Name, func(t *testing.T) {
			if v.err != nil {
				t.Fatal(v.err)
			}
			t.Logf("seed %d: %s", seed, v.report)
			for _, f := range v.report.Failures {
				t.Error(f)
			}
			if len(v.report.Invalid) > 2 {
				t.Errorf("invalid: %q", v.report.Invalid)
			}
		})
	}
}

// TestReference explores the scenario that the kit measures itself with.
func TestReference(t *testing.T) {
	if budget(t) == 0 {
		t.Parallel()
	}
	o := controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, Sample: 30}
	if o.Budget = budget(t); o.Budget > 0 {
		o.Config, o.Sample = nil, 0 // a server of its own, which is renewed
		o.Seed = uint64(time.Now().UnixNano())
	}
	controllertest.Explore(t, zoo.Reference(), o)
}

// TestZoo holds what the zoo is.
func TestZoo(t *testing.T) {
	mutants, historic, hot := 0, 0, 0
	causes, bugs := map[string]bool{}, map[string]bool{}
	for _, f := range zoo.Families() {
		for _, m := range f.Mutants {
			mutants++
			causes[m.Cause] = true
			if m.Historic {
				historic++
			}
			if m.Plan == "" {
				hot++
				if m.Oracle != controllertest.Quiescence {
					t.Errorf("%s/%s has no plan: only hot loops show without faults", f.Name, m.Bug)
				}
			}
			name := f.Name + "/" + m.Bug
			if bugs[name] {
				t.Errorf("%s is there twice", name)
			}
			bugs[name] = true
			if m.Bug == "" || m.Cause == "" || m.Does == "" || m.Oracle == "" || !strings.ContainsAny(m.Reference, "#/") {
				t.Errorf("%s: bug, cause, does, reference or oracle is missing: %+v", name, m)
			}
		}
	}
	if mutants < 40 || len(causes) < 15 || historic < 10 {
		t.Errorf("%d mutants of %d causes, %d of them historic, want at least 40, 15 and 10", mutants, len(causes), historic)
	}
	t.Logf("%d mutants of %d causes, %d historic, %d hot loops", mutants, len(causes), historic, hot)
}

// TestDocs holds that docs/zoo.md is made of the zoo.
func TestDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("# The bug zoo\n\nSmall controllers with one known bug each. `controllertest` finds each bug with the plan\nin the last column, in every run of `make test`. `make zoo` generates this page.\n")
	for _, f := range zoo.Families() {
		fmt.Fprintf(&b, "\n## %s\n\n| bug | what it does | cause | report | found by | plan |\n|---|---|---|---|---|---|\n", f.Name)
		for _, m := range f.Mutants {
			plan := "without faults"
			if m.Plan != "" {
				plan = "`" + m.Plan + "`"
			}
			reference := m.Reference
			if m.Historic {
				reference += " (historic)"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", m.Bug, strings.TrimSuffix(m.Does, "."), m.Cause, reference, m.Oracle, strings.ReplaceAll(plan, "|", `\|`))
		}
	}
	root, err := testserver.Root()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "docs", "zoo.md")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || string(have) != b.String() {
		t.Errorf("docs/zoo.md is not made of the zoo (%v): run make zoo", err)
	}
}
