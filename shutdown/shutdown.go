package shutdown

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/controllerkit/controllerkit/internal/stacks"
)

const (
	// defaultGracePeriod leaves 2s of the Pod's default of 30s to the rest of the process.
	defaultGracePeriod = 28 * time.Second
	// minShares bounds what a part keeps free for each of those after it: with the defaults,
	// four parts leave 23.5s to the first, and a leader.Elector drains for up to 22s.
	minShares = 20
)

// Group runs the parts of a process. The zero value is ready to use. A Group runs once
// and must not be copied. Its methods may be called concurrently.
type Group struct {
	// Delay is the time between the first "not ready" response and the stop of the first
	// part, so that load balancers stop sending work before servers stop accepting it.
	// All parts continue during Delay, also if a failure began the stop. Delay is part of
	// GracePeriod and must be shorter than 99 % of it. 0 means no delay.
	Delay time.Duration

	// GracePeriod bounds the whole stop, from the end of the context or the first failure
	// until Run returns. Run itself uses 1 % of it. Of the time after Delay, each
	// part that still runs keeps a twentieth; if more than ten run, they share half of it
	// equally. The part that stops may use the rest. GracePeriod must be shorter than the Pod's
	// terminationGracePeriodSeconds, whose default is 30: see Fits. 0 means 28s.
	GracePeriod time.Duration

	// Metrics receives the duration of each part's stop. nil disables it.
	Metrics Metrics

	mu      sync.Mutex // guards the fields below
	phase   phase
	parts   []*part
	ready   []check
	live    []check
	misuse  error
	misused chan struct{} // wakes Run; nil until Run
}

// Metrics receives the measurements of a [Group]. Run calls it from one goroutine.
type Metrics interface {
	// PartStopped is called once for each part whose context was ended: when it has returned, or
	// when its time is over, which late reports. took is the time since then.
	PartStopped(part string, took time.Duration, late bool)
}

type phase int

const (
	idle     phase = iota // before Run
	starting              // Run is starting the parts
	running               // all parts are started
	stopping              // not ready any more
)

// part is one function of a Group, and its state.
type part struct {
	name     string
	path     string // the value of its pprof label
	run      func(context.Context) error
	stop     context.CancelCauseFunc
	stopped  bool          // stop was called; only Run's goroutine uses it
	done     chan struct{} // closed when run has returned, after err is set
	err      error
	deadline atomic.Pointer[time.Time] // the end of its time; set before stop is called
}

type partKey struct{} // in a part's context: the *part, for Server

// LateError reports a part that did not stop in its time.
type LateError struct {
	Part      string        // the name given to Add
	Waited    time.Duration // the time that the part had after its context ended
	Stack     string        // its goroutines at that moment, cut at 16 KiB, or the reason why it is missing
	Abandoned bool          // the part was still running when Run returned
}

// Error names the part and shows the stacks.
func (e *LateError) Error() string {
	end := "stopped later"
	if e.Abandoned {
		end = "is abandoned"
	}
	return fmt.Sprintf("shutdown: part %q did not stop within %v and %s; its goroutines were:\n%s", e.Part, e.Waited, end, e.Stack)
}

// Add adds a part. The name must be unique in the group. Run starts all parts together,
// in any order, and stops the last added part first.
//
// run must block until everything that it started has stopped. If it returns nil, the
// part has finished. If it returns an error before its context is done, the whole group
// stops. After that, the plain values of ctx.Err() and context.Cause(ctx) count as nil.
//
// Run returns an error for an empty or repeated name, a nil function and a call after
// Run. A call while Run is running makes it stop and return that error.
func (g *Group) Add(name string, run func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.phase != idle:
		g.misusedLocked(fmt.Errorf("shutdown: Add(%q) was called after Run: add all parts before Run", name))
	case name == "":
		g.misusedLocked(errors.New("shutdown: Add got an empty name: errors name parts by it"))
	case run == nil:
		g.misusedLocked(fmt.Errorf("shutdown: Add(%q) got a nil function: pass one", name))
	case slices.ContainsFunc(g.parts, func(p *part) bool { return p.name == name }):
		g.misusedLocked(fmt.Errorf("shutdown: Add(%q) was called twice: give every part its own name", name))
	default:
		g.parts = append(g.parts, &part{name: name, run: run, done: make(chan struct{})})
	}
}

