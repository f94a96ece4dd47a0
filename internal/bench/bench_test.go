package bench_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// counter returns a contender that counts one figure. Each run, starting with the
// warm-up, uses the next value.
func counter(name, figure string, ops int, log *[]string, values ...float64) bench.Contender {
	return bench.Contender{Name: name, Module: "example.com/" + name, Run: func(_ context.Context, m *bench.Meter) (int, error) {
		*log = append(*log, name)
		m.Count(figure, values[0]*float64(ops))
		values = values[1:]
		return ops, nil
	}}
}

func rowOf(goals []bench.Goal, pairs ...bench.Pair) bench.Row {
	return bench.Row{Name: "area/work", About: "Some work.", Op: "apply", Goals: goals, Pairs: func(context.Context) ([]bench.Pair, func(), error) {
		return pairs, nil, nil
	}}
}

func TestStatOf(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
		want   bench.Stat
	}{
		{name: "one", values: []float64{3}, want: bench.Stat{Median: 3, Min: 3, Max: 3}},
		{name: "odd", values: []float64{9, 1, 2}, want: bench.Stat{Median: 2, Min: 1, Max: 9}},
		{name: "even", values: []float64{9, 1, 2, 4}, want: bench.Stat{Median: 3, Min: 1, Max: 9}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			values := slices.Clone(tt.values)
			if got := bench.StatOf(values); got != tt.want {
				t.Errorf("StatOf(%v) = %v, want %v", tt.values, got, tt.want)
			}
			if !slices.Equal(values, tt.values) {
				t.Errorf("StatOf changed its argument to %v", values)
			}
		})
	}
}

// TestPairs checks how a pair runs: the warm-up does not count, the order alternates,
// ratios are within a repeat, and figures are per operation.
func TestPairs(t *testing.T) {
	var log []string
	ours := counter("ours", "requests", 10, &log, 1000, 1, 2, 30)
	theirs := counter("theirs", "requests", 10, &log, 1000, 10, 4, 40)
	goals := []bench.Goal{
		{Figure: "requests", Rival: "theirs", AtMost: 0.6, Stretch: 0.5},
		{Figure: "requests", AtMost: 1.99},
		{Figure: "requests", Worst: true, AtMost: 29},
	}
	got, err := bench.Runner{Repeats: 3}.Run(t.Context(), rowOf(goals, bench.Pair{Case: "one", Ours: ours, Theirs: theirs}))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(log, " "), "theirs ours ours theirs theirs ours ours theirs"; got != want {
		t.Errorf("order of the runs: got %s, want %s", got, want)
	}
	if len(got.Lines) != len(goals) {
		t.Fatalf("got %d lines, want one for each goal: %+v", len(got.Lines), got.Lines)
	}
	line := got.Lines[0]
	for _, tt := range []struct {
		name      string
		got, want bench.Stat
	}{
		{name: "ours", got: line.Ours, want: bench.Stat{Median: 2, Min: 1, Max: 30}},
		{name: "theirs", got: line.Theirs, want: bench.Stat{Median: 10, Min: 4, Max: 40}},
		// The ratio of the medians would be 2/10.
		{name: "ratio", got: line.Ratio, want: bench.Stat{Median: 0.5, Min: 0.1, Max: 0.75}},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, tt.got, tt.want)
		}
	}
	for i, want := range []struct {
		reached       float64
		pass, stretch bool
	}{
		{reached: 0.5, pass: true, stretch: true},
		{reached: 2},
		{reached: 30},
	} {
		line := got.Lines[i]
		if pass, stretch := line.Pass(); line.Reached() != want.reached || pass != want.pass || stretch != want.stretch {
			t.Errorf("goal %d: got %v, pass %v, stretch %v, want %+v", i, line.Reached(), pass, stretch, want)
		}
	}
	if line.Repeats != 3 {
		t.Errorf("got %d repeats, want 3", line.Repeats)
	}
	if want := []string{"example.com/ours", "example.com/theirs"}; !slices.Equal(got.Modules, want) {
		t.Errorf("modules: got %v, want %v", got.Modules, want)
	}
}

// TestGoalCase checks that a goal with a Case bounds the figures of that case only.
func TestGoalCase(t *testing.T) {
	var log []string
	pair := func(name string) bench.Pair {
		return bench.Pair{Case: name, Ours: counter("ours", "requests", 1, &log, 1, 1), Theirs: counter("theirs", "requests", 1, &log, 1, 1)}
	}
	got, err := bench.Runner{Repeats: 1}.Run(t.Context(), rowOf([]bench.Goal{{Figure: "requests", Case: "two"}}, pair("one"), pair("two"), pair("three")))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range got.Lines {
		if (line.Goal != nil) != (line.Case == "two") {
			t.Errorf("case %s has the goal %v, want one of case two only", line.Case, line.Goal)
		}
	}
}

