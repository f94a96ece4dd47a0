package rows

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/bench"
)

// The number of parallel elections, and of hand-overs in each. Hand-overs of client-go
// take seconds, so a single election would take too long.
const (
	handOverElections = 50
	handOversEach     = 2
)

// Figures of the row. A quantile is one number for each run.
const (
	p50     = "ms p50"
	p99     = "ms p99"
	slowest = "ms slowest"
)

func init() {
	bench.Register(bench.Row{
		Name: "leader/handover",
		About: "The time of a hand-over after the leader's context is cancelled, as at SIGTERM: from the return of the leader's work to the start of the next leader's " +
			"work. The row runs on a real API server with a LeaseDuration of 15 s, a RenewDeadline of 10 s and a RetryPeriod of 2 s. It makes 100 hand-overs, 2 in " +
			"each of 50 parallel elections, the first at a random moment 2 s to 6 s after the start, and the second up to 4 s after it. The stopped replica becomes a candidate again when another " +
			"replica leads. The figures are quantiles over the hand-overs of a run. client-go's elector uses ReleaseOnCancel.",
		Op: "hand-over",
		Goals: []bench.Goal{
			{Figure: p50, AtMost: 50},
			{Figure: p99, AtMost: 250},
		},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			return electionPairs(ctx, []int{2, 5}, handOvers)
		},
	})
}

func handOvers(ctx context.Context, m *bench.Meter, a *arena, k electorKind, replicas int) (int, error) {
	elections, each := handOverElections, handOversEach
	if n := m.N(elections * each); n < elections*each {
		elections, each = 1, n
	}
	took := make([][]time.Duration, elections)
	err := together(ctx, elections, func(ctx context.Context, i int) (err error) {
		took[i], err = handOversOf(ctx, m, a, k, replicas, each)
		return err
	})
	if err != nil {
		return 0, err
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	for figure, q := range map[string]float64{p50: 0.5, p99: 0.99, slowest: 1} {
		ms := float64(quantile(all, q)) / float64(time.Millisecond)
		m.Count(figure, ms*float64(len(all))) // the runner divides it by the operations
	}
	return len(all), nil
}

// quantile returns the smallest of the sorted values that is at least as large as the
// share q of them.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// handOversOf runs one election and returns the duration of each hand-over.
func handOversOf(ctx context.Context, m *bench.Meter, a *arena, k electorKind, replicas, n int) ([]time.Duration, error) {
	e, err := a.open(ctx, m, k, replicas, func(int) *rest.Config { return a.config })
	if err != nil {
		return nil, err
	}
	defer e.close()
	for replica := range replicas {
		e.join(replica)
	}
	now, err := e.next()
	if err != nil {
		return nil, err
	}
	// The connections of all elections are opened at once, which takes the machine half a second.
	if err := e.wait(e.seats[0].timings.retry); err != nil {
		return nil, err
	}
	var took []time.Duration
	for range n {
		// Otherwise every hand-over would be at the same point of a standby's period.
		if err := e.wait(rand.N(2 * e.seats[0].timings.retry)); err != nil {
			return nil, err
		}
		old := e.members[now.replica]
		old.stop()
		returned := <-now.ended
		next, err := e.next()
		if err != nil {
			return nil, err
		}
		if next.replica == now.replica {
			return nil, fmt.Errorf("replica %d leads after it was stopped", next.replica)
		}
		took = append(took, next.began.Sub(returned))
		<-old.done
		e.join(now.replica)
		now = next
	}
	return took, nil
}
