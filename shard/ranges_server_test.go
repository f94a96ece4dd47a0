package shard_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
)

// TestServerRanges changes the boundaries of shards by namespace, step by step as the comment
// of Group says. A replica with the new ones is refused while others run, and after a crash
// until a replica with the old ones has run. No two owners of a namespace overlap, and its
// terms grow.
//
// Proves SH1, SH5 and SH8.
func TestServerRanges(t *testing.T) {
	t.Parallel()
	const namespaces = 60
	ns, log := testserver.Namespace(t), newLog(namespaces)
	cut := func(shards, count int) shard.Ranges {
		weights := map[string]int{}
		for i := range count {
			weights[fmt.Sprintf("tenant-%03d", i)] = 1
		}
		r, err := shard.Ranges{N: shards}.Cut(weights)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	before, after := cut(4, namespaces/2), cut(6, namespaces)
	type replica struct {
		cancel context.CancelFunc
		dead   chan struct{}
		ended  chan error
		relay  *relay
	}
	start := func(name string, ranges shard.Ranges) *replica {
		t.Helper()
		relay, config, err := newRelay(testserver.Config(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(relay.close)
		g, err := processGroup(config, ns, name)
		if err != nil {
			t.Fatal(err)
		}
		g.Ranges = ranges
		ctx, cancel := context.WithCancel(t.Context())
		r := &replica{cancel, make(chan struct{}), make(chan error, 1), relay}
		go func() {
			r.ended <- g.Run(ctx, func(ctx context.Context, s shard.Shard) error {
				ticker := time.NewTicker(20 * time.Millisecond)
				defer ticker.Stop()
				for ctx.Err() == nil {
					for i := range namespaces {
						m := &metav1.ObjectMeta{Namespace: fmt.Sprintf("tenant-%03d", i)}
						if of, err := ranges.Of(m); err != nil || of != s.Index {
							continue
						}
						began := time.Now()
						if err := s.Check(ctx); err != nil {
							return err
						}
						log.effect(name, shard.Shard{Index: i, Table: s.Table, Term: s.Term}, began)
					}
					select {
					case <-ticker.C:
					case <-r.dead:
						return nil
					case <-ctx.Done():
					}
				}
				return nil
			})
		}()
		return r
	}
	stop := func(what string, replicas ...*replica) {
		t.Helper()
		for _, r := range replicas {
			r.cancel()
			if err := <-r.ended; err != nil {
				t.Errorf("%s: Run() = %v", what, err)
			}
		}
	}
	owned := func(what string, by ...string) {
		t.Helper()
		if err := log.awaitOwners(time.Now(), func(owners []string) bool {
			seen := map[string]bool{}
			for _, who := range owners {
				seen[who] = true
			}
			for _, who := range by {
				delete(seen, who)
			}
			return len(seen) == 0
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	refused := func(what string, ranges shard.Ranges) {
		t.Helper()
		select {
		case err := <-start("early", ranges).ended:
			if err == nil || !strings.Contains(err.Error(), "stop all replicas before one starts with others") {
				t.Fatalf("%s: Run() = %v, want the cure", what, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s: a replica with other Ranges runs", what)
		}
	}

	a, b := start("a", before), start("b", before)
	owned("two replicas", "a", "b")
	refused("others run", after)
	owned("they go on", "a", "b")
	stop("a and b", a, b)
	c, d := start("c", after), start("d", after)
	owned("the new Ranges", "c", "d")

	for _, r := range []*replica{c, d} { // crash
		close(r.dead)
		r.relay.refuse(true)
		r.cancel()
		<-r.ended
	}
	refused("all have crashed", before)
	e := start("e", after)
	owned("the shards have an owner", "e")
	stop("e", e)
	f := start("f", before)
	owned("the old Ranges again", "f")
	stop("f", f)
	log.mu.Lock()
	defer log.mu.Unlock()
	for _, o := range log.overlaps {
		t.Error(o)
	}
	t.Logf("%d terms, %d effects", log.terms, log.effects)
}
