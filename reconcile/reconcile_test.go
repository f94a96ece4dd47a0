package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/reconcile"
)

type (
	controller = reconcile.Controller[string]
	queueOf    = workqueue.TypedRateLimitingInterface[string]
)

func TestMisuse(t *testing.T) {
	fn := returning(reconcile.Result{}, nil)
	valid := func() *controller { return &controller{Name: "x", Queue: newTestQueue(), Reconcile: fn} }
	tests := []struct {
		name string
		edit func(*controller)
		want []string
	}{
		{"Name", func(c *controller) { c.Name = "" }, []string{"Controller.Name is empty: set it"}},
		{"Queue", func(c *controller) { c.Queue = nil }, []string{"Controller.Queue is nil: set it"}},
		{"nil pointer as Queue", func(c *controller) { c.Queue = (*testQueue)(nil) }, []string{"Controller.Queue is nil: set it"}},
		{"Reconcile", func(c *controller) { c.Reconcile = nil }, []string{"Controller.Reconcile is nil: set it"}},
		{"Workers", func(c *controller) { c.Workers = -1 }, []string{"Controller.Workers is -1: set it to 1 or more"}},
		{"Timeout", func(c *controller) { c.Timeout = -1 }, []string{"Controller.Timeout is -1ns: set it to a positive duration"}},
		{"GracePeriod", func(c *controller) { c.GracePeriod = -1 }, []string{"Controller.GracePeriod is -1ns: set it to a positive duration"}},
		{"StallTimeout", func(c *controller) { c.StallTimeout = -1 }, []string{"Controller.StallTimeout is -1ns: set it to a positive duration"}},
		{"MaxAttempts", func(c *controller) { c.MaxAttempts = -1 }, []string{"Controller.MaxAttempts is -1: set it to 1 or more"}},
		{"Resync", func(c *controller) { c.Resync, c.Keys = time.Second-1, func() []string { return nil } }, []string{"Controller.Resync is 999.999999ms: set it to 1s or more"}},
		{"negative Resync", func(c *controller) { c.Resync = -time.Second }, []string{"Controller.Resync is -1s: set it to 1s or more"}},
		{"Resync without Keys", func(c *controller) { c.Resync = time.Second }, []string{"Controller.Keys is nil although Resync is 1s"}},
		{"Keys without Resync", func(c *controller) { c.Keys = func() []string { return nil } }, []string{"Controller.Resync is 0 although Keys is set"}},
		{"HasSynced", func(c *controller) { c.HasSynced = []cache.DoneChecker{nil} }, []string{"Controller.HasSynced[0] is nil: set it"}},
		{"nil channel in HasSynced", func(c *controller) { c.HasSynced = []cache.DoneChecker{checker(nil)} }, []string{"Controller.HasSynced[0] is nil: set it"}},
		{"all at once", func(c *controller) { *c = controller{Workers: -1} }, []string{"Name", "Queue", "Reconcile", "Workers"}},
		{"queue shut down", func(c *controller) { c.Queue.ShutDown() }, []string{`"x"`, "Queue is shut down already: give each Run a new queue"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := valid()
			tt.edit(c)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // a Run that does start returns nil
			err := c.Run(ctx)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "reconcile: ") {
					t.Errorf("Run() = %v, want an error with %q", err, want)
				}
			}
		})
	}
	if err := ended(valid()); err != nil {
		t.Errorf("Run() of a valid controller = %v, want nil", err)
	}
}

// ended runs c with a context that is done.
func ended(c *controller) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return c.Run(ctx)
}

// TestLoop: keys are handled, a failed one again by the rate limiter, and a
// success forgets its failures. This is with the queue of client-go itself.
func TestLoop(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		fails := 2
		rec := &recorder{fn: func(_ context.Context, key string) (reconcile.Result, error) {
			if key == "b" && fails > 0 {
				fails--
				return reconcile.Result{}, errPlain
			}
			return reconcile.Result{}, nil
		}}
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile})
		q.Add("a")
		q.Add("b")
		synctest.Wait()
		if diff := cmp.Diff([]string{"a", "b"}, rec.got()); diff != "" {
			t.Errorf("first calls (-want +got):\n%s", diff)
		}
		if n := q.NumRequeues("b"); n != 1 {
			t.Errorf("failures of b = %d, want 1", n)
		}
		time.Sleep(4 * time.Hour)
		if diff := cmp.Diff([]string{"a", "b", "b", "b"}, rec.got()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		if n := q.NumRequeues("b"); n != 0 {
			t.Errorf("failures of b after its success = %d, want 0", n)
		}
		r.stop()
	})
}

