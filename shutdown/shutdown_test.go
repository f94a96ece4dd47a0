package shutdown_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
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
	"go.uber.org/goleak"

	"github.com/controllerkit/controllerkit/shutdown"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child() // see context_test.go
		return
	}
	goleak.VerifyTestMain(m)
}

// journal records what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) get() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// part runs until told to stop, takes drain to do so and returns err.
func (j *journal) part(name string, drain time.Duration, err error) (string, func(context.Context) error) {
	return name, func(ctx context.Context) error {
		<-ctx.Done()
		j.add("%s told: %v", name, context.Cause(ctx))
		time.Sleep(drain)
		j.add("%s stopped", name)
		return err
	}
}

func probe(h interface{ Ready() (int, string) }) string {
	c, b := h.Ready()
	return fmt.Sprint(c, " ", b)
}

type prober struct{ g *shutdown.Group }

func (p prober) Ready() (int, string) {
	w := httptest.NewRecorder()
	p.g.Ready().ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
	return w.Code, w.Body.String()
}

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

// unhashable is an error that == panics on.
type unhashable []string

func (unhashable) Error() string { return "unhashable" }

// holder can be compared by its type, and not by what is in it.
type holder struct{ detail any }

func (holder) Error() string { return "holder" }

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
		// G=25s less 1 % is 24.75 s; three parts to stop, so 4.125 s are kept for each after "hangs".
		want := []string{`shutdown: part "bad": three`, `shutdown: part "hangs" did not stop within 20.625s`, `shutdown: part "b": two`, `shutdown: part "a": one`}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("errors (-want +got):\n%s", diff)
		}
		time.Sleep(time.Hour) // let the abandoned part go before the bubble ends
	})
}

// TestLatePartIsNamedAndTheOthersStillStop proves D3.
func TestLatePartIsNamedAndTheOthersStillStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = 20 * time.Second
		var j journal
		g := shutdown.Group{GracePeriod: grace}
		g.Add(j.part("first", 0, nil))
		release := make(chan struct{})
		g.Add("stuck", func(context.Context) error { hangHere(release); return nil })
		g.Add(j.part("last", 0, nil))
		ctx, cancel := context.WithCancel(t.Context())
		cause := time.Now().Add(time.Second)
		time.AfterFunc(time.Second, cancel)
		err := g.Run(ctx)
		if took := time.Since(cause); took > grace {
			t.Errorf("Run returned %v after the stop began, want at most %v", took, grace)
		}
		var late *shutdown.LateError
		if !errors.As(err, &late) {
			t.Fatalf("Run() = %v, want a *LateError", err)
		}
		if late.Part != "stuck" || !late.Abandoned || !strings.Contains(late.Stack, "hangHere") {
			t.Errorf("LateError = %q abandoned=%v with hangHere in the stack: %v\n%s", late.Part, late.Abandoned, strings.Contains(late.Stack, "hangHere"), late.Stack)
		}
		if strings.Contains(late.Stack, "TestLatePart") && strings.Contains(late.Stack, "synctest.Run") {
			t.Errorf("the stack shows goroutines of others:\n%s", late.Stack)
		}
		if !strings.Contains(err.Error(), `part "stuck" did not stop within`) || !strings.Contains(err.Error(), "hangHere") {
			t.Errorf("Run() = %v, want the part and its stack", err)
		}
		want := []string{"last told: context canceled", "last stopped", "first told: context canceled", "first stopped"}
		if diff := cmp.Diff(want, j.get()); diff != "" {
			t.Errorf("the others (-want +got):\n%s", diff)
		}
		close(release)
		synctest.Wait()
	})
}

//go:noinline
func hangHere(release chan struct{}) { <-release }

func TestStackOfAHangingPartIsBoundedAndHasItsChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := shutdown.Group{GracePeriod: time.Second}
		release := make(chan struct{})
		var wg sync.WaitGroup
		g.Add("many", func(context.Context) error {
			for i := range 1000 {
				wg.Go(func() { deep(i%97, release) }) // many different stacks
			}
			wg.Wait()
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		var late *shutdown.LateError
		if err := g.Run(ctx); !errors.As(err, &late) {
			t.Fatalf("Run() = %v, want a *LateError", err)
		}
		if !strings.Contains(late.Stack, "deep") || !strings.HasSuffix(late.Stack, "... cut off\n") || len(late.Stack) > 17<<10 {
			t.Errorf("stack has %d bytes, want the part's child goroutines, cut off after 16 KiB:\n%.300s", len(late.Stack), late.Stack)
		}
		close(release)
		synctest.Wait()
	})
}

//go:noinline
func deep(n int, release chan struct{}) {
	if n > 0 {
		deep(n-1, release)
		return
	}
	<-release
}

