package apply

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// TestIndex: an index finds the items of an identity from the last to the first, with and
// without a map, and beside other indexes of the same decision.
func TestIndex(t *testing.T) {
	d := &decider{}
	random := rand.New(rand.NewPCG(1, 2))
	for size := range int32(3 * few) {
		x, beside := d.newIndex(size), d.newIndex(size)
		if (x.last != nil) != (size > few) {
			t.Errorf("%d items: map %v", size, x.last)
		}
		want := map[string][]int32{"absent": nil}
		for i := range size {
			identity := strconv.Itoa(random.IntN(4))
			x.add(identity, 0, 100+i)
			beside.add("absent", 0, 0)
			want[identity] = append([]int32{i}, want[identity]...)
		}
		for identity, want := range want {
			var got []int32
			for i := x.find(identity); i >= 0 && len(got) <= int(size); i = x.before(i) {
				got = append(got, i)
				if x.items[i].item != 100+i {
					t.Errorf("%d items: item %d at %d, want %d", size, x.items[i].item, i, 100+i)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d items: got positions %v of %s, want %v", size, got, identity, want)
			}
		}
	}
}
