package elections

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

const (
	personName   = "person"
	strangerName = "stranger"
	leaseKind    = "leases.coordination.k8s.io"
)

var errQuit = errors.New("the work has ended by itself")

// beat is the time between two checks of the work.
const beat = 10 * time.Millisecond

// A tenure is one uninterrupted leadership. run.mu guards its fields.
type tenure struct {
	who  string
	term int64 // -1: unknown

	start   time.Time // lead was called
	ended   time.Time // its context ended
	checked time.Time // the last successful check was made
	left    time.Time // lead returned
	asked   time.Time // it was stopped; zero: it was not
	died    time.Time // the process crashed; zero: it did not
}

// guarded returns the end of its guarded work.
func (t *tenure) guarded() time.Time {
	end := later(t.ended, t.checked)
	if !t.died.IsZero() {
		end = earlier(end, t.died)
	}
	return end
}

// drained returns the end of its drain, if it was stopped while it led and kept to its
// time.
func (t *tenure) drained(limit time.Duration) time.Time {
	if t.asked.IsZero() || t.asked.After(t.ended) || !t.died.IsZero() {
		return t.guarded()
	}
	return earlier(t.left, t.asked.Add(limit))
}

// A process is one life of a replica.
type process struct {
	name    string
	replica int
	run     *run
	stop    context.CancelFunc
	dead    chan struct{} // closed at a crash
	crash   chan struct{} // closed to make it crash
	rng     *rand.Rand    // used by lead, which runs once at a time

	// Guarded by run.mu.
	leading int
	asked   time.Time
	died    time.Time
}

func (p *process) crashed() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// A tally counts goroutines. Unlike a WaitGroup it allows a wait while goroutines are
// started.
type tally struct {
	mu   sync.Mutex // guards the fields below
	n    int
	idle []chan struct{}
}

func (t *tally) run(f func()) {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
	go func() {
		defer func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.n--; t.n > 0 {
				return
			}
			for _, c := range t.idle {
				close(c)
			}
			t.idle = nil
		}()
		f()
	}()
}

// wait returns once the count is 0.
func (t *tally) wait() {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return
	}
	c := make(chan struct{})
	t.idle = append(t.idle, c)
	t.mu.Unlock()
	<-c
}

// A run executes a schedule.
type run struct {
	world  *World
	script Schedule
	elect  Replica
	name   string // of the Lease
	book   *book
	ctx    context.Context
	begun  time.Time

	packets tally         // of the network, from all senders
	others  tally         // the stranger's terms
	finish  chan struct{} // closed: all replicas stop, as in a rollout
	calm    chan struct{} // closed: lead no longer ends by itself

	mu       sync.Mutex // guards the fields below
	tenures  []*tenure
	alive    map[string]*process
	leads    chan struct{} // closed and replaced when a replica begins to lead
	busy     bool          // the stranger acts
	events   []event
	problems []string
	early    int
}

type event struct {
	at   time.Time
	text string
}

func (r *run) at(d time.Duration) time.Time { return r.begun.Add(d) }

func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteLocked(format, args...)
}

func (r *run) noteLocked(format string, args ...any) {
	r.events = append(r.events, event{time.Now(), fmt.Sprintf(format, args...)})
}

