package controllertest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/queue"
)

// TestQuiet holds what rest is: nothing for Options.QuietPeriod, and nothing under way.
func TestQuiet(t *testing.T) {
	tests := []struct {
		name  string
		with  func(r *run)
		every time.Duration // between events; 0 means that there are none
		seen  time.Duration // when the observer sees version 7 of the object a; 0 means never
		quiet bool
		after time.Duration
	}{
		{name: "nothing happens", quiet: true, after: time.Second},
		{name: "something happens all the time", every: 700 * time.Millisecond, after: 10 * time.Second},
		{name: "something happens now and then", every: 1500 * time.Millisecond, quiet: true, after: time.Second},
		{name: "a write is under way", with: func(r *run) { r.underway = 1 }, after: 10 * time.Second},
		{name: "the observer is late by less than the time left", with: func(r *run) { r.late.responded("a", 7, time.Now()) }, every: 700 * time.Millisecond, seen: 4 * time.Second, after: 14 * time.Second},
		{name: "the observer never sees it", with: func(r *run) { r.late.responded("a", 7, time.Now()) }, every: 700 * time.Millisecond, after: 60 * time.Second},
		{name: "a request waits for the API server by less than the time left", with: answers(6 * time.Second), after: 10*time.Second + 6*time.Second - slowAnswer},
		{name: "a request is never answered", with: answers(time.Hour), after: 60 * time.Second},
		{name: "a key is delayed", with: delays(3 * time.Second), quiet: true, after: 4 * time.Second},
		{name: "two keys are delayed", with: delays(4*time.Second, 2*time.Second), quiet: true, after: 5 * time.Second},
		{name: "a key is delayed for long", with: delays(time.Hour), quiet: true, after: time.Second},
		{name: "a key is delayed beyond the end", with: func(r *run) { r.x.options.ConvergeTimeout = 3 * time.Second; delays(4 * time.Second)(r) }, after: 3 * time.Second},
		{name: "a key is delayed again and again", with: polls(600 * time.Millisecond), quiet: true, after: 2200 * time.Millisecond},
		{name: "a key is delayed and writes, again and again", with: func(r *run) { pollsWith(r, 1500*time.Millisecond, r.touchLocked) }, after: 10 * time.Second},
		{name: "a key runs", with: runs(2400*time.Millisecond, 0), quiet: true, after: 2500 * time.Millisecond},
		{name: "a key runs and is delayed then", with: runs(2400*time.Millisecond, time.Second), quiet: true, after: 4400 * time.Millisecond},
		{name: "a key runs for ever", with: runs(time.Hour, 0), quiet: true, after: patience},
		{name: "a key runs to repeat a request", with: func(r *run) { runs(time.Hour, 0)(r); repeats(r, 2) }, quiet: true, after: time.Second},
		{name: "a key runs to repeat a request after the last step", with: func(r *run) { runs(2400*time.Millisecond, 0)(r); repeats(r, 1) }, quiet: true, after: 2500 * time.Millisecond},
		{name: "a key runs after a request was repeated", with: func(r *run) {
			r.x.options.QuietPeriod = 4 * time.Second
			runs(4400*time.Millisecond, 0)(r)
			repeats(r, 2)
		}, quiet: true, after: 4500 * time.Millisecond},
		{name: "a queue that tells nothing", with: func(r *run) { register(r, queueOf(1), nil) }, quiet: true, after: time.Second},
		{name: "a key is delayed in a queue that is shut down", with: func(r *run) {
			delays(3 * time.Second)(r)
			r.life[0].queues[0].lengther.(*queue.Queue[string]).ShutDown()
		}, quiet: true, after: time.Second},
		{name: "a key waits for the gate", with: gates(2400 * time.Millisecond), quiet: true, after: 2500 * time.Millisecond},
		{name: "a key waits for the gate for ever", with: gates(time.Hour), quiet: true, after: patience},
		{name: "there is no process", with: func(r *run) { r.life = nil }, after: 10 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := quietRun(Scenario{}, "ns")
				r.x.options = Options{QuietPeriod: time.Second, ConvergeTimeout: 10 * time.Second}
				r.life = []*incarnation{{}}
				began := time.Now()
				r.lastEvent, r.lastFault = began, began
				if test.with != nil {
					test.with(r)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if test.every > 0 {
					go func() {
						for sleep(ctx, nil, test.every) == nil {
							r.mu.Lock()
							r.touchLocked()
							r.mu.Unlock()
						}
					}()
				}
				if test.seen > 0 {
					time.AfterFunc(test.seen, func() {
						r.mu.Lock()
						defer r.mu.Unlock()
						r.late.observed("a", 7, watch.Modified, time.Now())
					})
				}
				changed, err := r.quiet(t.Context())
				quiet := changed != nil
				if took := time.Since(began); err != nil || quiet != test.quiet || took != test.after {
					t.Errorf("quiet %t, %v after %v; want %t after %v", quiet, err, took, test.quiet, test.after)
				}
				cancel()
				for _, q := range r.queuesLocked() {
					if q, ok := q.lengther.(*queue.Queue[string]); ok {
						q.ShutDown()
					}
				}
			})
		})
	}
}

