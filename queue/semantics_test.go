package queue_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// tester takes the keys that a test expects, and never waits for a key, because time would
// pass in the bubble.
type tester struct {
	*testing.T
	*queue.Queue[string]
}

func (q tester) take(want string) int {
	q.Helper()
	synctest.Wait()
	if q.Len() == 0 {
		q.Fatalf("no key is ready, want %q", want)
	}
	key, priority, _ := q.GetWithPriority()
	if key != want {
		q.Fatalf("got %q, want %q", key, want)
	}
	return priority
}

func (q tester) takeAt(want string, priority int) {
	q.Helper()
	if got := q.take(want); got != priority {
		q.Fatalf("priority of %q: got %d, want %d", want, got, priority)
	}
}

func (q tester) run(keys ...string) {
	q.Helper()
	for _, key := range keys {
		q.take(key)
		q.Done(key)
	}
}

func (q tester) none() {
	q.Helper()
	synctest.Wait()
	if n := q.Len(); n != 0 {
		key, _ := q.Get()
		q.Fatalf("%d keys are ready, the first is %q, want none", n, key)
	}
}

// gone fails the test if the queue holds a key, now or later.
func (q tester) gone() {
	q.Helper()
	time.Sleep(time.Hour)
	q.none()
	if keys := q.Pending(); len(keys) > 0 {
		q.Fatalf("the queue holds %v, want nothing", keys)
	}
}

