package shard_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/shard"
)

const waits = "waiting until the replicas with those are stopped or restarted with the same"

// newRanges starts replicas with the Ranges, which are judged by a hundred objects.
func (j *judge) newRanges(t *testing.T, s *store, ranges shard.Ranges, drain time.Duration, names ...string) (replicas []*replica) {
	t.Helper()
	for i := uint64(0); len(j.hashes) < 100; i++ {
		j.hashes = append(j.hashes, i*(math.MaxUint64/100))
	}
	for _, name := range names {
		g := s.group(name, 0)
		g.Ranges = ranges
		replicas = append(replicas, j.start(t, g, drain))
	}
	settle()
	return replicas
}

// gap returns the longest time that an object had no owner since the last call.
func (j *judge) gap() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	d := j.longest
	j.longest = 0
	return d
}

// owned checks that the replicas own all objects, and that no other replica has one.
func (j *judge) owned(t *testing.T, when string, replicas ...*replica) {
	t.Helper()
	synctest.Wait()
	counts, all := j.counts(), 0
	for _, r := range replicas {
		all += counts[r.Identity]
		status := r.Status()
		if len(status.Owned) < r.Ranges.N/len(replicas) || status.Replicas != len(replicas) || status.Ownerless != 0 || status.Err != nil {
			t.Errorf("%s: %s has %+v, want a part of the shards", when, r.Identity, status)
		}
	}
	if all != len(j.hashes) || len(counts) != len(replicas) {
		t.Errorf("%s: the owners are %v", when, counts)
	}
}

// TestChange: replicas with other Ranges wait, and Status has the reason, while the last
// replica with those of the table runs. If it has left or crashed, they own each object, as
// soon as if they had its Ranges. Before and after, no other object than those of a replica
// that leaves moves.
//
// Proves SH8 and SH1.
func TestChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		const drain = 3 * time.Second
		few, many := shard.Ranges{N: 8}, shard.Ranges{N: 12}
		waiting := func(when string, replicas ...*replica) {
			t.Helper()
			for _, r := range replicas {
				if status := r.Status(); status.Err == nil || !strings.HasSuffix(status.Err.Error(), waits) || len(status.Owned) > 0 || status.Ownerless > 0 {
					t.Errorf("%s: %s has %+v, want that it waits", when, r.Identity, status)
				}
			}
		}
		stop := func(r *replica) {
			t.Helper()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		}
		old := j.newRanges(t, s, few, drain, "old0", "old1", "old2")
		j.owned(t, "the first three", old...)
		j.moves()
		next := j.newRanges(t, s, many, drain, "new0", "new1", "new2")
		j.owned(t, "three others start", old...)
		waiting("three others start", next...)
		const want = "shard: the Ranges are (N 12, object.metadata.uid, equal ranges), but Lease ns/group has the Ranges (N 8, object.metadata.uid, equal ranges): " + waits
		if err := next[0].Status().Err; err == nil || err.Error() != want {
			t.Errorf("Status().Err = %v, want %q", err, want)
		}
		if moves := j.moves(); moves > 0 {
			t.Errorf("%d objects moved", moves)
		}
		stop(old[0])
		stop(old[1])
		j.owned(t, "two have left", old[2])
		waiting("two have left", next...)
		j.gap()
		stop(old[2])
		j.owned(t, "the last one has left", next...)
		if gap := j.gap(); gap > 100*time.Millisecond {
			t.Errorf("an object had no owner for %v", gap)
		}

		// Back again, and the last ones crash.
		old = j.newRanges(t, s, few, drain, "old3", "old4")
		waiting("back again", old...)
		stop(next[0])
		j.gap()
		next[1].client.Partition(true)
		next[2].client.Partition(true)
		time.Sleep(leaseDuration + 2*retryPeriod)
		j.owned(t, "two have crashed", old...)
		if gap := j.gap(); gap < time.Second || gap > leaseDuration+2*retryPeriod {
			t.Errorf("an object had no owner for %v", gap)
		}
		j.moves()
		next[1].client.Partition(false)
		next[2].client.Partition(false)
		settle()
		waiting("they are back", next[1:]...)
		j.owned(t, "they are back", old...)
		if moves := j.moves(); moves > 0 {
			t.Errorf("%d objects moved", moves)
		}
		for _, r := range append(old, next[1:]...) {
			stop(r)
		}
		if s.Len() != 1 {
			t.Errorf("%d Leases are left, want the table alone", s.Len())
		}
	})
}

