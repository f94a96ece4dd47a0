package rows

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/bench"
	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
	"github.com/controllerkit/controllerkit/shard"
)

const (
	restPeriods   = 10 // RetryPeriods that are counted
	restPeriod    = 500 * time.Millisecond
	restRequests  = "requests"
	rollLongest   = "longest ns without an owner"
	burnt         = 5 * time.Millisecond
	burntObjects  = 600
	burntReplicas = 2
)

func init() {
	bench.Register(bench.Row{
		Name: "shard/requests",
		About: fmt.Sprintf("Requests of four replicas of a Group at rest, for each replica and RetryPeriod of %v, over %d RetryPeriods. "+
			"The rival is client-go's elector with one Lease for all objects, and four replicas.", restPeriod, restPeriods),
		Op:       "replica and period",
		Together: true,
		Goals:    []bench.Goal{{Figure: restRequests, AtMost: 2}},
		Pairs:    func(ctx context.Context) ([]bench.Pair, func(), error) { return restPairs(ctx, 32, 1024) },
	})
	bench.Register(bench.Row{
		Name:  "curves/shards",
		Curve: "shards",
		Long:  true,
		About: "The work of shard/requests, for 1 to 32 shards.",
		Op:    "replica and period",
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) { return restPairs(ctx, 1, 2, 4, 8, 16, 32) },
	})
	bench.Register(bench.Row{
		Name: "shard/rolling",
		About: "Four replicas of a Group with 32 shards are stopped and started, one after the other: the longest time that a shard has no owner. " +
			"The rival is client-go's elector with one Lease for all objects, and four replicas.",
		Op:       "roll",
		Together: true,
		Goals:    []bench.Goal{{Figure: rollLongest, AtMost: 1e9}},
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			a, err := openArena(ctx)
			if err != nil {
				return nil, nil, err
			}
			return []bench.Pair{{
				Ours:   bench.Contender{Name: "controllerkit", Run: a.roll},
				Theirs: bench.Contender{Name: clientGo, Module: "k8s.io/client-go", Run: a.rollRival},
			}}, a.stop, nil
		},
	})
	bench.Register(bench.Row{
		Name: "shard/workers",
		About: fmt.Sprintf("A reconcile of %v of CPU for each of %d objects, by two replicas of a Group with 32 shards and one worker each, beside one replica. "+
			"It needs a free core for each replica.", burnt, burntObjects),
		Op:    "reconcile",
		Goals: []bench.Goal{{Figure: bench.Time, Rival: oneReplica, AtMost: 0.588}}, // 1/(0.85*2)
		Pairs: func(ctx context.Context) ([]bench.Pair, func(), error) {
			a, err := openArena(ctx)
			if err != nil {
				return nil, nil, err
			}
			contender := func(name string, replicas int) bench.Contender {
				return bench.Contender{Name: name, Run: func(ctx context.Context, m *bench.Meter) (int, error) { return a.burn(ctx, m, replicas) }}
			}
			return []bench.Pair{{Ours: contender("controllerkit", burntReplicas), Theirs: contender(oneReplica, 1)}}, a.stop, nil
		},
	})
}

func restPairs(ctx context.Context, shards ...int) (pairs []bench.Pair, _ func(), _ error) {
	a, err := openArena(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range shards {
		pairs = append(pairs, bench.Pair{
			X:      float64(n),
			Case:   fmt.Sprint(n, " shards"),
			Ours:   bench.Contender{Name: "controllerkit", Run: func(ctx context.Context, m *bench.Meter) (int, error) { return a.rest(ctx, m, n) }},
			Theirs: bench.Contender{Name: clientGo, Module: "k8s.io/client-go", Run: a.restRival},
		})
	}
	return pairs, a.stop, nil
}

// counted returns a configuration that counts requests.
func (a *arena) counted(n *atomic.Int64) *rest.Config {
	config := rest.CopyConfig(a.config)
	config.QPS = -1
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return contender.Counter{RoundTripper: rt, N: n} })
	return config
}

func (a *arena) rest(ctx context.Context, m *bench.Meter, shards int) (int, error) {
	f, sent := a.fleet(m, shards), new(atomic.Int64)
	f.timings.retry = min(f.timings.retry, restPeriod)
	defer f.close()
	for replica := range shardReplicas {
		if err := f.join(ctx, replica, f.counted(sent)); err != nil {
			return 0, err
		}
	}
	if err := f.balanced(ctx, shardReplicas); err != nil {
		return 0, err
	}
	wait := func(d time.Duration) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case err := <-f.failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	// The replicas see the end of the moves, and a random part of a period passes.
	if err := wait(time.Duration(m.N(3))*f.timings.retry + rand.N(f.timings.retry)); err != nil {
		return 0, err
	}
	before := sent.Load()
	if err := wait(time.Duration(m.N(restPeriods)) * f.timings.retry); err != nil {
		return 0, err
	}
	m.Count(restRequests, float64(sent.Load()-before))
	return shardReplicas * m.N(restPeriods), nil
}

