package rows

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

const (
	requestMinutes = 10 // of leaders, and of standbys, over all elections
	requestWindow  = 20 * time.Second
)

// Figures of the row.
const (
	leaderRequests  = "leader's requests"
	standbyRequests = "standby's requests"
)

func init() {
	bench.Register(bench.Row{
		Name: "leader/requests",
		About: "Requests to a real API server by a leader and a standby while nothing changes, counted in the transport. The row runs 30 elections for 20 s, with a " +
			"LeaseDuration of 15 s, a RenewDeadline of 10 s and a RetryPeriod of 2 s. The library's replicas also reopen their watch every 5 to 10 minutes. This " +
			"adds 0.13 requests a minute, which the figures do not include.",
		Op:       "minute",
		Together: true,
		Goals:    []bench.Goal{{Figure: leaderRequests, Rival: clientGo, AtMost: 1}},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			return electionPairs(ctx, []int{2}, requests)
		},
	})
}

func requests(ctx context.Context, m *bench.Meter, a *arena, k electorKind, replicas int) (int, error) {
	minutes, window := m.N(requestMinutes), requestWindow
	elections := int(time.Duration(minutes) * time.Minute / window)
	if m.Quick {
		window = timingsOf(m).retry
	}
	sent := make([]atomic.Int64, replicas) // by replica; the first leads
	err := together(ctx, elections, func(ctx context.Context, _ int) error {
		counts := make([]atomic.Int64, replicas)
		e, err := a.open(ctx, m, k, replicas, func(replica int) *rest.Config {
			config := rest.CopyConfig(a.config)
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
				return contender.Counter{RoundTripper: rt, N: &counts[replica]}
			})
			return config
		})
		if err != nil {
			return err
		}
		defer e.close()
		retry := e.seats[0].timings.retry
		e.join(0)
		if _, err := e.next(); err != nil {
			return err
		}
		for replica := 1; replica < replicas; replica++ {
			e.join(replica)
		}
		// Until the standbys have seen the Lease, and a random part of a period more.
		if err := e.wait(3*retry + rand.N(retry)); err != nil {
			return err
		}
		for replica := range counts {
			counts[replica].Store(0)
		}
		if err := e.wait(window); err != nil {
			return err
		}
		for replica := range counts {
			sent[replica].Add(counts[replica].Load())
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	m.Count(leaderRequests, float64(sent[0].Load()))
	m.Count(standbyRequests, float64(sent[1].Load()))
	return minutes, nil
}
