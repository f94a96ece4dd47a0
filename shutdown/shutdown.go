package shutdown

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Group runs the parts of a process. The zero value is ready to use; a Group
// must not be copied and runs once. Its methods may be called by several
// goroutines.
type Group struct {
	// Delay is the time between answering "not ready" and telling the first
	// part to stop, so that load balancers stop sending work before servers stop
	// taking it. All parts go on during Delay, also when a failure began the
	// stop. It is part of GracePeriod, and must be less than 99 % of it. 0 means
	// none.
	Delay time.Duration

	// GracePeriod bounds the whole stop, from the end of the context or the
	// first failure until Run returns. Half of it is kept in equal shares for
	// the parts that are still to be stopped; the other half goes to whichever
	// needs it. It should be a few seconds shorter than the Pod's
	// terminationGracePeriodSeconds, whose default is 30. 0 means 25s.
	GracePeriod time.Duration

	mu      sync.Mutex // guards the fields below
	phase   phase
	parts   []*part
	ready   []check
	live    []check
	misuse  error
	misused chan struct{} // wakes Run; nil until Run
}

type phase int

const (
	idle     phase = iota // before Run
	starting              // Run is starting the parts
	running               // all parts are started
	stopping              // no longer ready, for good
)

// part is one function of a Group, and how far it is.
type part struct {
	name     string
	path     string // the value of its pprof label
	run      func(context.Context) error
	stop     context.CancelCauseFunc
	told     bool          // stop was called; only Run's goroutine uses it
	done     chan struct{} // closed when run has returned, after err is set
	err      error
	deadline atomic.Pointer[time.Time] // when it must have stopped; set before stop is called
}

type partKey struct{} // in a part's context: the *part, for Server

// LateError says that a part did not stop in the time it had.
type LateError struct {
	Part      string        // the name given to Add
	Waited    time.Duration // how long the part had, since it was told to stop
	Stack     string        // its goroutines from then on, cut off after 16 KiB, or why there are none
	Abandoned bool          // it was still running when Run returned
}

// Error names the part and shows the stacks.
func (e *LateError) Error() string {
	end := "stopped later"
	if e.Abandoned {
		end = "is abandoned"
	}
	return fmt.Sprintf("shutdown: part %q did not stop within %v and %s; its goroutines were:\n%s", e.Part, e.Waited, end, e.Stack)
}

// Add adds a part under a name that is its own in this group. All parts are
// started together by Run, in no promised order, and stopped last-added first.
//
// run blocks until everything that it started has stopped. It returns nil when
// it stopped as asked, or has nothing more to do; anything else before it is
// told to stop, is a failure of the whole group. After that the plain values of
// ctx.Err() and context.Cause(ctx) also count as nil.
//
// An empty or repeated name, a nil function and a call after Run are reported
// by Run; a call while Run is running makes it stop and return that error.
func (g *Group) Add(name string, run func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.phase != idle:
		g.misusedLocked(fmt.Errorf("shutdown: Add(%q) was called after Run: add all parts before Run", name))
	case name == "":
		g.misusedLocked(errors.New("shutdown: Add needs a name: errors name parts by it"))
	case run == nil:
		g.misusedLocked(fmt.Errorf("shutdown: Add(%q) needs a function, got nil", name))
	case slices.ContainsFunc(g.parts, func(p *part) bool { return p.name == name }):
		g.misusedLocked(fmt.Errorf("shutdown: Add(%q) was called twice: give every part its own name", name))
	default:
		g.parts = append(g.parts, &part{name: name, run: run, done: make(chan struct{})})
	}
}

// Run starts all parts, waits until ctx is done, a part fails or all parts are
// finished, then stops the parts and returns. Parts get ctx's values, not its
// end: each is told to stop when its turn comes, with the cause of ctx or the
// failure as the cause.
//
// It returns nil when everything stopped as asked. Otherwise it returns, the
// first failure first, each part's error wrapped with its name and a
// *[LateError] for each part that was late; misuse comes last. Parts that never
// stop are left behind after GracePeriod, see the package's Caveats.
func (g *Group) Run(ctx context.Context) error {
	parts, misused, err := g.begin()
	if err != nil {
		return err
	}
	defer g.enter(stopping)
	if ctx.Err() != nil {
		return nil // asked to stop before anything was started
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
		r.stop(parts, g.Delay, g.gracePeriod())
	}
	if err := g.mistakes(); err != nil {
		r.errs = append(r.errs, err)
	}
	if len(r.errs) == 1 {
		return r.errs[0]
	}
	return errors.Join(r.errs...)
}

func (g *Group) gracePeriod() time.Duration {
	if g.GracePeriod == 0 {
		return 25 * time.Second
	}
	return g.GracePeriod
}

// usable is what the parts and Delay have of grace. One per cent is for Run's own
// work, of which writing stacks is the most.
func usable(grace time.Duration) time.Duration { return grace - grace/100 }

