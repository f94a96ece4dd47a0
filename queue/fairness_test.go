package queue_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// TestGroupsTakeTurns proves Q5.
func TestGroupsTakeTurns(t *testing.T) {
	q := queue.New(queue.Config[string]{Group: namespace})
	for i := range 1000 {
		q.Add(fmt.Sprintf("noisy/%d", i))
	}
	for _, key := range []string{"b/0", "b/1", "b/2", "c/0"} {
		q.Add(key)
	}
	var got []string
	for range 9 {
		key, _ := q.Get()
		got = append(got, key)
		q.Done(key)
	}
	want := []string{"noisy/0", "b/0", "c/0", "noisy/1", "b/1", "noisy/2", "b/2", "noisy/3", "noisy/4"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	// A group that comes back waits for its turn, not for the keys before it.
	q.Add("d/0")
	q.Add("c/0")
	got = nil
	for range 3 {
		key, _ := q.Get()
		got = append(got, key)
	}
	if diff := cmp.Diff([]string{"noisy/5", "d/0", "c/0"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// With any number of groups that always have ready keys each gets the same
// number of Gets, give or take one, however many keys they have.
func TestGroupsGetEqualShares(t *testing.T) {
	q := queue.New(queue.Config[string]{Group: namespace})
	const groups = 7
	next := 0
	for g := range groups {
		for range 1 << g { // 1 to 64 keys
			q.Add(fmt.Sprintf("%d/%d", g, next))
			next++
		}
	}
	got := make([]int, groups)
	for range 100 * groups {
		key, _ := q.Get()
		got[key[0]-'0']++
		q.Add(key) // ready again at once
		q.Done(key)
	}
	if low, high := slices.Min(got), slices.Max(got); high-low > 1 {
		t.Errorf("Gets by group: got %v, want equal shares", got)
	}
}

// Under constant load of high priority, and each Get taking 1 s:
func TestLowPriorityIsNotStarved(t *testing.T) {
	for _, tc := range []struct {
		name    string
		maxWait time.Duration
		// when the low keys are handed out, by Get
		want []int
	}{
		// The first low key is handed out by the first Get after more than a
		// minute, later ones by one Get in four.
		{"default", 0, []int{61, 65, 69}},
		{"10 s", 10 * time.Second, []int{11, 15, 19}},
		{"never", -1, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queue.New(queue.Config[string]{MaxWait: tc.maxWait})
				q.AddWith(controllerkit.AddOptions{Priority: lowPriority}, "low1", "low2", "low3")
				q.Add("high1")
				q.Add("high2")
				var got []int
				for n := range 200 {
					key, _ := q.Get()
					if strings.HasPrefix(key, "low") {
						got = append(got, n)
					} else {
						q.Add(key)
					}
					q.Done(key)
					time.Sleep(time.Second)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("Gets that handed out a low key (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestStarvationBound tests several priorities at once. If a lower priority has a key older
// than MaxWait, each four calls of Get serve the lower priorities exactly once. Otherwise
// they serve only the highest.
//
// It proves Q4.
func TestStarvationBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxWait = 5 * time.Second
		q := queue.New(queue.Config[string]{MaxWait: maxWait})
		since := map[string]time.Time{}
		priorities := map[string]int{}
		add := func(key string, priority int) {
			if _, ok := since[key]; !ok {
				since[key] = time.Now()
			}
			priorities[key] = priority
			q.AddWith(controllerkit.AddOptions{Priority: priority}, key)
		}
		for i := range 40 {
			add(fmt.Sprint("low", i), -100)
			add(fmt.Sprint("mid", i), 0)
			add(fmt.Sprint("top", i), 100)
		}
		overdue := func() bool {
			for key, at := range since {
				if priorities[key] < 100 && time.Since(at) > maxWait {
					return true
				}
			}
			return false
		}
		starving, high, low := 0, 0, 0 // consecutive Gets while some key is overdue
		for n := range 600 {
			if n%50 == 0 && n < 300 {
				add(fmt.Sprint("mid", n/50), 100) // a raised key is not overdue, and makes none so
			}
			was := overdue()
			key, priority, _ := q.GetWithPriority()
			if priority != priorities[key] {
				t.Fatalf("priority of %s: got %d, want %d", key, priority, priorities[key])
			}
			switch {
			case !was:
				starving = 0
				if priority != 100 {
					t.Fatalf("Get %d: got %s, although no key of a lower priority is older than MaxWait", n, key)
				}
			case priority == 100:
				starving, high = starving+1, high+1
				if starving > 3 {
					t.Fatalf("Get %d: %d Gets in a row for the highest priority", n, starving)
				}
			default:
				if low > 0 && starving != 3 {
					t.Fatalf("Get %d: the highest priority had %d Gets in between, want 3 in 4", n, starving)
				}
				starving, low = 0, low+1
			}
			delete(since, key)
			if priority == 100 {
				add(key, 100)
			}
			q.Done(key)
			time.Sleep(100 * time.Millisecond)
		}
		if low < 70 || high == 0 {
			t.Errorf("served %d low keys, %d high ones meanwhile: the test has tested nothing", low, high)
		}
		for key := range since {
			if priorities[key] < 100 {
				t.Errorf("%s was never served", key)
			}
		}
	})
}

// Of several lower priorities the one with the oldest key has its turn, be it
// the lowest. A key that is raised is the youngest of its new priority.
func TestTheOldestLowerKeyGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := tester{t, queue.New(queue.Config[string]{MaxWait: 10 * time.Second})}
		with := func(priority int) controllerkit.AddOptions { return controllerkit.AddOptions{Priority: priority} }
		for i := range 12 {
			q.AddWith(with(100), fmt.Sprint("top", i))
		}
		q.AddWith(with(-100), "low", "raised")
		q.run("top0") // passes over low and raised
		time.Sleep(5 * time.Second)
		q.Add("mid")
		q.AddWith(with(0), "raised")
		q.run("top1", "top2", "top3") // passes over mid, and raised once more
		time.Sleep(6 * time.Second)   // low has waited for 11 s, mid and raised for 6 s
		q.run("low", "top4", "top5", "top6", "top7")
		time.Sleep(4 * time.Second) // mid and raised for 10 s
		q.run("top8")
		time.Sleep(time.Nanosecond) // for longer than MaxWait
		q.run("mid", "top9", "top10", "top11", "raised")
	})
}

// It matters not how many Gets there were before: they are more than a number of
// 32 bits holds after a month of 1000 a second.
//
// It proves Q4.
func TestStarvationBoundAfterManyGets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := tester{t, queue.New(queue.Config[string]{MaxWait: 10 * time.Second})}
		for i := range 6 {
			q.Add(fmt.Sprint("top", i))
		}
		q.SetServed(math.MaxInt)
		q.AddWith(controllerkit.AddOptions{Priority: -100}, "low")
		q.run("top0")
		time.Sleep(11 * time.Second)
		q.run("low", "top1")
	})
}

