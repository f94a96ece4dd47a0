package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// counts returns the number of shards of each candidate, and of those without an owner.
func counts(owners []int, candidates int) (of []int, none int) {
	of = make([]int, candidates)
	for _, owner := range owners {
		if owner < 0 {
			none++
		} else {
			of[owner]++
		}
	}
	return of, none
}

// TestAssign: whatever the owners and the maxima are, the result is balanced, nobody has
// more than its maximum, a shard has no owner only if all have their maximum, no shard
// moves needlessly, and the result does not depend on the order of the candidates.
func TestAssign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shards := rapid.IntRange(1, 80).Draw(t, "shards")
		n := rapid.IntRange(1, 9).Draw(t, "candidates")
		var candidates []candidate
		for i := range n {
			candidates = append(candidates, candidate{
				uid: types.UID(fmt.Sprintf("%d-%d", i, rapid.IntRange(0, 1000).Draw(t, "uid"))),
				max: rapid.OneOf(rapid.Just(-1), rapid.IntRange(0, 20)).Draw(t, "max"),
			})
		}
		owners := rapid.SliceOfN(rapid.IntRange(-1, n-1), shards, shards).Draw(t, "owners")
		wanted := assign(owners, candidates)
		of, none := counts(wanted, n)
		room := 0
		for i, c := range candidates {
			if c.max >= 0 && of[i] > c.max {
				t.Fatalf("candidate %d has %d shards, more than its maximum %d", i, of[i], c.max)
			}
			if c.max < 0 || of[i] < c.max {
				room++
			}
			for k, d := range candidates {
				full := d.max >= 0 && of[k] == d.max
				if of[i] > of[k]+1 && !full {
					t.Fatalf("candidate %d has %d shards and %d has %d: %v", i, of[i], k, of[k], candidates)
				}
			}
		}
		if none > 0 && room > 0 {
			t.Fatalf("%d shards have no owner, but %d candidates have room", none, room)
		}
		before, _ := counts(owners, n)
		for i := range candidates {
			kept := 0
			for s := range owners {
				if owners[s] == i && wanted[s] == i {
					kept++
				}
			}
			if kept < min(before[i], of[i]) {
				t.Fatalf("candidate %d keeps %d shards, although it had %d and has %d", i, kept, before[i], of[i])
			}
		}
		if again := assign(wanted, candidates); !slices.Equal(again, wanted) {
			t.Fatalf("a second assignment differs: %v and %v", wanted, again)
		}
		perm := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
			for i := range n {
				yield(i)
			}
		})).Draw(t, "order")
		back := make([]int, n)
		shuffled := make([]candidate, n)
		for i, p := range perm {
			shuffled[i], back[p] = candidates[p], i
		}
		moved := make([]int, shards)
		for s, owner := range owners {
			moved[s] = -1
			if owner >= 0 {
				moved[s] = back[owner]
			}
		}
		for s, owner := range assign(moved, shuffled) {
			if owner >= 0 {
				owner = perm[owner]
			}
			if owner != wanted[s] {
				t.Fatalf("shard %d goes to %d, and to %d if the candidates have another order", s, wanted[s], owner)
			}
		}
	})
}

// TestAssignMoves: one replica that joins or leaves moves at most its share, rounded up,
// whatever happened before.
//
// Proves SH5.
func TestAssignMoves(t *testing.T) {
	for _, shards := range []int{1, 7, 32, 256, 1024} {
		rng := rand.New(rand.NewPCG(uint64(shards), 1))
		owners := slices.Repeat([]types.UID{""}, shards)
		var candidates []candidate
		next, most := 0, 0
		for range 200 {
			leaves := len(candidates) > 1 && (len(candidates) == 64 || rng.IntN(2) == 0)
			larger := len(candidates)
			if leaves {
				candidates = slices.Delete(slices.Clone(candidates), 0, 1)
			} else {
				next++
				candidates = append(candidates, candidate{types.UID(fmt.Sprintf("uid-%d", rng.Uint64())), -1})
				larger++
			}
			rng.Shuffle(len(candidates), func(i, k int) { candidates[i], candidates[k] = candidates[k], candidates[i] })
			index := make([]int, shards)
			for s, owner := range owners {
				index[s] = slices.IndexFunc(candidates, func(c candidate) bool { return c.uid == owner })
			}
			moves := 0
			for s, c := range assign(index, candidates) {
				if uid := candidates[c].uid; uid != owners[s] {
					owners[s] = uid
					moves++
				}
			}
			if bound := (shards + larger - 1) / larger; next > 1 && moves > bound {
				t.Fatalf("%d shards, %d replicas, leaves %t: %d moves, want at most %d", shards, larger, leaves, moves, bound)
			}
			most = max(most, moves)
		}
		t.Logf("%d shards: at most %d moves", shards, most)
	}
}

func TestDecide(t *testing.T) {
	tests := []struct {
		name  string
		facts facts
		want  decision
	}{
		{"it works on its shard", facts{runs: true, same: true, own: true, wanted: true}, keep},
		{"its shard should move", facts{runs: true, same: true, own: true, moves: true}, stopWork},
		{"its shard should move when all have joined", facts{runs: true, same: true, own: true, moves: true, stays: true}, keep},
		{"another has its shard", facts{runs: true}, loseWork},
		{"another has its shard and should, but is dead", facts{runs: true, free: true, moves: true, wanted: true}, loseWork},
		{"it has its shard in a later term", facts{runs: true, own: true, wanted: true, unused: true}, loseWork},
		{"a shard is new", facts{own: true, wanted: true, unused: true}, startWork},
		{"its term was used", facts{own: true, wanted: true}, changeEntry},
		{"its work has ended, and the shard should move", facts{own: true, moves: true}, changeEntry},
		{"a new shard should move", facts{own: true, moves: true, unused: true}, changeEntry},
		{"another's shard", facts{unused: true}, keep},
		{"another's shard should move", facts{moves: true, wanted: true, unused: true}, keep},
		{"a shard has no owner", facts{moves: true, free: true, wanted: true, unused: true}, changeEntry},
		{"a shard has no owner, and another should have it", facts{moves: true, free: true, unused: true}, changeEntry},
		{"a shard has no owner and should have none", facts{free: true, unused: true}, keep},
	}
	for _, test := range tests {
		if got := test.facts.decide(); got != test.want {
			t.Errorf("%s: decide = %d, want %d", test.name, got, test.want)
		}
	}
}

// The rules of the protocol hold for all facts: work begins only where no other runs, and an entry
// changes only without an owner or by its owner, which does not work on it.
func TestDecideRules(t *testing.T) {
	for n := range 1 << 8 {
		bit := func(k int) bool { return n>>k&1 == 1 }
		f := facts{bit(0), bit(1), bit(2), bit(3), bit(4), bit(5), bit(6), bit(7)}
		switch f.decide() {
		case startWork:
			if f.runs && !f.same || !f.own || !f.unused {
				t.Errorf("starts work with %+v", f)
			}
		case changeEntry:
			if f.runs || f.same || !f.own && !f.free {
				t.Errorf("changes the entry with %+v", f)
			}
		case stopWork, loseWork:
			if !f.runs && !f.same {
				t.Errorf("ends no work with %+v", f)
			}
		case keep:
		}
	}
}
