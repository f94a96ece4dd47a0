package bench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Meter records the figures of one run of one contender. It is not safe for
// concurrent use. The zero value is ready to use.
type Meter struct {
	Quick bool // for tests: a hundredth of the work; the figures are not meaningful

	totals map[string]float64
}

// N returns the number of operations to do: n, or a hundredth of n if Quick is set.
func (m *Meter) N(n int) int {
	if m.Quick {
		return max(n/100, 1)
	}
	return n
}

// Measure runs f after a garbage collection. It adds the time, the allocations and
// their bytes to the figures, including the allocations of other goroutines.
func (m *Meter) Measure(f func()) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	f()
	elapsed := time.Since(start)
	runtime.ReadMemStats(&after)
	m.Count(Time, float64(elapsed))
	m.Count(Allocs, float64(after.Mallocs-before.Mallocs))
	m.Count(Bytes, float64(after.TotalAlloc-before.TotalAlloc))
}

// Count adds total to the figure with any name, for example "requests". Like all
// figures it is reported per operation.
func (m *Meter) Count(figure string, total float64) {
	if m.totals == nil {
		m.totals = map[string]float64{}
	}
	m.totals[figure] += total
}

// Stat summarizes several values.
type Stat struct{ Median, Min, Max float64 }

// StatOf returns the median and the spread of values. values must not be empty.
func StatOf(values []float64) Stat {
	s := slices.Sorted(slices.Values(values))
	middle := len(s) / 2
	median := s[middle]
	if len(s)%2 == 0 {
		median = (s[middle-1] + s[middle]) / 2
	}
	return Stat{Median: median, Min: s[0], Max: s[len(s)-1]}
}

// Result is the result of a row.
type Result struct {
	Row     Row
	Modules []string // of the contenders, sorted
	Lines   []Line
}

// Line is one figure of one pair with at most one goal.
type Line struct {
	X                   float64 // of the pair
	Case, Figure, Rival string

	Repeats      int
	Ours, Theirs Stat
	Ratio        Stat // NaN if the rival's figure was 0

	Goal *Goal // may be nil
}

// Reached returns the printed number that the goal bounds.
func (l Line) Reached() float64 {
	if l.Goal.Rival != "" {
		return roundRatio(l.Ratio.Median)
	}
	return round(l.Ours.Median)
}

// Pass reports whether the number meets the goal and its stretch bound.
func (l Line) Pass() (pass, stretch bool) {
	reached := l.Reached() // a NaN meets neither
	return reached <= l.Goal.AtMost, l.Goal.Stretch > 0 && reached <= l.Goal.Stretch
}

// Runner runs rows.
type Runner struct {
	Repeats int  // 0 means 5
	Quick   bool // see Meter
}

// Run measures a row. If ctx is done, it returns an error before the next run of a
// contender.
func (r Runner) Run(ctx context.Context, row Row) (Result, error) {
	result := Result{Row: row}
	pairs, cleanup, err := row.Pairs(ctx)
	if cleanup != nil {
		defer cleanup()
	}
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", row.Name, err)
	}
	judged := map[Goal]bool{}
	for _, pair := range pairs {
		repeats := cmp.Or(r.Repeats, 5)
		lines, err := r.runPair(ctx, row, pair, repeats)
		if err != nil {
			return Result{}, fmt.Errorf("%s: %s: %w", row.Name, pair.Case, err)
		}
		for _, line := range lines {
			if line.Goal != nil {
				judged[*line.Goal] = true
			}
		}
		result.Lines = append(result.Lines, lines...)
		for _, c := range []Contender{pair.Ours, pair.Theirs} {
			if c.Module != "" && !slices.Contains(result.Modules, c.Module) {
				result.Modules = append(result.Modules, c.Module)
			}
		}
	}
	slices.Sort(result.Modules)
	for _, goal := range row.Goals {
		if !judged[goal] {
			return Result{}, fmt.Errorf("%s: no pair with the rival %q measured %q: remove the goal or measure its figure", row.Name, goal.Rival, goal.Figure)
		}
	}
	return result, nil
}