// TestChangeWithoutEnd: if the last replica with the table's Ranges has handed its shards
// over but could not end its Lease, replicas with other Ranges do not wait for it.
//
// Proves SH1.
func TestChangeWithoutEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		old := j.newRanges(t, s, shard.Ranges{N: 8}, 0, "old")[0]
		next := j.newRanges(t, s, shard.Ranges{N: 12}, 0, "new0", "new1")
		name, announced := s.of(t, "old"), false
		old.client.On(func(verb, n string) (f fault) {
			if verb == "update" && n == name {
				f.Lost, announced = announced, true
			}
			return f
		})
		old.cancel()
		time.Sleep(retryPeriod / 2)
		j.owned(t, "its Lease is left", next...)
		if lease := s.get(name); lease == nil || *lease.Spec.HolderIdentity != "old" {
			t.Errorf("the Lease is %+v, want that it has not ended", lease)
		}
		<-old.ended
	})
}

// TestChangeWithoutOwners: a replica that has joined, but owns no shard yet, is waited for.
//
// Proves SH1.
func TestChangeWithoutOwners(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		g := s.group("old", 8)
		g.Leases.(*client).On(func(verb, name string) (f fault) {
			if verb == "update" && name == groupName { // the first owners
				f.Before = 2 * retryPeriod
			}
			return f
		})
		old := j.start(t, g, 0)
		synctest.Wait()
		j.newRanges(t, s, shard.Ranges{N: 12}, 0, "new")
		j.owned(t, "both have started", old)
	})
}

// TestChangeWhileJoining: a replica that joins while its Ranges are replaced owns no shard
// of the new table.
//
// Proves SH1.
func TestChangeWhileJoining(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		few, many := shard.Ranges{N: 8}, shard.Ranges{N: 12}
		if err := j.newRanges(t, s, few, 0, "first")[0].stop(); err != nil {
			t.Error(err)
		}
		g := s.group("late", 0)
		g.Ranges = few
		g.Leases.(*client).On(func(verb, _ string) (f fault) {
			if verb == "create" { // after it saw its Ranges
				f.Before = 2 * retryPeriod
			}
			return f
		})
		late := j.start(t, g, 0)
		next := j.newRanges(t, s, many, 0, "new")
		j.owned(t, "the other one has joined", next...)
		if err := late.Status().Err; err == nil || !strings.HasSuffix(err.Error(), waits) {
			t.Errorf("Status().Err = %v, want that it waits", err)
		}
		// The table is replaced by another user, under its owner.
		text := s.get(groupName).Annotations["controllerkit.github.io/shard-table"]
		j.mu.Lock()
		j.lenient = true
		j.mu.Unlock()
		s.Edit(t, groupName, func(l *coordinationv1.Lease) {
			*l.Spec.LeaseTransitions++
			l.Annotations["controllerkit.github.io/shard-table"] = `{"shards":1,"field":"object.metadata.namespace","holders":[],"owners":[-1],"terms":[0]}`
		})
		synctest.Wait()
		settle()
		if now := s.get(groupName).Annotations["controllerkit.github.io/shard-table"]; now == text {
			t.Error("the table did not change")
		}
		if n := j.expectOwners(); n != len(j.hashes) {
			t.Errorf("%d objects have owners after an edit of the Ranges, want all: %v", n, j.counts())
		}
	})
}

// TestSameRanges: an empty list of Starts is the same as none.
//
// Proves SH1.
func TestSameRanges(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		first := j.newRanges(t, s, shard.Ranges{N: 1, Starts: []uint64{}}, 0, "first")[0]
		second := j.newRanges(t, s, shard.Ranges{N: 1}, 0, "second")[0]
		for _, r := range []*replica{first, second} {
			if status := r.Status(); status.Replicas != 2 || status.Err != nil {
				t.Errorf("%s has %+v, want two replicas", r.Identity, status)
			}
		}
	})
}

// TestChangeOfManyRanges: if replicas with several Ranges wait, those of one kind own the
// shards next, and at last those of the other kind.
//
// Proves SH1.
func TestChangeOfManyRanges(t *testing.T) {
	bubble(t, func(t *testing.T, s *store, j *judge) {
		all := map[int][]*replica{}
		for _, n := range []int{3, 5, 7} {
			all[n] = j.newRanges(t, s, shard.Ranges{N: n}, 0, fmt.Sprint("a", n), fmt.Sprint("b", n))
		}
		for len(all) > 0 {
			settle()
			var n int
			if _, err := fmt.Sscanf(*s.get(groupName).Spec.HolderIdentity, "2 replicas, %d shards", &n); err != nil || all[n] == nil {
				t.Fatalf("the table is %+v, %v", s.get(groupName), err)
			}
			j.owned(t, "the others wait", all[n]...)
			for _, r := range all[n] {
				if err := r.stop(); err != nil {
					t.Error(err)
				}
			}
			delete(all, n)
		}
		list, err := s.List(metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Errorf("%d Leases are left, want the table alone", len(list.Items))
		}
	})
}
