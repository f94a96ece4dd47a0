package shutdown_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/shutdown"
)

// TestStopsLastAddedFirstAndWaits proves D1.
func TestStopsLastAddedFirstAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		var g shutdown.Group
		g.Add(j.part("a", time.Second, nil))
		g.Add(j.part("b", 2*time.Second, nil))
		g.Add(j.part("c", 3*time.Second, nil))
		ctx, cancel := context.WithCancelCause(t.Context())
		start := time.Now()
		time.AfterFunc(time.Minute, func() { cancel(errors.New("enough")) })
		if err := g.Run(ctx); err != nil {
			t.Fatalf("Run() = %v, want nil", err)
		}
		want := []string{"c told: enough", "c stopped", "b told: enough", "b stopped", "a told: enough", "a stopped"}
		if diff := cmp.Diff(want, j.get()); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
		if got, want := time.Since(start), 66*time.Second; got != want {
			t.Errorf("Run took %v, want %v: each part is awaited before the next is told", got, want)
		}
	})
}

// TestFits: the defaults fit into those of a Pod, and a second is left to the process.
func TestFits(t *testing.T) {
	for _, tc := range []struct {
		grace, pod time.Duration
		want       bool
	}{
		{0, 30 * time.Second, true},
		{0, 29 * time.Second, true},
		{0, 29*time.Second - 1, false},
		{9 * time.Second, 10 * time.Second, true},
		{10 * time.Second, 10 * time.Second, false},
		{time.Second, 0, false},
		{time.Second, math.MinInt64 + 2e9, false},
	} {
		g := shutdown.Group{GracePeriod: tc.grace}
		if err := g.Fits(tc.pod); (err == nil) != tc.want {
			t.Errorf("GracePeriod %v: Fits(%v) = %v, want nil: %v", tc.grace, tc.pod, err, tc.want)
		}
	}
}

func TestStartsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g shutdown.Group
		meet := make(chan struct{})
		// Neither part gets on without the other, so a group that started one
		// after the other's end would be stuck.
		g.Add("a", func(context.Context) error { meet <- struct{}{}; return nil })
		g.Add("b", func(context.Context) error { <-meet; return nil })
		if err := g.Run(t.Context()); err != nil {
			t.Errorf("Run() = %v, want nil when all parts are finished", err)
		}
	})
}

