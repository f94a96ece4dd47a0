package bench_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/bench"
)

var machine = bench.Environment{
	CPU: "Some CPU", Cores: 2, MaxProcs: 1, OS: "linux", Arch: "amd64", Go: "go1.26.0", Date: "2026-01-02",
	Modules: map[string]string{"example.com/theirs": "v1.2.3"},
}

func stat(median, low, high float64) bench.Stat {
	return bench.Stat{Median: median, Min: low, Max: high}
}

func TestSection(t *testing.T) {
	nan := math.NaN()
	lines := []bench.Line{
		{
			Case: "string keys", Figure: "ns", Rival: "theirs", Repeats: 7, Ours: stat(85.04, 80, 1234567.8), Theirs: stat(100, 100, 100), Ratio: stat(0.85, 0.8, 12),
			Goal: &bench.Goal{Figure: "ns", Rival: "theirs", AtMost: 0.85, Stretch: 0.7},
		},
		{
			Figure: "ns", Rival: "slow", Repeats: 2, Ours: stat(1, 1, 1), Theirs: stat(2, 2, 2), Ratio: stat(0.5, 0.5, 0.5),
			Goal: &bench.Goal{Figure: "ns", Rival: "theirs", AtMost: 0.85, Stretch: 0.7},
		},
		{
			Figure: "heap B", Rival: "slow", Repeats: 2, Ours: stat(200.6, 200.5, 200.7), Theirs: stat(0, 0, 0), Ratio: stat(nan, nan, nan),
			Goal: &bench.Goal{Figure: "heap B", AtMost: 200},
		},
		{
			Figure: "overlaps", Rival: "slow", Repeats: 2, Ours: stat(0, 0, 0.1), Theirs: stat(0, 0, 0), Ratio: stat(nan, nan, nan),
			Goal: &bench.Goal{Figure: "overlaps", Worst: true, AtMost: 0},
		},
		{Figure: "allocs", Rival: "theirs", Repeats: 7, Ours: stat(0.001, 0, 0.002), Theirs: stat(1, 1, 1), Ratio: stat(0.001, 0, 0.002)},
	}
	got := bench.Section(bench.Result{
		Row:     bench.Row{Name: "area/work", About: "Some work.", Op: "apply"},
		Modules: []string{"example.com/theirs", "example.com/unknown"}, Lines: lines,
	}, machine)
	want := `## area/work

Some work.

| case | figure | controllerkit | rival | rival's figure | ratio | goal | |
|---|---|---|---|---|---|---|---|
| string keys | ns/apply | 85 (80–1,234,568) | theirs | 100 | 0.850 (0.800–12.000) | ratio ≤ 0.85, stretch 0.7 | pass |
|  | ns/apply | 1 | slow | 2 | 0.500 | ratio ≤ 0.85, stretch 0.7 | pass, stretch too |
|  | heap B/apply | 201 | slow | 0 |  | ≤ 200 | falls short |
|  | overlaps/apply | 0 (0–0.1) | slow | 0 |  | each ≤ 0 | falls short |
|  | allocs/apply | 0 | theirs | 1 | 0.001 (0.000–0.002) |  |  |

Measured on 2026-01-02: Some CPU, 2 cores, GOMAXPROCS 1, linux/amd64, go1.26.0, example.com/theirs v1.2.3, example.com/unknown of unknown version; repeats: 7, 2 against slow.
`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestMerge checks the sections of RESULTS.md after a run of some rows.
func TestMerge(t *testing.T) {
	section := func(name, text string) string { return "## " + name + "\n\n" + text + "\n" }
	known := []string{"queue/cycle", "leader/handover", "queue/after"}
	for _, tt := range []struct {
		name     string
		old      string
		sections map[string]string
		want     []string
	}{
		{name: "first run", sections: map[string]string{"queue/cycle": section("queue/cycle", "new")}, want: []string{section("queue/cycle", "new")}},
		{
			name:     "replaces its own only",
			old:      "# Old preamble\n\n" + section("queue/after", "kept\n\n| a | b |\n### below") + "\n" + section("queue/cycle", "old"),
			sections: map[string]string{"queue/cycle": section("queue/cycle", "new")},
			want:     []string{section("queue/after", "kept\n\n| a | b |\n### below"), section("queue/cycle", "new")},
		},
		{
			name:     "sorts",
			old:      section("queue/cycle", "kept"),
			sections: map[string]string{"queue/after": section("queue/after", "new"), "leader/handover": section("leader/handover", "new")},
			want:     []string{section("leader/handover", "new"), section("queue/after", "new"), section("queue/cycle", "kept")},
		},
		{
			name:     "drops rows that are gone",
			old:      section("queue/gone", "old") + section("queue/after", "kept"),
			sections: map[string]string{"queue/cycle": section("queue/cycle", "new")},
			want:     []string{section("queue/after", "kept"), section("queue/cycle", "new")},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := bench.Merge(tt.old, tt.sections, known)
			preamble, rest, _ := strings.Cut(got, "\n## ")
			if !strings.HasPrefix(preamble, "# Results\n") || strings.Contains(preamble, "Old") {
				t.Errorf("got the preamble %q, want today's", preamble)
			}
			if want := strings.Join(tt.want, "\n"); "## "+rest != want {
				t.Errorf("got the sections\n%s\nwant\n%s", "## "+rest, want)
			}
			if again := bench.Merge(got, tt.sections, known); again != got {
				t.Errorf("merging the same once more changed the text to\n%s\nfrom\n%s", again, got)
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "RESULTS.md")
	known := []string{"area/one", "area/two"}
	result := func(name string, median float64) bench.Result {
		return bench.Result{
			Row:   bench.Row{Name: name, About: "x", Op: "apply"},
			Lines: []bench.Line{{Figure: "ns", Rival: "theirs", Ours: stat(median, median, median)}},
		}
	}
	elsewhere := machine
	elsewhere.CPU = "Another CPU"
	for _, step := range []struct {
		result bench.Result
		env    bench.Environment
	}{
		{result: result("area/two", 1111), env: machine},
		{result: result("area/one", 2222), env: machine},
		{result: result("area/one", 3333), env: elsewhere},
	} {
		if err := bench.Update(path, step.result, step.env, known); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	one, two, ok := strings.Cut(string(got), "## area/two")
	if !ok || !strings.Contains(one, "3,333") || !strings.Contains(one, "Another CPU") || strings.Contains(one, "2,222") {
		t.Errorf("the row that ran twice does not have its last figures and machine:\n%s", one)
	}
	if !strings.Contains(two, "1,111") || !strings.Contains(two, "Some CPU") {
		t.Errorf("the row that ran once has lost its figures or machine:\n%s", two)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) != 1 {
		t.Errorf("got the files %v (%v), want RESULTS.md alone", files, err)
	}
	if hidden, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(hidden) > 0 {
		t.Errorf("left behind %v (%v)", hidden, err)
	}
	if err := bench.Update(filepath.Join(dir, "missing", "RESULTS.md"), result("area/one", 1), machine, known); err == nil {
		t.Error("Update in a folder that does not exist: got no error")
	}
}

// TestHere checks that the environment is complete and does not identify the machine.
func TestHere(t *testing.T) {
	env := bench.Here(t.Context())
	if env.CPU == "" || env.Cores < 1 || env.MaxProcs < 1 || env.OS == "" || env.Arch == "" || !strings.HasPrefix(env.Go, "go") && !strings.HasPrefix(env.Go, "devel") || len(env.Date) != len("2006-01-02") {
		t.Errorf("the environment lacks a field: %+v", env)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	text := bench.Section(bench.Result{Row: bench.Row{Name: "area/work", About: "x", Op: "apply"}}, env)
	if strings.Contains(text, host) {
		t.Errorf("the section names the host:\n%s", text)
	}
}
