package clustertest

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
)

var moves = flag.Duration("moves", 5*time.Second, "how long shards are owned under faults")

// owners has the present owner of each shard.
type owners struct {
	t       *testing.T
	changed chan struct{}

	mu     sync.Mutex
	owner  map[int]context.Context // of its work
	terms  map[int]int64
	begins int
}

// own is the work of a shard. The context of the owner before it must be over, and its term
// lower.
func (o *owners) own(ctx context.Context, s shard.Shard) error {
	o.mu.Lock()
	if s.Check(ctx) == nil {
		o.begins++
		if before := o.owner[s.Index]; before != nil && before.Err() == nil {
			o.t.Errorf("shard %d has two owners in term %d", s.Index, s.Term)
		}
		if s.Term <= o.terms[s.Index] {
			o.t.Errorf("shard %d has term %d after %d", s.Index, s.Term, o.terms[s.Index])
		}
		o.owner[s.Index], o.terms[s.Index] = ctx, s.Term
	}
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil
}

// ownerless returns the number of shards without an owner.
func (o *owners) ownerless(shards int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, ctx := range o.owner {
		if ctx.Err() == nil {
			shards--
		}
	}
	return shards
}

// shardsUnderFaults runs four replicas, of which two have the kube-apiserver that is killed,
// paused and cut off. No shard has two owners, and in the end each has one.
func shardsUnderFaults(t *testing.T, cluster *testserver.Cluster) {
	const shards = 16
	first := *seed
	if first == 0 {
		first = rand.Uint64() >> 16
	}
	t.Logf("-seed %d -moves %v", first, *moves)
	o := &owners{t: t, changed: make(chan struct{}, 1), owner: map[int]context.Context{}, terms: map[int]int64{}}
	ctx, stop := context.WithCancel(t.Context())
	var replicas sync.WaitGroup
	defer replicas.Wait()
	defer stop()
	for n, config := range []*rest.Config{cluster.ServerConfig(t, 0), cluster.ServerConfig(t, 1), cluster.ServerConfig(t, 1), cluster.Config()} {
		group := &shard.Group{
			Leases: kubernetes.NewForConfigOrDie(config).CoordinationV1().Leases("default"), Namespace: "default", Name: "shards",
			Identity: fmt.Sprintf("replica-%d", n), Ranges: shard.Ranges{N: shards},
			LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 500 * time.Millisecond, StartTimeout: time.Minute,
		}
		replicas.Go(func() {
			if err := group.Run(ctx, o.own); err != nil {
				t.Errorf("replica %d: %v", n, err)
			}
		})
	}
	users, end := context.WithTimeout(t.Context(), *moves)
	defer end()
	t.Logf("faults: %v", disturb(users, t, cluster, rand.New(rand.NewPCG(first, 2)), 6*time.Second))
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	tick := time.NewTicker(time.Second) // the end of an owner has no event
	defer tick.Stop()
	for o.ownerless(shards) > 0 {
		select {
		case <-o.changed:
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("2 minutes after the last fault %d of %d shards have no owner", o.ownerless(shards), shards)
		}
	}
	t.Logf("%d times a shard was owned", o.begins)
}
