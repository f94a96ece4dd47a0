package policy

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestNightly holds that make explore and the jobs of nightly.yml have the same parts, and that
// the budgets of each part fit into the time of its job, with a tenth of it for compilation.
func TestNightly(t *testing.T) {
	root(t)
	workflow, err := os.ReadFile(".github/workflows/nightly.yml")
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, explore, _ := strings.Cut(string(workflow), "\n  explore:\n")
	limit := regexp.MustCompile(`timeout-minutes: (\d+)`).FindStringSubmatch(explore)
	if limit == nil {
		t.Fatal("the job explore has no limit")
	}
	most, err := time.ParseDuration(limit[1] + "m")
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]bool{}
	for _, m := range regexp.MustCompile(`- part: (\S+).*\n\s+flags: (.*)\n`).FindAllStringSubmatch(explore, -1) {
		part, flags := m[1], m[2]
		parts[part] = true
		sum := time.Duration(0)
		for line := range strings.Lines(recipe(t, string(src), part)) {
			for _, budget := range []string{"BUDGET", "HOSTILE"} {
				sum += time.Duration(runs(t, line, budget)) * duration(t, string(src), flags, budget)
			}
		}
		if t.Logf("%s: %v", part, sum); sum > most*9/10 {
			t.Errorf("the budgets of %s take %v, and its job ends after %v", part, sum, most)
		}
	}
	for _, m := range regexp.MustCompile(`\$\(MAKE\) (\S+)`).FindAllStringSubmatch(recipe(t, string(src), "explore"), -1) {
		if !parts[m[1]] {
			t.Errorf("make explore runs %s, and nightly.yml does not", m[1])
		}
	}
}

// TestLimits holds that each job of the workflows has a limit below the 6 hours in which GitHub ends
// it, and that make test gives each package more than the 10 minutes of go test.
func TestLimits(t *testing.T) {
	root(t)
	files, err := filepath.Glob(".github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, jobs, _ := strings.Cut(string(text), "\njobs:\n")
		starts := regexp.MustCompile(`(?m)^  [a-z-]+:`).FindAllStringIndex(jobs, -1)
		if starts == nil {
			t.Errorf("%s has no jobs", file)
		}
		for i, start := range starts {
			job := jobs[start[0]:]
			if i+1 < len(starts) {
				job = jobs[start[0]:starts[i+1][0]]
			}
			name := strings.TrimSpace(jobs[start[0]:start[1]])
			limit := regexp.MustCompile(`(?m)^    timeout-minutes: (\d+)`).FindStringSubmatch(job)
			if limit == nil {
				t.Errorf("%s: the job %s has no timeout-minutes", file, name)
			} else if n, err := strconv.Atoi(limit[1]); err != nil || n >= 360 {
				t.Errorf("%s: the job %s has timeout-minutes %s, want less than 360", file, name, limit[1])
			}
		}
	}
	src, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(recipe(t, string(src), "test")) {
		if strings.Contains(line, "go test -") && !strings.Contains(line, "-timeout $(TEST_TIMEOUT)") {
			t.Errorf("make test has no -timeout in %s", line)
		}
	}
	if d := duration(t, string(src), "", "TEST_TIMEOUT"); d <= 10*time.Minute {
		t.Errorf("TEST_TIMEOUT is %v, want more than the 10m of go test", d)
	}
}

// recipe returns the lines of a target of the Makefile.
func recipe(t *testing.T, makefile, target string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + target + `:.*\n((\t.*\n)+)`).FindStringSubmatch(makefile)
	if m == nil {
		t.Fatalf("no target %s", target)
	}
	return m[1]
}

// duration returns a variable of a call of make, or its default.
func duration(t *testing.T, makefile, flags, name string) time.Duration {
	t.Helper()
	m := regexp.MustCompile(name + `=(\S+)`).FindStringSubmatch(flags)
	if m == nil {
		m = regexp.MustCompile(`(?m)^` + name + ` \?= (\S+)$`).FindStringSubmatch(makefile)
	}
	if m == nil {
		t.Fatalf("no %s", name)
	}
	d, err := time.ParseDuration(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// runs returns how often a command of the Makefile runs for the time of a variable. A test with
// EXPLORE_BUDGET takes it once, and a loop for each of its scenarios or fuzz tests.
func runs(t *testing.T, line, name string) int {
	t.Helper()
	if !strings.Contains(line, "$("+name+")") || strings.Contains(line, "echo ") {
		return 0
	}
	switch {
	case name == "HOSTILE":
		return occurrences(t, ".", `(?m)^func FuzzHostile\(`)
	case strings.Contains(line, "internal/findings"):
		return scenarios(t)
	case !strings.Contains(line, "EXPLORE_BUDGET="):
		return strings.Count(line, "$("+name+")")
	}
	root, n := ".", 0
	if cd := regexp.MustCompile(`^\tcd (\S+) &&`).FindStringSubmatch(line); cd != nil {
		root = cd[1]
	}
	pattern := regexp.MustCompile(`-run '\^\(?(.*?)\)?\$\$'`).FindStringSubmatch(line)
	if pattern == nil {
		t.Fatalf("no tests are named: %s", line)
	}
	for _, field := range strings.Fields(line) {
		if field == "." || strings.HasPrefix(field, "./") {
			n += occurrences(t, filepath.Join(root, field), `(?m)^func (`+pattern[1]+`)\(`)
		}
	}
	return n
}

// scenarios returns how many scenarios TestExplore of internal/findings explores.
func scenarios(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("internal/findings/findings_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "range []controllertest.Scenario{")
	list, _, ended := strings.Cut(list, "\n\t}")
	if !found || !ended {
		t.Fatal("internal/findings/findings_test.go: no list of scenarios")
	}
	return strings.Count(list, ",")
}

// occurrences counts a pattern in the Go files of a folder and those below it.
func occurrences(t *testing.T, dir, pattern string) int {
	t.Helper()
	n, re := 0, regexp.MustCompile(pattern)
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		n += len(re.FindAll(text, -1))
		return err
	})
	if err != nil || n == 0 {
		t.Fatalf("%s has no %s: %v", dir, pattern, err)
	}
	return n
}