// TestTerminalResetsBackoff: the next event after a terminal error starts with no
// failures on its account, and the attempts of the log start anew.
func TestTerminalResetsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, logs := newTestQueue(), newLogs()
		errs := []error{errPlain, errPlain, errInvalid, errPlain}
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: func(context.Context, string) (reconcile.Result, error) {
			err := errs[0]
			errs = errs[1:]
			return reconcile.Result{}, err
		}})
		var failures []int
		for range 4 {
			q.Add("a")
			synctest.Wait()
			failures = append(failures, q.NumRequeues("a"))
		}
		if diff := cmp.Diff([]int{1, 2, 0, 1}, failures); diff != "" {
			t.Errorf("failures after each call (-want +got):\n%s", diff)
		}
		var attempts []any
		for _, l := range logs.Having("class") {
			attempts = append(attempts, l.Values["attempts"])
		}
		if diff := cmp.Diff([]any{1, 2, 3, 1}, attempts); diff != "" {
			t.Errorf("attempts logged (-want +got):\n%s", diff)
		}
		r.stop()
	})
}

// TestWorkers: as many keys run at once as there are workers, and never one key
// twice at a time.
func TestWorkers(t *testing.T) {
	for _, workers := range []int{0, 1, 3} {
		bothQueues(t, func(t *testing.T, q queueOf) {
			var mu sync.Mutex
			now, most, byKey := 0, 0, map[string]int{}
			c := &controller{Name: "x", Queue: q, Workers: workers, Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
				mu.Lock()
				now++
				most = max(most, now)
				if byKey[key]++; byKey[key] > 1 {
					t.Errorf("key %s runs twice at once", key)
				}
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				now--
				byKey[key]--
				return reconcile.Result{}, nil
			}}
			r := start(t, t.Context(), c)
			for range 5 {
				for _, key := range []string{"a", "b", "c", "d"} {
					q.Add(key)
				}
				time.Sleep(1500 * time.Millisecond)
			}
			r.stop()
			if want := max(workers, 1); most != want {
				t.Errorf("Workers %d: %d keys ran at once, want %d", workers, most, want)
			}
		})
	}
}

// TestContextOfCall: it has the values of Run's context, a logger with controller and key,
// and ends with the call.
func TestContextOfCall(t *testing.T) {
	type valueKey struct{}
	for _, timeout := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			logs := newLogs()
			var seen context.Context
			c := &controller{Name: "x", Queue: newTestQueue("a"), Timeout: timeout, Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
				seen = ctx
				klog.FromContext(ctx).Info("Hello", "own", 1)
				return reconcile.Result{}, ctx.Err()
			}}
			r := start(t, context.WithValue(logs.Context(t.Context()), valueKey{}, 7), c)
			if got := seen.Value(valueKey{}); got != 7 {
				t.Errorf("value in the call's context = %v, want 7", got)
			}
			if seen.Err() == nil {
				t.Errorf("context goes on after the call, want it done")
			}
			hello := logs.Find("Hello")
			if len(hello) != 1 {
				t.Fatalf("%d lines from the call's logger, want 1", len(hello))
			}
			want := map[string]any{"controller": "x", "key": "a", "own": 1}
			if diff := cmp.Diff(want, hello[0].Values); diff != "" {
				t.Errorf("values of the call's logger (-want +got):\n%s", diff)
			}
			r.stop()
		})
	}
}

// TestPanic proves R2.
func TestPanic(t *testing.T) {
	var nilMap map[string]int
	tests := []struct {
		name  string
		panic func()
		want  string
	}{
		{"value", func() { panic("boom") }, "reconcile: panic: boom"},
		{"nil", func() { panic(nil) }, "reconcile: panic: panic called with nil argument"},
		{"runtime error", func() { nilMap["x"] = 1 }, "reconcile: panic: assignment to entry in nil map"},
		{"conflict", func() { panic(errConflict) }, "reconcile: panic: Operation cannot be fulfilled"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bothQueues(t, func(t *testing.T, q queueOf) {
				logs, metrics := newLogs(), &counts{}
				rec := &recorder{}
				first := true
				rec.fn = func(_ context.Context, key string) (reconcile.Result, error) {
					if key == "bad" && first {
						first = false
						tt.panic()
					}
					return reconcile.Result{}, nil
				}
				q.Add("bad")
				q.Add("good")
				r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, Metrics: metrics})
				time.Sleep(2 * time.Hour)
				if diff := cmp.Diff([]string{"bad", "good", "bad"}, rec.got()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff([]string{"panic", "success", "success"}, metrics.results()); diff != "" {
					t.Errorf("results (-want +got):\n%s", diff)
				}
				lines := logs.Find("Reconcile failed")
				if len(lines) != 1 || !strings.HasPrefix(lines[0].Err.Error(), tt.want) {
					t.Fatalf("logged %v, want one error %q", lines, tt.want)
				}
				if stack := fmt.Sprint(lines[0].Values["stack"]); !strings.Contains(stack, "TestPanic") {
					t.Errorf("stack in the log does not show where the panic was:\n%s", stack)
				}
				r.stop()
			})
		})
	}
}

