package shard_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestBalance: replicas that start together share the shards evenly, a new one gets its
// share, and the shards of one that leaves have owners again without a gap.
//
// Proves SH2.
func TestBalance(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		replicas := startAll(t, s, j, 3, 32, 0)
		j.expect(t, 3, 32)
		j.moves()

		replicas = append(replicas, j.start(t, s.group("new", 32), 0))
		settle()
		j.expect(t, 4, 32)
		if moves := j.moves(); moves != 8 {
			t.Errorf("%d shards moved to the fourth replica, want 8", moves)
		}

		j.longest = 0
		if err := replicas[0].stop(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		j.expect(t, 3, 32)
		if moves := j.moves(); moves != 8 {
			t.Errorf("%d shards moved from the replica that left, want 8", moves)
		}
		if j.longest > time.Millisecond {
			t.Errorf("a shard had no owner for %v", j.longest)
		}
		for _, r := range replicas[1:] {
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		}
		if s.Len() != 1 {
			t.Errorf("%d Leases are left, want the table alone", s.Len())
		}
	})
}

// TestCrash: the shards of a replica that crashes have owners again within LeaseDuration +
// 2 * RetryPeriod, at whatever time after a renewal it crashes.
//
// Proves SH8.
func TestCrash(t *testing.T) {
	for phase := time.Duration(0); phase < retryPeriod; phase += 170 * time.Millisecond {
		bubble(t, func(t *testing.T, s *store, j *judge) {
			replicas := startAll(t, s, j, 4, 32, 0)
			time.Sleep(phase)
			replicas[1].client.Partition(true)
			time.Sleep(leaseDuration + 2*retryPeriod)
			synctest.Wait()
			j.expect(t, 3, 32)
			if j.longest > leaseDuration+2*retryPeriod {
				t.Errorf("a shard had no owner for %v", j.longest)
			}
			replicas[1].client.Partition(false)
			settle()
			j.expect(t, 4, 32)
			for _, r := range replicas {
				if err := r.stop(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func (j *judge) expectOwners() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.owners)
}