// TestSemantics proves Q6.
func TestSemantics(t *testing.T) {
	with := func(priority int) controllerkit.AddOptions { return controllerkit.AddOptions{Priority: priority} }
	for _, tc := range []struct {
		name string
		run  func(q tester)
	}{
		{"first come first served", func(q tester) {
			q.Add("a")
			q.Add("b")
			q.Add("c")
			q.run("a", "b", "c")
		}},
		{"a ready key is handed out once, in its place", func(q tester) {
			q.Add("a")
			q.Add("b")
			q.Add("a")
			q.run("a", "b")
		}},
		{"a running key runs once more after Done", func(q tester) {
			q.Add("a")
			q.take("a")
			q.Add("a")
			q.Add("a")
			q.none()
			q.Done("a")
			q.run("a")
		}},
		{"a key that runs again goes to the end", func(q tester) {
			q.Add("a")
			q.take("a")
			q.Add("a")
			q.Add("b")
			q.Done("a")
			q.run("b", "a")
		}},
		{"Done of a key that is ready, delayed or not there does nothing", func(q tester) {
			q.Add("a")
			q.AddAfter("b", time.Second)
			q.Done("a")
			q.Done("b")
			q.Done("c")
			q.run("a")
			time.Sleep(time.Second)
			q.run("b")
		}},
		{"Done twice does nothing the second time", func(q tester) {
			q.Add("a")
			q.take("a")
			q.Add("a")
			q.Done("a")
			q.Done("a")
			q.run("a")
		}},

		{"AddAfter adds when its time has come", func(q tester) {
			q.AddAfter("a", time.Second)
			time.Sleep(time.Second - 1)
			q.none()
			time.Sleep(time.Nanosecond)
			q.run("a")
		}},
		{"AddAfter without a delay adds at once", func(q tester) {
			q.AddAfter("a", 0)
			q.AddAfter("b", -time.Second)
			q.run("a", "b")
		}},
		{"delays end in the order of their times", func(q tester) {
			for i := range 50 {
				q.AddAfter(fmt.Sprint(i*37%50), time.Duration(i*37%50+1)*time.Second)
			}
			for i := range 50 {
				time.Sleep(time.Second)
				q.run(fmt.Sprint(i))
				q.none()
			}
		}},
		{"equal delays end in the order in which they were asked for", func(q tester) {
			for i := range 20 {
				q.AddAfter(fmt.Sprint(i), time.Second)
			}
			time.Sleep(time.Second)
			for i := range 20 {
				q.run(fmt.Sprint(i))
			}
		}},
		{"the earlier of two times wins", func(q tester) {
			q.AddAfter("a", 10*time.Second)
			q.AddAfter("b", 10*time.Second)
			q.AddAfter("a", 2*time.Second)
			q.AddAfter("a", 5*time.Second)
			time.Sleep(2 * time.Second)
			q.run("a")
			q.none()
			time.Sleep(8 * time.Second)
			q.run("b")
		}},
		{"Add cancels a delay", func(q tester) {
			q.AddAfter("a", time.Second)
			q.Add("a")
			q.run("a")
		}},
		{"a ready key takes no delay", func(q tester) {
			q.Add("a")
			q.AddAfter("a", time.Second)
			q.AddRateLimited("a")
			q.run("a")
		}},
		{"a delay that passed while the key ran is over at Done", func(q tester) {
			q.Add("a")
			q.take("a")
			q.AddAfter("a", time.Second)
			time.Sleep(time.Minute)
			q.none()
			q.Done("a")
			if n := q.Len(); n != 1 { // before any timer could fire
				q.Fatalf("%d keys are ready right after Done, want 1", n)
			}
			q.run("a")
		}},
		{"a delay counts from the call while the key runs too", func(q tester) {
			q.Add("a")
			q.take("a")
			q.AddAfter("a", 10*time.Second)
			time.Sleep(4 * time.Second)
			q.Done("a")
			q.none()
			time.Sleep(6*time.Second - 1)
			q.none()
			time.Sleep(time.Nanosecond)
			q.run("a")
		}},
		{"Add before a delay wins while the key runs", func(q tester) {
			q.Add("a")
			q.take("a")
			q.Add("a")
			q.AddAfter("a", 10*time.Second)
			q.Done("a")
			q.run("a")
		}},
		{"Add after a delay wins while the key runs", func(q tester) {
			q.Add("a")
			q.take("a")
			q.AddAfter("a", 10*time.Second)
			q.Add("a")
			q.Done("a")
			q.run("a")
		}},
		{"the earlier of two times wins while the key runs", func(q tester) {
			q.Add("a")
			q.take("a")
			q.AddAfter("a", 5*time.Second)
			q.AddAfter("a", 9*time.Second)
			q.AddAfter("a", 2*time.Second)
			q.Done("a")
			time.Sleep(2 * time.Second)
			q.run("a")
		}},
		{"the longest delay there is does not overflow", func(q tester) {
			q.AddAfter("a", math.MaxInt64)
			q.AddAfter("b", time.Second)
			time.Sleep(time.Second)
			q.run("b")
			q.Add("a")
			q.run("a")
		}},

		{"AddRateLimited waits for the limiter, longer each time", func(q tester) {
			for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
				q.AddRateLimited("a")
				time.Sleep(want - 1)
				q.none()
				time.Sleep(time.Nanosecond)
				q.run("a")
			}
			if got := q.NumRequeues("a"); got != 3 {
				q.Fatalf("NumRequeues: got %d, want 3", got)
			}
			q.Forget("a")
			if got := q.NumRequeues("a"); got != 0 {
				q.Fatalf("NumRequeues after Forget: got %d, want 0", got)
			}
			q.AddRateLimited("a")
			time.Sleep(time.Second)
			q.run("a")
		}},
		{"AddWith takes the longer of After and the limiter's delay", func(q tester) {
			q.AddWith(controllerkit.AddOptions{After: 10 * time.Second, RateLimited: true}, "a")
			q.AddWith(controllerkit.AddOptions{After: time.Millisecond, RateLimited: true}, "b")
			time.Sleep(time.Second - 1)
			q.none()
			time.Sleep(time.Nanosecond)
			q.run("b")
			time.Sleep(9*time.Second - 1)
			q.none()
			time.Sleep(time.Nanosecond)
			q.run("a")
		}},

		{"higher priority first", func(q tester) {
			q.AddWith(with(-1), "low")
			q.Add("normal")
			q.AddWith(with(7), "high")
			q.takeAt("high", 7)
			q.takeAt("normal", 0)
			q.takeAt("low", -1)
			for _, key := range []string{"high", "normal", "low"} {
				q.Done(key)
			}
		}},
		{"AddWith raises a ready key and never lowers it", func(q tester) {
			q.Add("a")
			q.Add("b")
			q.AddWith(with(5), "b")
			q.AddWith(with(-5), "a", "b")
			q.takeAt("b", 5)
			q.takeAt("a", 0)
			q.Done("a")
			q.Done("b")
		}},
		{"Add raises a key of low priority", func(q tester) {
			q.AddWith(with(-100), "a", "b")
			q.Add("b")
			q.takeAt("b", 0)
			q.takeAt("a", -100)
			q.Done("a")
			q.Done("b")
		}},
		{"AddWith raises a delayed key and keeps its time", func(q tester) {
			q.AddAfter("a", time.Second)
			q.AddWith(controllerkit.AddOptions{Priority: 5, After: time.Minute}, "a")
			time.Sleep(time.Second)
			q.takeAt("a", 5)
			q.Done("a")
		}},
		{"AddAfter keeps the priority of a delayed key", func(q tester) {
			q.AddWith(controllerkit.AddOptions{Priority: -5, After: time.Minute}, "a")
			q.AddAfter("a", time.Second)
			time.Sleep(time.Second)
			q.takeAt("a", -5)
			q.Done("a")
		}},
		{"retries keep the priority", func(q tester) {
			for _, priority := range []int{-100, 7} {
				q.AddWith(with(priority), "a")
				q.takeAt("a", priority)
				q.AddRateLimited("a")
				q.Done("a")
				time.Sleep(time.Second)
				q.takeAt("a", priority)
				q.AddAfter("a", time.Second)
				q.Done("a")
				time.Sleep(time.Second)
				q.takeAt("a", priority)
				q.Done("a") // not added again: the priority ends
				q.Add("a")
				q.takeAt("a", 0)
				q.Forget("a")
				q.Done("a")
			}
		}},
		{"Forget ends the priority of a running key", func(q tester) {
			q.AddWith(with(7), "a")
			q.takeAt("a", 7)
			q.Forget("a")
			q.AddAfter("a", time.Second)
			q.Done("a")
			time.Sleep(time.Second)
			q.takeAt("a", 0)
			q.Done("a")
		}},
		{"after Forget an add without a priority gives 0 beside one of less", func(q tester) {
			q.AddWith(controllerkit.AddOptions{Priority: 7}, "a")
			q.takeAt("a", 7)
			q.AddWith(controllerkit.AddOptions{Priority: -100}, "a")
			q.AddAfter("a", 0)
			q.Forget("a")
			q.Done("a")
			q.takeAt("a", 0)
			q.AddWith(controllerkit.AddOptions{Priority: -100}, "a")
			q.Forget("a")
			q.Done("a")
			q.takeAt("a", -100)
			q.Done("a")
		}},
		{"Forget does not end what was asked for since Get", func(q tester) {
			q.AddWith(with(7), "a")
			q.take("a")
			q.AddWith(with(3), "a")
			q.Forget("a")
			q.Done("a")
			q.takeAt("a", 3)
			q.Forget("a")
			q.AddWith(with(-100), "a")
			q.Done("a")
			q.takeAt("a", -100)
			q.Done("a")
		}},
		{"Forget of a key that does not run leaves its priority", func(q tester) {
			q.AddWith(with(7), "a")
			q.Forget("a")
			q.takeAt("a", 7)
			q.Done("a")
		}},
		{"an add with a priority while a key runs replaces the key's", func(q tester) {
			q.AddWith(with(7), "a")
			q.takeAt("a", 7)
			q.AddWith(controllerkit.AddOptions{Priority: -100, RateLimited: true}, "a")
			q.Done("a")
			time.Sleep(time.Second)
			q.takeAt("a", -100)
			q.AddRateLimited("a") // keeps -100
			q.AddWith(with(-200), "a")
			q.Done("a")
			q.takeAt("a", -100)
			q.AddWith(with(-200), "a")
			q.AddWith(with(-150), "a")
			q.Done("a")
			q.takeAt("a", -150)
			q.Done("a")
		}},
		{"an event while a key of low priority runs raises it", func(q tester) {
			q.AddWith(with(-100), "a")
			q.take("a")
			q.Add("a")
			q.Done("a")
			q.takeAt("a", 0)
			q.Done("a")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := tester{t, queue.New(queue.Config[string]{
					RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute),
				})}
				tc.run(q)
				q.gone()
			})
		})
	}
}