func TestTimeout(t *testing.T) {
	tests := []struct {
		name string
		fn   reconcile.Func[string]
		want string
	}{
		{"returns the context's error", func(ctx context.Context, _ string) (reconcile.Result, error) {
			<-ctx.Done()
			return reconcile.Result{}, ctx.Err()
		}, "timeout"},
		{"returns the cause", func(ctx context.Context, _ string) (reconcile.Result, error) {
			<-ctx.Done()
			return reconcile.Result{}, context.Cause(ctx)
		}, "timeout"},
		{"returns an error of its own", func(ctx context.Context, _ string) (reconcile.Result, error) {
			<-ctx.Done()
			return reconcile.Result{}, errors.New("rpc error: code = DeadlineExceeded")
		}, "timeout"},
		{"returns an error of another class", func(ctx context.Context, _ string) (reconcile.Result, error) {
			<-ctx.Done()
			return reconcile.Result{}, errNotFound
		}, "not_found"},
		{"succeeds late", func(ctx context.Context, _ string) (reconcile.Result, error) {
			<-ctx.Done()
			return reconcile.Result{}, nil
		}, "success"},
		{"fails in time", returning(reconcile.Result{}, errPlain), "error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				metrics := &counts{}
				var cause error
				c := &controller{Name: "x", Queue: newTestQueue("a"), Metrics: metrics, Timeout: 30 * time.Second,
					Reconcile: func(ctx context.Context, key string) (reconcile.Result, error) {
						res, err := tt.fn(ctx, key)
						cause = context.Cause(ctx)
						return res, err
					}}
				r := start(t, t.Context(), c)
				time.Sleep(time.Minute)
				if diff := cmp.Diff([]string{tt.want}, metrics.results()); diff != "" {
					t.Errorf("results (-want +got):\n%s", diff)
				}
				if tt.name != "fails in time" {
					if metrics.took[0] != 30*time.Second {
						t.Errorf("call took %v, want the Timeout of 30s", metrics.took[0])
					}
					if want := "reconcile: timeout of 30s is over"; cause == nil || !strings.HasPrefix(cause.Error(), want) || !errors.Is(cause, context.DeadlineExceeded) {
						t.Errorf("cause of the call's context = %v, want %q and context.DeadlineExceeded", cause, want)
					}
				}
				r.stop()
			})
		})
	}
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := &counts{}
		rec := &recorder{fn: func(_ context.Context, key string) (reconcile.Result, error) {
			time.Sleep(3 * time.Second)
			switch key {
			case "b":
				return reconcile.Result{RequeueAfter: time.Hour}, nil
			case "c":
				panic("boom")
			}
			return reconcile.Result{}, nil
		}}
		synced := make(checker)
		r := start(t, t.Context(), &controller{Name: "x", Queue: newTestQueue("a", "b", "c"), Reconcile: rec.reconcile, Metrics: metrics, HasSynced: []cache.DoneChecker{synced}})
		if diff := cmp.Diff([]string{"x workers 1"}, metrics.all()); diff != "" {
			t.Errorf("events before the caches are synced (-want +got):\n%s", diff)
		}
		close(synced)
		time.Sleep(time.Minute)
		r.stop()
		want := []string{"x workers 1", "x started", "x success", "x started", "x requeue", "x started", "x panic", "x workers 0"}
		if diff := cmp.Diff(want, metrics.all()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]time.Duration{3e9, 3e9, 3e9}, metrics.took); diff != "" {
			t.Errorf("durations (-want +got):\n%s", diff)
		}
	})
}

