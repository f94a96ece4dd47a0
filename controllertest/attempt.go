package controllertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// attempt runs a plan and stores its outcome. A failing plan loses the faults that it does
// not need, and is confirmed.
func (x *explorer) attempt(ctx context.Context, p plan, ref *reference, began time.Time) {
	enumerated := x.options.Plans != nil || len(p) == 1
	runs := x.repeat(ctx, p, ref, max(1, x.options.replays))
	if ctx.Err() != nil {
		return // a stopped run has no outcome
	}
	x.mu.Lock()
	if enumerated {
		x.report.Ran++
	}
	x.mu.Unlock()
	after := time.Since(began)
	slices.SortStableFunc(runs, failedFirst)
	r := runs[0]
	p = r.plan
	kind, valid, failed := p[0].kind, r.fired() == len(p), r.failed()
	if r.cannotHurry() && !failed && x.options.Plans == nil {
		return
	}
	x.mu.Lock()
	x.report.Plans++
	count := x.report.Kinds[kind]
	count.Plans++
	if valid {
		x.report.Valid++
		count.Valid++
	}
	if failed {
		count.Failing++
	}
	why, doubtful := r.doubtful()
	switch {
	case failed:
	case valid:
		x.report.Passed = append(x.report.Passed, p.String())
	case doubtful:
		x.report.Unjudged = append(x.report.Unjudged, fmt.Sprintf("%s: %s", p, cmp.Or(why, "it does not fit the scenario")))
	default:
		x.report.Invalid = append(x.report.Invalid, p.String())
	}
	for _, reason := range r.accepted { // nobody writes it after the run
		x.report.Accepted[reason]++
	}
	x.report.Kinds[kind] = count
	failures := x.report.failing()
	x.mu.Unlock()
	if x.options.replays > 0 {
		_, n := tally(nil, runs)
		x.log("%s: %d of %d runs failed", p, n, len(runs))
	}
	if !failed {
		return
	}
	if x.options.replays == 0 {
		if failures <= explained {
			r = x.shrink(ctx, r, ref)
		}
		if x.known(r) {
			return
		}
		confirm := x.options.Confirm
		if x.confirmed(r) {
			confirm = 0
		}
		runs = append(x.repeat(ctx, r.plan, ref, confirm), r)
		// A run whose fault did not happen does not count, unless it fails.
		runs = slices.DeleteFunc(runs, func(c *run) bool { return c != r && !c.failed() && c.fired() != len(c.plan) })
	}
	if ctx.Err() != nil {
		runs = []*run{r}
	}
	x.enter(r, union(r, runs), len(runs), after)
}

// union returns the findings of the runs, those of the first argument first, and in how many runs
// they are.
func union(r *run, runs []*run) []Finding {
	findings := r.found()
	for _, other := range runs {
		for _, f := range other.found() {
			if !slices.ContainsFunc(findings, f.like) {
				findings = append(findings, f)
			}
		}
	}
	findings, _ = tally(findings, runs)
	return findings
}

func failedFirst(a, b *run) int {
	switch {
	case a.failed() == b.failed():
		return 0
	case a.failed():
		return -1
	}
	return 1
}

// repeat makes runs of a plan in parallel.
func (x *explorer) repeat(ctx context.Context, p plan, ref *reference, n int) []*run {
	runs := make([]*run, max(0, n))
	var wg sync.WaitGroup
	for n := range runs {
		wg.Go(func() { runs[n] = x.once(ctx, p, ref) })
	}
	wg.Wait()
	return runs
}

// maxAttempts bounds the runs of a plan until its faults happen.
const maxAttempts = 3

// once runs a plan. If a fault did not happen, the plan runs again, because the controller
// may have acted in another order.
func (x *explorer) once(ctx context.Context, p plan, ref *reference) *run {
	for n := 1; ; n++ {
		began := time.Now()
		r, err := x.try(ctx, p, ref)
		if err != nil && ctx.Err() == nil {
			x.pauses(ctx, err)
			n--
			continue
		}
		if err != nil {
			r = &run{x: x, plan: p} // a stopped run has no outcome
		} else {
			x.took(time.Since(began))
		}
		if n == maxAttempts || r.failed() || r.cannotHurry() || r.fired() == len(r.plan) || ctx.Err() != nil {
			r.forget()
			return r
		}
		p = r.plan
	}
}

// maxUnserved bounds the time in which no run can begin.
const maxUnserved = time.Minute

// pauses waits after a run that could not begin. If none can begin for some time, the server is gone.
func (x *explorer) pauses(ctx context.Context, err error) {
	x.mu.Lock()
	if x.unserved.IsZero() {
		x.unserved = time.Now()
	}
	unserved := time.Since(x.unserved)
	x.mu.Unlock()
	if unserved >= maxUnserved {
		x.abort(fmt.Errorf("the API server does not serve any more: no run could begin for %v: %w", unserved.Round(time.Second), err))
	}
	_ = sleep(ctx, nil, time.Second)
}

// forget drops all that is not needed of a run that was judged. A leaked goroutine of it may
// still write.
func (r *run) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history, r.trace, r.rests = nil, nil, nil
	clear(r.versions)
	clear(r.responses)
	clear(r.present)
	if len(r.findings) == 0 {
		r.timeline = nil
	}
}

// like reports whether two findings are of one kind. A cluster that never converges may or
// may not be at rest when that is judged.
func (f Finding) like(g Finding) bool {
	hangs := func(o Oracle) bool { return o == Liveness || o == Quiescence }
	return f.key() == g.key() || hangs(f.Oracle) && hangs(g.Oracle)
}

// tally counts the runs that have each of the findings, and the runs that have any.
func tally(findings []Finding, runs []*run) (counted []Finding, failed int) {
	for _, r := range runs {
		found := r.found()
		if len(found) > 0 {
			failed++
		}
		for n := range findings {
			f := &findings[n]
			if slices.ContainsFunc(found, f.like) {
				f.Failed++
			}
		}
	}
	return findings, failed
}

// explained bounds the failing plans that are shortened, because one bug fails many
// plans.
const explained = 20

// shrink removes faults while the plan still fails.
func (x *explorer) shrink(ctx context.Context, r *run, ref *reference) *run {
	for smaller := true; smaller && len(r.plan) > 1; {
		smaller = false
		for n := range r.plan {
			p := slices.Delete(slices.Clone(r.plan), n, n+1)
			if again, err := x.try(ctx, p, ref); err == nil && again.failed() && again.fired() == len(p) && ctx.Err() == nil {
				r, smaller = again, true
				break
			}
		}
	}
	return r
}
