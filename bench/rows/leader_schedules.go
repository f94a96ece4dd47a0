package rows

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/controllerkit/controllerkit/bench"
	"github.com/controllerkit/controllerkit/internal/elections"
)

func init() {
	bench.Register(bench.Row{
		Name: "leader/schedules",
		About: "Random elections on the real API server, the same ones for each: 2 or 3 replicas with leases of 5 s, which start, stop, drain and crash " +
			"while their requests and answers are delayed, lost and repeated, and then a crash of the leader with a network that works. " +
			"Overlaps are of guarded work: the time from the start of lead, or a check that succeeded, to the end of lead's context. " +
			"Early releases are of a Lease whose leader's work was still running, foreign ones are of another replica's Lease. " +
			"A failover is how long nobody led after the last crash. All figures but the longest are per schedule. " +
			"client-go's candidates compare renewTime in whole seconds and may so take a Lease up to a second too early; that is part of their figures.",
		Op: "schedule",
		Goals: []bench.Goal{
			{Figure: overlapsFigure, AtMost: 0},
			{Figure: foreignFigure, AtMost: 0},
			{Figure: earlyFigure, AtMost: 0},
		},
		Pairs: schedulesPairs,
	})
}

const (
	overlapsFigure = "overlaps"
	foreignFigure  = "foreign releases"
	earlyFigure    = "early releases"

	withRelease = "client-go with ReleaseOnCancel"

	schedulesOfRow  = 100
	schedulesAtOnce = 100 // they wait most of the time
	firstSchedule   = 1   // its seed

	// client-go's candidates compare renewTime in whole seconds: renewals within one
	// look the same to them, so they may wait a second less than LeaseDuration after
	// the last. With leases of 1 s that would be nearly all of it.
	timesAsSlow = 5
)

func schedulesPairs(ctx context.Context) ([]bench.Pair, func(), error) {
	a, err := openArena(ctx)
	if err != nil {
		return nil, nil, err
	}
	contender := func(name, module string, elect elections.Replica) bench.Contender {
		warm := false
		return bench.Contender{Name: name, Module: module, Run: func(ctx context.Context, m *bench.Meter) (int, error) {
			// The same elections take the same time again, and there is nothing to
			// be warmed but the server: one of them does that.
			n, brief := 1, m.Quick || !warm
			if warm {
				n = m.N(schedulesOfRow)
			}
			warm = true
			return n, runSchedules(logr.NewContext(ctx, logr.Discard()), a, m, n, brief, elect) // both log a lot
		}}
	}
	const module = "k8s.io/client-go"
	ours := func() bench.Contender { return contender("controllerkit", "", elections.Controllerkit) }
	return []bench.Pair{
		{Ours: ours(), Theirs: contender(clientGo, module, elections.ClientGo(false)), Repeats: 1},
		{Ours: ours(), Theirs: contender(withRelease, module, elections.ClientGo(true)), Repeats: 1},
	}, a.stop, nil
}

func runSchedules(ctx context.Context, a *arena, m *bench.Meter, n int, brief bool, elect elections.Replica) error {
	world, err := elections.Open(ctx, a.config, a.namespace)
	if err != nil {
		return err
	}
	defer world.Close()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards s and errs
		s    elections.Summary
		errs error
		turn = make(chan struct{}, schedulesAtOnce)
	)
	for i := range n {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			schedule := elections.New(uint64(firstSchedule+i), elections.Lawful, elections.Options{Brief: brief})
			if !brief {
				schedule = schedule.Times(timesAsSlow)
			}
			v, err := world.Run(ctx, schedule, elect)
			mu.Lock()
			defer mu.Unlock()
			s.Add(v)
			errs = errors.Join(errs, err)
		})
	}
	wg.Wait()
	inMillis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	m.Count(overlapsFigure, float64(len(s.Overlaps)))
	m.Count("overlap ms", inMillis(elections.Total(s.Overlaps)))
	m.Count("longest overlap ms", inMillis(elections.Longest(s.Overlaps))*float64(n)) // it is divided by n
	m.Count("ms of draining beside the next", inMillis(elections.Total(s.Drains)))
	m.Count(foreignFigure, float64(s.ForeignReleases))
	m.Count(earlyFigure, float64(s.EarlyReleases))
	var failovers time.Duration
	for _, f := range s.Failovers {
		failovers += f
	}
	m.Count("failover ms", inMillis(failovers))
	return errs
}