func TestPriority(t *testing.T) {
	tests := []struct {
		name string
		res  reconcile.Result
		err  error
		want call
	}{
		{"kept by a requeue", reconcile.Result{RequeueAfter: time.Minute}, nil, call{Priority: -100, After: time.Minute}},
		{"kept by a time that is over", reconcile.Result{RequeueAfter: -time.Minute}, nil, call{Priority: -100}},
		{"kept by a failure", reconcile.Result{}, errPlain, call{Priority: -100, Limited: true}},
		{"kept by a failure next to a time that is over", reconcile.Result{RequeueAfter: -time.Minute}, errPlain, call{Priority: -100, Limited: true}},
		{"set by a requeue", reconcile.Result{RequeueAfter: time.Minute, Priority: ptr.To(5)}, nil, call{Priority: 5, After: time.Minute}},
		{"raised by a failure", reconcile.Result{Priority: ptr.To(0)}, errPlain, call{Priority: 0, Limited: true}},
		{"lowered by a failure", reconcile.Result{Priority: ptr.To(-200)}, errPlain, call{Priority: -200, Limited: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue()
				q.AddWith(addOptions{Priority: -100}, "a")
				q.take()
				r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: returning(tt.res, tt.err)})
				tt.want.Op, tt.want.Key = "Add", "a"
				if got := q.take(); !slices.Contains(got, tt.want) {
					t.Errorf("queue calls = %+v, want %+v among them", got, tt.want)
				}
				r.stop()
			})
		})
	}
}

// priorityQueue is a queue with GetWithPriority and AddWith but no GetContext.
type priorityQueue struct {
	queueOf
	with []addOptions
}

func (q *priorityQueue) GetWithPriority() (string, int, bool) {
	key, shutdown := q.Get()
	return key, 42, shutdown
}

func (q *priorityQueue) AddWith(o addOptions, _ ...string) { q.with = append(q.with, o) }

func TestPriorityWithoutGetContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &priorityQueue{queueOf: newClientGoQueue()}
		q.Add("a")
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: returning(reconcile.Result{RequeueAfter: time.Minute}, nil)})
		if diff := cmp.Diff([]addOptions{{Priority: 42, After: time.Minute}}, q.with); diff != "" {
			t.Errorf("AddWith calls (-want +got):\n%s", diff)
		}
		r.stop()
	})
}

// checker is a DoneChecker that is done when closed.
type checker chan struct{}

func (c checker) Name() string          { return "the checker" }
func (c checker) Done() <-chan struct{} { return c }

// TestHasSynced tests that if a checker of HasSynced is not done, no call starts.
func TestHasSynced(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		rec := &recorder{}
		q.Add("a")
		informer, handler := make(checker), make(checker)
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, HasSynced: []cache.DoneChecker{informer, handler}})
		began := time.Now()
		close(informer)
		synctest.Wait()
		if got := rec.got(); len(got) != 0 {
			t.Errorf("calls while one of two is not synced: %v, want none", got)
		}
		close(handler)
		synctest.Wait()
		if diff := cmp.Diff([]string{"a"}, rec.got()); diff != "" {
			t.Errorf("calls when synced (-want +got):\n%s", diff)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the wait took %v of virtual time, want 0: it polls", waited)
		}
		r.stop()
	})
}

func TestHasSyncedIsEndedByContext(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		rec, logs := &recorder{}, newLogs()
		q.Add("a")
		synced := make(checker)
		close(synced)
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, HasSynced: []cache.DoneChecker{synced, make(checker), synced}})
		r.stop()
		if got := rec.got(); len(got) != 0 {
			t.Errorf("calls without sync: %v, want none", got)
		}
		lines := logs.Find("Stopped before the caches were synced")
		if len(lines) != 1 || fmt.Sprint(lines[0].Values["caches"]) != "[the checker]" {
			t.Errorf("logged %v, want a line that names the one checker", lines)
		}
	})
}

// TestHasSyncedIsSlow: one line names what Run waits for, and a usual start has none.
func TestHasSyncedIsSlow(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		rec, logs := &recorder{}, newLogs()
		q.Add("a")
		synced := make(checker)
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: rec.reconcile, HasSynced: []cache.DoneChecker{synced}})
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if lines := logs.Find("Waiting for the caches"); len(lines) != 0 {
			t.Errorf("logged %v, want nothing before 10s", lines)
		}
		time.Sleep(time.Minute)
		close(synced)
		synctest.Wait()
		r.stop()
		lines := logs.Find("Waiting for the caches")
		if len(lines) != 1 || fmt.Sprint(lines[0].Values["caches"]) != "[the checker]" {
			t.Errorf("logged %v, want one line that names the checker", lines)
		}
		if got := rec.got(); len(got) != 1 {
			t.Errorf("calls: %v, want one", got)
		}
	})
}

type gateKey struct{}