func (r Runner) runPair(ctx context.Context, row Row, pair Pair, repeats int) ([]Line, error) {
	samples, err := r.sample(ctx, row, pair, repeats)
	if err != nil {
		return nil, err
	}
	var lines []Line
	for _, figure := range figures(samples[0]) {
		ours, theirs := samples[0][figure], samples[1][figure]
		if len(ours) != repeats || len(theirs) != repeats {
			return nil, fmt.Errorf("%q was not measured in every run of %s and %s", figure, pair.Ours.Name, pair.Theirs.Name)
		}
		ratios := make([]float64, repeats)
		for i := range ratios {
			ratios[i] = ours[i] / theirs[i]
		}
		line := Line{X: pair.X, Case: pair.Case, Figure: figure, Rival: pair.Theirs.Name, Repeats: repeats, Ours: StatOf(ours), Theirs: StatOf(theirs)}
		if slices.Contains(theirs, 0) {
			line.Ratio = Stat{math.NaN(), math.NaN(), math.NaN()}
		} else {
			line.Ratio = StatOf(ratios)
		}
		before := len(lines)
		for _, goal := range row.Goals {
			if goal.Figure == figure && (goal.Rival == "" || goal.Rival == pair.Theirs.Name) && (goal.Case == "" || goal.Case == pair.Case) {
				line.Goal = &goal
				lines = append(lines, line)
			}
		}
		if len(lines) == before {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("%s measured no figure: call Measure or Count", pair.Ours.Name)
	}
	return lines, nil
}

// sample runs both contenders of a pair once to warm up, and then repeats times. It returns each
// one's values of each figure.
func (r Runner) sample(ctx context.Context, row Row, pair Pair, repeats int) ([2]map[string][]float64, error) {
	samples := [2]map[string][]float64{{}, {}}
	if _, err := r.runBoth(ctx, pair, 1); err != nil {
		return samples, err
	}
	runs := make([][2]map[string]float64, repeats)
	limit := 1
	if row.Together {
		limit = repeats
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	for n := range runs {
		g.Go(func() (err error) {
			runs[n], err = r.runBoth(ctx, pair, n%2)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return samples, err
	}
	for _, run := range runs {
		for i := range run {
			for figure, value := range run[i] {
				samples[i][figure] = append(samples[i][figure], value)
			}
		}
	}
	return samples, nil
}

// runBoth runs both contenders, beginning with the first or the second one. It returns the
// figures of an operation of each.
func (r Runner) runBoth(ctx context.Context, pair Pair, first int) (figures [2]map[string]float64, _ error) {
	contenders := [2]Contender{pair.Ours, pair.Theirs}
	var ops [2]int
	for turn := range contenders {
		if err := context.Cause(ctx); err != nil {
			return figures, err
		}
		i := (first + turn) % 2
		m := &Meter{Quick: r.Quick}
		runtime.GC()
		n, err := contenders[i].Run(ctx, m)
		if err != nil {
			return figures, fmt.Errorf("%s: %w", contenders[i].Name, err)
		}
		if n <= 0 {
			return figures, fmt.Errorf("%s did %d operations", contenders[i].Name, n)
		}
		ops[i], figures[i] = n, map[string]float64{}
		for figure, total := range m.totals {
			figures[i][figure] = total / float64(n)
		}
	}
	if ops[0] != ops[1] {
		return figures, fmt.Errorf("%s did %d operations and %s %d: both must do the same work", pair.Ours.Name, ops[0], pair.Theirs.Name, ops[1])
	}
	return figures, nil
}

// figures returns the names of the measured figures. The figures of Measure come first.
func figures(samples map[string][]float64) []string {
	first := []string{Time, Allocs, Bytes}
	rank := func(figure string) int {
		if i := slices.Index(first, figure); i >= 0 {
			return i
		}
		return len(first)
	}
	return slices.SortedFunc(maps.Keys(samples), func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(a, b))
	})
}
