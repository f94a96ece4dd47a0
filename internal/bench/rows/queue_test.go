package rows_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/controllerkit/controllerkit/internal/bench/rows"
)

// TestQueueRows checks that all contenders of a row about queues do the same work:
// their queues return the same keys equally often, and exactly the declared keys are
// left at the shutdown.
func TestQueueRows(t *testing.T) {
	all := rows.QueueRows()
	if len(all) == 0 {
		t.Fatal("there are no rows about queues")
	}
	for _, row := range all {
		sizes := row.Sizes()
		slices.Sort(sizes)
		for _, size := range slices.Compact(sizes) {
			for _, contender := range row.Contenders() {
				for _, structs := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%d/%s/structs=%v", row.Name(), size, contender, structs), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { row.Check(t, contender, structs, size) })
					})
				}
			}
		}
	}
}

// TestKeys checks that the rows use the features of the library's queue: the keys of
// the smallest row are in 100 groups, and each group uses both priorities.
func TestKeys(t *testing.T) {
	groups, both := rows.Spread(1000)
	if want := [2]int{100, 100}; groups != want || both != want {
		t.Errorf("string and struct keys: got %v groups, %v of them with both priorities, want %v of each", groups, both, want)
	}
}

// TestJitter is TestInUse for rate-limited keys of the library. Their delays are
// random, so keys of the lower priority have waited long and get one Get in four.
func TestJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var add []int
		for i := range 20 {
			add = append(add, 2*i+1, 2*i)
		}
		got := rows.Order("controllerkit", "addRateLimited", add...)
		high := 0
		for _, i := range got[:20] {
			high += 1 - i%2
		}
		if high < 15 {
			t.Errorf("handed out %v: %d even ones among the first 20, want 15", got, high)
		}
	})
}

// TestInUse checks that the queues use two priorities and groups as the rows declare,
// for each way to add a key.
func TestInUse(t *testing.T) {
	low, high := []int{1, 0}, []int{0, 1}             // added in this order; an odd one has the lower priority
	same, turns := []int{0, 200, 2}, []int{0, 2, 200} // the first two of same are in one group
	for _, tt := range []struct {
		contender, method string
		add, want         []int
	}{
		{contender: "controllerkit", method: "add", add: low, want: high},
		{contender: "controllerkit", method: "addAfter", add: low, want: high},
		{contender: "controllerkit", method: "add", add: same, want: turns},
		{contender: "controller-runtime", method: "add", add: low, want: high},
		{contender: "controller-runtime", method: "addAfter", add: low, want: high},
		{contender: "controller-runtime", method: "addRateLimited", add: low, want: high},
		{contender: "controller-runtime", method: "add", add: same, want: same},
		{contender: "client-go", method: "add", add: low, want: low},
		{contender: "client-go", method: "addAfter", add: low, want: low},
	} {
		t.Run(fmt.Sprint(tt.contender, "/", tt.method, tt.add), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := rows.Order(tt.contender, tt.method, tt.add...); !slices.Equal(got, tt.want) {
					t.Errorf("handed out %v, want %v", got, tt.want)
				}
			})
		})
	}
}
