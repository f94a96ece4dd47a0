package shard_test

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// For a night: go test -run '^TestSimulation$' ./shard -simulated 64
var simulated = flag.Int("simulated", 12, "the number of replicas of TestSimulation, with 16 shards each")

// TestSimulation: many replicas with 16 shards each, 64 with 1024 shards in explorations.
// At rest each sends one renewal in each RetryPeriod and nothing else. A replica that joins
// or leaves moves its share and no more, and the group needs a bounded number of requests
// for it.
//
// Proves SH5.
func TestSimulation(t *testing.T) {
	const share = 16
	n, shards := *simulated, *simulated*share
	bubble(t, func(t *testing.T, s *store, j *judge) {
		var replicas []*replica
		requests := func() (all map[string]int) {
			all = map[string]int{}
			for _, r := range replicas {
				for verb, n := range r.client.Requests() {
					all[verb] += n
				}
			}
			return all
		}
		for i := range n {
			replicas = append(replicas, j.start(t, s.group(fmt.Sprintf("r%02d", i), shards), 0))
			time.Sleep(2 * retryPeriod)
			synctest.Wait()
			j.expect(t, i+1, shards)
			if moves, most := j.moves(), (shards+i)/(i+1); moves > most {
				t.Errorf("%d shards moved to replica %d, want at most %d", moves, i+1, most)
			}
		}
		t.Logf("%d joins: %v", n, requests())

		const periods = 30
		time.Sleep(periods * retryPeriod)
		synctest.Wait()
		rest := requests()
		t.Logf("%d replicas at rest for %d times RetryPeriod: %v", n, periods, rest)
		if rest["update"] < n*periods*10/11-n || rest["update"] > n*(periods+1) || len(rest) != 1 {
			t.Errorf("at rest: %v, want %d renewals and nothing else", rest, n*periods)
		}
		if moves := j.moves(); moves != 0 {
			t.Errorf("%d shards moved at rest", moves)
		}

		table := s.get(groupName).Spec.LeaseTransitions
		before := *table
		replicas = append(replicas, j.start(t, s.group("joins", shards), 0))
		time.Sleep(2 * retryPeriod)
		synctest.Wait()
		join, writes := requests(), *s.get(groupName).Spec.LeaseTransitions-before
		t.Logf("one joins: %v, %d versions of the table, %d moves", join, writes, j.begun)
		if moves := j.moves(); moves > share {
			t.Errorf("%d shards moved to the replica that joined, want at most %d", moves, share)
		}
		if writes > share {
			t.Errorf("%d versions of the table, want at most %d", writes, share)
		}
		if conflicts := join["update"] - n - int(writes); conflicts > 10*share {
			t.Errorf("about %d conflicts, want at most %d", conflicts, 10*share)
		}

		before = *s.get(groupName).Spec.LeaseTransitions
		if err := replicas[0].stop(); err != nil {
			t.Error(err)
		}
		leave := requests()
		replicas = replicas[1:]
		time.Sleep(retryPeriod)
		synctest.Wait()
		writes = *s.get(groupName).Spec.LeaseTransitions - before
		t.Logf("one leaves: %v, %d versions of the table, %d moves", leave, writes, j.begun)
		if moves := j.moves(); moves > share {
			t.Errorf("%d shards moved from the replica that left, want at most %d", moves, share)
		}
		if writes > share {
			t.Errorf("%d versions of the table, want at most %d", writes, share)
		}
		j.expect(t, n, shards)

		requests()
		replicas[5].client.Partition(true)
		time.Sleep(leaseDuration + 2*retryPeriod)
		synctest.Wait()
		replicas[5].client.Requests()
		crash := requests()
		t.Logf("one crashes: %v, %d moves", crash, j.begun)
		if owners := j.expectOwners(); owners != shards {
			t.Errorf("%d shards have owners within LeaseDuration + 2 * RetryPeriod, want %d", owners, shards)
		}
		if extra := crash["update"] - (n-1)*10; extra > 10 || crash["delete"] != 1 {
			t.Errorf("%v, want at most 10 updates besides %d renewals, and one deletion", crash, (n-1)*10)
		}
	})
}
