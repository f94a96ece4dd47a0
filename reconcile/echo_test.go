package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// writer is a controller whose calls write, a Gate that knows of it as a consistency.Store does, and
// the events of its object, which come when the test asks.
type writer struct {
	*controller
	t     *testing.T
	queue *queue.Queue[string]

	mu      sync.Mutex
	began   time.Time
	version int             // the newest one of the object
	calls   []time.Duration // since the beginning
	reasons [][]string
	waits   bool // the Gate waits
	wake    func()
	live    bool // the contexts of the Gate have LiveRead
	fn      func(ctx context.Context) (reconcile.Result, error)
}

func newWriter(t *testing.T, fn func(ctx context.Context, w *writer) (reconcile.Result, error)) *writer {
	w := &writer{t: t, queue: queue.New(queue.Config[string]{}), version: 1, began: time.Now()}
	w.fn = func(ctx context.Context) (reconcile.Result, error) { return fn(ctx, w) }
	w.controller = &controller{Name: "x", Queue: w.queue, Gate: w}
	w.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
		if key != "a" {
			return reconcile.Result{}, nil
		}
		w.mu.Lock()
		w.calls = append(w.calls, time.Since(w.began))
		w.reasons = append(w.reasons, reconcile.Triggers(ctx))
		w.mu.Unlock()
		return w.fn(ctx)
	}
	return w
}

func (w *writer) Begin(ctx context.Context, _ string) context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	return context.WithValue(ctx, calls.LiveRead{}, w.live)
}

func (w *writer) Ready(_ string, wake func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits {
		w.wake = wake
	}
	return !w.waits
}

func (w *writer) End(string) {}

// write writes the object with the context of a call, and returns the version.
func (w *writer) write(ctx context.Context) int {
	observer, _ := ctx.Value(calls.Versions{}).(calls.VersionObserver)
	observer.Sending()
	version := w.put()
	observer.Answered(calls.Version{UID: "u", Version: fmt.Sprint(version), Status: true})
	return version
}

// put makes a version.
func (w *writer) put() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version++
	return w.version
}

// event reports an update to a version.
func (w *writer) event(version int, keys ...string) {
	object := func(version int) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", ResourceVersion: fmt.Sprint(version)}}
	}
	if len(keys) == 0 {
		keys = []string{"a"}
	}
	w.Source("widgets").AddEvent(controllerkit.Event{Kind: "update", Old: object(version - 1), Object: object(version)}, addOptions{}, keys...)
}

// got returns the seconds at which calls began.
func (w *writer) got() (seconds []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		seconds = append(seconds, int(c.Seconds()))
	}
	return seconds
}

// TestEchoConfirms: after a success the events of the call's writes run the key once, when the gate
// lets it, and those that come later do not.
//
// It proves R13.
func TestEchoConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(t, func(ctx context.Context, w *writer) (reconcile.Result, error) {
			if len(w.got()) == 1 {
				for range 3 {
					w.write(ctx)
				}
				w.event(2)
			}
			return reconcile.Result{}, nil
		})
		r := start(t, t.Context(), w.controller)
		w.mu.Lock()
		w.waits = true
		w.mu.Unlock()
		w.event(1)
		synctest.Wait()
		w.waits = false
		time.Sleep(time.Second)
		w.wake() // the first call
		synctest.Wait()
		w.waits = true
		time.Sleep(time.Second)
		w.event(3)
		time.Sleep(time.Second)
		w.waits = false
		if w.wake != nil {
			w.wake()
		}
		synctest.Wait()
		w.event(4) // the handler is behind the store
		time.Sleep(time.Hour)
		w.event(5) // another's
		time.Sleep(time.Hour)
		r.stop()
		if len(w.got()) != 3 {
			t.Errorf("calls at %vs, want the first, one that confirms it, and one for another's write", w.got())
		}
		if diff := cmp.Diff([][]string{{"widgets update"}, {"echo"}, {"widgets update"}}, w.reasons); diff != "" {
			t.Errorf("triggers (-want +got):\n%s", diff)
		}
	})
}