func (a *arena) restRival(ctx context.Context, m *bench.Meter) (int, error) {
	ctx, sent := logr.NewContext(ctx, logr.Discard()), new(atomic.Int64)
	e, err := a.open(ctx, m, clientGoElector, shardReplicas, func(int) *rest.Config { return a.counted(sent) })
	if err != nil {
		return 0, err
	}
	defer e.close()
	retry := min(timingsOf(m).retry, restPeriod)
	for replica := range shardReplicas {
		e.seats[replica].timings.retry = retry
		e.join(replica)
	}
	if _, err := e.next(); err != nil {
		return 0, err
	}
	if err := e.wait(time.Duration(m.N(3))*retry + rand.N(retry)); err != nil {
		return 0, err
	}
	before := sent.Load()
	if err := e.wait(time.Duration(m.N(restPeriods)) * retry); err != nil {
		return 0, err
	}
	m.Count(restRequests, float64(sent.Load()-before))
	return shardReplicas * m.N(restPeriods), nil
}

func (a *arena) roll(ctx context.Context, m *bench.Meter) (int, error) {
	f := a.fleet(m, shardCount)
	defer f.close()
	for replica := range shardReplicas {
		if err := f.join(ctx, replica, a.config); err != nil {
			return 0, err
		}
	}
	if err := f.balanced(ctx, shardReplicas); err != nil {
		return 0, err
	}
	f.mu.Lock()
	f.longest = 0
	f.mu.Unlock()
	for replica := range shardReplicas {
		f.stops[replica]()
		if err := f.join(ctx, replica, a.config); err != nil {
			return 0, err
		}
		if err := f.balanced(ctx, shardReplicas); err != nil {
			return 0, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m.Count(rollLongest, float64(f.longest))
	return 1, nil
}

func (a *arena) rollRival(ctx context.Context, m *bench.Meter) (int, error) {
	e, err := a.open(logr.NewContext(ctx, logr.Discard()), m, clientGoElector, shardReplicas, func(int) *rest.Config { return a.config })
	if err != nil {
		return 0, err
	}
	defer e.close()
	for replica := range shardReplicas {
		e.join(replica)
	}
	leads, err := e.next()
	if err != nil {
		return 0, err
	}
	var longest time.Duration
	for replica := range shardReplicas {
		e.members[replica].stop()
		<-e.members[replica].done
		if leads.replica == replica {
			ended := <-leads.ended
			if leads, err = e.next(); err != nil {
				return 0, err
			}
			longest = max(longest, leads.began.Sub(ended))
		}
		e.join(replica)
	}
	m.Count(rollLongest, float64(longest))
	return 1, nil
}

// turns is the number of hashes that take 5ms of one core.
var turns = sync.OnceValue(func() int {
	const n = 10_000
	start := time.Now()
	hash(n)
	return int(n * burnt / time.Since(start))
})

func hash(n int) {
	var block [sha256.Size]byte
	for range n {
		block = sha256.Sum256(block[:])
	}
}

func (a *arena) burn(ctx context.Context, m *bench.Meter, replicas int) (int, error) {
	n := m.N(burntObjects)
	f := a.fleet(m, shardCount)
	waiting := make([]atomic.Int64, shardCount) // the objects of each shard
	for range n {
		s, err := f.ranges.Of(&metav1.ObjectMeta{UID: uuid.NewUUID()})
		if err != nil {
			return 0, err
		}
		waiting[s].Add(1)
	}
	begin := make(chan struct{})
	var left sync.WaitGroup
	left.Add(n)
	workers, wrong := make([]sync.Mutex, replicas), make(chan error, n)
	f.work = func(ctx context.Context, replica int, s shard.Shard) {
		select {
		case <-begin:
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil && waiting[s.Index].Add(-1) >= 0 {
			workers[replica].Lock()
			if err := s.Check(ctx); err != nil {
				wrong <- err
			}
			hash(turns())
			workers[replica].Unlock()
			left.Done()
		}
	}
	defer f.close()
	for replica := range replicas {
		if err := f.join(ctx, replica, a.config); err != nil {
			return 0, err
		}
	}
	if err := f.balanced(ctx, replicas); err != nil {
		return 0, err
	}
	m.Measure(func() {
		close(begin)
		left.Wait()
	})
	select {
	case err := <-wrong:
		return 0, errors.Join(errors.New("a shard was lost during the work"), err)
	case err := <-f.failed:
		return 0, err
	default:
		return n, nil
	}
}
