package shard

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"encoding/binary"
	"hash/fnv"

	"github.com/controllerkit/controllerkit/shard/internal/hashes"
)

// Ranges maps objects to shards 0 to N-1. Each shard is a range of hashes. The hash is the
// API server's for shard selectors: 64-bit FNV-1a of the uid or of the namespace. To change
// the Ranges of a group, see [Group].
type Ranges struct {
	// N is the number of shards, 1 to 1024. Required.
	N int

	// ByNamespace hashes an object's namespace, so that all objects of a namespace are in one
	// shard. False means its uid. Set Starts with it: equal ranges are unbalanced, because
	// similar names have similar hashes.
	ByNamespace bool

	// Starts are the first hashes of the shards 1 to N-1, in ascending order. Cut computes
	// them. nil means ranges of equal size.
	Starts []uint64
}

// Of returns the shard of an object. The error names a field of r that is not valid, or the
// metadata that the object lacks.
func (r Ranges) Of(obj metav1.Object) (int, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	h, err := hashes.Of(obj, r.key())
	if err != nil {
		return 0, fmt.Errorf("shard: %w", err)
	}
	return r.of(h), nil
}

// OfChild returns the shard of a child's controller owner, which is the child's shard: by the
// uid of its controller reference, or by its namespace. It is false if the hash is by uid and
// no owner controls the child. The child is in no shard then.
func (r Ranges) OfChild(child metav1.Object) (shard int, ok bool, err error) {
	if err := r.check(); err != nil {
		return 0, false, err
	}
	h, ok, err := hashes.OfChild(child, r.key())
	if err != nil {
		return 0, false, fmt.Errorf("shard: %w", err)
	}
	if !ok {
		return 0, false, nil
	}
	return r.of(h), true, nil
}

// Selector returns the ShardSelector of list options that selects the objects of the shards,
// in any order. Ranges that touch become one. No shards are an error, because an empty
// ShardSelector selects all objects: a replica without shards must not watch. The text of
// many shards that do not touch is long, about 100 bytes for each in the URL, which a proxy
// can reject.
func (r Ranges) Selector(shards []int) (string, error) {
	if err := r.check(); err != nil {
		return "", err
	}
	if len(shards) == 0 {
		return "", errors.New("shard: Selector got no shards: do not list or watch without a shard, and select no namespace in a scope")
	}
	var spans []hashes.Span
	for _, s := range slices.Sorted(slices.Values(shards)) {
		if s < 0 || s >= r.N {
			return "", fmt.Errorf("shard: Selector got shard %d: pass shards from 0 to %d", s, r.N-1)
		}
		next := r.span(s)
		switch last := len(spans) - 1; {
		case last >= 0 && next.First <= spans[last].Last: // the same shard again
		case last >= 0 && next.First == spans[last].Last+1:
			spans[last].Last = next.Last
		default:
			spans = append(spans, next)
		}
	}
	return hashes.Selector{Key: r.key(), Spans: spans}.String(), nil
}

func (r Ranges) key() string {
	if r.ByNamespace {
		return hashes.ByNamespace
	}
	return hashes.ByUID
}

// check returns an error that names the field which is not valid.
func (r Ranges) check() error {
	switch {
	case r.N < 1 || r.N > hashes.MaxShards:
		return fmt.Errorf("shard: Ranges.N is %d: set 1 to %d", r.N, hashes.MaxShards)
	case r.Starts != nil && len(r.Starts) != r.N-1:
		return fmt.Errorf("shard: Ranges.Starts has %d hashes and Ranges.N is %d: set N-1 hashes, or nil for equal ranges", len(r.Starts), r.N)
	}
	before := uint64(0)
	for i, s := range r.Starts {
		if s <= before {
			return fmt.Errorf("shard: Ranges.Starts[%d] is %#x, not more than %#x: set ascending hashes above 0", i, s, before)
		}
		before = s
	}
	return nil
}

func (r Ranges) of(h uint64) int {
	if r.Starts == nil {
		s, _ := bits.Mul64(h, uint64(r.N))
		return int(s)
	}
	i, found := slices.BinarySearch(r.Starts, h)
	if found {
		return i + 1
	}
	return i
}

