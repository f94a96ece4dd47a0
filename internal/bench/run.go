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
	switch {
	case l.Goal.Rival != "":
		return roundRatio(l.Ratio.Median)
	case l.Goal.Worst:
		return round(l.Ours.Max)
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
func (r Runner) sample(ctx context.Context, row Row, pair Pair, repeats int) (samples [2]map[string][]float64, _ error) {
	contenders := [2]Contender{pair.Ours, pair.Theirs}
	figures := make([][2]map[string]float64, repeats+1) // of an operation; the first are of the warm-up
	ops := make([][2]int, repeats+1)
	// run runs both contenders in these repeats, limit at once.
	run := func(from, to, limit int) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(limit)
		for repeat := from; repeat < to; repeat++ {
			for turn := range contenders {
				i := (repeat + 1 + turn) % 2 // the first is another one each time
				g.Go(func() (err error) {
					ops[repeat][i], figures[repeat][i], err = r.run(ctx, contenders[i])
					return err
				})
			}
		}
		return g.Wait()
	}
	if err := run(0, 1, 1); err != nil {
		return samples, err
	}
	limit := 1
	if row.Together {
		limit = -1
	}
	if err := run(1, len(figures), limit); err != nil {
		return samples, err
	}
	for _, n := range ops {
		if n[0] != n[1] {
			return samples, fmt.Errorf("%s did %d operations and %s %d: both must do the same work", pair.Ours.Name, n[0], pair.Theirs.Name, n[1])
		}
	}
	samples = [2]map[string][]float64{{}, {}}
	for _, of := range figures[1:] {
		for i := range of {
			for figure, value := range of[i] {
				samples[i][figure] = append(samples[i][figure], value)
			}
		}
	}
	return samples, nil
}

// run runs a contender once. It returns the number of operations, and the figures of one.
func (r Runner) run(ctx context.Context, c Contender) (ops int, figures map[string]float64, err error) {
	if err := context.Cause(ctx); err != nil {
		return 0, nil, err
	}
	m := &Meter{Quick: r.Quick}
	runtime.GC()
	if ops, err = c.Run(ctx, m); err != nil {
		return 0, nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	if ops <= 0 {
		return 0, nil, fmt.Errorf("%s did %d operations", c.Name, ops)
	}
	figures = map[string]float64{}
	for figure, total := range m.totals {
		figures[figure] = total / float64(ops)
	}
	return ops, figures, nil
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
