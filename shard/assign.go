package shard

import (
	"cmp"
	"hash/fnv"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// A candidate is a replica that may own shards.
type candidate struct {
	uid types.UID
	max int // of shards; -1 means no limit
}

// assign returns the owner that each shard should have: an index of candidates, or -1 if
// all have their maximum. owners has the present owner of each shard, -1 if it has none.
//
// The numbers of shards differ by at most one, except for candidates at their maximum. A
// candidate keeps its shards up to its number, so a shard moves only if the balance
// requires it. Ties are broken by rendezvous hashing. The result depends on the arguments
// alone, and not on the order of candidates.
func assign(owners []int, candidates []candidate) []int {
	count := make([]int, len(candidates))
	for _, owner := range owners {
		if owner >= 0 {
			count[owner]++
		}
	}
	number := shares(len(owners), count, candidates)
	seeds := make([]uint64, len(candidates))
	for i, c := range candidates {
		seeds[i] = seed(c.uid)
	}
	wanted := slices.Clone(owners)
	// A replica with too many gives up the shards with its lowest scores.
	for c := range candidates {
		if count[c] <= number[c] {
			continue
		}
		var own []int
		for s, owner := range owners {
			if owner == c {
				own = append(own, s)
			}
		}
		slices.SortFunc(own, func(a, b int) int {
			return cmp.Or(cmp.Compare(score(seeds[c], a), score(seeds[c], b)), cmp.Compare(a, b))
		})
		for _, s := range own[:count[c]-number[c]] {
			wanted[s] = -1
		}
		count[c] = number[c]
	}
	for s := range wanted {
		if wanted[s] >= 0 {
			continue
		}
		best, most := -1, uint64(0)
		for c := range candidates {
			if count[c] == number[c] {
				continue
			}
			if v := score(seeds[c], s); best < 0 || v > most || v == most && candidates[c].uid < candidates[best].uid {
				best, most = c, v
			}
		}
		if best >= 0 {
			wanted[s] = best
			count[best]++
		}
	}
	return wanted
}

// shares returns the number of shards that each candidate should have. count has the
// present numbers.
func shares(shards int, count []int, candidates []candidate) []int {
	order := make([]int, len(candidates))
	limit := make([]int, len(candidates))
	for i, c := range candidates {
		order[i], limit[i] = i, c.max
		if c.max < 0 || c.max > shards {
			limit[i] = shards
		}
	}
	// Those with the lowest maximum come first, and get it if it is less than their share.
	// Of the others, some that have more get one more if it does not divide evenly. Their
	// choice stays the same while shards move one by one.
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(limit[a], limit[b]), cmp.Compare(candidates[a].uid, candidates[b].uid))
	})
	number := make([]int, len(candidates))
	for len(order) > 0 && limit[order[0]] <= shards/len(order) {
		number[order[0]] = limit[order[0]]
		shards -= limit[order[0]]
		order = order[1:]
	}
	if len(order) == 0 {
		return number
	}
	more := func(c int) int { return min(count[c], shards/len(order)+1) }
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(more(b), more(a)), cmp.Compare(candidates[a].uid, candidates[b].uid))
	})
	for i, c := range order {
		number[c] = shards / len(order)
		if i < shards%len(order) {
			number[c]++
		}
	}
	return number
}

// seed is the hash of a replica.
func seed(uid types.UID) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, string(uid))
	return h.Sum64()
}

// score is the rank of a replica for a shard, or for another number. FNV-1a hardly mixes
// the last bytes into the high bits, so its result is mixed.
func score(seed uint64, n int) uint64 {
	v := seed ^ uint64(n)*0x9e3779b97f4a7c15
	v ^= v >> 33
	v *= 0xff51afd7ed558ccd
	v ^= v >> 33
	v *= 0xc4ceb9fe1a85ec53
	return v ^ v>>33
}
