package controllertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/controllertest/internal/stalls"
	"github.com/controllerkit/controllerkit/internal/definitions"
)

// Run is [Explore] outside of a test: it returns the findings. If the scenario cannot be
// explored, the error names the reason and the cure.
func Run(ctx context.Context, s Scenario, o Options) (*Report, error) {
	return explore(ctx, s, o, func(string, ...any) {})
}

// An explorer is one exploration.
type explorer struct {
	scenario Scenario
	options  Options
	log      func(format string, args ...any)
	config   *rest.Config
	kube     kubernetes.Interface
	dyn      dynamic.Interface
	observer *observer
	prefix   string // of the namespaces
	pause    time.Duration
	keep     bool // keep the namespaces, because the server is thrown away afterwards
	own      bool // the server is of this exploration alone
	crds     []definitions.Definition
	runs     atomic.Int64
	watched  map[string]int // resource → watches at rest without faults
	warming  bool           // the first run, which learns the watches of the version of the scenario alone
	leases   atomic.Bool    // the controller writes Leases
	slots    chan struct{}  // holds an element for each run
	stalls   stalls.Meter   // when the controller did not run either
	abort    func(error)    // ends the exploration with an error, because of the scenario
	end      time.Time      // of the budget; zero means none

	disconnect func() error // stops what connect has started

	mu        sync.Mutex
	plans     map[string]plan // by run, to name the plans of leaked goroutines
	dependent map[int]bool    // steps that need the result of the step before
	kept      map[string]bool // kinds of drift and resources that the controller does not restore
	early     map[string]bool // steps and fields that are in Report.TooEarly
	orders    map[string]bool // lists that are in Report.Reordered
	groups    map[string]*group
	found     map[string]*group // by the failing plan, shortened
	typical   time.Duration     // the moving average of the time of a run
	unserved  time.Time         // when a run first could not begin, and none has begun since
	report    *Report
}

func explore(ctx context.Context, s Scenario, o Options, log func(string, ...any)) (report *Report, err error) {
	s.Name = cmp.Or(s.Name, "scenario")
	if err := s.validate(); err != nil {
		return nil, err
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	s, o = s.withUpgrade(), o.orDefaults()
	var fixed []plan
	for _, text := range o.Plans {
		p, err := parsePlan(text)
		if err != nil {
			return nil, fmt.Errorf("controllertest: %w", err)
		}
		for _, j := range p {
			if why := j.misfit(); why != "" {
				return nil, fmt.Errorf("controllertest: plan %q: %s can never happen at %q: %s", text, j.kind, j.at, why)
			}
		}
		fixed = append(fixed, p)
	}
	crds, err := definitions.Read(s.CRDs)
	if err != nil {
		return nil, fmt.Errorf("controllertest: %s: Scenario.CRDs: %w", s.Name, err)
	}
	if err := makeFolder(o.Folder); err != nil {
		return nil, err
	}
	defer func() {
		if report != nil {
			err = errors.Join(err, report.write(o.Folder))
		}
	}()

	x := &explorer{
		scenario: s, options: o, log: log, crds: crds, prefix: "ct-" + utilrand.String(5), pause: cmp.Or(s.Pause, 500*time.Millisecond),
		slots: make(chan struct{}, o.Parallel),
		plans: map[string]plan{}, dependent: map[int]bool{}, kept: map[string]bool{}, early: map[string]bool{}, orders: map[string]bool{}, groups: map[string]*group{}, found: map[string]*group{},
		report: &Report{Scenario: s.Name, Kinds: map[Kind]Count{}, Accepted: map[string]int{}},
	}
	if err := x.connect(ctx); err != nil {
		return nil, err
	}
	restore := catchPanics(x)
	measuring, stopMeasuring := context.WithCancel(ctx)
	var measures sync.WaitGroup
	measures.Go(func() { x.stalls.Measure(measuring) })
	defer func() {
		stopMeasuring()
		measures.Wait()
		err = errors.Join(err, x.disconnect())
		restore()
	}()

	began := time.Now()
	exploring, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	x.abort = abort
	ended := func() error { // by the scenario or by ctx
		if cause := context.Cause(exploring); cause != nil {
			return fmt.Errorf("controllertest: %s: %w", s.Name, cause)
		}
		return nil
	}
	if o.Budget > 0 {
		x.end = began.Add(o.Budget)
	}
	ref, err := x.references(exploring)
	if ref == nil && err == nil { // something is wrong without any fault
		x.leaks()
		x.report.Failures = x.failures()
		return x.report, ended()
	}
	if err := ended(); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("controllertest: %s: %w", s.Name, err)
	}
	if took := time.Since(began); o.Budget > 0 && took > o.Budget {
		return nil, fmt.Errorf("controllertest: %s: the runs without faults took %v, more than Options.Budget, which is %v: give it a multiple of that time, or make the script shorter", s.Name, took.Round(time.Millisecond), o.Budget)
	}
	for _, op := range ref.operations {
		x.report.Operations = append(x.report.Operations, op.id)
	}
	x.report.Skipped = ref.skipped
	err = x.all(exploring, ref, fixed)
	if exploring.Err() == nil {
		x.leaks()
	}
	x.report.Failures = x.failures()
	return x.report, cmp.Or(ended(), err)
}

