package shard_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/shard"
)

// object returns an object of a namespace with a uid.
func object(namespace, uid string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "o-" + uid, UID: types.UID(uid)}}
}

// child returns an object that the object with the uid controls. Without one it has an owner
// that does not control it.
func child(uid, owner string) *corev1.ConfigMap {
	o := object("default", uid)
	o.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", Name: "other", UID: "other"}}
	if owner != "" {
		o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{Kind: "Owner", Name: "owner", UID: types.UID(owner), Controller: ptr.To(true)})
	}
	return o
}

// uuid returns a random uid.
func uuid(r *rand.Rand) string {
	a, b := r.Uint64()&^0xf000|0x4000, r.Uint64()&^(3<<62)|1<<63
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff)
}

// upstream returns the selector of apimachinery, which the API server uses, for a text.
func upstream(t *testing.T, text string) sharding.Selector {
	t.Helper()
	var all []sharding.ShardRangeRequirement
	for part := range strings.SplitSeq(text, " || ") {
		fields := strings.FieldsFunc(part, func(r rune) bool { return strings.ContainsRune("(), '", r) })
		if len(fields) != 4 || fields[0] != "shardRange" {
			t.Fatalf("selector %q", text)
		}
		all = append(all, sharding.ShardRangeRequirement{Key: fields[1], Start: fields[2], End: fields[3]})
	}
	s := sharding.NewSelector(all...)
	if s.String() != text {
		t.Fatalf("selector %q, apimachinery writes %q", text, s)
	}
	return s
}

// TestOf: the hash and the ranges are those of the API server, by its own code.
func TestOf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 7, 32, 1000, 1024} {
		for _, namespaced := range []bool{false, true} {
			ranges := shard.Ranges{N: n, ByNamespace: namespaced}
			if namespaced && n > 2 {
				for range n - 1 {
					ranges.Starts = append(ranges.Starts, r.Uint64())
				}
				slices.Sort(ranges.Starts)
			}
			for range 20 {
				o := object(fmt.Sprintf("team-%d-%x", r.IntN(1000), r.Uint32()), uuid(r))
				s, err := ranges.Of(o)
				if err != nil {
					t.Fatal(err)
				}
				for other := max(0, s-2); other < min(n, s+3); other++ {
					text, err := ranges.Selector([]int{other})
					if err != nil {
						t.Fatal(err)
					}
					if in, err := upstream(t, text).Matches(o); err != nil || in != (other == s) {
						t.Errorf("N %d: %s is in shard %d, and the API server has it in shard %d: %t, %v", n, o.Name, s, other, in, err)
					}
				}
			}
		}
	}
}

// TestBounds: each hash is in one shard, also the first and the last of each range.
func TestBounds(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7, 11, 31, 32, 33, 100, 1000, 1023, 1024} {
		ranges := shard.Ranges{N: n}
		var next uint64
		for s := range n {
			text, err := ranges.Selector([]int{s})
			if err != nil {
				t.Fatal(err)
			}
			var first, end uint64
			if s == n-1 {
				text = strings.Replace(text, "0x10000000000000000", "0x0000000000000000", 1)
			}
			if _, err := fmt.Sscanf(text, "shardRange(object.metadata.uid, '0x%x', '0x%x')", &first, &end); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if first != next || ranges.OfHash(first) != s || ranges.OfHash(end-1) != s {
				t.Fatalf("N %d: shard %d is %s: want it to begin at %#x; its ends are in %d and %d", n, s, text, next, ranges.OfHash(first), ranges.OfHash(end-1))
			}
			next = end
		}
	}
	stored := shard.Ranges{N: 3, Starts: []uint64{10, 11}}
	for h, want := range map[uint64]int{0: 0, 9: 0, 10: 1, 11: 2, 1 << 63: 2} {
		if got := stored.OfHash(h); got != want {
			t.Errorf("hash %d is in shard %d, want %d", h, got, want)
		}
	}
}

func TestSelector(t *testing.T) {
	four := shard.Ranges{N: 4}
	for _, test := range []struct {
		shards []int
		want   string
	}{
		{[]int{1}, "shardRange(object.metadata.uid, '0x4000000000000000', '0x8000000000000000')"},
		{[]int{3, 0, 1, 3}, "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000') || shardRange(object.metadata.uid, '0xc000000000000000', '0x10000000000000000')"},
		{[]int{2, 3, 1, 0}, "shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')"},
	} {
		if got, err := four.Selector(test.shards); err != nil || got != test.want {
			t.Errorf("Selector(%v) is %q, %v, want %q", test.shards, got, err, test.want)
		}
	}
}

// TestUIDs: random uids are spread evenly.
func TestUIDs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	ranges := shard.Ranges{N: 32}
	count := make([]int, ranges.N)
	for range 32_000 {
		s, err := ranges.Of(object("", uuid(r)))
		if err != nil {
			t.Fatal(err)
		}
		count[s]++
	}
	if least, most := slices.Min(count), slices.Max(count); least < 850 || most > 1150 {
		t.Errorf("32,000 uids in 32 shards: %v", count)
	}
}

