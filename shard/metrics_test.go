package shard_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// recordedMetrics sums up what a Group reports.
type recordedMetrics struct {
	mu sync.Mutex
	measured
}

type measured struct {
	owned, began, ownerless int
	time                    time.Duration
}

func (m *recordedMetrics) ShardsOwned(_ string, owned, began int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owned = owned
	m.began += began
}

func (m *recordedMetrics) ShardsOwnerless(name string, shards int, total time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ownerless = shards
	m.time += total
	if name != namespace+"/"+groupName {
		panic(fmt.Sprint("the name is ", name))
	}
}

// TestMetrics: Metrics has the shards of this replica and those without an owner, at each
// time.
func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		want := func(m *recordedMetrics, when string, want measured) {
			t.Helper()
			synctest.Wait()
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.measured != want {
				t.Errorf("%s: %+v, want %+v", when, m.measured, want)
			}
		}
		start := func(name string, most int) (*replica, *recordedMetrics) {
			g, m := s.group(name, 8), &recordedMetrics{}
			g.MaxShards, g.Metrics = most, m
			return j.start(t, g, 0), m
		}
		a, ofA := start("a", 3)
		time.Sleep(retryPeriod)
		want(ofA, "the group assigns its shards", measured{3, 3, 5, 8 * retryPeriod})
		time.Sleep(3 * retryPeriod)
		want(ofA, "shards are left", measured{3, 3, 5, (8 + 3*5) * retryPeriod})
		b, ofB := start("b", 0)
		const then = (8 + 3*5) * retryPeriod
		want(ofA, "b has joined", measured{3, 3, 0, then})
		want(ofB, "it has joined", measured{5, 5, 0, 0})
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		want(ofB, "b has left", measured{0, 5, 0, 0})
		want(ofA, "b has left", measured{3, 3, 5, then})
		a.client.partition(true)
		time.Sleep(renewDeadline)
		synctest.Wait()
		ofA.mu.Lock()
		lost := ofA.measured
		ofA.mu.Unlock()
		if lost.owned != 0 || lost.ownerless != 0 {
			t.Errorf("a has lost its Lease: %+v, want no shards", lost)
		}
		time.Sleep(time.Minute)
		want(ofA, "an outage", lost)
		a.client.partition(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if ofA.owned != 3 || ofA.began != 6 || ofA.ownerless != 5 || ofA.time > lost.time+time.Minute*8 {
			t.Errorf("after the outage: %+v", ofA.measured)
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		if ofA.owned != 0 || ofA.began != 6 || ofA.ownerless != 0 {
			t.Errorf("after Run: %+v, want no shards", ofA.measured)
		}
	})
}
