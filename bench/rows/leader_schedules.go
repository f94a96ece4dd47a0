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
		About: "Random elections on a real API server, the same elections for each contender. In each election, 2 or 3 replicas with leases of 5 s start, stop, drain " +
			"and crash while their requests and responses are delayed, lost and repeated. At the end the leader crashes while the network works. An overlap is a " +
			"time when guarded work of two replicas runs. Guarded work lasts from the start of lead, or from a successful check, to the end of lead's context. An " +
			"early release releases a Lease while its leader's work still runs. A foreign release releases another replica's Lease. A failover is the time without " +
			"a leader after the last crash. All figures except the longest overlap are per schedule. client-go's candidates compare renewTime in whole seconds, so " +
			"they may take a Lease up to a second too early; the figures include this.",
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

	// client-go's candidates compare renewTime in whole seconds. They do not notice a
	// renewal within the same second, so they may wait a second less than LeaseDuration
	// after the last renewal. With leases of 1 s that would be almost the whole lease.
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
			// A second run of all elections would take equally long, and only the server
			// needs a warm-up: one election is enough for that.
			n, brief := 1, m.Quick || !warm
			if warm {
				n = m.N(schedulesOfRow)
			}
			warm = true
			return n, runSchedules(logr.NewContext(ctx, logr.Discard()), a, m, n, brief, elect) // both electors log many lines
		}}
	}
	const module = "k8s.io/client-go"
	ours := func() bench.Contender { return contender("controllerkit", "", elections.Controllerkit) }
	return []bench.Pair{
		{Ours: ours(), Theirs: contender(clientGo, module, elections.ClientGo(false))},
		{Ours: ours(), Theirs: contender(withRelease, module, elections.ClientGo(true))},
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
	m.Count("drain overlap ms", inMillis(elections.Total(s.Drains)))
	m.Count(foreignFigure, float64(s.ForeignReleases))
	m.Count(earlyFigure, float64(s.EarlyReleases))
	var failovers time.Duration
	for _, f := range s.Failovers {
		failovers += f
	}
	m.Count("failover ms", inMillis(failovers))
	return errs
}