// connect prepares the API server of Options.Config, or a new one.
func (x *explorer) connect(ctx context.Context) (err error) {
	cfg, own, stop, err := server(ctx, x.options)
	if err != nil {
		return fmt.Errorf("controllertest: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	x.own, x.keep = own, own || x.options.KeepNamespaces
	x.config = rest.CopyConfig(cfg)
	x.config.QPS = -1
	if x.kube, err = kubernetes.NewForConfig(x.config); err != nil {
		return fmt.Errorf("controllertest: Options.Config: %w", err)
	}
	if x.dyn, err = dynamic.NewForConfig(x.config); err != nil {
		return fmt.Errorf("controllertest: Options.Config: %w", err)
	}
	if err := definitions.Install(ctx, x.dyn, x.crds); err != nil {
		return fmt.Errorf("controllertest: %s: Scenario.CRDs: %w", x.scenario.Name, err)
	}
	if x.scenario.Setup != nil {
		if err := x.scenario.Setup(ctx, rest.CopyConfig(x.config)); err != nil {
			return fmt.Errorf("controllertest: %s: Setup: %w", x.scenario.Name, err)
		}
	}
	eyes := rest.CopyConfig(x.config)
	eyes.ContentType, eyes.AcceptContentTypes = "application/json", "application/json"
	watching, stopWatching := context.WithCancel(ctx)
	o := newObserver(watching, x.prefix)
	eyes.Wrap(onlyMine(o.wants))
	if o.dyn, err = dynamic.NewForConfig(eyes); err != nil {
		stopWatching()
		return fmt.Errorf("controllertest: Options.Config: %w", err)
	}
	x.mu.Lock()
	x.observer = o
	x.mu.Unlock()
	x.disconnect = func() error {
		err := x.sweep()
		stopWatching()
		o.wg.Wait()
		return errors.Join(err, stop())
	}
	return nil
}

func (s *Scenario) validate() error {
	missing := func(field, cure string) error {
		return fmt.Errorf("controllertest: %s: %s is not set: %s", s.Name, field, cure)
	}
	switch {
	case s.Start == nil && s.Command == nil:
		return missing("Scenario.Start", "give it the function that runs the controller")
	case s.Start != nil && s.Command != nil:
		return fmt.Errorf("controllertest: %s: both Scenario.Start and Scenario.Command are set: choose one", s.Name)
	case len(s.Script) == 0:
		return missing("Scenario.Script", "give it at least one step, which makes the controller do something")
	case s.Converged == nil:
		return missing("Scenario.Converged", "give it a function that returns nil when the cluster is as it should be")
	case s.Replicas < 0:
		return fmt.Errorf("controllertest: %s: Scenario.Replicas is %d: use 0 for the default", s.Name, s.Replicas)
	case s.Pause < 0:
		return fmt.Errorf("controllertest: %s: Scenario.Pause is %v: use 0 for the default", s.Name, s.Pause)
	}
	if s.From != nil {
		if err := s.From.validate(s); err != nil {
			return err
		}
	}
	for n, step := range s.Script {
		if step.Do == nil {
			return missing(fmt.Sprintf("Scenario.Script[%d].Do", n), "give it what the user does")
		}
	}
	for n, invariant := range s.Invariants {
		if invariant.Check == nil {
			return missing(fmt.Sprintf("Scenario.Invariants[%d].Check", n), "give it the function that checks a state")
		}
	}
	return nil
}

// references runs the script without faults: once to learn the written and watched
// resources, and three times to learn the common operations. It returns nil if a run
// without faults has findings.
func (x *explorer) references(ctx context.Context) (*reference, error) {
	known := len(scheme.Scheme.AllKnownTypes())
	x.warming = x.scenario.From != nil
	warm, err := x.faultlessRun(ctx)
	if err == nil && x.scenario.Start != nil && len(scheme.Scheme.AllKnownTypes()) != known {
		return nil, errors.New("the function Start registers types in the shared scheme of client-go, or another test does so at the same time, and parallel runs would end the test with \"concurrent map writes\": call AddToScheme before Explore, for example in an init function, or use Scenario.Command")
	}
	if err == nil && warm.broke(Invariance) {
		// The watches began with its first writes. So an invariant may have seen a state without
		// objects that were there, and only another run shows whether it holds.
		warm, err = x.faultlessRun(ctx)
	}
	if err != nil || warm.failed() {
		if err == nil {
			if x.watched == nil {
				x.watched = map[string]int{} // unknown, and the runs are parallel
			}
			x.faultless(ctx, warm, x.repeat(ctx, nil, nil, x.options.Confirm))
		}
		return nil, err
	}
	if len(warm.trace) == 0 {
		return nil, fmt.Errorf("the controller made no write, read or external call: let Start use its configuration, and let the script give the controller work%s", warm.others())
	}
	x.warming = false
	runs := make([]*run, 3)
	errs := make([]error, len(runs))
	var wg sync.WaitGroup
	for n := range runs {
		wg.Go(func() {
			_ = sleep(ctx, nil, time.Duration(n)*apartTime)
			runs[n], errs[n] = x.faultlessRun(ctx)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for n, r := range runs {
		if r.failed() {
			others := slices.Delete(slices.Clone(runs), n, n+1)
			if !warm.alone {
				others = append(others, warm)
			}
			x.faultless(ctx, r, others)
			return nil, nil
		}
	}
	ref, err := x.agree(runs, warm)
	if err != nil {
		err = fmt.Errorf("%w%s", err, runs[0].others())
	}
	return ref, err
}

// faultlessRun makes a run without faults. A run without an outcome is repeated.
func (x *explorer) faultlessRun(ctx context.Context) (*run, error) {
	for n := 1; ; n++ {
		began := time.Now()
		r, err := x.try(ctx, nil, nil)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx) // a stopped run has no outcome
		}
		if err != nil && !unreached(err) {
			return nil, err
		}
		var why string
		if err != nil {
			why = err.Error()
		} else {
			var doubtful bool
			if why, doubtful = r.doubtful(); !doubtful || r.failed() {
				x.took(time.Since(began))
				return r, err
			}
		}
		if n == maxAttempts {
			return nil, fmt.Errorf("no run without faults can be judged: %s: use a machine with less load, or set a longer Options.ConvergeTimeout", why)
		}
	}
}

// faultless stores the findings of a run without faults, and how many of the other runs have them.
func (x *explorer) faultless(ctx context.Context, r *run, others []*run) {
	if ctx.Err() != nil {
		others = nil // they were stopped
	}
	runs := append(slices.DeleteFunc(others, func(o *run) bool { return !o.failed() && o.fired() < 0 }), r)
	x.enter(r, union(r, runs), len(runs), 0)
}

// took stores the time of a run.
func (x *explorer) took(d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.typical == 0 {
		x.typical = d
	}
	x.typical += (d - x.typical) / 8
}

// agree finds the common operations and states of the runs without faults. The states of the first
// run count too, because it began some time before.
func (x *explorer) agree(runs []*run, first *run) (*reference, error) {
	ref := &reference{rests: runs[0].rests, masked: map[string]bool{}, added: map[string]int{}, deleted: map[string]int{}}
	if len(ref.rests) < len(x.scenario.Script) {
		return nil, fmt.Errorf("the runs without faults ended after %d of %d steps, by a finding that Scenario.Accept accepts: accept no finding that ends the script", len(ref.rests), len(x.scenario.Script))
	}
	seen := map[string]int{}
	for _, r := range runs {
		if len(r.rests) != len(ref.rests) {
			return nil, fmt.Errorf("the runs without faults differ: one had %d steps and another %d, with the deletion at the end: let the script create the same objects each time", len(ref.rests), len(r.rests))
		}
		for _, op := range r.trace {
			seen[op.id]++
		}
		added, deleted := r.eventCounts(true)
		for _, c := range []struct{ all, one map[string]int }{{ref.added, added}, {ref.deleted, deleted}} {
			for name, n := range c.one {
				c.all[name] = max(c.all[name], n)
			}
		}
		ref.mask(r.rests)
	}
	if len(first.rests) == len(ref.rests) && !first.alone {
		ref.mask(first.rests)
	}
	if err := x.userObjects(runs); err != nil {
		return nil, err
	}
	for _, op := range runs[0].trace {
		if seen[op.id] == len(runs) {
			ref.operations = append(ref.operations, op)
		}
	}
	// Only the first operation of a kind on an object counts here: how often a child is read or made again while the
	// garbage collector deletes it differs from run to run.
	names := map[bool]int{} // of such operations that all runs have, and of the others
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		common := seen[id] == len(runs)
		if !common {
			ref.skipped = append(ref.skipped, id)
		}
		if strings.HasSuffix(id, "#1") {
			names[common]++
		}
	}
	if names[false] > names[true] {
		return nil, fmt.Errorf("the runs without faults differ, so plans cannot name the operations: %d of %d operations are in all runs, but not:\n\t%s\ngive objects fixed names, write in a fixed order, and do not write the time",
			len(ref.operations), len(seen), strings.Join(ref.skipped[:min(10, len(ref.skipped))], "\n\t"))
	}
	return ref, nil
}

// mask masks the paths whose values differ from those of another run without faults.
func (ref *reference) mask(rests []checkpoint) {
	for n, rest := range rests {
		union := maps.Clone(rest.state)
		maps.Copy(union, ref.rests[n].state)
		for path := range union {
			if rest.state[path] != ref.rests[n].state[path] {
				ref.masked[strconv.Itoa(n)+" "+path] = true
			}
		}
	}
}

// apartTime is the time between the beginnings of two runs without faults, so that a value that depends
// on the second differs in some of them.
const apartTime = 350 * time.Millisecond

// userObjects returns an error if the script does not create an object of Scenario.UserObjects.
func (x *explorer) userObjects(runs []*run) error {
	created := map[string]bool{}
	for _, r := range runs {
		r.mu.Lock()
		for key := range r.wrote {
			created[key.resource+"/"+r.maskLocked(key.name)] = true
		}
		r.mu.Unlock()
	}
	for _, name := range x.scenario.UserObjects {
		if !created[name] {
			return fmt.Errorf("Scenario.UserObjects has %q, which the script does not create: use names of %q", name, slices.Sorted(maps.Keys(created)))
		}
	}
	return nil
}

// try makes one run. Violations are its findings; an error means that the exploration
// cannot continue.
func (x *explorer) try(ctx context.Context, p plan, ref *reference) (*run, error) {
	x.slots <- struct{}{}
	defer func() { <-x.slots }()
	r, err := x.newRun(ctx, p, ref)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	x.plans[r.id], x.unserved = p, time.Time{}
	x.mu.Unlock()
	r.guard(func() { r.execute(ctx) })
	x.observer.remove(r)
	r.mu.Lock()
	if n := slices.IndexFunc(r.plan[r.next:], func(j injection) bool { return j.after > 0 }); n >= 0 {
		r.plan = r.plan[:r.next+n] // the script ended before the operations of the rest
	}
	chosen := r.plan
	r.mu.Unlock()
	x.mu.Lock()
	x.plans[r.id] = chosen
	x.mu.Unlock()
	if r.overlooks() {
		return r, nil
	}
	r.guard(func() {
		r.accept()
		if _, doubtful := r.doubtful(); doubtful {
			return // the observer may not have seen all events
		}
		whole := !r.failed()
		r.checkInvariants()
		if ref != nil && whole {
			r.judge(ref)
		}
		r.accept()
	})
	return r, nil
}

// guard calls f, which calls functions of the scenario. If one of them ends its goroutine, the
// exploration ends with an error that names the plan.
func (r *run) guard(f func()) {
	apart(func() {
		why, stack := "called runtime.Goexit, as t.FailNow does,", []byte(nil)
		defer func() {
			if v := recover(); v != nil {
				why, stack = fmt.Sprintf("panicked (%v)", v), debug.Stack()
			}
			if why != "" {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.x.abort(fmt.Errorf("a function of the scenario %s in plan %q, in or after step %q: return an error instead\n%s", why, r.plan, r.stepNameLocked(), stack))
			}
		}()
		f()
		why = ""
	})
}

var errGoexit = errors.New("it called runtime.Goexit, as t.FailNow does: return an error instead")

// all runs the plans until the source or the budget is empty. A server of the exploration is
// renewed when it has run a number of plans, because it keeps their objects in memory.
func (x *explorer) all(ctx context.Context, ref *reference, fixed []plan) (err error) {
	began := time.Now()
	source := x.source(ref, fixed)
	running := ctx
	if !x.end.IsZero() {
		var cancel context.CancelFunc
		running, cancel = context.WithDeadline(ctx, x.end)
		defer cancel()
	}
	done := make(chan struct{})
	var progress sync.WaitGroup
	progress.Go(func() { x.progress(began, done) })
	for err == nil && x.some(running, source, ref, began) {
		if err = x.disconnect(); err == nil {
			x.disconnect = func() error { return nil }
			err = x.connect(ctx)
		}
	}
	close(done)
	progress.Wait()
	x.report.Duration = time.Since(began)
	x.report.Complete = x.report.Ran == x.report.Enumerated
	slices.Sort(x.report.Invalid)
	slices.Sort(x.report.Unjudged)
	slices.Sort(x.report.Passed)
	return err
}

// renewAfter is the number of plans after which a server is renewed. One had 460 MB after 3,100
// plans, and another 1.3 GB after 18,000.
const renewAfter = 5000

// some runs plans in parallel. It reports whether more plans follow, on another server.
func (x *explorer) some(ctx context.Context, source *source, ref *reference, began time.Time) bool {
	var left atomic.Int64
	left.Store(int64(cmp.Or(x.options.renewAfter, renewAfter)))
	var wg sync.WaitGroup
	for range x.options.Parallel {
		wg.Go(func() {
			for ctx.Err() == nil && (!x.own || left.Add(-1) >= 0) {
				p := source.next()
				if p == nil {
					left.Store(math.MaxInt64)
					return
				}
				x.attempt(ctx, p, ref, began)
			}
		})
	}
	wg.Wait()
	return x.own && left.Load() < 0 && ctx.Err() == nil
}

// tooEarly stores that Converged accepted a state before it was the expected one.
func (x *explorer) tooEarly(step string, p plan, diff difference) {
	var fields []string
	for _, line := range diff[:min(len(diff), 3)] {
		field, _, _ := strings.Cut(line[len("  + "):], ": ")
		fields = append(fields, field)
	}
	what := fmt.Sprintf("%q: Converged accepted the state too early: let it check %s", step, strings.Join(fields, ", "))
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.early[what] && len(x.early) < explained {
		x.early[what] = true
		x.report.TooEarly = append(x.report.TooEarly, fmt.Sprintf("after step %s, which came later under %s", what, p))
	}
}

// reordered stores that a list had the same elements as without faults, in another order.
func (x *explorer) reordered(list string, p plan) {
	what := numbers.ReplaceAllString(list, "N")
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.orders[what] && len(x.orders) < explained {
		x.orders[what] = true
		x.report.Reordered = append(x.report.Reordered, fmt.Sprintf("%s, first under %s", list, p))
	}
}

// A source returns the plans of an exploration.
type source struct {
	x     *explorer
	first []plan // to begin random plans with

	mu    sync.Mutex
	queue []plan
	rng   *rand.Rand
}

func (x *explorer) source(ref *reference, fixed []plan) *source {
	s := &source{x: x, queue: fixed, rng: rand.New(rand.NewPCG(x.options.Seed, 0))}
	if fixed == nil {
		s.queue = x.single(ref)
		s.rng.Shuffle(len(s.queue), func(a, b int) { s.queue[a], s.queue[b] = s.queue[b], s.queue[a] })
		s.queue = inTurn(s.queue)
		s.first = s.queue
	}
	x.report.Enumerated = len(s.queue)
	if n := x.options.Sample; fixed == nil && n > 0 && n < len(s.queue) {
		s.queue = s.queue[:n]
	}
	return s
}

// next returns the next enumerated plan. After them, if there is a budget, it returns
// random plans that begin with an enumerated one. At the end it returns nil.
func (s *source) next() plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.x.expires():
		return nil
	case len(s.queue) > 0:
		p := s.queue[0]
		s.queue = s.queue[1:]
		return p
	case s.x.end.IsZero() || len(s.first) == 0:
		return nil
	}
	return s.x.longer(s.first[s.rng.IntN(len(s.first))], s.rng)
}