// Run starts all parts and waits until ctx is done, a part fails or all parts have
// finished. Then it stops the parts and returns. The context of a part has ctx's values.
// It ends when it is the part's turn to stop, with the cause of ctx or the failure as its
// cause.
//
// Run returns nil if every part stopped without an error. Otherwise it joins the errors
// of the parts, wrapped with their names, and a *[LateError] for each late part, in the
// order in which they occurred; misuse comes last. Parts that never stop are left behind
// after GracePeriod, see the package's Caveats.
func (g *Group) Run(ctx context.Context) error {
	parts, misused, err := g.begin()
	if err != nil {
		return err
	}
	defer g.enter(stopping)
	if ctx.Err() != nil {
		return nil // ctx was done before anything was started
	}

	r := &round{ended: make(chan *part, len(parts)), left: len(parts)}
	base := context.WithoutCancel(ctx)
	for _, p := range parts {
		p.start(base, r.ended)
	}
	g.enter(running)

	var reason error
	for r.left > 0 && reason == nil {
		select {
		case <-ctx.Done():
			reason = context.Cause(ctx)
		case <-misused:
			reason = g.mistakes()
		case p := <-r.ended:
			reason = r.end(p)
		}
	}
	g.enter(stopping)
	if r.left > 0 {
		r.reason = reason
		r.stop(parts, g.Delay, g.gracePeriod(), g.stopped())
	}
	if err := g.mistakes(); err != nil {
		r.errs = append(r.errs, err)
	}
	if len(r.errs) == 1 {
		return r.errs[0]
	}
	return errors.Join(r.errs...)
}

// stopped returns Metrics.PartStopped, or a function that does nothing.
func (g *Group) stopped() func(part string, took time.Duration, late bool) {
	if v := reflect.ValueOf(g.Metrics); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return func(string, time.Duration, bool) {}
	}
	return g.Metrics.PartStopped
}

// Fits returns an error that names the cure if pod is not at least a second longer than
// GracePeriod, because the kubelet could then kill the process before Run returns. pod is the
// time between SIGTERM and SIGKILL: the Pod's terminationGracePeriodSeconds, less the time of
// a preStop hook.
func (g *Group) Fits(pod time.Duration) error {
	if grace := g.gracePeriod(); grace > pod-time.Second {
		return fmt.Errorf("shutdown: Group.GracePeriod (%v) does not fit into the Pod's %v between SIGTERM and SIGKILL: raise terminationGracePeriodSeconds, or make GracePeriod at least 1s shorter than that", grace, pod)
	}
	return nil
}

func (g *Group) gracePeriod() time.Duration {
	if g.GracePeriod == 0 {
		return defaultGracePeriod
	}
	return g.GracePeriod
}

// usable returns the part of grace that Delay and the parts can use. Run needs the rest,
// mostly to write stacks.
func usable(grace time.Duration) time.Duration { return grace - grace/100 }

// begin validates the Group and marks it as running.
func (g *Group) begin() ([]*part, <-chan struct{}, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.phase != idle:
		return nil, nil, errors.New("shutdown: Run was called twice: a Group runs once, create a new one")
	case g.misuse != nil:
		return nil, nil, g.misuse
	case len(g.parts) == 0:
		return nil, nil, errors.New("shutdown: the Group has no parts: call Add before Run")
	case g.GracePeriod < 0:
		return nil, nil, fmt.Errorf("shutdown: Group.GracePeriod is %v: set it to more than 0, or 0 for %v", g.GracePeriod, defaultGracePeriod)
	case g.Delay < 0:
		return nil, nil, fmt.Errorf("shutdown: Group.Delay is %v: set it to more than 0, or 0 for no delay", g.Delay)
	case g.Delay >= usable(g.gracePeriod()):
		return nil, nil, fmt.Errorf("shutdown: Group.Delay (%v) leaves nothing of Group.GracePeriod (%v) for the parts: make Delay shorter", g.Delay, g.gracePeriod())
	}
	g.phase = starting
	g.misused = make(chan struct{}, 1)
	return g.parts, g.misused, nil
}

func (g *Group) enter(p phase) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phase = p
}

func (g *Group) mistakes() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.misuse
}

// start runs the part in a goroutine that sends it to ended when it returns.
func (p *part) start(base context.Context, ended chan<- *part) {
	ctx, stop := context.WithCancelCause(base)
	p.stop = stop
	ctx = context.WithValue(ctx, partKey{}, p)
	p.path = path(ctx, p.name)
	go func() {
		// A part that calls runtime.Goexit (a test's FailNow) never reaches the assignment
		// below, and Run must not wait for it.
		p.err = errors.New("its goroutine ended without returning (runtime.Goexit)")
		defer func() {
			// A panic ends the process. Run must not notice it before: it could return, and
			// main exit, before the panic is printed.
			if v := recover(); v != nil {
				panic(v)
			}
			ended <- p
			close(p.done)
		}()
		pprof.Do(ctx, pprof.Labels(label, p.path), func(ctx context.Context) { p.err = p.run(ctx) })
	}()
}