// begin checks everything that can be wrong and claims the one Run.
func (g *Group) begin() ([]*part, <-chan struct{}, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.phase != idle:
		return nil, nil, errors.New("shutdown: Run was called twice: a Group runs once, make a new one")
	case g.misuse != nil:
		return nil, nil, g.misuse
	case len(g.parts) == 0:
		return nil, nil, errors.New("shutdown: the Group has no parts: call Add before Run")
	case g.GracePeriod < 0:
		return nil, nil, fmt.Errorf("shutdown: Group.GracePeriod is %v: it must not be negative; 0 means 25s", g.GracePeriod)
	case g.Delay < 0:
		return nil, nil, fmt.Errorf("shutdown: Group.Delay is %v: it must not be negative; 0 means none", g.Delay)
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

// start runs the part in a goroutine that puts it into ended when it is over.
func (p *part) start(base context.Context, ended chan<- *part) {
	ctx, stop := context.WithCancelCause(base)
	p.stop = stop
	ctx = context.WithValue(ctx, partKey{}, p)
	p.path = path(ctx, p.name)
	go func() {
		// A part that calls runtime.Goexit (a test's FailNow) never gets to the
		// assignment below, and Run must not wait for it for ever.
		p.err = errors.New("its goroutine ended without returning (runtime.Goexit)")
		defer func() {
			// Run must not hear of a panic, of which the process is about to die: it
			// could return, and main exit, before the panic is printed.
			if v := recover(); v != nil {
				panic(v)
			}
			close(p.done)
			ended <- p
		}()
		pprof.Do(ctx, pprof.Labels(label, p.path), func(ctx context.Context) { p.err = p.run(ctx) })
	}()
}

// round is what one Run keeps track of. Only Run's goroutine uses it.
type round struct {
	ended  chan *part // parts that are over, each once; never blocks
	left   int        // parts that are not known to be over
	reason error      // why the parts are told to stop
	errs   []error
}

// end notes that p is over and returns its error, wrapped, if it was a failure.
func (r *round) end(p *part) error {
	r.left--
	if p.err == nil || p.told && repeats(p.err, r.reason) {
		return nil
	}
	err := fmt.Errorf("shutdown: part %q: %w", p.name, p.err)
	r.errs = append(r.errs, err)
	return err
}

// stop stops what is left of parts, within grace.
func (r *round) stop(parts []*part, delay, grace time.Duration) {
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
	reserve := max(0, time.Until(deadline)) / time.Duration(2*max(1, len(alive)))
	late := map[*part]*lateness{}
	timeUp, cancel := context.WithDeadline(context.Background(), begin.Add(grace-grace/200))
	defer cancel()
	var writing sync.Mutex
	for i, p := range alive {
		select {
		case <-p.done: // by itself, so an error of it is a failure
			continue
		default:
		}
		told, limit := time.Now(), deadline.Add(-reserve*time.Duration(len(alive)-1-i))
		p.deadline.Store(&limit)
		p.told = true
		p.stop(r.reason)
		timer := time.NewTimer(time.Until(limit))
		select {
		case <-p.done:
		case <-timer.C:
			err := &LateError{Part: p.name, Waited: max(0, limit.Sub(told)), Abandoned: true}
			r.errs = append(r.errs, err)
			stack := make(chan string, 1)
			late[p] = &lateness{err: err, stack: stack}
			go func() {
				writing.Lock()
				defer writing.Unlock()
				if timeUp.Err() == nil {
					stack <- stacks(p.path)
				}
			}()
		}
		timer.Stop()
	}

	r.waitAll(deadline) // reads the errors; late parts may use what the others left
	for p, l := range late {
		l.err.Stack = l.read(timeUp)
		select {
		case <-p.done:
			l.err.Abandoned = false
		default:
		}
	}
}

// lateness is a LateError whose stack is being written. That takes a second for
// some 100,000 goroutines, which must not be taken from the parts after it, and
// which Run may not have: what is being written when Run returns is dropped.
type lateness struct {
	err   *LateError
	stack <-chan string
}

func (l *lateness) read(timeUp context.Context) string {
	select {
	case stack := <-l.stack: // also when the time is up
		return stack
	default:
	}
	select {
	case stack := <-l.stack:
		return stack
	case <-timeUp.Done():
		return fmt.Sprintf("no stacks: there was no time to look through %d goroutines", runtime.NumGoroutine())
	}
}

// waitAll takes note of parts that end, until none is left or until the time.
func (r *round) waitAll(until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for r.left > 0 {
		// What has ended is read first: at the last moment select could prefer
		// the timer, and an error would be lost.
		select {
		case p := <-r.ended:
			_ = r.end(p) // kept in errs; the group is stopping anyway
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

// repeats tells whether err only says again that the part was told to stop.
// Wrapped errors are not taken apart: they may say what was left undone.
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

// path is the label's value: names of nested groups are joined by slashes, so
// that the outer group still finds the goroutines of the inner one. A slash in a
// name does not join.
func path(ctx context.Context, name string) string {
	name = strings.NewReplacer("%", "%25", "/", "%2F").Replace(name)
	if outer, ok := pprof.Label(ctx, label); ok {
		return outer + "/" + name
	}
	return name
}

// stacks returns the stacks of all goroutines that belong to the part.
func stacks(path string) string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return "no stacks: " + err.Error()
	}
	quoted := strconv.Quote(path)
	own := strconv.Quote(label) + ":" + quoted
	nested := strings.TrimSuffix(own, `"`) + "/"
	var out strings.Builder
	for block := range strings.SplitSeq(profile.String(), "\n\n") {
		if !strings.Contains(block, own) && !strings.Contains(block, nested) {
			continue
		}
		if room := maxStack - out.Len(); len(block)+2 > room {
			out.WriteString(block[:min(room, len(block))] + "\n... cut off\n")
			break
		}
		out.WriteString(block + "\n\n")
	}
	if out.Len() == 0 {
		return "no goroutine with its label is left"
	}
	return out.String()
}