// TestFailureStopsTheGroup proves D2.
func TestFailureStopsTheGroup(t *testing.T) {
	errBroken := errors.New("broken")
	for _, tc := range []struct {
		name string
		run  func(context.Context) error
		want string
	}{
		{name: "error", run: func(context.Context) error { time.Sleep(time.Second); return errBroken }, want: `shutdown: part "bad": broken`},
		{name: "canceled before it was told", run: func(context.Context) error { return context.Canceled }, want: `shutdown: part "bad": context canceled`},
		{name: "Goexit", run: func(context.Context) error { runtime.Goexit(); return nil }, want: `shutdown: part "bad": its goroutine ended without returning (runtime.Goexit)`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var j journal
				var g shutdown.Group
				g.Add(j.part("a", 0, nil))
				g.Add("bad", tc.run)
				g.Add(j.part("c", 0, nil))
				err := g.Run(t.Context())
				if err == nil || err.Error() != tc.want {
					t.Errorf("Run() = %v, want %s", err, tc.want)
				}
				if tc.name == "error" && !errors.Is(err, errBroken) {
					t.Errorf("Run() = %v, does not wrap the part's error", err)
				}
				want := []string{"c told: " + tc.want, "c stopped", "a told: " + tc.want, "a stopped"}
				if diff := cmp.Diff(want, j.get()); diff != "" {
					t.Errorf("stop order and causes (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestPartThatFinishesEarlyLeavesTheOthersAlone proves D2.
func TestPartThatFinishesEarlyLeavesTheOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		var g shutdown.Group
		g.Add("migration", func(context.Context) error { time.Sleep(time.Second); j.add("migrated"); return nil })
		g.Add(j.part("server", 0, nil))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := g.Run(ctx); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if diff := cmp.Diff([]string{"migrated", "server told: context deadline exceeded", "server stopped"}, j.get()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// TestEndsByItselfWhileOthersStop: what ends before its turn was not told, so
// that context.Canceled from it is a failure like any other.
//
// Proves D2.
func TestEndsByItselfWhileOthersStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g shutdown.Group
		g.Add("a", func(context.Context) error { time.Sleep(2 * time.Second); return context.Canceled })
		g.Add("b", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(3 * time.Second); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		want := `shutdown: part "a": context canceled`
		if err := g.Run(ctx); err == nil || err.Error() != want {
			t.Errorf("Run() = %v, want %s", err, want)
		}
	})
}

// TestPanicIsTheProcesssEnd: Run must not return while the process dies of a
// panic, else main says something else and exits first.
func TestPanicIsTheProcesssEnd(t *testing.T) {
	for range 50 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=panic")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "panic: boom") || !strings.Contains(string(out), "panickingPart") {
			t.Fatalf("child ended with %v, want the panic, with its stack, and nothing else:\n%s", err, out)
		}
	}
}

func TestErrorsWhileStopping(t *testing.T) {
	cause := errors.New("the reason")
	for _, tc := range []struct {
		name  string
		cause error
		err   func(context.Context) error
		want  string
	}{
		{name: "ctx.Err is a clean stop", cause: cause, err: func(ctx context.Context) error { return ctx.Err() }},
		{name: "the cause is a clean stop", cause: cause, err: func(ctx context.Context) error { return context.Cause(ctx) }},
		{name: "wrapped is not", cause: cause, err: func(ctx context.Context) error { return fmt.Errorf("3 keys left: %w", ctx.Err()) },
			want: `shutdown: part "a": 3 keys left: context canceled`},
		{name: "own error", cause: cause, err: func(context.Context) error { return errors.New("flush failed") }, want: `shutdown: part "a": flush failed`},
		{name: "cause that cannot be compared", cause: unhashable{"x"}, err: func(ctx context.Context) error { return unhashable{"y"} },
			want: `shutdown: part "a": unhashable`},
		{name: "cause that holds what cannot be compared", cause: holder{[]string{"x"}}, err: func(ctx context.Context) error { return holder{[]string{"y"}} },
			want: `shutdown: part "a": holder`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g shutdown.Group
				g.Add("a", func(ctx context.Context) error { <-ctx.Done(); return tc.err(ctx) })
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(tc.cause) })
				got := ""
				if err := g.Run(ctx); err != nil {
					got = err.Error()
				}
				if got != tc.want {
					t.Errorf("Run() = %q, want %q", got, tc.want)
				}
			})
		})
	}
}

func TestEveryErrorIsReturnedFirstFailureFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g shutdown.Group
		g.Add("a", func(ctx context.Context) error { <-ctx.Done(); return errors.New("one") })
		g.Add("hangs", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Hour); return errors.New("too late") })
		g.Add("b", func(ctx context.Context) error { <-ctx.Done(); return errors.New("two") })
		g.Add("bad", func(ctx context.Context) error { return errors.New("three") })
		err := g.Run(t.Context())
		var got []string
		for line := range strings.Lines(fmt.Sprint(err)) {
			if s, _, ok := strings.Cut(strings.TrimSpace(line), " and is abandoned"); strings.HasPrefix(s, "shutdown:") {
				_ = ok
				got = append(got, s)
			}
		}
		// 28s less 1 % are 27.72s; a twentieth of them is kept for "a".
		want := []string{`shutdown: part "bad": three`, `shutdown: part "hangs" did not stop within 26.334s`, `shutdown: part "b": two`, `shutdown: part "a": one`}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("errors (-want +got):\n%s", diff)
		}
		time.Sleep(time.Hour) // let the abandoned part go before the bubble ends
	})
}

func TestErrorOfAPartThatEndsDuringTheStopIsKept(t *testing.T) {
	// "ended" fails while "hangs" uses up all of the time, so its error is read
	// at the very moment at which the time is up.
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			g := &shutdown.Group{GracePeriod: time.Second}
			g.Add("hangs", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Hour); return nil })
			g.Add("ended", func(ctx context.Context) error { <-ctx.Done(); return errors.New("broken") })
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if err := g.Run(ctx); err == nil || !strings.Contains(err.Error(), `part "ended": broken`) {
				t.Errorf("Run() = %v, want the error of the part that ended", err)
			}
			time.Sleep(time.Hour)
		})
	}
}