// TestWritingStacksTakesNobodysTime: with many goroutines it is slow, and must
// make neither Run late nor the parts after a late one.
//
// Proves D3.
func TestWritingStacksTakesNobodysTime(t *testing.T) {
	release := make(chan struct{})
	var wg sync.WaitGroup
	for range 1500 {
		wg.Go(func() { deep(100, release) })
	}
	const grace, n = time.Second, 100
	g := shutdown.Group{GracePeriod: grace}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var began time.Time
	for i := range n {
		wg.Add(1)
		g.Add(fmt.Sprint(i), func(context.Context) error {
			defer wg.Done()
			if i == 0 {
				began = time.Now()
				cancel()
			}
			hangHere(release)
			return nil
		})
	}
	err := g.Run(ctx)
	// Twice the time, because the machine may be busy; one after the other, 100
	// stacks take three times as long or more.
	if took := time.Since(began); took > 2*grace {
		t.Errorf("Run took %v, want %v", took, grace)
	}
	var late *shutdown.LateError
	if !errors.As(err, &late) || late.Part != fmt.Sprint(n-1) {
		t.Fatalf("Run() = %.300v, want the part that was late first", err)
	}
	if !strings.Contains(late.Stack, "hangHere") && !strings.HasPrefix(late.Stack, "no stacks: there was no time to look through ") {
		t.Errorf("stack = %q, want it, or why there is none", late.Stack)
	}
	close(release)
	wg.Wait()
}

// TestNamesWithASlashAreNotNested: only a part of a nested group is shown with
// the outer one.
func TestNamesWithASlashAreNotNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := shutdown.Group{GracePeriod: time.Second}
		release := make(chan struct{})
		g.Add("web/metrics", func(context.Context) error { hangHere(release); return nil })
		g.Add("web", func(context.Context) error { deep(1, release); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		var late *shutdown.LateError
		if err := g.Run(ctx); !errors.As(err, &late) || late.Part != "web" {
			t.Fatalf("Run() = %v, want web to be late first", err)
		}
		if !strings.Contains(late.Stack, "deep") || strings.Contains(late.Stack, "hangHere") {
			t.Errorf("the stacks of web hold those of web/metrics, or not its own:\n%s", late.Stack)
		}
		close(release)
		synctest.Wait()
	})
}

func TestNestedGroupIsFoundByTheOuterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := shutdown.Group{GracePeriod: time.Second}
		inner := &shutdown.Group{GracePeriod: time.Hour} // longer than the outer one allows
		release := make(chan struct{})
		inner.Add("stuck", func(context.Context) error { hangHere(release); return nil })
		outer.Add("inner", inner.Run)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		var late *shutdown.LateError
		if err := outer.Run(ctx); !errors.As(err, &late) || late.Part != "inner" || !strings.Contains(late.Stack, "hangHere") {
			t.Errorf("Run() = %v, want the inner group late, with the stack of its part", err)
		}
		close(release)
		synctest.Wait()
	})
}

func TestLatePartThatStopsInTheRestIsNotAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := shutdown.Group{GracePeriod: 20 * time.Second}
		g.Add("quick", func(ctx context.Context) error { <-ctx.Done(); return nil })
		g.Add("slow", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(17 * time.Second); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		err := g.Run(ctx)
		var late *shutdown.LateError
		if !errors.As(err, &late) || late.Part != "slow" || late.Abandoned {
			t.Errorf("Run() = %v, want slow late and not abandoned", err)
		}
		if got, want := time.Since(start), 18*time.Second; got != want {
			t.Errorf("Run took %v, want %v: it waits for the late part, and no longer", got, want)
		}
	})
}

// TestEveryPartHasItsShare proves D4.
func TestEveryPartHasItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// All but the part under test hang; it must get its 1/(2n) wherever it is.
		const grace, delay, n = 60 * time.Second, 10 * time.Second, 5
		share := (grace*99/100 - delay) / (2 * n)
		for pos := range n {
			g := shutdown.Group{GracePeriod: grace, Delay: delay}
			release := make(chan struct{})
			for i := range n {
				g.Add(fmt.Sprint(i), func(ctx context.Context) error {
					<-ctx.Done()
					if i == pos {
						time.Sleep(share - time.Millisecond)
					} else {
						<-release
					}
					return nil
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancelAt := time.Now().Add(time.Second)
			time.AfterFunc(time.Second, cancel)
			err := g.Run(ctx)
			if took := time.Since(cancelAt); took > grace {
				t.Errorf("Run took %v, want at most %v", took, grace)
			}
			if err == nil || strings.Contains(err.Error(), fmt.Sprintf("part %q", fmt.Sprint(pos))) || strings.Count(err.Error(), "did not stop within") != n-1 {
				t.Errorf("part %d was late within its share %v, or others were not: %v", pos, share, err)
			}
			close(release)
			synctest.Wait()
		}
	})
}

