package reconcile_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/reconcile"
)

// classErrors has an error of each class after which a key runs again.
var classErrors = map[string]error{
	"conflict": errConflict, "server_delay": errDelay, "stale": errStale, "not_found": errNotFound,
	"rejected": errRejected, "forbidden": errForbidden, "timeout": errDeadline, "error": errPlain,
	"panic": &reconcile.PanicError{Value: errPanicValue},
}

// hour has the numbers of the calls of a key in one hour without events.
type hour struct {
	calls   map[string]int // by class
	loud    map[string]int // lines of log that are errors, by class
	limited int            // calls after which the rate limiter decided
	quick   int            // conflicts after which it did not
	failed  int            // the count of the rate limiter
}

// firstHour runs a key whose calls return errors of the classes that next returns.
func firstHour(t *testing.T, next func(n int) string) hour {
	t.Helper()
	h := hour{calls: map[string]int{}, loud: map[string]int{}}
	synctest.Test(t, func(t *testing.T) {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](limiterMin, limiterMax))
		logs, n := newLogs(), 0
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q,
			Reconcile: func(context.Context, string) (reconcile.Result, error) {
				n++
				return reconcile.Result{}, classErrors[next(n)]
			},
		})
		q.Add("a")
		time.Sleep(time.Hour)
		synctest.Wait()
		h.failed = q.NumRequeues("a")
		r.stop()
		for _, line := range logs.Having("class") {
			class := fmt.Sprint(line.Values["class"])
			h.calls[class]++
			if line.Level < 0 {
				h.loud[class]++
			}
			if _, ok := line.Values["retryAfter"]; !ok {
				h.limited++
			} else if class == "conflict" {
				h.quick++
			}
		}
	})
	return h
}

const limiterMin, limiterMax = 5 * time.Millisecond, 1000 * time.Second

// mostLimited is the number of calls that the rate limiter of firstHour lets through in an
// hour: one at once, and one after each of its delays.
func mostLimited() int {
	n := 1
	for delay, sum := limiterMin, time.Duration(0); sum+delay <= time.Hour; n++ {
		sum += delay
		delay = min(2*delay, limiterMax)
	}
	return n
}

// check checks what holds for each sequence of classes.
func (h hour) check(t *testing.T) {
	t.Helper()
	if n := h.calls["rejected"] + h.calls["forbidden"]; n > 15 {
		t.Errorf("%d calls are rejected or forbidden, want at most 15", n)
	}
	for _, class := range []string{"rejected", "forbidden"} {
		if n, want := h.loud[class], (h.calls[class]+9)/10; n != want {
			t.Errorf("%d errors in the log of %d calls of class %s, want %d", n, h.calls[class], class, want)
		}
	}
	if h.quick > 5 {
		t.Errorf("%d conflicts are retried without the rate limiter, want at most 5", h.quick)
	}
	races := h.calls["conflict"] + h.calls["stale"]
	if n, want := h.loud["conflict"]+h.loud["stale"], max(0, races-5); n != want {
		t.Errorf("%d errors in the log of %d conflicts and stale results, want %d", n, races, want)
	}
	if most := mostLimited(); h.limited > most || h.failed != h.limited {
		t.Errorf("%d calls by the rate limiter, which counts %d, want both to be equal and at most %d", h.limited, h.failed, most)
	}
}

// TestAlternation: a key whose calls fail in one class and another by turns backs off like
// one that fails always in the same.
//
// Proves R3, R10.
func TestAlternation(t *testing.T) {
	for _, tt := range []struct {
		classes     []string
		least, most int // calls in the first hour
	}{
		{[]string{"rejected"}, 11, 15},
		{[]string{"forbidden"}, 11, 15},
		{[]string{"rejected", "forbidden"}, 11, 15},
		{[]string{"rejected", "rejected", "forbidden"}, 11, 15},
		{[]string{"rejected", "conflict"}, 22, 30},
		{[]string{"forbidden", "stale"}, 22, 30},
		{[]string{"forbidden", "server_delay"}, 22, 30},
		{[]string{"rejected", "forbidden", "conflict", "stale"}, 22, 60},
		{[]string{"rejected", "error", "forbidden", "timeout"}, 22, 15 + mostLimited()},
		{[]string{"conflict", "stale"}, 20, 2 * (5 + mostLimited())},
		{[]string{"stale", "conflict"}, 20, 2 * (5 + mostLimited())},
		{[]string{"conflict", "not_found"}, 20, 5 + mostLimited()},
		{[]string{"conflict", "server_delay"}, 20, 2 * (5 + mostLimited())},
		{[]string{"conflict", "panic", "stale"}, 20, 3 * (5 + mostLimited())},
	} {
		t.Run(fmt.Sprint(tt.classes), func(t *testing.T) {
			h := firstHour(t, func(n int) string { return tt.classes[(n-1)%len(tt.classes)] })
			h.check(t)
			sum := 0
			for _, n := range h.calls {
				sum += n
			}
			if sum < tt.least || sum > tt.most {
				t.Errorf("%d calls in the first hour, want %d to %d: %v", sum, tt.least, tt.most, h.calls)
			}
		})
	}
}

// TestAnyAlternation: in sequences at random, no class makes another forget its count.
//
// Proves R3, R10.
func TestAnyAlternation(t *testing.T) {
	classes := []string{"conflict", "server_delay", "stale", "not_found", "rejected", "forbidden", "timeout", "error", "panic"}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 22))
		rng.Shuffle(len(classes), func(i, j int) { classes[i], classes[j] = classes[j], classes[i] })
		some := classes[:1+rng.IntN(len(classes))]
		repeat, class := rng.IntN(4), some[0]
		firstHour(t, func(int) string {
			if rng.IntN(1+repeat) == 0 {
				class = some[rng.IntN(len(some))]
			}
			return class
		}).check(t)
		if t.Failed() {
			t.Fatalf("seed %d: classes %v", seed, some)
		}
	}
}

// TestSuccessEndsTheStreak: after a success, conflicts, stale results and rejections count
// from the start.
func TestSuccessEndsTheStreak(t *testing.T) {
	for _, tt := range []struct {
		err error
		max time.Duration
	}{
		{errConflict, 250 * time.Millisecond},
		{errStale, 150 * time.Millisecond},
		{errRejected, 1500 * time.Millisecond},
		{errForbidden, 1500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			logs, calls := newLogs(), 0
			r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: newTestQueue("a"),
				Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
					switch calls++; calls {
					case 9:
						return reconcile.Result{RequeueAfter: time.Second}, nil
					case 11:
						<-ctx.Done()
					}
					return reconcile.Result{}, tt.err
				},
			})
			time.Sleep(24 * time.Hour)
			synctest.Wait()
			lines := logs.Having("class")
			if len(lines) != 10 {
				t.Fatalf("%v: %d calls ended in a day, want 10", tt.err, len(lines))
			}
			if delay, ok := lines[9].Values["retryAfter"].(time.Duration); !ok || delay > tt.max {
				t.Errorf("%v: retried %v after the first failure since a success, want at most %v", tt.err, lines[9].Values["retryAfter"], tt.max)
			}
			r.stop()
		})
	}
}
