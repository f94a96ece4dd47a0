package shard_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
)

// TestServerStarts: if replicas start at once, the first shards that they begin are those
// that they keep.
func TestServerStarts(t *testing.T) {
	t.Parallel()
	const replicas, shards = 8, 32
	ns := testserver.Namespace(t)
	type start struct {
		who string
		shard.Shard
	}
	starts := make(chan start, replicas*shards)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range replicas {
		g, err := processGroup(testserver.Config(t), ns, fmt.Sprintf("r%d", i))
		if err != nil {
			t.Fatal(err)
		}
		// Replicas join within a RetryPeriod on a slow machine, too.
		g.Ranges.N, g.LeaseDuration, g.RenewDeadline, g.RetryPeriod = shards, 60*time.Second, 40*time.Second, 10*time.Second
		wg.Go(func() {
			if err := g.Run(ctx, func(ctx context.Context, s shard.Shard) error {
				starts <- start{g.Identity, s}
				<-ctx.Done()
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	owners, counts := map[int]string{}, map[string]int{}
	patient := time.After(patience)
	for len(counts) < replicas || len(owners) < shards {
		select {
		case s := <-starts:
			if before := owners[s.Index]; before != "" {
				t.Errorf("shard %d moved from %s to %s", s.Index, before, s.who)
			}
			owners[s.Index] = s.who
			counts[s.who]++
		case <-patient:
			t.Fatalf("the owners after %v: %v", patience, counts)
		}
	}
	for who, n := range counts {
		if n != shards/replicas {
			t.Errorf("%s has %d shards, want %d: %v", who, n, shards/replicas, counts)
		}
	}
}
