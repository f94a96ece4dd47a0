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
	surplus int
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

func (m *recordedMetrics) ShardsSurplus(_ string, shards int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.surplus = shards
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
		want(ofB, "b has left", measured{0, 5, -1, 0})
		want(ofA, "b has left", measured{3, 3, 5, then})
		a.client.Partition(true)
		time.Sleep(renewDeadline)
		synctest.Wait()
		ofA.mu.Lock()
		lost := ofA.measured
		ofA.mu.Unlock()
		if lost.owned != 0 || lost.ownerless != 5 {
			t.Errorf("a has lost its Lease: %+v, want no shards, and 5 without an owner until LeaseDuration is over", lost)
		}
		time.Sleep(leaseDuration - renewDeadline + 2*retryPeriod)
		lost.ownerless = 8
		want(ofA, "LeaseDuration after the last renewal", lost)
		time.Sleep(time.Minute)
		want(ofA, "an outage", lost)
		a.client.Partition(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if ofA.owned != 3 || ofA.began != 6 || ofA.ownerless != 5 || ofA.time > lost.time+time.Minute*8 {
			t.Errorf("after the outage: %+v", ofA.measured)
		}
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		if ofA.owned != 0 || ofA.began != 6 || ofA.ownerless != -1 {
			t.Errorf("after Run: %+v, want no shards, and an unknown number without an owner", ofA.measured)
		}
	})
}

// TestAllShardsLost: while no request about Leases succeeds, each replica sees all shards without
// an owner, and so does one that starts then. A replica that is alone without the API server
// does not change what the others see. Work that does not return delays none of it.
func TestAllShardsLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		type replicaWithMetrics struct {
			*replica
			m *recordedMetrics
		}
		start := func(name string, drain time.Duration) replicaWithMetrics {
			g, m := s.group(name, 8), &recordedMetrics{}
			g.Metrics = m
			return replicaWithMetrics{j.start(t, g, drain), m}
		}
		want := func(when string, r replicaWithMetrics, want int) {
			t.Helper()
			synctest.Wait()
			r.m.mu.Lock()
			defer r.m.mu.Unlock()
			if status := r.Status().Ownerless; r.m.ownerless != want || status != want {
				t.Errorf("%s: %s measured %d ownerless shards, and its Status has %d, want %d", when, r.Identity, r.m.ownerless, status, want)
			}
		}
		const over = leaseDuration + 3*retryPeriod
		a, b := start("a", 0), start("b", 10*time.Minute)
		settle()
		want("both run", a, 0)
		want("both run", b, 0)
		b.client.Partition(true)
		time.Sleep(over)
		want("b is alone", a, 0)
		want("b is alone, and its work does not return", b, 8)
		a.client.Partition(true)
		time.Sleep(over)
		want("both are", a, 8)
		want("both are", b, 8)
		b.client.Partition(false)
		a.client.Partition(false)
		time.Sleep(20 * time.Minute)
		want("the API server is back", a, 0)
		want("the API server is back", b, 0)
	})
}

// TestSurplus: Status and Metrics of each replica show the shards that must move until the
// work of their owner has returned, and how unbalanced the replicas are.
func TestSurplus(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		type replicaWithMetrics struct {
			*replica
			m *recordedMetrics
		}
		var all []replicaWithMetrics
		start := func(name string, most int, drain time.Duration) {
			g, m := s.group(name, 8), &recordedMetrics{}
			g.MaxShards, g.Metrics = most, m
			all = append(all, replicaWithMetrics{j.start(t, g, drain), m})
		}
		want := func(when string, surplus int, imbalance float64) {
			t.Helper()
			synctest.Wait()
			for _, r := range all {
				status := r.Status()
				r.m.mu.Lock()
				measured := r.m.surplus
				r.m.mu.Unlock()
				if status.Surplus != surplus || measured != surplus || status.Imbalance != imbalance {
					t.Errorf("%s: %s has %+v and measured a surplus of %d, want %d and an imbalance of %v", when, r.Identity, status, measured, surplus, imbalance)
				}
			}
		}
		start("a", 0, time.Minute)
		want("no shard has an owner", 0, 0)
		settle()
		want("a is alone", 0, 1)
		start("b", 0, 0)
		settle()
		want("the work of a drains", 4, 2)
		time.Sleep(time.Minute)
		want("its work has returned", 0, 1)
		start("c", 1, 0)
		settle()
		want("c takes one shard, but the work of a drains", 0, 1.5)
		all[1].client.Partition(true)
		time.Sleep(renewDeadline)
		synctest.Wait()
		if status := all[1].Status(); status.Surplus != 0 || all[1].m.surplus != 0 {
			t.Errorf("b has lost its Lease: %+v, measured %d, want no surplus", status, all[1].m.surplus)
		}
		all[1].client.Partition(false)
		time.Sleep(2 * time.Minute)
		want("b is back", 0, 1.5)
		all[0].cancel()
		time.Sleep(time.Second)
		for _, r := range all[1:] {
			if got := r.Status().Surplus; got != 4 {
				t.Errorf("a stops: %s has a surplus of %d, want its 4", r.Identity, got)
			}
		}
	})
}
