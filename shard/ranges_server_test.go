package shard_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/shard"
)

// TestServerRanges changes the boundaries of shards by namespace while replicas run, there
// and back again, as a Deployment replaces its Pods: replicas with other Ranges wait until
// the last one with those of the table has left or crashed. One that is cut off meanwhile
// waits when it is back. No two owners of a namespace overlap, and its terms grow.
//
// Proves SH1 and SH4.
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
		*shard.Group
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
		r := &replica{g, cancel, make(chan struct{}), make(chan error, 1), relay}
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
	// owned waits until the replicas own all namespaces, and each of them some.
	owned := func(what string, by ...*replica) {
		t.Helper()
		if err := log.awaitOwners(time.Now(), func(owners []string) bool {
			slices.Sort(owners)
			if owners = slices.Compact(owners); len(owners) != len(by) {
				return false
			}
			for _, r := range by {
				if !slices.Contains(owners, r.Identity) {
					return false
				}
			}
			return true
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	// waiting waits until the replicas have seen that the table has other Ranges.
	waiting := func(what string, replicas ...*replica) {
		t.Helper()
		for _, r := range replicas {
			var err error
			if !log.await(func() bool {
				err = r.Status().Err
				return err != nil && strings.HasSuffix(err.Error(), waits)
			}) {
				t.Fatalf("%s: Status().Err of %s is %v", what, r.Identity, err)
			}
			if owned := r.Owned(); len(owned) > 0 {
				t.Errorf("%s: %s owns %v", what, r.Identity, owned)
			}
		}
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
	gap := func(what string) {
		log.mu.Lock()
		defer log.mu.Unlock()
		t.Logf("%s: a namespace waited at most %v", what, log.longest.Round(time.Millisecond))
		log.longest = 0
	}

	defer func() { // also after a failure
		log.mu.Lock()
		defer log.mu.Unlock()
		t.Logf("%d terms, %d effects", log.terms, log.effects)
		for _, o := range log.overlaps[:min(10, len(log.overlaps))] {
			t.Error(o)
		}
	}()
	a, b := start("a", before), start("b", before)
	owned("two replicas", a, b)
	c, d := start("c", after), start("d", after)
	waiting("two others start", c, d)
	owned("two others wait", a, b)
	stop("a", a)
	owned("one has left", b)
	waiting("one has left", c, d)
	gap("before the change")
	stop("b", b)
	owned("both have left", c, d)
	gap("the change")

	e, f := start("e", before), start("f", before)
	waiting("back again", e, f)
	d.relay.cut(true)
	owned("one is cut off", c)
	close(c.dead) // it crashes
	c.relay.refuse(true)
	c.cancel()
	<-c.ended
	owned("the other one has crashed", e, f)
	gap("a crash of both")
	d.relay.cut(false)
	waiting("it is back", d)
	owned("it is back", e, f)
	stop("the end", d, e, f)
}