func (r *run) problem(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// Run executes a schedule with replicas of the given kind. An error reports that it was
// not judged.
func (w *World) Run(ctx context.Context, s Schedule, elect Replica) (Verdict, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{
		world: w, script: s, elect: elect, ctx: ctx, begun: time.Now(),
		name:   fmt.Sprintf("lease-%d-%s", s.Seed, s.Class),
		finish: make(chan struct{}), calm: make(chan struct{}), leads: make(chan struct{}),
		alive: map[string]*process{},
	}
	r.book = w.book(r.name)
	defer w.forget(r.name)

	var replicas, weather sync.WaitGroup
	for i := range s.lives {
		replicas.Go(func() { r.replica(i) })
	}
	weather.Go(r.edits)
	sleep(ctx, r.at(s.horizon))
	close(r.calm)
	weather.Wait()
	r.packets.wait()
	r.others.wait()
	r.note("the weather has cleared")
	var failover failover
	if s.failover {
		failover = r.failover()
	}
	close(r.finish)
	replicas.Wait()
	r.packets.wait()

	// On a cluster the servers' faults go on, for the other schedules.
	var last *coordinationv1.Lease
	err := outlast(ctx, func() (err error) {
		last, err = w.leases.Get(ctx, r.name, metav1.GetOptions{})
		return err
	})
	if err == nil {
		err = r.book.reached(ctx, last.ResourceVersion)
	}
	if err == nil {
		err = outlast(ctx, func() error { return w.leases.Delete(ctx, r.name, metav1.DeleteOptions{}) })
	}
	if apierrors.IsNotFound(err) {
		err = nil // it was never made, or a person deleted it last
	}
	w.mu.Lock()
	err = errors.Join(err, w.err)
	w.mu.Unlock()
	return r.judge(failover), err
}

// replica runs one life after the other.
func (r *run) replica(i int) {
	for n, l := range r.script.lives[i] {
		if !sleep(r.ctx, r.at(l.start)) {
			return
		}
		if err := r.live(i, n, l); err != nil {
			r.problem("replica %d: %v", i, err)
			return
		}
	}
}

func (r *run) live(replica, n int, l life) error {
	name := fmt.Sprintf("%d-r%d-l%d", r.script.Seed, replica, n)
	config := r.world.config
	if r.world.Replica != nil {
		config = r.world.Replica(replica)
	}
	config = rest.CopyConfig(config)
	config.UserAgent = name
	incarnation, err := fault.New(config, nil, nil)
	if err != nil {
		return err
	}
	defer incarnation.Kill()
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	stream := func(k uint64) *rand.Rand {
		return rand.New(rand.NewPCG(r.script.Seed, uint64(replica)<<16+uint64(n)<<2+k))
	}
	p := &process{
		name: name, replica: replica, run: r, stop: cancel, rng: stream(1),
		dead: make(chan struct{}), crash: make(chan struct{}),
	}
	config = incarnation.Config()
	network := stream(2)
	config.Wrap(func(base http.RoundTripper) http.RoundTripper {
		return &wire{run: r, life: p, base: base, rng: network}
	})
	r.mu.Lock()
	r.alive[name] = p
	r.noteLocked("%s starts as %s", name, l.identity)
	r.mu.Unlock()

	var around sync.WaitGroup
	around.Go(func() { r.skies(ctx, replica, incarnation) })
	around.Go(func() {
		again := rand.New(rand.NewPCG(r.script.Seed, 1))
		for ctx.Err() == nil {
			err := r.elect(ctx, Candidate{
				Config: config, Namespace: r.world.namespace, Name: r.name, Identity: l.identity,
				LeaseDuration: r.script.LeaseDuration, RenewDeadline: r.script.RenewDeadline, RetryPeriod: r.script.RetryPeriod,
				DrainLimit: r.script.DrainLimit,
			}, p.lead)
			if ctx.Err() == nil && !p.crashed() && !errors.Is(err, errQuit) {
				r.problem("%s: the elector returned although it was not asked to: %v", name, err)
			}
			sleep(ctx, time.Now().Add(time.Duration(again.Int64N(int64(200*time.Millisecond)))))
		}
	})

	var over <-chan time.Time
	if l.end > 0 {
		timer := time.NewTimer(time.Until(r.at(l.end)))
		defer timer.Stop()
		over = timer.C
	}
	crash := false
	select {
	case <-over:
		crash = l.crash
	case <-p.crash:
		crash = true
	case <-r.finish:
	case <-r.ctx.Done():
	}
	r.mu.Lock()
	delete(r.alive, name)
	now := time.Now()
	if crash {
		p.died = now
		r.noteLocked("%s crashes", name)
	} else {
		p.asked = now
		r.noteLocked("%s is asked to stop", name)
	}
	for _, t := range r.tenures {
		if t.who == name && t.left.IsZero() {
			t.asked, t.died = p.asked, p.died
		}
	}
	r.mu.Unlock()
	if crash {
		close(p.dead)
		incarnation.Kill()
	}
	cancel()
	around.Wait()
	return nil
}

// skies applies the faults of a process or its watches.
func (r *run) skies(ctx context.Context, replica int, i *fault.Incarnation) {
	for _, s := range r.script.weather[replica] {
		if s.kind < frozen || time.Now().After(r.at(s.to)) {
			continue
		}
		if !sleep(ctx, r.at(s.from)) {
			return
		}
		end := func() {}
		switch s.kind {
		case frozen:
			end = i.Freeze()
		case silentWatch:
			end = i.Hold(leaseKind)
		case cut:
			i.Cut(leaseKind, s.share > 0.7)
		}
		sleep(ctx, r.at(s.to))
		end()
	}
}

// lead is the work of a process. It acts while it may, and continues for a while after
// a stop.
func (p *process) lead(ctx context.Context, h Hold) error {
	r := p.run
	begun := time.Now()
	t := &tenure{who: p.name, term: h.Term, start: begun}
	r.mu.Lock()
	r.tenures = append(r.tenures, t)
	p.leading++
	t.asked, t.died = p.asked, p.died
	close(r.leads)
	r.leads = make(chan struct{})
	r.noteLocked("%s leads (term %d)", p.name, h.Term)
	r.mu.Unlock()

	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		t.ended = time.Now()
		r.noteLocked("%s: lead's context ends: %v", p.name, context.Cause(ctx))
		r.mu.Unlock()
		close(ended)
	})
	defer func() {
		left := time.Now()
		early := stop()
		if !early {
			<-ended
		}
		r.mu.Lock()
		t.left = left
		if early {
			t.ended = left
		}
		p.leading--
		r.noteLocked("%s: lead returns", p.name)
		r.mu.Unlock()
	}()

	drain := time.Duration(p.rng.Int64N(int64(r.script.DrainLimit)))
	if p.rng.IntN(8) == 0 {
		drain += r.script.DrainLimit / 2 // possibly more than its limit
	}
	linger := time.Duration(p.rng.Int64N(int64(100 * time.Millisecond))) // in work that had begun before the loss
	var quit <-chan time.Time
	if p.rng.IntN(4) == 0 && !r.script.stays {
		timer := time.NewTimer(time.Duration(p.rng.Int64N(int64(2 * time.Second))))
		defer timer.Stop()
		quit = timer.C
	}
	calm := r.calm
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	done := ctx.Done()
	var until <-chan time.Time
	for held := true; ; {
		select {
		case <-p.dead:
			return nil
		case <-calm:
			quit, calm = nil, nil
		case <-quit:
			return errQuit
		case <-done:
			done, quit = nil, nil
			if held = held && (h.Check == nil || h.Check() == nil); held {
				until = time.After(drain)
			} else if until == nil {
				until = time.After(linger)
			}
		case <-until:
			return ctx.Err()
		case <-ticker.C:
		}
		if h.Check == nil || !held {
			continue
		}
		now := time.Now()
		if held = h.Check() == nil; !held {
			until = time.After(linger)
			continue
		}
		r.mu.Lock()
		t.checked = now
		r.mu.Unlock()
	}
}