// expires reports whether a run that begins now would, as a rule, end after the budget.
func (x *explorer) expires() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.end.IsZero() && !time.Now().Add(x.typical).Before(x.end)
}

// progress logs the counts every ten seconds.
func (x *explorer) progress(began time.Time, done <-chan struct{}) {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			x.mu.Lock()
			r := x.report
			x.log("%s: %d plans in %v (%.1f a second), %d failing, %d invalid", x.scenario.Name, r.Plans, time.Since(began).Round(time.Second),
				float64(r.Plans)/time.Since(began).Seconds(), r.failing(), len(r.Invalid))
			x.mu.Unlock()
		case <-done:
			return
		}
	}
}

// maxLeft bounds the objects that the error of sweep names.
const maxLeft = 5

// sweep removes the objects of the runs from a cluster that is not thrown away. The error
// names the objects that it could not delete.
func (x *explorer) sweep() error {
	if x.keep {
		return nil
	}
	runs := int(x.runs.Load())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(runs)*sweepTime)
	defer cancel()
	var requests []request
	// The observer may not have seen the last write of a killed process.
	for _, gvr := range x.observer.all() {
		resource := gvr.GroupResource().String()
		list, err := x.dyn.Resource(gvr).List(ctx, metav1.ListOptions{})
		if hasNoList(err) {
			continue
		}
		if err != nil {
			requests = append(requests, request{"list " + resource, func() error { return err }})
			continue
		}
		for n := range list.Items {
			obj := &list.Items[n]
			if !x.observer.isMine(resource, obj, false) {
				continue
			}
			key := objectKey{resource, obj.GetNamespace(), obj.GetName()}
			client := x.dyn.Resource(gvr).Namespace(obj.GetNamespace())
			// The controller that would remove its finalizers has ended.
			if len(obj.GetFinalizers()) > 0 {
				requests = append(requests, request{"remove the finalizers of " + key.String(), func() error {
					_, err := client.Patch(ctx, key.name, mergePatch, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
					return err
				}})
			}
			if obj.GetNamespace() == "" || obj.GetDeletionTimestamp() == nil {
				requests = append(requests, request{"delete " + key.String(), func() error { return client.Delete(ctx, key.name, metav1.DeleteOptions{}) }})
			}
		}
	}
	for n := range runs {
		name := fmt.Sprintf("%s-%d", x.prefix, n+1)
		requests = append(requests, request{"delete namespace " + name, func() error { return x.kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}) }})
	}
	errs := make([]error, len(requests))
	workqueue.ParallelizeUntil(context.Background(), sweepers, len(requests), func(n int) {
		if err := ignoreNotFound(requests[n].send()); err != nil {
			errs[n] = fmt.Errorf("controllertest: %s: %w", requests[n].name, err)
		}
	})
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if left := len(errs); left > 0 {
		errs = append(errs[:min(left, maxLeft)], fmt.Errorf("controllertest: %d requests of the cleanup failed: delete the objects above and the namespaces that begin with %s-, or set Options.KeepNamespaces if the cluster is thrown away", left, x.prefix))
	}
	return errors.Join(errs...)
}

// A request of the cleanup.
type request struct {
	name string
	send func() error
}

const (
	sweepers  = 16                     // parallel requests of the cleanup
	sweepTime = 100 * time.Millisecond // for each run, in addition to a minute
)