// TestForbiddenNamesWhatIsDenied: the log has the resource, for whoever writes the
// missing role.
func TestForbiddenNamesWhatIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := newLogs()
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: newTestQueue("a"), Reconcile: returning(reconcile.Result{}, fmt.Errorf("create: %w", errForbidden))})
		lines := logs.Find("Reconcile failed")
		if len(lines) != 1 {
			t.Fatalf("logged %v, want one line", lines)
		}
		v := lines[0].Values
		if v["deniedResource"] != "configmaps" || v["deniedName"] != "a" || v["deniedGroup"] != "" || !errors.Is(lines[0].Err, errForbidden) {
			t.Errorf("logged %v with %v, want the error and what it denies", lines[0].Err, v)
		}
		r.stop()
	})
}

// TestNothingIsLost stops and starts a controller at random moments over keys
// that fail, panic, wait and are cancelled at random. In the end every key has
// succeeded once after its last event.
//
// Proves R6.
func TestNothingIsLost(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0)) // used by this goroutine only
			var mu sync.Mutex
			asked, done := map[string]int{}, map[string]int{} // by key, generation of the last event and of the last success
			g := newGate()
			work := func(ctx context.Context, key string) (reconcile.Result, error) {
				mu.Lock()
				seen := asked[key]
				mu.Unlock()
				select {
				case <-time.After(rand.N(20 * time.Second)):
				case <-ctx.Done():
					return reconcile.Result{}, ctx.Err()
				}
				switch rand.N(8) {
				case 0:
					return reconcile.Result{}, errPlain
				case 1:
					return reconcile.Result{}, errConflict
				case 2:
					panic("boom")
				case 3:
					g.set(key, true)
					go func() { time.Sleep(rand.N(10 * time.Second)); g.set(key, false) }()
					return reconcile.Result{}, errStale
				case 4:
					return reconcile.Result{RequeueAfter: time.Second}, errDelay
				}
				mu.Lock()
				done[key] = max(done[key], seen)
				mu.Unlock()
				return reconcile.Result{}, nil
			}
			q := newTestQueue()
			c := &controller{Name: "x", Queue: q, Reconcile: work, Gate: g, Workers: 3, GracePeriod: 5 * time.Second}
			event := func() {
				key := fmt.Sprint("key", rng.IntN(8))
				mu.Lock()
				asked[key]++
				mu.Unlock()
				q.Add(key)
			}
			for range 6 {
				r := start(t, t.Context(), c)
				for range rng.IntN(6) {
					event()
					time.Sleep(time.Duration(rng.Int64N(int64(10 * time.Second))))
				}
				r.stop()
				pending := q.Pending()
				mu.Lock()
				for key := range asked {
					if done[key] < asked[key] && !slices.Contains(pending, key) {
						t.Errorf("seed %d: %s has work but is not pending in %v", seed, key, pending)
					}
				}
				mu.Unlock()
				event() // while nobody runs
			}
			r := start(t, t.Context(), c)
			time.Sleep(1000 * time.Hour)
			r.stop()
			if diff := cmp.Diff(asked, done); diff != "" {
				t.Errorf("seed %d: generations (-asked +done):\n%s", seed, diff)
			}
		})
	}
}

// TestRunLeavesNoGoroutine looks for any that runs code of the package.
//
// Proves R8.
func TestRunLeavesNoGoroutine(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		goroutines := func() int {
			synctest.Wait() // one that was waited for still takes a moment to be gone
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			n := 0
			for stack := range strings.SplitSeq(string(stacks), "\n\n") {
				if strings.Contains(stack, "controllerkit/reconcile.(*") {
					n++
				}
			}
			return n
		}
		q.Add("a")
		r := start(t, t.Context(), &controller{Name: "x", Queue: q, Workers: 4, Reconcile: returning(reconcile.Result{}, nil)})
		if n := goroutines(); n != 6 {
			t.Errorf("%d goroutines while 4 workers run, want those, the supervisor and Run's: this test looks for the wrong thing", n)
		}
		r.stop()
		if n := goroutines(); n != 0 {
			t.Errorf("%d goroutines after Run, want 0", n)
		}
	})
}

// TestRunWaitsForItsSupervisor: one that is busy when the last worker ends is
// waited for like the workers.
func TestRunWaitsForItsSupervisor(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		logs := newLogs()
		logs.Hook = func(message string) {
			if message == "Stopping controller" {
				time.Sleep(time.Minute)
			}
		}
		r := start(t, logs.Context(t.Context()), &controller{Name: "x", Queue: q, Reconcile: returning(reconcile.Result{}, nil)})
		began := time.Now()
		r.stop()
		if took := time.Since(began); took != time.Minute {
			t.Errorf("Run returned %v after the stop, want 1m: its goroutine was still running", took)
		}
	})
}
