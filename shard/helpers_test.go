package shard_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/shard"
)

const (
	namespace = "ns"
	groupName = "group"

	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// A judge sees all work of a group, and reports two owners of a shard and terms that do
// not grow. If replicas have different Ranges, it judges objects in place of shards.
type judge struct {
	t      testing.TB
	hashes []uint64 // of the objects; nil judges shards

	mu      sync.Mutex // guards the fields below
	lenient bool       // another user has broken the rules
	owners  map[int]string
	terms   map[int]int64
	since   map[int]time.Time // the shard has no owner
	longest time.Duration     // without an owner
	begun   int               // calls of work
}

func newJudge(t testing.TB) *judge {
	return &judge{t: t, owners: map[int]string{}, terms: map[int]int64{}, since: map[int]time.Time{}}
}

// of returns the judged parts of a shard, each with its number as the Index.
func (j *judge) of(ranges shard.Ranges, s shard.Shard) (parts []shard.Shard) {
	if j.hashes == nil {
		return []shard.Shard{s}
	}
	for i, h := range j.hashes {
		if ranges.OfHash(h) == s.Index {
			parts = append(parts, shard.Shard{Index: i, Table: s.Table, Term: s.Term})
		}
	}
	return parts
}

func (j *judge) begin(who string, s shard.Shard) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if owner, ok := j.owners[s.Index]; ok && !j.lenient {
		j.t.Errorf("%s works on shard %d, and %s does too", who, s.Index, owner)
	}
	if s.Term <= j.terms[s.Index] && !j.lenient {
		j.t.Errorf("%s works on shard %d in term %d, which is not after %d", who, s.Index, s.Term, j.terms[s.Index])
	}
	j.owners[s.Index], j.terms[s.Index] = who, s.Term
	if since, ok := j.since[s.Index]; ok {
		j.longest = max(j.longest, time.Since(since))
		delete(j.since, s.Index)
	}
	j.begun++
}

func (j *judge) end(who string, s shard.Shard) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.owners[s.Index] == who {
		delete(j.owners, s.Index)
		j.since[s.Index] = time.Now()
	}
}

// counts returns the number of shards of each owner.
func (j *judge) counts() map[string]int {
	j.mu.Lock()
	defer j.mu.Unlock()
	counts := map[string]int{}
	for _, owner := range j.owners {
		counts[owner]++
	}
	return counts
}

// moves returns the number of calls of work since the last call of moves.
func (j *judge) moves() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := j.begun
	j.begun = 0
	return n
}

// A replica is one running Group.
type replica struct {
	*shard.Group
	client *client
	judge  *judge
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run, once ended is closed
}

// start runs a Group whose work is seen by the judge. It drains for the given time. If
// its ownership is lost, the work ends at once.
func (j *judge) start(t testing.TB, g *shard.Group, drain time.Duration) *replica {
	t.Helper()
	g.Namespace, g.Name = namespace, groupName
	r := &replica{Group: g, judge: j, ended: make(chan struct{})}
	r.client, _ = g.Leases.(*client)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.ended)
		r.err = g.Run(ctx, func(ctx context.Context, s shard.Shard) error {
			for _, part := range j.of(g.Ranges, s) {
				j.begin(g.Identity, part)
				defer j.end(g.Identity, part)
			}
			owned := validity(ctx)
			<-ctx.Done()
			if drain > 0 {
				select {
				case <-time.After(drain):
				case <-owned.Done():
				}
			}
			return nil
		})
	}()
	t.Cleanup(func() { // a test that failed has not stopped it
		cancel()
		<-r.ended
	})
	return r
}

// stop ends the replica and returns the result of Run.
func (r *replica) stop() error {
	r.cancel()
	<-r.ended
	return r.err
}

// validity is the context of the ownership, found the way a package finds it that does
// not import shard.
func validity(ctx context.Context) context.Context {
	return ctx.Value(calls.Validity{}).(context.Context)
}

// bubble runs test in a synctest bubble with an empty store, and waits for the requests
// that still run at its end.
func bubble(t *testing.T, test func(t *testing.T, s *store, j *judge)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		t.Cleanup(s.Wait)
		test(t, s, newJudge(t))
	})
}

// group returns a Group on a client of its own.
func (s *store) group(identity string, shards int) *shard.Group {
	return &shard.Group{Leases: s.Client(), Identity: identity, Ranges: shard.Ranges{N: shards}}
}

// startAll starts n replicas, and waits until all shards have moved.
func startAll(t *testing.T, s *store, j *judge, n, shards int, drain time.Duration) []*replica {
	t.Helper()
	var replicas []*replica
	for i := range n {
		replicas = append(replicas, j.start(t, s.group(fmt.Sprintf("r%02d", i), shards), drain))
	}
	settle()
	return replicas
}

// settle waits until a group in which no replica fails is balanced.
func settle() {
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

// expect checks the number of shards of each replica.
func (j *judge) expect(t *testing.T, replicas, shards int) {
	t.Helper()
	counts := j.counts()
	total := 0
	for who, n := range counts {
		total += n
		if n < shards/replicas || n > (shards+replicas-1)/replicas {
			t.Errorf("%s has %d of %d shards of %d replicas: %v", who, n, shards, replicas, counts)
		}
	}
	if total != shards || len(counts) != replicas && shards >= replicas {
		t.Errorf("%d replicas have %d shards, want %d and %d: %v", len(counts), total, replicas, shards, counts)
	}
}
