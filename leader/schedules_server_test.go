package leader_test

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/internal/elections"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// For a night: go test -run '^TestSchedules$' ./leader -schedules 2000 -timeout 0
var (
	serverSchedules = flag.Int("schedules", 40, "how many random schedules TestSchedules runs on the API server")
	scheduleSeed    = flag.Uint64("schedule-seed", 0, "the seed of the first of them; 0 means a random one")
)

// Schedules wait most of the time, so many run at once: as many as the machine bears.
const schedulesAtOnce = 48

// A crowd admits schedules. One that met a machine that stood still for a quarter of its
// time cuts the number that may run at once to a third, any other adds four. If the
// machine stood still for half of the time, or is too slow for four, later schedules are
// slower.
type crowd struct {
	mu           sync.Mutex // guards the fields below
	more         *sync.Cond
	limit, n     int
	slower       int       // factor of all times
	lastDecrease time.Time // schedules that had begun before it do not count twice
}

func newCrowd() *crowd {
	c := &crowd{limit: schedulesAtOnce / 4, slower: 1}
	c.more = sync.NewCond(&c.mu)
	return c
}

// enter waits for a place and returns the factor of the schedule's times.
func (c *crowd) enter() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n >= c.limit {
		c.more.Wait()
	}
	c.n++
	return c.slower
}

func (c *crowd) leave(begun time.Time, stalled time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	switch took := time.Since(begun); {
	case stalled <= took/4:
		c.limit = min(c.limit+4, schedulesAtOnce)
	case !begun.Before(c.lastDecrease):
		c.lastDecrease = time.Now()
		if c.limit <= 4 || stalled > took/2 {
			c.slower = min(c.slower+1, 5)
		}
		c.limit = max(c.limit/3, 4)
	}
	c.more.Broadcast()
}

// runSchedules runs n schedules, of which each calls judge with its verdict, one
// after the other. On a slow machine it begins none after one and a half seconds for each,
// if it has begun a quarter of them.
func runSchedules(t *testing.T, n int, schedule func(i int) elections.Schedule, elect elections.Replica, judge func(elections.Verdict)) {
	t.Helper()
	world, err := elections.Open(t.Context(), testserver.Config(t), testserver.Namespace(t))
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted := newCrowd()
	begun := 0
	for until := time.Now().Add(time.Duration(n) * 1500 * time.Millisecond); begun < n; {
		slower := admitted.enter()
		if begun >= n/4 && time.Now().After(until) {
			break
		}
		i := begun
		begun++
		wg.Go(func() {
			begun := time.Now()
			defer func() { admitted.leave(begun, world.Stalled(begun, time.Now())) }()
			s := schedule(i).Times(slower)
			v, err := world.Run(t.Context(), s, elect)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%v: %v", s, err)
			}
			judge(v)
		})
	}
	wg.Wait()
	if admitted.limit < schedulesAtOnce/4 || admitted.slower > 1 {
		t.Logf("a slow machine: %d of %d schedules, %d at once in the end, their times %d-fold", begun, n, admitted.limit, admitted.slower)
	}
}

// TestSchedules runs two or three replicas against the API server, over networks
// that delay, drop, lose and repeat their requests and answers, and lets them start,
// stop, drain and crash, while a stranger claims the Lease between a replica's read
// and its write. Guarded work of two must not overlap by a nanosecond, a Lease is
// released by its holder and after its work only, terms grow, and after a crash in
// fair weather another leads in time.
//
// In some schedules the Lease is deleted and edited by hand as well. They are
// counted apart: there the watch, and without one the clock, bounds the overlap.
//
// client-go's elector runs some of them at the same time, to keep this test honest:
// it overlaps, and releases the Lease while the work goes on.
//
// A failure has the schedule, with the seed that repeats it, and the rule that was broken. The seed
// repeats what happens to each request, but not the times. For an overlap go back from the second
// piece of work to its claim: the fault is between that claim and the last renewal of the first.
//
// Proves L1, L3, L4 and L9.
func TestSchedules(t *testing.T) {
	t.Run("controllerkit", schedulesOfOurs)
	t.Run("client-go", schedulesOfClientGo)
}

func schedulesOfOurs(t *testing.T) {
	t.Parallel()
	first := *scheduleSeed
	if first == 0 {
		first = rand.Uint64() >> 16
	}
	t.Logf("-schedule-seed %d -schedules %d", first, *serverSchedules)
	begun := time.Now()
	var summaries [3]elections.Summary
	failures := 0
	class := func(seed uint64) elections.Class {
		switch {
		case seed%10 == 8:
			return elections.Edited
		case seed%10 == 9:
			return elections.Blind
		}
		return elections.Lawful
	}
	runSchedules(t, *serverSchedules, func(i int) elections.Schedule {
		if seed := first + uint64(i); seed%50 == 0 {
			return elections.LateRenewal(seed)
		}
		return elections.New(first+uint64(i), class(first+uint64(i)), elections.Options{Twins: true})
	}, elections.Controllerkit, func(v elections.Verdict) {
		summaries[v.Schedule.Class].Add(v)
		if bound := v.Schedule.FailoverBound(); v.Failover > bound {
			t.Logf("seed %d: nobody led for %v after a crash, %v more than allowed; the machine was seen to stand still for %v", v.Schedule.Seed, v.Failover, v.Failover-bound, v.FailoverNoise)
		}
		if v.Unreleased {
			t.Logf("seed %d: the last leader had %v to release the Lease and did not; the machine was seen to stand still for %v", v.Schedule.Seed, v.Schedule.RenewDeadline/2, v.ReleaseNoise)
		}
		problems := v.Problems()
		if len(problems) == 0 {
			return
		}
		for _, p := range problems {
			t.Errorf("%v: %s", v.Schedule, p)
		}
		if failures++; failures <= 3 {
			t.Logf("%v:\n%s", v.Schedule, v.Timeline)
		}
	})
	for class, s := range summaries {
		t.Logf("%v: %v", elections.Class(class), &s)
	}
	t.Logf("took %v", time.Since(begun).Round(time.Second))
	if lawful := summaries[elections.Lawful]; lawful.Terms < 2*lawful.Schedules {
		t.Errorf("only %d terms in %d schedules: they prove little", lawful.Terms, lawful.Schedules)
	}
}

func schedulesOfClientGo(t *testing.T) {
	t.Parallel()
	var s elections.Summary
	const round = 24
	for first := 1; (len(s.Overlaps) == 0 || s.EarlyReleases == 0) && first < 5*round; first += round {
		runSchedules(t, round, func(i int) elections.Schedule {
			if i%4 == 0 {
				return elections.LateRenewal(uint64(first + i))
			}
			return elections.New(uint64(first+i), elections.Lawful, elections.Options{})
		}, elections.ClientGo(true), func(v elections.Verdict) { s.Add(v) })
	}
	t.Logf("client-go, ReleaseOnCancel: %v", &s)
	if len(s.Overlaps) == 0 || s.EarlyReleases == 0 {
		t.Error("no overlap or no early release: either client-go is fixed, and this test can go, or the schedules no longer show it")
	}
}