// tenants returns the names tenant-000 to tenant-999, each with a weight.
func tenants(weight func(i int) int) map[string]int {
	all := map[string]int{}
	for i := range 1000 {
		all[fmt.Sprintf("tenant-%03d", i)] = weight(i)
	}
	return all
}

// load returns the weight of each shard.
func load(t *testing.T, r shard.Ranges, namespaces map[string]int) []int {
	t.Helper()
	sum := make([]int, r.N)
	for name, w := range namespaces {
		s, err := r.Of(object(name, ""))
		if err != nil {
			t.Fatal(err)
		}
		sum[s] += w
	}
	return sum
}

// TestCut tests the balance of Cut for a thousand namespaces with similar names and weights.
func TestCut(t *testing.T) {
	for _, test := range []struct {
		name       string
		namespaces map[string]int
	}{
		{"equal", tenants(func(int) int { return 1 })},
		{"weights", tenants(func(i int) int { return 1 + i%17 })},
	} {
		t.Run(test.name, func(t *testing.T) {
			total := 0
			for _, w := range test.namespaces {
				total += w
			}
			ranges, err := shard.Ranges{N: 32}.Cut(test.namespaces)
			if err != nil {
				t.Fatal(err)
			}
			again, err := shard.Ranges{N: 32}.Cut(test.namespaces)
			if err != nil || !reflect.DeepEqual(ranges, again) {
				t.Errorf("Cut again: %v, %v, want %v", again, err, ranges)
			}
			sum := load(t, ranges, test.namespaces)
			slices.Sort(sum) // the worst assignment gives one replica the largest shards
			for _, replicas := range []int{2, 4, 8, 16, 32} {
				worst := 0
				for _, w := range sum[32-32/replicas:] {
					worst += w
				}
				if mean := float64(total) / float64(replicas); float64(worst) > 1.5*mean {
					t.Errorf("%d replicas: the worst one has %d, 1.5 times the mean are %.0f; shards: %v", replicas, worst, 1.5*mean, sum)
				}
			}
		})
	}
	if sum := load(t, shard.Ranges{N: 32, ByNamespace: true}, tenants(func(int) int { return 1 })); slices.Max(sum) < 100 {
		t.Errorf("equal ranges are balanced, %v: Cut is not needed", sum)
	}
}

// TestCutHalves: a shard more than the namespaces halves the widest range.
func TestCutHalves(t *testing.T) {
	for _, namespaces := range []map[string]int{
		{"a": 1, "b": 1},
		{"a": 1, "b": 1, "c": 1},
		{"shop": 1, "jobs": 1, "web": 1, "mail": 1, "test": 1},
	} {
		before, err := shard.Ranges{N: len(namespaces)}.Cut(namespaces)
		if err != nil {
			t.Fatal(err)
		}
		for n := len(namespaces) + 1; n <= 100; n++ {
			first, width := uint64(0), uint64(0) // of the widest range
			for i := range n - 1 {
				begin, last := uint64(0), uint64(math.MaxUint64)
				if i > 0 {
					begin = before.Starts[i-1]
				}
				if i < len(before.Starts) {
					last = before.Starts[i] - 1
				}
				if last-begin > width {
					first, width = begin, last-begin
				}
			}
			want := append(slices.Clone(before.Starts), first+width/2+1)
			slices.Sort(want)
			after, err := shard.Ranges{N: n}.Cut(namespaces)
			if err != nil || !slices.Equal(after.Starts, want) {
				t.Fatalf("Cut(%d, %v) = %x, %v, want %x", n, namespaces, after.Starts, err, want)
			}
			before = after
		}
	}
}

// TestCutFew: the ranges are valid and none is empty, with any number of namespaces.
func TestCutFew(t *testing.T) {
	for _, namespaces := range []map[string]int{
		nil,
		{"one": 1},
		{"a": 1, "b": 1, "c": 1},
		{"small": 1, "huge": 1 << 60, "other": 1, "fourth": 1},
		{"zero": 0, "negative": -5},
	} {
		for _, n := range []int{1, 2, 3, 5, 1024} {
			ranges, err := shard.Ranges{N: n}.Cut(namespaces)
			if err != nil {
				t.Fatal(err)
			}
			if len(ranges.Starts) != n-1 || !ranges.ByNamespace {
				t.Fatalf("Cut(%d, %v) has %d starts", n, namespaces, len(ranges.Starts))
			}
			for s := range n {
				if _, err := ranges.Selector([]int{s}); err != nil {
					t.Fatalf("Cut(%d, %v): %v", n, namespaces, err)
				}
			}
			if sum := load(t, ranges, map[string]int{"a": 1, "b": 1, "c": 1}); n == 5 && namespaces["c"] == 1 && slices.Max(sum) != 1 {
				t.Errorf("three namespaces in five shards: %v, want each in its own", sum)
			}
			if namespaces == nil { // halved, the widest first
				widths, last := []uint64{}, uint64(0)
				for _, start := range ranges.Starts {
					widths, last = append(widths, start-last-1), start
				}
				widths = append(widths, math.MaxUint64-last)
				if least := slices.Min(widths); slices.Max(widths)/2 > least {
					t.Errorf("%d shards without a namespace have ranges of %d to %d hashes, want none of more than two others", n, least, slices.Max(widths))
				}
			}
			stored, err := json.Marshal(ranges)
			if err != nil {
				t.Fatal(err)
			}
			var read shard.Ranges
			if err := json.Unmarshal(stored, &read); err != nil || !reflect.DeepEqual(ranges, read) {
				t.Errorf("stored as JSON and read: %v, %v, want %v", read, err, ranges)
			}
		}
	}
}