// TestQueueIsEmpty: the queue of a term that has ended keeps keys, and does not count.
//
// Proves X6.
func TestQueueIsEmpty(t *testing.T) {
	r := quietRun(Scenario{}, "ns")
	r.life = []*incarnation{{}}
	q := queue.New(queue.Config[string]{})
	q.Add("a")
	register(r, q, nil)
	if err := r.queuesEmpty(); !errors.Is(err, errQueue) {
		t.Errorf("queuesEmpty with a key = %v, want errQueue", err)
	}
	q.ShutDown()
	if err := r.queuesEmpty(); q.Len() != 1 || err != nil {
		t.Errorf("queuesEmpty after the shutdown, with %d keys = %v, want nil", q.Len(), err)
	}
}

// answers gives the run a write that the API server answers after d.
func answers(d time.Duration) func(r *run) {
	return func(r *run) {
		op := new(fault.Op)
		r.underway = 1
		r.slow.begin(op, time.Now())
		go func() {
			_ = sleep(context.Background(), nil, min(d, time.Minute))
			r.mu.Lock()
			defer r.mu.Unlock()
			r.slow.end(op, time.Now())
		}()
	}
}

// register gives the run a queue with the number of keys that wait for its loop's gate.
func register(r *run, q lengther, gated func() int) {
	r.life[0].queues = append(r.life[0].queues, &watched{q, gated})
}

// gates gives the run an empty queue, with a key that waits for the gate that long.
func gates(d time.Duration) func(r *run) {
	return func(r *run) {
		opens := time.Now().Add(d)
		register(r, queueOf(0), func() int {
			if time.Now().Before(opens) {
				return 1
			}
			return 0
		})
	}
}

// delays gives the run a queue with delayed keys.
func delays(all ...time.Duration) func(r *run) {
	return func(r *run) {
		q := queue.New(queue.Config[string]{})
		for n, d := range all {
			q.AddAfter(fmt.Sprint(n), d)
		}
		register(r, q, nil)
	}
}

// polls gives the run a queue with a key that is delayed after each call.
func polls(every time.Duration) func(r *run) {
	return func(r *run) { pollsWith(r, every, func() {}) }
}

// pollsWith is polls with a call, which is made with r.mu held.
func pollsWith(r *run, every time.Duration, callLocked func()) {
	delays(every)(r)
	q := r.life[0].queues[0].lengther.(*queue.Queue[string])
	go func() {
		for {
			key, shutdown := q.Get()
			if shutdown {
				return
			}
			r.mu.Lock()
			callLocked()
			r.mu.Unlock()
			q.AddAfter(key, every)
			q.Done(key)
		}
	}()
}

// runs gives the run a queue with a key whose call takes that long, and which is
// delayed then.
func runs(took, then time.Duration) func(r *run) {
	return func(r *run) {
		q := queue.New(queue.Config[string]{})
		q.Add("a")
		key, _ := q.Get()
		if then > 0 {
			q.AddAfter("a", took+then)
		}
		time.AfterFunc(took, func() { q.Done(key) })
		register(r, q, nil)
	}
}

// repeats makes the run one of CommitThen503 with a number of steps.
func repeats(r *run, steps int) {
	r.repeated, r.ref = time.Now().Add(3*time.Second), &reference{rests: make([]checkpoint, steps)}
}

// queueOf is a queue that has so many keys, and has nothing but Len.
type queueOf int

func (q queueOf) Len() int { return int(q) }

// TestLateness holds what counts as a late observer.
func TestLateness(t *testing.T) {
	begin := time.Now()
	l := newLateness()
	responded := func(at time.Duration, uid types.UID, version uint64) { l.responded(uid, version, begin.Add(at)) }
	observed := func(at time.Duration, uid types.UID, version uint64, kind watch.EventType) {
		l.observed(uid, version, kind, begin.Add(at))
	}
	want := func(at, want time.Duration) {
		t.Helper()
		if got := l.sum(begin.Add(at)); got != want {
			t.Errorf("after %v it was late for %v, want %v", at, got, want)
		}
	}
	responded(1, "a", 5)
	observed(3, "a", 5, watch.Added) // 2
	want(4, 2)
	observed(5, "b", 6, watch.Added)
	responded(6, "b", 6) // seen before it was answered
	responded(6, "b", 6) // nothing was changed by it
	want(7, 2)
	responded(10, "a", 8)
	responded(11, "b", 9)
	observed(12, "a", 7, watch.Modified) // that of somebody else
	observed(13, "a", 9, watch.Modified) // a later one: 8 was left out, as in a list
	want(14, 6)                          // b is awaited
	observed(15, "b", 9, watch.Modified)
	want(20, 7)
	responded(20, "b", 9) // its last finalizer is removed: no event has the version
	responded(21, "a", 12)
	observed(23, "a", 14, watch.Deleted)
	responded(24, "a", 15)
	want(30, 9)
	responded(30, "c", 20)
	l.reset(begin.Add(40))
	want(45, 5)
	responded(45, "", 21)
	observed(50, "c", 20, watch.Added)
	want(60, 10)
	responded(60, "d", 25)
	responded(60, "e", 31)
	responded(60, "f", 26)
	l.listed(func(uid types.UID) bool { return uid != "f" }, 30, begin.Add(65))
	observed(70, "f", 26, watch.Added)
	want(71, 21) // e was written after the list
	observed(72, "e", 31, watch.Added)
	want(80, 22)
}

