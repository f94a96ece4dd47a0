package shard_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/shard"
)

var randomSeeds = flag.Int("random-seeds", 25, "how many schedules TestRandom runs")

// TestRandom: replicas join, leave and are cut off, and their requests are slow, lost, or
// stored without a response. In a third of the schedules each has one
// of two Ranges. The judge sees no two owners, and terms grow. After the last fault the
// group is balanced again, and replicas with other Ranges own the shards after the others
// have left.
//
// Proves SH1, SH2 and SH4.
func TestRandom(t *testing.T) {
	for seed := range *randomSeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *store, j *judge) { random(t, s, j, uint64(seed)) })
		})
	}
}

func random(t *testing.T, s *store, j *judge, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	shards := 1 + rng.IntN(12)
	ranges, judged := []shard.Ranges{{N: shards}}, shards
	if seed%3 == 0 {
		ranges, judged = append(ranges, shard.Ranges{N: 13 + rng.IntN(4)}), 40
		for range judged {
			j.hashes = append(j.hashes, rng.Uint64())
		}
	}
	weather := func(stormy bool) func(verb, name string) fault {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 8))
		return func(verb, name string) (f fault) {
			f.Before = time.Duration(rng.IntN(20)) * time.Millisecond
			f.After = time.Duration(rng.IntN(20)) * time.Millisecond
			if !stormy {
				return f
			}
			switch rng.IntN(8) {
			case 0:
				f.Lost = true
			case 1:
				f.Cut = true
			case 2:
				f.Before = time.Duration(rng.IntN(20_000)) * time.Millisecond
			case 3:
				f.After = time.Duration(rng.IntN(20_000)) * time.Millisecond
			}
			return f
		}
	}
	var replicas []*replica
	born := 0
	for range 60 {
		var r *replica
		if len(replicas) > 0 {
			r = replicas[rng.IntN(len(replicas))]
		}
		switch k := rng.IntN(8); {
		case len(replicas) < 2 || k == 0 && len(replicas) < 6:
			g := s.group(fmt.Sprintf("r%02d", born), shards)
			born++
			g.StartTimeout = time.Hour
			if g.Ranges = ranges[rng.IntN(len(ranges))]; rng.IntN(3) == 0 && len(ranges) == 1 {
				g.MaxShards = 1 + rng.IntN(shards)
			}
			g.Leases.(*client).On(weather(rng.IntN(3) == 0))
			replicas = append(replicas, j.start(t, g, time.Duration(rng.IntN(4000))*time.Millisecond))
		case k == 1:
			r.cancel()
			for i := range replicas {
				if replicas[i] == r {
					replicas = append(replicas[:i], replicas[i+1:]...)
					break
				}
			}
		case k < 4:
			r.client.Partition(true)
		case k == 4:
			r.client.Partition(false)
		default:
			r.client.On(weather(rng.IntN(2) == 0))
		}
		time.Sleep(time.Duration(rng.IntN(6000)) * time.Millisecond)
	}
	for _, r := range replicas {
		r.client.Partition(false)
		r.client.On(weather(false))
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	room := 0
	var work, wait []*replica
	for _, r := range replicas {
		select {
		case <-r.ended:
			t.Errorf("%s: Run() = %v", r.Identity, r.err)
		default:
		}
		switch err := r.Status().Err; {
		case err != nil && len(ranges) == 2 && strings.Contains(err.Error(), "waiting until"):
			wait = append(wait, r)
		case err != nil:
			t.Errorf("%s: %v", r.Identity, err)
		default:
			work = append(work, r)
		}
		if r.MaxShards == 0 {
			room = judged
		}
		room += r.MaxShards
	}
	if got, want := j.expectOwners(), min(judged, room); got != want {
		t.Errorf("%d of %d shards have owners after the faults, want %d: %v", got, shards, want, j.counts())
	}
	if t.Failed() {
		all, _ := s.List(metav1.ListOptions{})
		for _, lease := range all.Items {
			t.Logf("%s %v %+v %v", lease.Name, lease.Annotations, *lease.Spec.HolderIdentity, lease.UID)
		}
		for _, r := range replicas {
			t.Logf("%s %+v max %d", r.Identity, r.Status(), r.MaxShards)
		}
	}
	before := j.moves()
	time.Sleep(2 * time.Minute)
	if moves := j.moves(); moves != 0 {
		t.Errorf("%d shards move at rest", moves)
	}
	t.Logf("%d calls of work", before)
	for i, r := range append(work, wait...) {
		if i == len(work) {
			settle()
			if got := j.expectOwners(); got != judged {
				t.Errorf("%d of %d objects have owners after a change of the Ranges: %v", got, judged, j.counts())
			}
			t.Logf("changed the Ranges from N %d to %d", work[0].Ranges.N, r.Ranges.N)
		}
		if err := r.stop(); err != nil {
			t.Errorf("%s: Run() = %v", r.Identity, err)
		}
	}
}
