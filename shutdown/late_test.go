package shutdown_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/controllerkit/controllerkit/shutdown"
)

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
		if took := time.Since(cause); took < grace*99/100 || took > grace {
			t.Errorf("Run returned %v after the stop began, want %v at most, which the late part uses", took, grace)
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
		if !strings.Contains(late.Stack, "deep") || !strings.HasSuffix(late.Stack, "... cut off") || len(late.Stack) > 17<<10 {
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
	run := func() (took time.Duration, err error) {
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
		err = g.Run(ctx)
		return time.Since(began), err
	}
	took, err := run()
	// One after the other, 100 stacks take three times as long as grace or more. A busy
	// machine can make one run as late, but not each of five.
	for range 4 {
		if took <= 2*grace {
			break
		}
		took, err = run()
	}
	if took < grace*99/100 || took > 2*grace {
		t.Errorf("Run took %v, want %v", took, grace)
	}
	var late *shutdown.LateError
	if !errors.As(err, &late) || late.Part != fmt.Sprint(n-1) {
		t.Fatalf("Run() = %.300v, want the part that was late first", err)
	}
	if !strings.Contains(late.Stack, "hangHere") && !strings.HasPrefix(late.Stack, "no stacks: there was no time to search ") {
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
		g.Add("slow", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(19 * time.Second); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		err := g.Run(ctx)
		var late *shutdown.LateError
		if !errors.As(err, &late) || late.Part != "slow" || late.Abandoned {
			t.Errorf("Run() = %v, want slow late and not abandoned", err)
		}
		if got, want := time.Since(start), 20*time.Second; got != want {
			t.Errorf("Run took %v, want %v: it waits for the late part, and no longer", got, want)
		}
	})
}

// All parts but one hang. That one has its share of the time, wherever it is.
func TestEveryPartHasItsShare(t *testing.T) {
	const grace, delay = 60 * time.Second, 10 * time.Second
	const usable = grace*99/100 - delay
	for _, tc := range []struct {
		n     int
		share time.Duration
	}{{3, usable / 20}, {10, usable / 20}, {15, usable / 30}} {
		for pos := range tc.n {
			synctest.Test(t, func(t *testing.T) {
				g := shutdown.Group{GracePeriod: grace, Delay: delay}
				release := make(chan struct{})
				for i := range tc.n {
					g.Add(fmt.Sprint("p", i), func(ctx context.Context) error {
						<-ctx.Done()
						if i == pos {
							time.Sleep(tc.share - time.Millisecond)
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
				if took := time.Since(cancelAt); took < grace*99/100 || took > grace {
					t.Errorf("Run took %v, want at most %v, which the late parts use", took, grace)
				}
				if err == nil || strings.Contains(err.Error(), fmt.Sprintf(`part "p%d"`, pos)) || strings.Count(err.Error(), "did not stop within") != tc.n-1 {
					t.Errorf("part %d of %d was late within its share of %v, or others were not: %v", pos, tc.n, tc.share, err)
				}
				close(release)
			})
		}
	}
}

// The first part to stop has all of the time but the shares of the others.
func TestTimeOfTheFirstPart(t *testing.T) {
	for _, tc := range []struct {
		n    int
		want time.Duration
	}{{1, 27720 * time.Millisecond}, {2, 26334 * time.Millisecond}, {4, 23562 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			var g shutdown.Group
			release := make(chan struct{})
			for i := range tc.n - 1 {
				g.Add(fmt.Sprint(i), func(ctx context.Context) error { <-ctx.Done(); return nil })
			}
			g.Add("first", func(context.Context) error { <-release; return nil })
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			var late *shutdown.LateError
			if err := g.Run(ctx); !errors.As(err, &late) || late.Waited != tc.want {
				t.Errorf("Run() = %v with %d parts, want it late after %v", err, tc.n, tc.want)
			}
			close(release)
		})
	}
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

// stops is a Metrics.
type stops []string

func (s *stops) PartStopped(part string, took time.Duration, late bool) {
	*s = append(*s, fmt.Sprint(part, " ", took, " late=", late))
}

// TestMetrics: each part that was told to stop is reported once, with its time.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		var got stops
		g := shutdown.Group{GracePeriod: 20 * time.Second, Metrics: &got}
		g.Add(j.part("first", 0, nil))
		release := make(chan struct{})
		g.Add("stuck", func(context.Context) error { hangHere(release); return nil })
		g.Add(j.part("last", 3*time.Second, nil))
		g.Add("ended", func(context.Context) error { return nil })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_ = g.Run(ctx)
		// Of 19.8s, "last" used 3s and a twentieth is kept for "first".
		want := stops{"last 3s late=false", "stuck 15.81s late=true", "first 0s late=false"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
		close(release)
		synctest.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := shutdown.Group{Metrics: (*stops)(nil)} // a nil pointer is none
		g.Add(j.part("one", 0, nil))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}