// TestContextOfAPart tests that if a part's context is done, it is the part's turn to stop,
// and context.Cause is the reason of the stop.
func TestContextOfAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var g shutdown.Group
		g.Add("a", func(ctx context.Context) error {
			if got := ctx.Value(key{}); got != "v" {
				t.Errorf("value in the part's context = %v, want v", got)
			}
			if _, ok := ctx.Deadline(); ok {
				t.Error("the part's context has a deadline, want none: it ends when the part is told")
			}
			<-ctx.Done()
			return nil
		})
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Second)
		defer cancel()
		if err := g.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

func TestMisuse(t *testing.T) {
	ok := func(ctx context.Context) error { <-ctx.Done(); return nil }
	okCheck := func() error { return nil }
	for _, tc := range []struct {
		name  string
		group *shutdown.Group
		setup func(*shutdown.Group)
		want  string
	}{
		{name: "no parts", want: "shutdown: the Group has no parts: call Add before Run"},
		{name: "empty name", setup: func(g *shutdown.Group) { g.Add("", ok) }, want: "shutdown: Add got an empty name: errors name parts by it"},
		{name: "nil part", setup: func(g *shutdown.Group) { g.Add("x", nil) }, want: `shutdown: Add("x") got a nil function: pass one`},
		{name: "same name", setup: func(g *shutdown.Group) { g.Add("x", ok); g.Add("x", ok) }, want: `shutdown: Add("x") was called twice: give every part its own name`},
		{name: "check without a name", setup: func(g *shutdown.Group) { g.Add("x", ok); g.AddReady("", okCheck) }, want: "shutdown: AddReady got an empty name: the response of the probe shows it"},
		{name: "nil check", setup: func(g *shutdown.Group) { g.Add("x", ok); g.AddLive("l", nil) }, want: `shutdown: AddLive("l") got a nil function: pass one`},
		{name: "same check", setup: func(g *shutdown.Group) { g.Add("x", ok); g.AddReady("r", okCheck); g.AddReady("r", okCheck) },
			want: `shutdown: AddReady("r") was called twice: give every check its own name`},
		{name: "several", setup: func(g *shutdown.Group) { g.Add("", ok); g.Add("y", nil) },
			want: "shutdown: Add got an empty name: errors name parts by it\nshutdown: Add(\"y\") got a nil function: pass one"},
		{name: "negative grace", group: &shutdown.Group{GracePeriod: -1}, setup: func(g *shutdown.Group) { g.Add("x", ok) },
			want: "shutdown: Group.GracePeriod is -1ns: set it to more than 0, or 0 for 28s"},
		{name: "negative delay", group: &shutdown.Group{Delay: -1}, setup: func(g *shutdown.Group) { g.Add("x", ok) },
			want: "shutdown: Group.Delay is -1ns: set it to more than 0, or 0 for no delay"},
		{name: "delay takes all but what Run needs", group: &shutdown.Group{Delay: 27900 * time.Millisecond}, setup: func(g *shutdown.Group) { g.Add("x", ok) },
			want: "shutdown: Group.Delay (27.9s) leaves nothing of Group.GracePeriod (28s) for the parts: make Delay shorter"},
		{name: "delay too long", group: &shutdown.Group{Delay: 28 * time.Second}, setup: func(g *shutdown.Group) { g.Add("x", ok) },
			want: "shutdown: Group.Delay (28s) leaves nothing of Group.GracePeriod (28s) for the parts: make Delay shorter"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := tc.group
			if g == nil {
				g = &shutdown.Group{}
			}
			if tc.setup != nil {
				tc.setup(g)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // ends what was taken by mistake
			defer cancel()
			if err := g.Run(ctx); err == nil || err.Error() != tc.want {
				t.Errorf("Run() = %v\nwant    %s", err, tc.want)
			}
		})
	}
}