// However many keys a group has, a key of another group waits for one key of
// each group at most.
//
// It proves Q5.
func TestOneRound(t *testing.T) {
	const noisy, quiet = 100_000, 20
	q := queue.New(queue.Config[string]{Group: namespace})
	for i := range noisy {
		q.Add(fmt.Sprintf("noisy/%d", i))
	}
	waits := map[string]int{} // Gets since the key was added
	longest := 0
	for n := range 5_000 {
		if n%3 == 0 { // a single key of a group that has none
			if key := fmt.Sprintf("quiet%d/0", n/3%quiet); !slices.Contains(slices.Collect(maps.Keys(waits)), key) {
				q.Add(key)
				waits[key] = 0
			}
		}
		got, _ := q.Get()
		q.Done(got)
		delete(waits, got)
		for key := range waits {
			waits[key]++
			longest = max(longest, waits[key])
		}
	}
	if longest > quiet {
		t.Errorf("a group's only key waited for %d Gets, with %d groups", longest, quiet+1)
	}
	if longest == 0 {
		t.Error("no key waited: the test has tested nothing")
	}
}

// Under constant overload of a higher priority, and with fewer low keys than one
// in four, no low key waits for much longer than MaxWait, nor for less. With
// groups that take turns the same holds for a group that has its share of the
// low keys or less; it does not wait for the others.
//
// It proves Q4.
func TestOverload(t *testing.T) {
	for _, groups := range []bool{false, true} {
		t.Run(fmt.Sprintf("groups %v", groups), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { overload(t, groups) })
		})
	}
}

func overload(t *testing.T, groups bool) {
	const (
		maxWait = 10 * time.Second
		work    = 10 * time.Millisecond
		gets    = 100_000 // 1000 s
	)
	cfg := queue.Config[string]{MaxWait: maxWait}
	if groups {
		cfg.Group = namespace
	}
	q := queue.New(cfg)
	since := map[string]time.Time{}
	low, longest, shortest := 0, map[string]time.Duration{}, time.Hour
	for n := range gets {
		q.AddWith(controllerkit.AddOptions{Priority: 10}, fmt.Sprintf("high/%d", n), fmt.Sprintf("high/%d", n+gets)) // two for each Get
		if n%5 == 0 {
			group := "many"
			if n%20 == 0 {
				group = "few"
			}
			key := fmt.Sprintf("%s/%d", group, n)
			q.AddWith(controllerkit.AddOptions{Priority: lowPriority}, key)
			since[key] = time.Now()
		}
		key, priority, _ := q.GetWithPriority()
		if priority < 10 {
			wait := time.Since(since[key])
			longest[namespace(key)] = max(longest[namespace(key)], wait)
			shortest = min(shortest, wait)
			delete(since, key)
			low++
		}
		q.Done(key)
		time.Sleep(work)
	}
	t.Logf("%d of %d Gets for low keys, which waited for %v at least and %v at most", low, gets, shortest, longest)
	// Time is over to 1/32 of MaxWait, and then comes one Get in four.
	bound := maxWait + maxWait/32 + 4*work
	if longest["few"] > bound || !groups && longest["many"] > bound {
		t.Errorf("low keys waited for %v, want %v at most", longest, bound)
	}
	if !groups && shortest <= maxWait {
		t.Errorf("a low key waited for %v only, with higher ones ready all the time", shortest)
	}
	if want := gets / 5 * 98 / 100; low < want {
		t.Errorf("%d Gets for low keys, want %d at least", low, want)
	}
}

