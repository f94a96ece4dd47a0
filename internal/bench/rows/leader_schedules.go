package rows

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/elections"
)

func init() {
	bench.Register(bench.Row{
		Name: "leader/schedules",
		About: fmt.Sprintf("Random elections on a real API server, %d in a repeat, the same elections for each contender. In each election, 2 or 3 replicas with leases of 5 s start, stop, drain "+
			"and crash while their requests and responses are delayed, lost and repeated. At the end the leader crashes while the network works. An overlap is a "+
			"time when guarded work of two replicas runs. Guarded work lasts from the start of lead, or from a successful check, to the end of lead's context. An "+
			"early release releases a Lease while its leader's work still runs. A foreign release releases another replica's Lease. A failover is the time without "+
			"a leader after the last crash. All figures except the longest overlap are per schedule. client-go's candidates compare renewTime in whole seconds, so "+
			"they may take a Lease up to a second too early; the figures include this.", schedulesOfRow),
		Op:       "schedule",
		Together: true,
		Goals: []bench.Goal{
			{Figure: overlapsFigure, Worst: true, AtMost: 0},
			{Figure: foreignFigure, Worst: true, AtMost: 0},
			{Figure: earlyFigure, Worst: true, AtMost: 0},
		},
		Pairs: schedulesPairs,
	})
}

const (
	overlapsFigure = "overlaps"
	foreignFigure  = "foreign releases"
	earlyFigure    = "early releases"

	withRelease = "client-go with ReleaseOnCancel"

	schedulesOfRow = 20

	// client-go's candidates compare renewTime in whole seconds. They do not notice a
	// renewal within the same second, so they may wait a second less than LeaseDuration
	// after the last renewal. With leases of 1s that would be almost the whole lease.
	timesAsSlow = 5
)

func schedulesPairs(ctx context.Context) ([]bench.Pair, func(), error) {
	a, err := openArena(ctx)
	if err != nil {
		return nil, nil, err
	}
	contender := func(name, module string, elect elections.Replica) bench.Contender {
		var run atomic.Int64
		return bench.Contender{Name: name, Module: module, Run: func(ctx context.Context, m *bench.Meter) (int, error) {
			// The first run warms up. Only the server needs that, so one election is enough.
			run := int(run.Add(1)) - 1
			n, brief := m.N(schedulesOfRow), m.Quick
			if run == 0 {
				n, brief = 1, true
			}
			// Each run has other elections. Both electors log many lines.
			return n, runSchedules(logr.NewContext(ctx, logr.Discard()), a, m, 1+run*schedulesOfRow, n, brief, elect)
		}}
	}
	const module = "k8s.io/client-go"
	ours := func() bench.Contender { return contender("controllerkit", "", elections.Controllerkit) }
	return []bench.Pair{
		{Ours: ours(), Theirs: contender(clientGo, module, elections.ClientGo(false))},
		{Ours: ours(), Theirs: contender(withRelease, module, elections.ClientGo(true))},
	}, a.stop, nil
}

// runSchedules runs n elections, whose seeds begin with first, at once.
func runSchedules(ctx context.Context, a *arena, m *bench.Meter, first, n int, brief bool, elect elections.Replica) (err error) {
	namespace, remove, err := a.newNamespace(ctx) // because a seed is also the name of a Lease
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	world, err := elections.Open(ctx, a.config, namespace)
	if err != nil {
		return err
	}
	defer world.Close()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards s and errs
		s    elections.Summary
		errs error
	)
	for i := range n {
		wg.Go(func() {
			schedule := elections.New(uint64(first+i), elections.Lawful, elections.Options{Brief: brief})
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