func (r Ranges) span(shard int) hashes.Span {
	s := hashes.Span{First: r.start(shard), Last: math.MaxUint64}
	if shard < r.N-1 {
		s.Last = r.start(shard+1) - 1
	}
	return s
}

// start returns the first hash of a shard.
func (r Ranges) start(shard int) uint64 {
	switch {
	case shard == 0:
		return 0
	case r.Starts != nil:
		return r.Starts[shard-1]
	}
	start, rest := bits.Div64(uint64(shard), 0, uint64(r.N))
	if rest > 0 {
		start++ // the first h with h*N/2^64 >= shard
	}
	return start
}

// Cut returns Ranges by namespace with r.N shards of about the same weight. The weights are
// of the observed namespaces, for example their numbers of objects. A namespace of weight 0
// or less counts as 1. Similar names have similar hashes, and equal ranges would put
// tenant-000 to tenant-099 into one of 32 shards. With a thousand namespaces of similar
// names and weights, no replica with an equal number of shards has more than 1.5 times the
// mean weight. The result depends on N and the weights alone.
//
// The namespaces observed later are in the shard that contains their hash, so the balance
// degrades when many are added. Cut then returns other Ranges. So compute them outside of the
// replicas, and change them as described at [Group].
func (r Ranges) Cut(namespaces map[string]int) (Ranges, error) {
	n := r.N
	r = Ranges{N: n, ByNamespace: true}
	if err := r.check(); err != nil {
		return Ranges{}, err
	}
	type point struct{ hash, weight uint64 }
	weights := map[uint64]uint64{}
	for name, w := range namespaces {
		weights[hashes.Hash(name)] += uint64(max(w, 1))
	}
	var points []point
	rest := 0.0
	for _, h := range slices.Sorted(maps.Keys(weights)) {
		points = append(points, point{h, weights[h]})
		rest += float64(weights[h])
	}

	// Each shard takes namespaces until one more would bring it farther from the mean of the
	// remaining shards.
	starts := []uint64{} // not nil, which would mean equal ranges
	taken := 0.0
	for i, p := range points {
		w := float64(p.weight)
		mean := rest / float64(n-len(starts))
		if taken > 0 && len(starts) < n-1 && taken+w-mean > mean-taken {
			starts = append(starts, between(points[i-1].hash, p.hash))
			rest -= taken
			taken = 0
		}
		taken += w
	}
	// With fewer namespaces than shards, the remaining shards halve the widest ranges.
	for len(starts) < n-1 {
		r := Ranges{N: len(starts) + 1, Starts: starts}
		widest := slices.MaxFunc(r.spans(), func(a, b hashes.Span) int { return cmp.Compare(a.Last-a.First, b.Last-b.First) })
		at, _ := slices.BinarySearch(starts, widest.First+1)
		starts = slices.Insert(starts, at, between(widest.First, widest.Last))
	}
	r.Starts = starts
	return r, nil
}

func (r Ranges) spans() []hashes.Span {
	var all []hashes.Span
	for s := range r.N {
		all = append(all, r.span(s))
	}
	return all
}

// between returns a hash above a and at most b, which is above a.
func between(a, b uint64) uint64 { return a + (b-a)/2 + 1 }

// equal reports whether both map all objects to the same shards.
func (r Ranges) equal(other Ranges) bool {
	return r.N == other.N && r.ByNamespace == other.ByNamespace && slices.Equal(r.Starts, other.Starts)
}

// describe returns the ranges for readers. Different ones have different texts, except for
// collisions of the checksum.
func (r Ranges) describe() string {
	starts := "equal ranges"
	if len(r.Starts) > 0 {
		h := fnv.New32a()
		for _, start := range r.Starts {
			_, _ = h.Write(binary.BigEndian.AppendUint64(nil, start))
		}
		starts = fmt.Sprintf("Starts with the checksum %08x", h.Sum32())
	}
	return fmt.Sprintf("N %d, %s, %s", r.N, r.key(), starts)
}
