package shard_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStarts: replicas that join within a RetryPeriod get their shards together. If the
// group was empty, no shard moves. If it was not, a shard moves at most once, and only as
// many as the balance requires.
func TestStarts(t *testing.T) {
	const shards = 32
	for _, tt := range []struct{ running, joining, moves int }{
		{0, 2, 0},
		{0, 4, 0},
		{0, 8, 0},
		{1, 1, 16},
		{1, 3, 24},
		{2, 6, 24},
		{4, 4, 16},
	} {
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("%d join %d, %d", tt.joining, tt.running, seed), func(t *testing.T) {
				bubble(t, func(t *testing.T, s *store, j *judge) {
					rng := rand.New(rand.NewPCG(seed, 3))
					some := func(limit time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(limit))) }
					start := func(i int) {
						g := s.group(fmt.Sprintf("r%02d", i), shards)
						faults := rand.New(rand.NewPCG(seed, uint64(i)))
						g.Leases.(*client).On(func(string, string) fault {
							return fault{Before: time.Duration(faults.IntN(10)) * time.Millisecond, After: time.Duration(faults.IntN(10)) * time.Millisecond}
						})
						j.start(t, g, some(100*time.Millisecond))
					}
					for i := range tt.running {
						start(i)
					}
					settle()
					begun, before := j.moves(), j.expectOwners()
					if begun != before {
						t.Errorf("%d shards moved while %d replicas started", begun-before, tt.running)
					}
					for i := range tt.joining {
						start(tt.running + i)
						time.Sleep(some(retryPeriod * 3 / 4 / time.Duration(tt.joining)))
					}
					settle()
					j.expect(t, tt.running+tt.joining, shards)
					if moves := j.moves() - (shards - before); moves != tt.moves {
						t.Errorf("%d shards moved, want %d", moves, tt.moves)
					}
				})
			})
		}
	}
}

// TestStartsForEver: replicas that join one after the other, without a RetryPeriod between
// them, get shards nevertheless. If the only owner crashes meanwhile, its shards do not
// wait for a RetryPeriod without a join.
//
// Proves SH8.
func TestStartsForEver(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		const shards = 8
		first := j.start(t, s.group("first", shards), 0)
		settle()
		join := func(until time.Duration) {
			for end := time.Now().Add(until); time.Now().Before(end); {
				j.start(t, s.group("joins", shards), 0)
				time.Sleep(retryPeriod / 4)
			}
			synctest.Wait()
		}
		join(2 * retryPeriod)
		if counts := j.counts(); counts["joins"] == 0 {
			t.Errorf("after 2 times RetryPeriod the owners are %v, want shards of those that joined", counts)
		}
		first.client.Partition(true)
		join(leaseDuration + 2*retryPeriod)
		if owners := j.expectOwners(); owners != shards {
			t.Errorf("%d shards have owners within LeaseDuration + 2 * RetryPeriod, want %d", owners, shards)
		}
	})
}

// TestLeaveWhileJoining: a replica that leaves hands its shards over at once, although
// another one has just joined.
//
// Proves SH2.
func TestLeaveWhileJoining(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		first := j.start(t, s.group("first", 4), 0)
		settle()
		j.start(t, s.group("second", 4), 0)
		synctest.Wait()
		begun := time.Now()
		if err := first.stop(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if counts, took := j.counts(), time.Since(begun); counts["second"] != 4 || took > time.Millisecond {
			t.Errorf("the owners are %v %v after the stop, want the second replica at once", counts, took)
		}
	})
}

// TestStopWhileJoining: a replica that is stopped before it knows whether its Lease was
// stored leaves no Lease behind, which the others would take for a replica. The same holds
// for one that has lost its shards.
//
// Proves SH2.
func TestStopWhileJoining(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		j.start(t, s.group("first", 4), 0)
		settle()
		leases := func() int {
			list, err := s.List(metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(list.Items)
		}
		for _, tt := range []struct{ stored, seen bool }{{true, true}, {true, false}, {false, true}} {
			g := s.group("second", 4)
			c := g.Leases.(*client)
			c.On(func(verb, _ string) fault {
				if verb == "create" {
					c.Partition(!tt.seen) // its watch stays silent, too
					return fault{Cut: true, Lost: !tt.stored}
				}
				return fault{Before: time.Millisecond}
			})
			second := j.start(t, g, 0)
			time.Sleep(time.Second)
			c.Partition(false)
			if n, want := leases(), map[bool]int{true: 3, false: 2}[tt.stored]; n != want {
				t.Fatalf("%d Leases while the second replica joins, want %d", n, want)
			}
			if err := second.stop(); err != nil {
				t.Error(err)
			}
			if n := leases(); n != 2 {
				t.Errorf("%+v: %d Leases after it was stopped, want 2: the table and the first replica's", tt, n)
			}
		}

		second := j.start(t, s.group("second", 4), 0)
		settle()
		j.expect(t, 2, 4)
		second.client.Partition(true)
		time.Sleep(renewDeadline + time.Second)
		synctest.Wait()
		second.client.Partition(false)
		if err := second.stop(); err != nil {
			t.Error(err)
		}
		if n := leases(); n != 2 {
			t.Errorf("%d Leases after the second replica lost its shards and was stopped, want 2", n)
		}
		synctest.Wait()
		j.expect(t, 1, 4) // at once
	})
}