func TestOfChild(t *testing.T) {
	r := shard.Ranges{N: 1024}
	want, err := r.Of(object("", "the-owner"))
	if err != nil {
		t.Fatal(err)
	}
	if got, ok, err := r.OfChild(child("1", "the-owner")); got != want || !ok || err != nil {
		t.Errorf("OfChild is %d, %t, %v, want %d", got, ok, err, want)
	}
	if got, ok, err := r.OfChild(child("1", "")); ok || err != nil {
		t.Errorf("OfChild without a controller is %d, %t, %v, want false", got, ok, err)
	}
	r.ByNamespace = true
	if want, err = r.Of(object("default", "x")); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := r.OfChild(child("1", "")); got != want || !ok || err != nil {
		t.Errorf("OfChild by namespace is %d, %t, %v, want %d", got, ok, err, want)
	}
}

// TestRejects: an error names the field, the value and the cure, in one short line.
func TestRejects(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	of := func(r shard.Ranges, o *corev1.ConfigMap) func() error {
		return func() error { _, err := r.Of(o); return err }
	}
	ofChild := func(r shard.Ranges, o *corev1.ConfigMap) func() error {
		return func() error { _, _, err := r.OfChild(o); return err }
	}
	shards := func(r shard.Ranges, s ...int) func() error {
		return func() error { _, err := r.Selector(s); return err }
	}
	cut := func(n int) func() error { return func() error { _, err := shard.Ranges{N: n}.Cut(nil); return err } }
	for name, test := range map[string]struct {
		do   func() error
		want string
	}{
		"no N":              {of(shard.Ranges{}, object("a", "b")), "Ranges.N is 0: set 1 to 1024"},
		"negative N":        {shards(shard.Ranges{N: -1}, 0), "Ranges.N is -1: set 1 to 1024"},
		"huge N":            {cut(1 << 40), "Ranges.N is 1099511627776: set 1 to 1024"},
		"N above the limit": {ofChild(shard.Ranges{N: 1025}, child("a", "b")), "Ranges.N is 1025: set 1 to 1024"},
		"no object":         {of(shard.Ranges{N: 1}, nil), "the object is nil: pass"},
		"no child":          {ofChild(shard.Ranges{N: 1}, nil), "the object is nil: pass"},
		"no uid":            {of(shard.Ranges{N: 1}, object("a", "")), `object "o-" has no metadata.uid: pass`},
		"no namespace":      {of(shard.Ranges{N: 1, ByNamespace: true}, object("", "a")), `object "o-a" has no metadata.namespace: a cluster-scoped resource needs`},
		"long name":         {of(shard.Ranges{N: 1, ByNamespace: true}, object("", big)), "has no metadata.namespace"},
		"starts":            {of(shard.Ranges{N: 3, Starts: []uint64{1}}, object("a", "b")), "Ranges.Starts has 1 hashes and Ranges.N is 3: set N-1 hashes"},
		"starts at 0":       {of(shard.Ranges{N: 3, Starts: []uint64{0, 1}}, object("a", "b")), "Ranges.Starts[0] is 0x0, not more than 0x0: set ascending"},
		"starts fall":       {of(shard.Ranges{N: 3, Starts: []uint64{7, 7}}, object("a", "b")), "Ranges.Starts[1] is 0x7, not more than 0x7: set ascending"},
		"no shards":         {shards(shard.Ranges{N: 3}), "Selector got no shards: do not list or watch"},
		"shard below":       {shards(shard.Ranges{N: 3}, 1, -1), "Selector got shard -1: pass shards from 0 to 2"},
		"shard above":       {shards(shard.Ranges{N: 3}, 3), "Selector got shard 3: pass shards from 0 to 2"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.do()
			if err == nil || !strings.HasPrefix(err.Error(), "shard: ") || strings.Count(err.Error(), "shard: ") != 1 || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 512 {
				t.Errorf("error %.600v, want one of package shard with %q", err, test.want)
			}
		})
	}
}