func TestSameNameForAReadyAndALiveCheckIsFine(t *testing.T) {
	g := &shutdown.Group{}
	g.AddReady("queue", func() error { return nil })
	g.AddLive("queue", func() error { return nil })
	g.Add("x", func(context.Context) error { return nil })
	if err := g.Run(t.Context()); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

func TestRunTwice(t *testing.T) {
	g := &shutdown.Group{}
	g.Add("x", func(context.Context) error { return nil })
	if err := g.Run(t.Context()); err != nil {
		t.Fatalf("first Run() = %v", err)
	}
	want := "shutdown: Run was called twice: a Group runs once, create a new one"
	if err := g.Run(t.Context()); err == nil || err.Error() != want {
		t.Errorf("second Run() = %v, want %s", err, want)
	}
}

func TestAddWhileRunningStopsTheGroup(t *testing.T) {
	for _, tc := range []struct {
		name string
		add  func(*shutdown.Group)
		want string
	}{
		{name: "part", add: func(g *shutdown.Group) { g.Add("y", func(context.Context) error { return nil }) },
			want: `shutdown: Add("y") was called after Run: add all parts before Run`},
		{name: "check", add: func(g *shutdown.Group) { g.AddReady("y", func() error { return nil }) },
			want: `shutdown: AddReady("y") was called after Run: add all checks before Run`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &shutdown.Group{}
				g.Add("x", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
				time.AfterFunc(time.Second, func() { tc.add(g); tc.add(g) })
				err := g.Run(t.Context())
				if err == nil || strings.SplitN(err.Error(), "\n", 2)[0] != tc.want {
					t.Errorf("Run() = %v, want %s", err, tc.want)
				}
			})
		})
	}
}

func TestContextDoneBeforeRunStartsNothing(t *testing.T) {
	g := &shutdown.Group{}
	g.Add("x", func(context.Context) error { t.Error("the part was started"); return nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Run(ctx); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if got, want := probe(prober{g}), "503 stopping\n"; got != want {
		t.Errorf("readiness = %q, want %q", got, want)
	}
}

// TestRandomStops stops groups of random parts at random moments. Whatever
// happens, Run returns in time, parts are told in order, and nothing is left.
//
// Proves D1.
func TestRandomStops(t *testing.T) {
	const rounds = 2000
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 1))
		synctest.Test(t, func(t *testing.T) {
			grace := time.Duration(1+r.IntN(20)) * time.Second
			g := &shutdown.Group{GracePeriod: grace, Delay: grace * time.Duration(r.IntN(3)) / 4}
			n := 1 + r.IntN(6)
			var mu sync.Mutex
			var toldOrder []int
			var stopped, began time.Time
			for i := range n {
				life := time.Duration(r.IntN(100)) * time.Second // ends by itself after this; the last third never
				drain := time.Duration(r.IntN(int(grace * 3 / 2)))
				fails := r.IntN(3) == 0
				g.Add(fmt.Sprint(i), func(ctx context.Context) error {
					if life < 66*time.Second {
						select {
						case <-time.After(life):
							if fails {
								mu.Lock()
								defer mu.Unlock()
								if began.IsZero() {
									began = time.Now()
								}
								return errors.New("failed")
							}
							return nil
						case <-ctx.Done():
						}
					} else {
						<-ctx.Done()
					}
					mu.Lock()
					toldOrder = append(toldOrder, i)
					mu.Unlock()
					time.Sleep(drain)
					return nil
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Duration(r.IntN(int(80*time.Second))), func() {
				mu.Lock()
				if began.IsZero() {
					began = time.Now()
				}
				mu.Unlock()
				cancel()
			})
			_ = g.Run(ctx)
			stopped = time.Now()
			mu.Lock()
			if !began.IsZero() && stopped.Sub(began) > grace {
				t.Errorf("seed %d: Run took %v after the stop began, want at most %v", seed, stopped.Sub(began), grace)
			}
			if !slices.IsSortedFunc(toldOrder, func(a, b int) int { return b - a }) {
				t.Errorf("seed %d: parts were told in order %v, want last-added first", seed, toldOrder)
			}
			mu.Unlock()
			cancel()
			time.Sleep(time.Hour) // late parts end; a goroutine that is left fails the bubble
		})
		if t.Failed() {
			return
		}
	}
}