func TestDelayComesBetweenNotReadyAndTheFirstStop(t *testing.T) {
	for _, fail := range []bool{false, true} {
		t.Run(fmt.Sprintf("failure=%v", fail), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var j journal
				g := &shutdown.Group{Delay: 5 * time.Second}
				begin := time.Now()
				g.Add("a", func(ctx context.Context) error {
					<-ctx.Done()
					j.add("told after %v", time.Since(begin))
					return nil
				})
				if fail {
					g.Add("bad", func(ctx context.Context) error { time.Sleep(10 * time.Second); return errors.New("broken") })
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				time.AfterFunc(9*time.Second, func() { j.add("%s", probe(prober{g})) })
				time.AfterFunc(11*time.Second, func() { j.add("%s", probe(prober{g})) })
				_ = g.Run(ctx)
				want := []string{"200 ok\n", "503 stopping\n", "told after 15s"}
				if diff := cmp.Diff(want, j.get()); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestDelayEndsEarlyWhenNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &shutdown.Group{Delay: 20 * time.Second}
		g.Add("a", func(ctx context.Context) error { time.Sleep(3 * time.Second); return nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := g.Run(ctx); err != nil || time.Since(start) != 3*time.Second {
			t.Errorf("Run() = %v after %v, want nil after 3s", err, time.Since(start))
		}
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

// TestContextOfAPart proves D5.
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
		{name: "empty name", setup: func(g *shutdown.Group) { g.Add("", ok) }, want: "shutdown: Add needs a name: errors name parts by it"},
		{name: "nil part", setup: func(g *shutdown.Group) { g.Add("x", nil) }, want: `shutdown: Add("x") needs a function, got nil`},
		{name: "same name", setup: func(g *shutdown.Group) { g.Add("x", ok); g.Add("x", ok) }, want: `shutdown: Add("x") was called twice: give every part its own name`},
		{name: "check without a name", setup: func(g *shutdown.Group) { g.Add("x", ok); g.AddReady("", okCheck) }, want: "shutdown: AddReady needs a name: it is what the probe shows"},
		{name: "nil check", setup: func(g *shutdown.Group) { g.Add("x", ok); g.AddLive("l", nil) }, want: `shutdown: AddLive("l") needs a function, got nil`},
		{name: "same check", setup: func(g *shutdown.Group) { g.Add("x", ok); g.AddReady("r", okCheck); g.AddReady("r", okCheck) },
			want: `shutdown: AddReady("r") was called twice: give every check its own name`},
		{name: "several", setup: func(g *shutdown.Group) { g.Add("", ok); g.Add("y", nil) },
			want: "shutdown: Add needs a name: errors name parts by it\nshutdown: Add(\"y\") needs a function, got nil"},
		{name: "negative grace", group: &shutdown.Group{GracePeriod: -1}, setup: func(g *shutdown.Group) { g.Add("x", ok) },
			want: "shutdown: Group.GracePeriod is -1ns: it must not be negative; 0 means 25s"},
		{name: "negative delay", group: &shutdown.Group{Delay: -1}, setup: func(g *shutdown.Group) { g.Add("x", ok) },
			want: "shutdown: Group.Delay is -1ns: it must not be negative; 0 means none"},
		{name: "delay takes all but what Run needs", group: &shutdown.Group{Delay: 24900 * time.Millisecond}, setup: func(g *shutdown.Group) { g.Add("x", ok) },
			want: "shutdown: Group.Delay (24.9s) leaves nothing of Group.GracePeriod (25s) for the parts: make Delay shorter"},
		{name: "delay too long", group: &shutdown.Group{Delay: 25 * time.Second}, setup: func(g *shutdown.Group) { g.Add("x", ok) },
			want: "shutdown: Group.Delay (25s) leaves nothing of Group.GracePeriod (25s) for the parts: make Delay shorter"},
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

// TestGracePeriodThatIsOverAtOnce: 25 without a unit is 25 ns, a usual mistake.
func TestGracePeriodThatIsOverAtOnce(t *testing.T) {
	g := &shutdown.Group{GracePeriod: 25}
	release := make(chan struct{})
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, name := range []string{"a", "b"} {
		wg.Add(1)
		g.Add(name, func(context.Context) error { defer wg.Done(); cancel(); <-release; return nil })
	}
	err := g.Run(ctx)
	if got := fmt.Sprint(err); !strings.Contains(got, `part "b" did not stop within 0s`) || !strings.Contains(got, `part "a" did not stop within 0s`) {
		t.Errorf("Run() = %v, want both to be late after 0s", err)
	}
	close(release)
	wg.Wait()
}

func TestRunTwice(t *testing.T) {
	g := &shutdown.Group{}
	g.Add("x", func(context.Context) error { return nil })
	if err := g.Run(t.Context()); err != nil {
		t.Fatalf("first Run() = %v", err)
	}
	want := "shutdown: Run was called twice: a Group runs once, make a new one"
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