// TestSlowness holds what counts as a wait for the API server.
func TestSlowness(t *testing.T) {
	begin := time.Now()
	s := newSlowness()
	a, b, c := new(fault.Op), new(fault.Op), new(fault.Op)
	at := func(d time.Duration) time.Time { return begin.Add(d * time.Millisecond) }
	want := func(d, want time.Duration) {
		t.Helper()
		if got := s.sum(at(d)); got != want*time.Millisecond {
			t.Errorf("after %d ms requests waited for %v, want %d ms", d, got, want)
		}
	}
	s.begin(a, at(0))
	want(250, 0)
	want(300, 50)
	s.end(a, at(350)) // 100
	s.end(a, at(400)) // again, by Finally
	want(900, 100)
	s.begin(a, at(1000))
	s.begin(b, at(1100))
	s.end(b, at(1500)) // 250 of a
	want(1600, 100+350)
	s.begin(c, at(1700))
	s.end(a, at(1800)) // 550 of a
	want(1900, 100+550)
	want(2000, 100+550+50) // c
	s.reset(at(2100))
	want(2200, 100)
	s.end(c, at(2200))
	want(3000, 100)
	s.begin(a, at(3500)) // after Fault.Delay
	want(3100, 100)
}

// TestAnswerIsLate: the time until the API server answers counts as late, and Fault.Hold does not.
func TestAnswerIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := quietRun(Scenario{}, "ns")
		i := &incarnation{run: r, Incarnation: new(fault.Incarnation), ctx: t.Context()}
		f := i.on(&fault.Op{Verb: "list", Resource: "configmaps"})
		f.Before()
		time.Sleep(time.Second)
		f.After()
		time.Sleep(time.Minute)
		f.Finally()
		if got, want := r.slow.sum(time.Now()), time.Second-slowAnswer; got != want {
			t.Errorf("an answer after a second, held for a minute, counts as %v, want %v", got, want)
		}
	})
}

// TestStalls: the time in which the process did not run does not count for ConvergeTimeout, and a
// timer that is a little late does.
func TestStalls(t *testing.T) {
	r := quietRun(Scenario{}, "ns")
	r.x.options.ConvergeTimeout = time.Second
	now := time.Now()
	for _, pause := range []time.Duration{0, 50, 95, 50, 650, 50, 250} { // 600 and 200 too late
		now = now.Add(pause * time.Millisecond)
		r.x.stalls.Tick(now)
	}
	r.lastFault = now
	if got, want := r.deadline().Sub(now), 1800*time.Millisecond; got != want {
		t.Errorf("the deadline is after %v, want %v", got, want)
	}
	r.x.stalls.Tick(now.Add(time.Hour))
	if got, want := r.deadline().Sub(now), 6*time.Second; got != want {
		t.Errorf("the deadline after an hour is %v, want %v", got, want)
	}
	if f := r.restless(nil); !strings.Contains(f.Text, "this process did not run, for 59m") && !strings.Contains(f.Text, "this process did not run, for 1h") {
		t.Errorf("the finding is %q", f.Text)
	}
	r.mu.Lock()
	r.faultLocked()
	r.mu.Unlock()
	if got, want := r.deadline().Sub(r.lastFault), time.Second; got != want {
		t.Errorf("the deadline after the next fault is %v, want %v", got, want)
	}
}

// TestRestlessAndSilent: a cluster may be busy although the controller does nothing.
func TestRestlessAndSilent(t *testing.T) {
	const hint = "; the controller made no request: let Start use its configuration"
	r := quietRun(Scenario{}, "ns")
	if f := r.restless(nil); !strings.HasSuffix(f.Text, hint) {
		t.Errorf("the finding is %q, want the end %q", f.Text, hint)
	}
	r.x.scenario.From, r.former = &Former{Command: func(Process) (*exec.Cmd, error) { return nil, nil }}, true
	if got, want := r.silent(), "the process of Scenario.From.Command made no request: let it use Process.Kubeconfig"; !strings.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	r.asked = true
	if f := r.restless(nil); strings.Contains(f.Text, hint) {
		t.Errorf("the finding of a controller with requests is %q", f.Text)
	}
}