// TestEchoAfterFailure: after a failure a key's own writes do not run it before its deadline, so a
// Func that writes something new at each failure backs off. An event of another runs it.
//
// It proves R13.
func TestEchoAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(t, func(ctx context.Context, w *writer) (reconcile.Result, error) {
			version := w.write(ctx)
			time.AfterFunc(time.Millisecond, func() { w.event(version) })
			return reconcile.Result{}, errPlain
		})
		r := start(t, t.Context(), w.controller)
		w.event(1)
		time.Sleep(40 * time.Second)
		if n := len(w.got()); n < 10 || n > 15 {
			t.Errorf("%d calls in 40s, want 10 to 15, as without a write", n)
		}
		before := len(w.got())
		w.event(w.put())
		synctest.Wait()
		if n := len(w.got()) - before; n != 1 {
			t.Errorf("%d calls at once after another's write, want 1", n)
		}
		r.stop()
	})
}

// TestEchoAfterTerminal: after a terminal error, and of a parked key, an own write runs the key after
// 10 to 15 minutes, because another's may be hidden behind it.
//
// It proves R12 and R13.
func TestEchoAfterTerminal(t *testing.T) {
	for name, err := range map[string]error{"terminal": reconcile.ErrTerminal, "parked": errPlain} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWriter(t, func(ctx context.Context, w *writer) (reconcile.Result, error) {
					if len(w.got()) == 1 {
						version := w.write(ctx)
						time.AfterFunc(time.Millisecond, func() { w.event(version) })
					}
					return reconcile.Result{}, err
				})
				w.MaxAttempts = 1
				r := start(t, t.Context(), w.controller)
				w.event(1)
				time.Sleep(3 * time.Hour)
				r.stop()
				if got := w.got(); len(got) != 2 || got[1] < 600 || got[1] > 900 {
					t.Errorf("calls at %vs, want one at 0s and one at 600s to 900s", got)
				}
			})
		})
	}
}

// TestEchoBeforeResponse: events that come before the response of a write are judged at the end of
// the call: one of another runs the key then, with its reason, and counts for the latency.
//
// It proves R12.
func TestEchoBeforeResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := &counts{}
		w := newWriter(t, func(ctx context.Context, w *writer) (reconcile.Result, error) {
			if len(w.got()) > 1 {
				return reconcile.Result{}, nil
			}
			observer := ctx.Value(calls.Versions{}).(calls.VersionObserver)
			observer.Sending()
			own, other := w.put(), w.put()
			w.event(own)
			w.event(other)
			time.Sleep(time.Second)
			observer.Answered(calls.Version{UID: "u", Version: fmt.Sprint(own)})
			time.Sleep(time.Second)
			return reconcile.Result{RequeueAfter: time.Hour}, errPlain
		})
		w.Metrics = metrics
		r := start(t, t.Context(), w.controller)
		w.event(1)
		time.Sleep(time.Minute)
		r.stop()
		if diff := cmp.Diff([]int{0, 2}, w.got()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([][]string{{"widgets update"}, {"widgets update"}}, w.reasons); diff != "" {
			t.Errorf("triggers (-want +got):\n%s", diff)
		}
	})
}

// TestEchoForOthers: what is an own write of one key is another's for other keys, and so are a
// write that outlasts its call, one of a call whose cache did not show the writes before, and all
// of an earlier Run.
//
// It proves R12.
func TestEchoForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late context.Context
		w := newWriter(t, func(ctx context.Context, w *writer) (reconcile.Result, error) {
			if len(w.got()) == 1 {
				w.write(ctx)
				late = ctx
			}
			return reconcile.Result{}, nil
		})
		rec := &recorder{}
		inner := w.Reconcile
		w.Reconcile = func(ctx context.Context, key string) (reconcile.Result, error) {
			_, _ = rec.reconcile(ctx, key)
			return inner(ctx, key)
		}
		r := start(t, t.Context(), w.controller)
		w.event(1)
		synctest.Wait()
		w.event(2, "a", "b")
		synctest.Wait()
		if diff := cmp.Diff([]string{"a", "a", "b"}, sorted(rec.got())); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		w.event(w.write(late))
		synctest.Wait()
		if n := len(w.got()); n != 3 {
			t.Errorf("%d calls after a write that outlasted its call, want 3", n)
		}
		r.stop()
		r = start(t, t.Context(), w.controller)
		w.event(2)
		synctest.Wait()
		r.stop()
		if n := len(w.got()); n != 4 {
			t.Errorf("%d calls after an event of the last Run's write, want 4", n)
		}
	})
}