// TestManyPriorities uses more priorities than the queue keeps. Old and new groups must
// still take turns.
func TestManyPriorities(t *testing.T) {
	q := queue.New(queue.Config[string]{Group: namespace})
	const priorities = 300
	for p := range priorities {
		q.AddWith(controllerkit.AddOptions{Priority: p}, fmt.Sprintf("old%d/0", p))
		key, _ := q.Get()
		q.Done(key)
	}
	for p := range priorities {
		old := fmt.Sprintf("old%d", p)
		q.AddWith(controllerkit.AddOptions{Priority: p}, old+"/1", old+"/2", "new/1", "new/2")
		var got []string
		for range 4 {
			key, priority, _ := q.GetWithPriority()
			if priority != p {
				t.Errorf("priority of %s: got %d, want %d", key, priority, p)
			}
			got = append(got, key)
			q.Done(key)
		}
		if diff := cmp.Diff([]string{old + "/1", "new/1", old + "/2", "new/2"}, got); diff != "" {
			t.Fatalf("order at priority %d (-want +got):\n%s", p, diff)
		}
	}
}

// TestOrderOfManyGroupsAndPriorities tests the order with more groups, levels and lanes than
// the queue keeps, so that some are dropped and made again.
//
// It proves Q3 and Q5.
func TestOrderOfManyGroupsAndPriorities(t *testing.T) {
	const keys, groups, priorities = 12_000, 6_000, 150
	groupOf := func(key int) int {
		if key%4 == 0 {
			return key % 80 // these have many keys, so many priorities at once
		}
		return key % groups
	}
	q := queue.New(queue.Config[int]{MaxWait: -1, Group: func(key int) string { return fmt.Sprint(groupOf(key)) }})
	// What is ready: of each priority the groups, the one whose turn it is first, and
	// the keys of each.
	type level struct {
		turns []int
		keys  map[int][]int // by group
	}
	levels := map[int]*level{}
	priorityOf := map[int]int{} // of the ready keys
	drop := func(key int) {
		l, g := levels[priorityOf[key]], groupOf(key)
		l.keys[g] = slices.DeleteFunc(l.keys[g], func(k int) bool { return k == key })
		if len(l.keys[g]) == 0 {
			l.turns = slices.DeleteFunc(l.turns, func(o int) bool { return o == g })
		}
		delete(priorityOf, key)
	}
	add := func(key, priority int) {
		q.AddWith(controllerkit.AddOptions{Priority: priority}, key)
		if old, ready := priorityOf[key]; ready {
			if old >= priority {
				return
			}
			drop(key)
		}
		l, g := levels[priority], groupOf(key)
		if l == nil {
			l = &level{keys: map[int][]int{}}
			levels[priority] = l
		}
		if len(l.keys[g]) == 0 {
			l.turns = append(l.turns, g)
		}
		l.keys[g] = append(l.keys[g], key)
		priorityOf[key] = priority
	}
	get := func() {
		top := math.MinInt
		for priority, l := range levels {
			if len(l.turns) > 0 {
				top = max(top, priority)
			}
		}
		l := levels[top]
		g := l.turns[0]
		want := l.keys[g][0]
		drop(want)
		if len(l.keys[g]) > 0 { // it has had its turn
			l.turns = append(l.turns[1:], g)
		}
		got, priority, _ := q.GetWithPriority()
		if got != want || priority != top {
			t.Fatalf("got %d at %d, want %d at %d", got, priority, want, top)
		}
		q.Done(got)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		// Some keys of all groups, or many of a few; of all priorities, or of some.
		from, of := random.IntN(keys), []int{keys, 40}[random.IntN(2)]
		low, wide := random.IntN(priorities), []int{priorities, 12}[random.IntN(2)]
		for range 3_000 {
			add((from+random.IntN(of)*7)%keys, (low+random.IntN(wide))%priorities)
			if len(priorityOf) > 0 && random.IntN(3) == 0 {
				get()
			}
		}
		for random.IntN(3_000) > 0 && len(priorityOf) > 0 {
			get()
		}
	}
	for len(priorityOf) > 0 {
		get()
	}
	if n := q.Len(); n != 0 {
		t.Errorf("%d keys are left, want none", n)
	}
}
