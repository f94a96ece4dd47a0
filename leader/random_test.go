package leader_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/leader"
)

// schedules is how many random schedules TestRandomSchedules runs.
const schedules = 500

// A ledger watches over the guarded work of all replicas. Work counts from the
// moment lead is called until its validity context is done.
type ledger struct {
	running sync.WaitGroup // work, also of a Run that gave up on it

	mu       sync.Mutex
	live     map[*guarded]bool
	terms    map[leader.Term]bool
	highest  int64
	started  int
	checked  int
	problems []string
}

type guarded struct {
	name     string
	term     leader.Term
	ctx      context.Context
	validity context.Context
}

// enter notes that g acts now, and that no other may be able to.
func (l *ledger) act(g *guarded, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other := range l.live {
		if other != g && (other.term.Check(other.ctx) == nil || other.validity.Err() == nil) {
			l.problems = append(l.problems, fmt.Sprintf("%s %s in term %v while %s holds term %v", g.name, what, g.term, other.name, other.term))
		}
	}
	if what == "starts" {
		l.started++
		if l.terms[g.term] || g.term.Number <= l.highest {
			l.problems = append(l.problems, fmt.Sprintf("%s starts in term %v, not later than %d", g.name, g.term, l.highest))
		}
		l.terms[g.term] = true
		l.highest = g.term.Number
		l.live[g] = true
	} else {
		l.checked++
	}
}

// work acts whenever it may, keeps draining after it is asked to stop, and
// sometimes ends by itself.
func (l *ledger) work(t *testing.T, name string, rng *rand.Rand) func(context.Context) error {
	return func(ctx context.Context) error {
		l.running.Add(1)
		defer l.running.Done()
		term := mustTerm(t, ctx)
		g := &guarded{name, term, ctx, validity(t, ctx)}
		l.act(g, "starts")
		defer func() {
			l.mu.Lock()
			delete(l.live, g)
			l.mu.Unlock()
		}()
		drain := upTo(rng, 3*time.Second)
		quit := time.Duration(-1)
		if rng.IntN(4) == 0 {
			quit = upTo(rng, 20*time.Second)
		}
		began, stopped := time.Now(), time.Time{}
		for {
			if term.Check(ctx) == nil {
				l.act(g, "writes")
			}
			if stopped.IsZero() && ctx.Err() != nil {
				stopped = time.Now()
			}
			if !stopped.IsZero() && time.Since(stopped) >= drain {
				return ctx.Err()
			}
			if quit >= 0 && time.Since(began) > quit {
				return errors.New("quit")
			}
			time.Sleep(10*time.Millisecond + upTo(rng, 70*time.Millisecond))
		}
	}
}

// TestRandomSchedules runs three replicas, sometimes of one name, against a Lease
// that is reached through delays, lost requests, lost responses, late commits,
// partitions and broken, lagging watches, and stops and starts them at random
// moments. The guarded work of two must never overlap, terms must only grow, and
// a replica must lead once the faults stop.
//
// Proves L1.
func TestRandomSchedules(t *testing.T) {
	var mu sync.Mutex
	var started, checked int
	seed := rand.Uint64()
	t.Logf("first seed %d", seed)
	for i := range uint64(schedules) {
		bubble(t, func(t *testing.T, s *store) {
			l := runSchedule(t, s, seed+i)
			mu.Lock()
			defer mu.Unlock()
			started += l.started
			checked += l.checked
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d schedules, %d terms, %d guarded actions, overlaps: 0", schedules, started, checked)
	if started < 2*schedules {
		t.Errorf("only %d terms in %d schedules: the schedules prove little", started, schedules)
	}
}

func runSchedule(t *testing.T, s *store, seed uint64) *ledger {
	rng := rand.New(rand.NewPCG(seed, 1))
	l := &ledger{live: map[*guarded]bool{}, terms: map[leader.Term]bool{}, highest: -1}

	// Narrow margins: a mistake of some tenths of a second must show.
	lease := time.Duration(1+rng.IntN(3)) * time.Second
	deadline := lease - 20*time.Millisecond - upTo(rng, lease/4)
	retry := 50*time.Millisecond + upTo(rng, deadline*3/5)
	horizon := 40 * time.Second

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var clients []*client
	for i := range 3 {
		own := rand.New(rand.NewPCG(seed, uint64(2+i)))
		identity := fmt.Sprintf("replica-%d", i)
		if rng.IntN(3) == 0 {
			identity = "twin"
		}
		e, c := s.elector(identity)
		e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = lease, deadline, retry
		e.StartTimeout, e.MaxDrift = time.Hour, 0.001
		e.DrainTimeout = upTo(own, 4*time.Second)
		c.On(randomFaults(rand.New(rand.NewPCG(seed, uint64(20+i))), deadline/2))
		c.DelayWatches(upTo(own, 500*time.Millisecond))
		clients = append(clients, c)
		name := fmt.Sprintf("%s/%d", identity, i)
		wg.Go(func() {
			for run := uint64(0); ; run++ {
				ctx, cancel := context.WithCancel(t.Context())
				life := time.After(upTo(own, 30*time.Second))
				go func() {
					defer cancel()
					select {
					case <-stop:
					case <-life:
					case <-ctx.Done():
					}
				}()
				_ = e.Run(ctx, l.work(t, name, rand.New(rand.NewPCG(seed+run, uint64(10+i)))))
				cancel()
				select {
				case <-stop:
					return
				case <-time.After(upTo(own, 3*time.Second)):
				}
			}
		})
	}
	wg.Go(func() { // partitions
		own := rand.New(rand.NewPCG(seed, 9))
		for {
			c := clients[own.IntN(len(clients))]
			c.Partition(own.IntN(2) == 0)
			select {
			case <-stop:
				return
			case <-time.After(upTo(own, 3*time.Second)):
			}
		}
	})
	time.Sleep(horizon)
	close(stop)
	wg.Wait()
	l.running.Wait()
	s.Wait() // a renewal on its way would still prolong the Lease

	for _, p := range l.problems {
		t.Errorf("seed %d (lease %v, deadline %v, retry %v): %s", seed, lease, deadline, retry, p)
	}

	// Without faults a replica leads soon.
	e, _ := s.elector("last")
	e.LeaseDuration, e.RenewDeadline, e.RetryPeriod, e.MaxDrift = lease, deadline, retry, 0.001
	r := start(t, e, untilDone)
	r.leads(t, 3*time.Second+2*retry+soon)
	_ = r.stop()
	return l
}

// randomFaults makes most requests work and the rest fail in every way a network
// can make them fail. A call is given up after callTimeout, so some of the delays
// are longer: then the request is stored, if at all, after its sender gave up.
func randomFaults(rng *rand.Rand, callTimeout time.Duration) func(string, string) fault {
	return func(string, string) fault {
		switch rng.IntN(12) {
		case 0:
			return fault{Lost: true}
		case 1:
			return fault{Cut: true}
		case 2:
			return fault{Before: upTo(rng, 3*callTimeout)}
		case 3:
			return fault{After: upTo(rng, 3*callTimeout)}
		case 4:
			return fault{Before: upTo(rng, callTimeout), Cut: true}
		case 5:
			return fault{Before: upTo(rng, 10*time.Millisecond), Err: errors.New("connection refused")}
		}
		return fault{Before: upTo(rng, 20*time.Millisecond), After: upTo(rng, 20*time.Millisecond)}
	}
}

func upTo(rng *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(d) + 1))
}