// TestEchoLiveRead: a call whose cache does not show the writes before it confirms none.
//
// It proves R12.
func TestEchoLiveRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(t, func(ctx context.Context, w *writer) (reconcile.Result, error) {
			if len(w.got()) == 1 {
				w.write(ctx)
			}
			return reconcile.Result{}, nil
		})
		r := start(t, t.Context(), w.controller)
		w.event(1)
		synctest.Wait()
		w.live = true
		w.queue.Add("a")
		synctest.Wait()
		w.live = false
		w.event(2)
		synctest.Wait()
		if n := len(w.got()); n != 3 {
			t.Errorf("%d calls, want one after the cache shows the write", n)
		}
		r.stop()
	})
}

// TestEchoGuarded: an echo that comes while the guard delays the key is not lost.
func TestEchoGuarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stop atomic.Bool
		w := newWriter(t, func(ctx context.Context, w *writer) (reconcile.Result, error) {
			if !stop.Load() {
				w.event(w.write(ctx))
			}
			return reconcile.Result{}, nil
		})
		r := start(t, t.Context(), w.controller)
		w.event(1)
		time.Sleep(time.Minute)
		n := len(w.got())
		if n < 500 || n > 800 {
			t.Errorf("%d calls in a minute of calls that write, want about 700", n)
		}
		stop.Store(true)
		time.Sleep(time.Minute)
		if m := len(w.got()) - n; m < 1 || m > 2 {
			t.Errorf("%d calls after the last write, want one that confirms it", m)
		}
		r.stop()
	})
}

// TestEchoShutDown: with a queue that is shut down, a key whose echo comes with the end of Run is in
// the last line of log.
func TestEchoShutDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := newLogs()
		w := newWriter(t, func(ctx context.Context, w *writer) (reconcile.Result, error) {
			version := w.write(ctx)
			time.Sleep(time.Second)
			w.event(version)
			return reconcile.Result{}, nil
		})
		q := newClientGoQueue()
		w.Queue = q
		r := start(t, logs.Context(t.Context()), w.controller)
		w.event(1)
		synctest.Wait()
		r.stop()
		if lines := logs.Having("keys"); !slices.ContainsFunc(lines, func(l line) bool { return fmt.Sprint(l.Values["keys"]) == "[a]" }) {
			t.Errorf("lines of log with keys: %v, want one with a", lines)
		}
	})
}

// TestNames: which keys name the object of an event.
func TestNames(t *testing.T) {
	check := func(name string, got int) {
		t.Helper()
		if got < 6 {
			t.Errorf("%s: %d calls in the second after a new generation, want 7 or so", name, got)
		}
	}
	object := func(namespace string, generation int64) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a", UID: "u", ResourceVersion: fmt.Sprint(generation), Generation: generation}}
	}
	e := controllerkit.Event{Kind: "update", Old: object("ns", 1), Object: object("ns", 2)}
	check("a NamespacedName", afterGeneration(t, types.NamespacedName{Namespace: "ns", Name: "a"}, e))
	check("a text", afterGeneration(t, "ns/a", e))
	e = controllerkit.Event{Kind: "add", Object: object("", 1)}
	check("a new object without a namespace", afterGeneration(t, types.NamespacedName{Name: "a"}, e))
	check("the text of one", afterGeneration(t, "a", e))
	if got := afterGeneration(t, types.NamespacedName{Namespace: "other", Name: "a"}, controllerkit.Event{Kind: "update", Old: object("ns", 1), Object: object("ns", 2)}); got > 2 {
		t.Errorf("another object: %d calls in the second after its new generation, want 1 and at most one deadline", got)
	}
}

// afterGeneration returns the calls of a key that fails for an hour in the second after an event.
func afterGeneration[K comparable](t *testing.T, key K, e controllerkit.Event) (n int) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		q := queue.New(queue.Config[K]{})
		c := &reconcile.Controller[K]{Name: "x", Queue: q, Reconcile: func(context.Context, K) (reconcile.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			n++
			return reconcile.Result{}, errPlain
		}}
		r := start(t, t.Context(), c)
		q.Add(key)
		time.Sleep(time.Hour)
		mu.Lock()
		n = 0
		mu.Unlock()
		c.Source("widgets").AddEvent(e, addOptions{}, key)
		time.Sleep(time.Second)
		r.stop()
	})
	return n
}