// TestRepeats checks the number of measurements of each pair.
func TestRepeats(t *testing.T) {
	for _, tt := range []struct {
		name         string
		runner, want int
	}{
		{name: "default", want: 5},
		{name: "flag", runner: 7, want: 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log []string
			values := make([]float64, 10)
			pair := bench.Pair{Ours: counter("ours", "requests", 1, &log, values...), Theirs: counter("theirs", "requests", 1, &log, values...)}
			got, err := bench.Runner{Repeats: tt.runner}.Run(t.Context(), rowOf(nil, pair))
			if err != nil {
				t.Fatal(err)
			}
			if got.Lines[0].Repeats != tt.want || len(log) != 2*(tt.want+1) {
				t.Errorf("got %d repeats in %d runs, want %d, and a warm-up, of two contenders", got.Lines[0].Repeats, len(log), tt.want)
			}
			if !math.IsNaN(got.Lines[0].Ratio.Median) {
				t.Errorf("a rival's figure is 0: got the ratio %v, want none", got.Lines[0].Ratio.Median)
			}
		})
	}
}

// TestPass checks that a goal is checked against the printed number.
func TestPass(t *testing.T) {
	ratio := &bench.Goal{Figure: bench.Time, Rival: "theirs", AtMost: 0.85}
	none := &bench.Goal{Figure: bench.Allocs, AtMost: 0}
	for _, tt := range []struct {
		name string
		line bench.Line
		want bool
	}{
		{name: "ratio at the goal", line: bench.Line{Goal: ratio, Ratio: bench.Stat{Median: 0.85}}, want: true},
		{name: "rounded to the goal", line: bench.Line{Goal: ratio, Ratio: bench.Stat{Median: 0.8504}}, want: true},
		{name: "ratio above it", line: bench.Line{Goal: ratio, Ratio: bench.Stat{Median: 0.8506}}},
		{name: "no ratio", line: bench.Line{Goal: ratio, Ratio: bench.Stat{Median: math.NaN()}}},
		{name: "an allocation of the runtime", line: bench.Line{Goal: none, Ours: bench.Stat{Median: 0.0004}}, want: true},
		{name: "an allocation now and then", line: bench.Line{Goal: none, Ours: bench.Stat{Median: 0.0051}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, stretch := tt.line.Pass(); got != tt.want || stretch {
				t.Errorf("got pass %v, stretch %v, want %v without a stretch", got, stretch, tt.want)
			}
		})
	}
}

// TestMeasure checks that Measure counts the allocations and the time of f, and that
// several calls add up.
func TestMeasure(t *testing.T) {
	const kept = 1000
	contender := func(name string) bench.Contender {
		return bench.Contender{Name: name, Run: func(_ context.Context, m *bench.Meter) (int, error) {
			for range 2 {
				held := make([][]byte, kept)
				m.Measure(func() {
					for i := range held {
						held[i] = make([]byte, 1024)
					}
				})
			}
			return 2 * kept, nil
		}}
	}
	got, err := bench.Runner{Repeats: 1}.Run(t.Context(), rowOf(nil, bench.Pair{Ours: contender("ours"), Theirs: contender("theirs")}))
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		figure    string
		low, high float64
	}{
		{figure: bench.Time, low: 1, high: 1e6},
		{figure: bench.Allocs, low: 1, high: 1.2},
		{figure: bench.Bytes, low: 1024, high: 1200},
	}
	if len(got.Lines) != len(want) {
		t.Fatalf("got %d lines, want %d: %+v", len(got.Lines), len(want), got.Lines)
	}
	for i, w := range want {
		line := got.Lines[i]
		if v := line.Ours.Median; line.Figure != w.figure || v < w.low || v > w.high {
			t.Errorf("line %d: got %v %s, want %v to %v %s", i, v, line.Figure, w.low, w.high, w.figure)
		}
	}
}

// TestTogether holds that all repeats of both contenders run at once after the warm-up.
func TestTogether(t *testing.T) {
	const repeats = 3
	synctest.Test(t, func(t *testing.T) {
		wait := func(name string, requests float64) bench.Contender {
			return bench.Contender{Name: name, Run: func(_ context.Context, m *bench.Meter) (int, error) {
				time.Sleep(time.Minute)
				m.Count("requests", requests)
				return 1, nil
			}}
		}
		row := rowOf(nil, bench.Pair{Ours: wait("ours", 1), Theirs: wait("theirs", 2)})
		row.Together = true
		begin := time.Now()
		got, err := bench.Runner{Repeats: repeats}.Run(t.Context(), row)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != 3*time.Minute {
			t.Errorf("it took %v, want one minute of each contender to warm up, and one for the repeats of both", took)
		}
		if line := got.Lines[0]; line.Repeats != repeats || line.Ratio.Median != 0.5 {
			t.Errorf("got %+v, want %d repeats with the ratio 0.5", line, repeats)
		}
	})
}