// round is the state of one Run. Only Run's goroutine uses it.
type round struct {
	ended  chan *part // receives each part once, when it returns; never blocks
	left   int        // parts that have not returned, as far as Run knows
	reason error      // the cause of the end of the parts' contexts
	errs   []error
}

// end records that p has returned, and returns its error, wrapped, if it is a failure.
func (r *round) end(p *part) error {
	r.left--
	if p.err == nil || p.stopped && repeats(p.err, r.reason) {
		return nil
	}
	err := fmt.Errorf("shutdown: part %q: %w", p.name, p.err)
	r.errs = append(r.errs, err)
	return err
}

// stop stops the remaining parts within grace.
func (r *round) stop(parts []*part, delay, grace time.Duration, stopped func(string, time.Duration, bool)) {
	begin := time.Now()
	deadline := begin.Add(usable(grace))
	if delay > 0 {
		r.waitAll(begin.Add(delay))
	}

	var alive []*part
	for _, p := range slices.Backward(parts) {
		select {
		case <-p.done:
		default:
			alive = append(alive, p)
		}
	}
	reserve := max(0, time.Until(deadline)) / time.Duration(max(minShares, 2*len(alive)))
	late := map[*part]*lateness{}
	timeUp, cancel := context.WithDeadline(context.Background(), begin.Add(grace-grace/200))
	defer cancel()
	var writing sync.Mutex
	for i, p := range alive {
		select {
		case <-p.done: // it returned by itself, so its error is a failure
			continue
		default:
		}
		told, limit := time.Now(), deadline.Add(-reserve*time.Duration(len(alive)-1-i))
		p.deadline.Store(&limit)
		p.stopped = true
		p.stop(r.reason)
		timer := time.NewTimer(max(1, time.Until(limit)))
		select {
		case <-p.done:
			stopped(p.name, time.Since(told), false)
		case <-timer.C:
			stopped(p.name, time.Since(told), true)
			err := &LateError{Part: p.name, Waited: max(0, limit.Sub(told)), Abandoned: true}
			r.errs = append(r.errs, err)
			stack := make(chan string, 1)
			late[p] = &lateness{err: err, stack: stack}
			go func() {
				writing.Lock()
				defer writing.Unlock()
				if timeUp.Err() == nil {
					stack <- stacks.Labelled(label, p.path, maxStack)
				}
			}()
		}
		timer.Stop()
	}

	r.waitAll(deadline) // reads the errors; late parts may use the remaining time
	for p, l := range late {
		l.err.Stack = l.read(timeUp)
		select {
		case <-p.done:
			l.err.Abandoned = false
		default:
		}
	}
	r.waitAll(time.Now()) // for the errors of parts that have returned since
}

// lateness is a LateError whose stack is being written. That takes a second for about
// 100,000 goroutines, and must delay neither the parts after it nor Run: a stack that is
// incomplete when Run returns is dropped.
type lateness struct {
	err   *LateError
	stack <-chan string
}

func (l *lateness) read(timeUp context.Context) string {
	select {
	case stack := <-l.stack: // also if the time is up
		return stack
	default:
	}
	select {
	case stack := <-l.stack:
		return stack
	case <-timeUp.Done():
		return fmt.Sprintf("no stacks: there was no time to search %d goroutines", runtime.NumGoroutine())
	}
}

// waitAll records parts that return, until all have or the time is over.
func (r *round) waitAll(until time.Time) {
	timer := time.NewTimer(max(1, time.Until(until)))
	defer timer.Stop()
	for r.left > 0 {
		// Parts that have returned are read first: at the last moment, select could prefer
		// the timer and lose an error.
		select {
		case p := <-r.ended:
			_ = r.end(p) // the error is in errs
			continue
		default:
		}
		select {
		case p := <-r.ended:
			_ = r.end(p)
		case <-timer.C:
			return
		}
	}
}

// repeats reports whether err is only the reason for the stop. A wrapped reason does not
// count: the wrapping may describe unfinished work.
func repeats(err, reason error) bool {
	if err == context.Canceled { //nolint:errorlint // see above
		return true
	}
	return reflect.ValueOf(reason).Comparable() && err == reason //nolint:errorlint // see above
}

const (
	label    = "shutdown" // the pprof label that marks a part's goroutines
	maxStack = 16 << 10
)

// path returns the label's value. Names of nested groups are joined by slashes, so that
// the outer group finds the goroutines of the inner one. A slash in a name is escaped.
func path(ctx context.Context, name string) string {
	name = strings.NewReplacer("%", "%25", "/", "%2F").Replace(name)
	if outer, ok := pprof.Label(ctx, label); ok {
		return outer + "/" + name
	}
	return name
}