// sends is called with every write before it leaves the process.
func (p *process) sends(body []byte) {
	if !releases(body) {
		return
	}
	p.run.mu.Lock()
	defer p.run.mu.Unlock()
	if p.leading > 0 && p.died.IsZero() {
		p.run.early++
		p.run.noteLocked("%s releases the Lease while lead runs", p.name)
		return
	}
	p.run.noteLocked("%s releases the Lease", p.name)
}

// timeline returns the events in order.
func (r *run) timeline() string {
	for i, spells := range r.script.weather {
		for _, s := range spells {
			r.events = append(r.events, event{r.at(s.from), fmt.Sprintf("replica %d: %v until %v, %.0f %% of requests, up to %v", i, s.kind, ms(s.to), s.share*100, ms(s.delay))})
		}
	}
	for _, v := range r.book.all() {
		what := "stored"
		if v.deleted {
			what = "deleted"
		}
		r.events = append(r.events, event{v.at, fmt.Sprintf("%s by %q: holder %q, transitions %d, version %s", what, v.writer, v.holder(), v.transitions(), v.lease.ResourceVersion)})
	}
	slices.SortStableFunc(r.events, func(a, b event) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, e := range r.events {
		fmt.Fprintf(&b, "%9.3fs  %s\n", e.at.Sub(r.begun).Seconds(), e.text)
	}
	return b.String()
}