func TestRunErrors(t *testing.T) {
	broken := errors.New("broken")
	var log []string
	one := func(name string, ops int) bench.Contender { return counter(name, "requests", ops, &log, 1, 1) }
	for _, tt := range []struct {
		name string
		row  bench.Row
		want string
	}{
		{name: "other work", want: "both must do the same work", row: rowOf(nil, bench.Pair{Ours: one("ours", 1), Theirs: one("theirs", 2)})},
		{name: "no work", want: "0 operations", row: rowOf(nil, bench.Pair{Ours: one("ours", 0), Theirs: one("theirs", 0)})},
		{name: "other figures", want: "was not measured", row: rowOf(nil, bench.Pair{
			Ours: one("ours", 1), Theirs: counter("theirs", "retries", 1, &log, 1, 1),
		})},
		{name: "no figures", want: "measured no figure", row: rowOf(nil, bench.Pair{
			Ours:   bench.Contender{Name: "ours", Run: func(context.Context, *bench.Meter) (int, error) { return 1, nil }},
			Theirs: one("theirs", 1),
		})},
		{name: "idle goal", want: "remove the goal or measure its figure", row: rowOf(
			[]bench.Goal{{Figure: "requests", Rival: "nobody"}}, bench.Pair{Ours: one("ours", 1), Theirs: one("theirs", 1)},
		)},
		{name: "contender fails", want: "ours: broken", row: rowOf(nil, bench.Pair{
			Ours:   bench.Contender{Name: "ours", Run: func(context.Context, *bench.Meter) (int, error) { return 0, broken }},
			Theirs: one("theirs", 1),
		})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleaned := 0
			pairs := tt.row.Pairs
			tt.row.Pairs = func(ctx context.Context) ([]bench.Pair, func(), error) {
				p, _, err := pairs(ctx)
				return p, func() { cleaned++ }, err
			}
			_, err := bench.Runner{Repeats: 1}.Run(t.Context(), tt.row)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "area/work") {
				t.Errorf("got error %v, want one of area/work with %q", err, tt.want)
			}
			if cleaned != 1 {
				t.Errorf("cleaned up %d times, want once", cleaned)
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, err := (bench.Runner{}).Run(ctx, rowOf(nil, bench.Pair{Ours: one("ours", 1), Theirs: one("theirs", 1)})); !errors.Is(err, broken) {
		t.Errorf("with a context that is done: got error %v, want its cause", err)
	}
}

func TestSelect(t *testing.T) {
	rows := []bench.Row{{Name: "curves/after", Long: true}, {Name: "leader/handover"}, {Name: "queue/after"}, {Name: "queue/afterwards"}}
	for _, tt := range []struct {
		name, want string
	}{
		{name: "", want: "leader/handover queue/after queue/afterwards"},
		{name: "queue/", want: "queue/after queue/afterwards"},
		{name: "queue/aft", want: "queue/after queue/afterwards"},
		{name: "queue/after", want: "queue/after"},
		{name: "curves/", want: "curves/after"},
		{name: "curves/after", want: "curves/after"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := bench.Select(rows, tt.name)
			if got := strings.Join(bench.Names(got), " "); err != nil || got != tt.want {
				t.Errorf("Select(%q) = %s, %v, want %s", tt.name, got, err, tt.want)
			}
		})
	}
	if _, err := bench.Select(rows, "after"); err == nil || !strings.Contains(err.Error(), "leader/handover") {
		t.Errorf("Select of a name that no row has: got error %v, want one that lists the rows", err)
	}
}

func TestRegister(t *testing.T) {
	name := fmt.Sprint("test/", len(bench.Rows())) // a new name for each run with -count
	good := bench.Row{Name: name, About: "x", Op: "x", Pairs: func(context.Context) ([]bench.Pair, func(), error) { return nil, nil, nil }}
	bench.Register(good)
	if got := bench.Names(bench.Rows()); !slices.Contains(got, name) {
		t.Errorf("the rows are %v, want %s among them", got, name)
	}
	without := func(name string, change func(*bench.Row)) bench.Row {
		row := good
		row.Name = name
		change(&row)
		return row
	}
	for _, tt := range []struct {
		name string
		row  bench.Row
	}{
		{name: "twice", row: good},
		{name: "no area", row: without("cycle", func(*bench.Row) {})},
		{name: "spaces", row: without("queue/a b", func(*bench.Row) {})},
		{name: "no pairs", row: without("queue/a", func(r *bench.Row) { r.Pairs = nil })},
		{name: "the worst ratio", row: without("queue/c", func(r *bench.Row) { r.Goals = []bench.Goal{{Figure: "x", Rival: "x", Worst: true}} })},
		{name: "no text", row: without("queue/b", func(r *bench.Row) { r.About = "" })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("Register took the row, want a panic")
				}
			}()
			bench.Register(tt.row)
		})
	}
}
