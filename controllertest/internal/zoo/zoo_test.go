package zoo_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/internal/zoo"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var update = flag.Bool("update", false, "write docs/zoo.md")

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

// TestMutants: each bug is found by its plan, in the way that is written beside it,
// and no run without faults shows it.
//
// Proves X7.
func TestMutants(t *testing.T) {
	for _, f := range zoo.Families() {
		for _, m := range f.Mutants {
			t.Run(f.Name+"/"+m.Bug, func(t *testing.T) {
				t.Parallel()
				s := f.Scenario(m.Bug)
				s.Name = f.Name + "/" + m.Bug
				o := controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, Settle: 10 * time.Second, Parallel: 4}
				if m.Plan != "" {
					o.Plans = []string{m.Plan}
				}
				report, err := controllertest.Run(t.Context(), s, o)
				if err != nil {
					t.Fatal(err)
				}
				if len(report.Failures) == 0 {
					t.Fatalf("it lives: %d plans, invalid: %q", report.Plans, report.Invalid)
				}
				failure := report.Failures[0]
				if (failure.Plan == "") != (m.Plan == "") {
					t.Fatalf("killed by %q, want %q", failure.Plan, m.Plan)
				}
				if !slices.ContainsFunc(failure.Findings, func(f controllertest.Finding) bool { return f.Oracle == m.Oracle }) {
					t.Errorf("killed by another oracle than %q: %s", m.Oracle, failure)
				}
			})
		}
	}
}

// TestTwins: no plan fails for the correct controllers: a sample of those with one
// fault, and all of them where there is a budget.
//
// Proves X7.
func TestTwins(t *testing.T) {
	for _, f := range zoo.Families() {
		t.Run(f.Name, func(t *testing.T) {
			o := controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, Sample: 20, Settle: time.Minute, Seed: uint64(time.Now().UnixNano())}
			if d := budget(t); d == 0 {
				t.Parallel()
				o.Parallel = 4
			} else {
				o.Sample = 0
			}
			s := f.Scenario("")
			s.Name = f.Name
			controllertest.Explore(t, s, o)
		})
	}
}

// TestReference explores the scenario that the kit measures itself with.
func TestReference(t *testing.T) {
	o := controllertest.Options{Config: testserver.Config(t), KeepNamespaces: true, Sample: 60}
	if o.Budget = budget(t); o.Budget > 0 {
		o.Sample = 0
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
	b.WriteString("# The bug zoo\n\nSmall controllers with one known bug each, which `controllertest` finds: each by the\nplan beside it, in every run of `make test`. Made by `make zoo`.\n")
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
