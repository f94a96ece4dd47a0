package filter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/leasetest"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shard/filter"
)

// informer is what a View selects in. Each Select takes a second. One that fails takes effect
// late, before the next begins.
type informer struct {
	t    *testing.T
	view *filter.View

	mu    sync.Mutex
	shown string
	calls []string
	fails int  // so many calls fail
	hangs int  // so many calls have waited for the end of their context
	hang  bool // calls do
}

var errDenied = errors.New("denied")

// runView runs a View until the test or the returned function ends it. When it returns, the
// first Select, for no shard, has ended. It needs a bubble.
func runView(t *testing.T) (i *informer, stop func()) {
	t.Helper()
	i = &informer{t: t}
	i.view = &filter.View{Ranges: shard.Ranges{N: 8}, Select: i.sel}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), testlog.Silent()))
	ended := make(chan error)
	go func() { ended <- i.view.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	time.Sleep(2 * time.Second)
	return i, stop
}

func (i *informer) sel(ctx context.Context, text string) error {
	i.mu.Lock()
	hang := i.hang
	i.mu.Unlock()
	if hang {
		<-ctx.Done()
		i.mu.Lock()
		defer i.mu.Unlock()
		i.hangs++
		return ctx.Err()
	}
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	var shards []string
	for s := range 8 {
		if text == "" {
			break
		}
		start := upstream(i.t, selectorOf(i.t, i.view.Ranges, s)).Requirements()[0].Start
		for _, r := range upstream(i.t, text).Requirements() {
			if !sharding.HexLess(start, r.Start) && sharding.HexLess(start, r.End) {
				shards = append(shards, fmt.Sprint(s))
			}
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls = append(i.calls, strings.Join(shards, " "))
	show := func() { i.shown = strings.Join(shards, " ") }
	if i.fails > 0 {
		i.fails--
		time.AfterFunc(50*time.Millisecond, func() {
			i.mu.Lock()
			defer i.mu.Unlock()
			show()
		})
		return errDenied
	}
	show()
	return nil
}

func (i *informer) shows() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.shown
}

// TestView: Add and Remove return when the informer shows it, and changes that come
// together are one Select.
func TestView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, stop := runView(t)
		if err := i.view.Remove(t.Context(), 3); err != nil {
			t.Error(err) // a shard that is not there
		}
		var wait sync.WaitGroup
		add := func(s int) {
			wait.Go(func() {
				if err := i.view.Add(t.Context(), s); err != nil {
					t.Error(err)
				}
				if !strings.Contains(i.shows(), fmt.Sprint(s)) {
					t.Errorf("Add(%d) has returned, and the informer shows %q", s, i.shows())
				}
			})
		}
		add(0)
		synctest.Wait()
		for _, s := range []int{2, 4, 6} { // while the first Select runs
			add(s)
		}
		wait.Wait()
		add(4) // again
		wait.Wait()
		if err := i.view.Remove(t.Context(), 2); err != nil || i.shows() != "0 4 6" {
			t.Errorf("after Remove: %v, the informer shows %q", err, i.shows())
		}
		for _, s := range []int{0, 4, 6} {
			wait.Go(func() {
				if err := i.view.Remove(t.Context(), s); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		stop()
		if want := []string{"", "0", "0 2 4 6", "0 4 6"}; !slices.Equal(i.calls[:4], want) || i.shows() != "" || len(i.calls) > 6 {
			t.Errorf("selected %q, want first %q, and then nothing", i.calls, want)
		}
	})
}

// TestViewWithoutShards: the first Select is for no shard, so that the informer is synced.
func TestViewWithoutShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, stop := runView(t)
		time.Sleep(time.Minute)
		stop()
		if !slices.Equal(i.calls, []string{""}) {
			t.Errorf("selected %q, want nothing once", i.calls)
		}
	})
}

// TestViewAgain: a shard that is added while a Select removes it is shown when Add returns,
// and one that is removed while a Select adds it is not.
func TestViewAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, _ := runView(t)
		if err := i.view.Add(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if err := i.view.Remove(done, 0); !errors.Is(err, context.Canceled) || i.shows() != "0" {
			t.Errorf("Remove without time: %v, the informer shows %q", err, i.shows())
		}
		synctest.Wait() // the Select without the shard runs
		if err := i.view.Add(t.Context(), 0); err != nil || i.shows() != "0" {
			t.Errorf("Add: %v, the informer shows %q", err, i.shows())
		}
		time.Sleep(10 * time.Second)
		if i.shows() != "0" {
			t.Errorf("after Add the informer shows %q", i.shows())
		}
		if err := i.view.Add(done, 2); !errors.Is(err, context.Canceled) {
			t.Errorf("Add without time: %v", err)
		}
		go func() { _ = i.view.Add(t.Context(), 4) }()
		synctest.Wait() // the Select with shard 4 runs
		if err := i.view.Remove(t.Context(), 4); err != nil || i.shows() != "0" {
			t.Errorf("Remove: %v, the informer shows %q", err, i.shows())
		}
		if diff := cmp.Diff([]string{"", "0", "", "0", "0 4", "0"}, i.calls); diff != "" {
			t.Errorf("selected (-want +got):\n%s", diff)
		}
		if err := i.view.Add(t.Context(), 4); err != nil { // also ends the Add before
			t.Error(err)
		}
	})
}

// TestViewFails: Select is called again until it succeeds. An Add whose context ends before
// returns its error, and removes the shard.
func TestViewFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, _ := runView(t)
		i.mu.Lock()
		i.fails = 3
		i.mu.Unlock()
		if err := i.view.Add(t.Context(), 0); err != nil || i.shows() != "0" || len(i.calls) != 1+4 {
			t.Errorf("Add: %v after %d calls, the informer shows %q", err, len(i.calls), i.shows())
		}
		i.mu.Lock()
		i.fails = 1000
		i.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		before := len(i.calls)
		err := i.view.Add(ctx, 2)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errDenied) {
			t.Errorf("Add: %v, want the error of the Select", err)
		}
		if n := len(i.calls) - before; n < 8 || n > 20 {
			t.Errorf("%d calls in a minute of errors", n)
		}
		i.mu.Lock()
		i.fails = 0
		i.mu.Unlock()
		if err := i.view.Add(t.Context(), 4); err != nil || i.shows() != "0 4" {
			t.Errorf("Add: %v, the informer shows %q", err, i.shows())
		}
	})
}

// TestViewLate: a Select that failed takes effect before the next one, and the call that waits
// for that one does not return earlier.
//
// Proves SE3.
func TestViewLate(t *testing.T) {
	within := func(t *testing.T, d time.Duration) context.Context {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, v *filter.View) // its last Select fails
		call   func(ctx context.Context, v *filter.View) error
		late   string // what the failed Select shows
	}{
		{name: "Add", late: "1", before: func(t *testing.T, v *filter.View) {
			if err := v.Remove(within(t, 1060*time.Millisecond), 0); !errors.Is(err, errDenied) {
				t.Errorf("Remove(0): %v", err)
			}
		}, call: func(ctx context.Context, v *filter.View) error { return v.Add(ctx, 0) }},
		{name: "Remove", late: "0 1 2", before: func(t *testing.T, v *filter.View) {
			if err := v.Add(within(t, 1060*time.Millisecond), 2); !errors.Is(err, errDenied) {
				t.Errorf("Add(2): %v", err)
			}
		}, call: func(ctx context.Context, v *filter.View) error { return v.Remove(ctx, 2) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i, _ := runView(t)
				for _, s := range []int{0, 1} {
					if err := i.view.Add(t.Context(), s); err != nil {
						t.Fatal(err)
					}
				}
				i.mu.Lock()
				i.fails = 1
				i.mu.Unlock()
				tt.before(t, i.view)
				if i.shows() != tt.late {
					t.Fatalf("the Select that failed shows %q, want %q", i.shows(), tt.late)
				}
				var wait sync.WaitGroup
				wait.Go(func() {
					if err := tt.call(t.Context(), i.view); err != nil || i.shows() != "0 1" {
						t.Errorf("%s: %v, the informer shows %q", tt.name, err, i.shows())
					}
				})
				time.Sleep(500 * time.Millisecond) // the next Select runs
				if err := i.view.Remove(t.Context(), 7); err != nil {
					t.Error(err) // it wakes the call
				}
				wait.Wait()
			})
		})
	}
}

// TestViewOfGroup: with a Group, each shard is shown while its work runs, and no replica
// shows another one's shard when the group has settled.
func TestViewOfGroup(t *testing.T) {
	bubble(t, func(t *testing.T, s *leasetest.Store) {
		start := func(id string) (i *informer, stop func()) {
			i, _ = runView(t)
			g := &shard.Group{Leases: s.Client(), Namespace: "ns", Name: "group", Identity: id, Ranges: shard.Ranges{N: 8}}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error)
			go func() {
				ended <- g.Run(ctx, func(ctx context.Context, s shard.Shard) error {
					if err := i.view.Add(ctx, s.Index); err != nil {
						return err
					}
					for range 2 {
						if !strings.Contains(i.shows(), fmt.Sprint(s.Index)) {
							t.Errorf("%s works on shard %d and shows %q", id, s.Index, i.shows())
						}
						if ctx.Err() == nil {
							<-ctx.Done()
							time.Sleep(time.Second)
						}
					}
					_ = i.view.Remove(ctx, s.Index)
					return nil
				})
			}()
			stop = sync.OnceFunc(func() {
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("%s: %v", id, err)
				}
			})
			t.Cleanup(stop)
			return i, stop
		}
		wait := func() {
			settle()
			settle() // the View removes shards after the Group
		}
		a, stopA := start("a")
		wait()
		b, stopB := start("b")
		wait()
		shown := append(strings.Fields(a.shows()), strings.Fields(b.shows())...)
		slices.Sort(shown)
		if got := strings.Join(shown, " "); got != "0 1 2 3 4 5 6 7" || len(a.shows()) != len(b.shows()) {
			t.Errorf("a shows %q, b shows %q", a.shows(), b.shows())
		}
		stopA()
		wait()
		if a.shows() != "" || b.shows() != "0 1 2 3 4 5 6 7" {
			t.Errorf("after a has left, it shows %q, and b shows %q", a.shows(), b.shows())
		}
		stopB()
	})
}

// TestViewTimeout: a Select that hangs ends after SelectTimeout, and a running Select ends
// with Run.
func TestViewTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, stop := runView(t)
		i.mu.Lock()
		i.hang = true
		i.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		if err := i.view.Add(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Add: %v", err)
		}
		begin := time.Now()
		if stop(); time.Since(begin) != 0 {
			t.Errorf("Run has returned %v after its context", time.Since(begin))
		}
		if i.hangs != 2 {
			t.Errorf("%d calls in 90s, want a second one after a minute", i.hangs)
		}
	})
}

func TestViewRejects(t *testing.T) {
	sel := func(context.Context, string) error { return nil }
	for want, view := range map[string]*filter.View{
		"View.Ranges is not valid: shard: Ranges.N is 0: set 1": {Select: sel},
		"View.Select is nil: set it":                            {Ranges: two},
		"View.SelectTimeout is -1ns":                            {Ranges: two, Select: sel, SelectTimeout: -1},
	} {
		for _, err := range []error{view.Run(t.Context()), view.Add(t.Context(), 0), view.Remove(t.Context(), 0)} {
			if err == nil || !strings.HasPrefix(err.Error(), "filter: "+want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
	}
	for _, s := range []int{-1, 2, 1 << 40} {
		if err := (&filter.View{Ranges: two, Select: sel}).Add(t.Context(), s); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("View.Add got shard %d: pass a shard from 0 to 1", s)) {
			t.Errorf("Add(%d): %v", s, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		i, _ := runView(t)
		synctest.Wait()
		if err := i.view.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "the View runs already") {
			t.Errorf("a second Run: %v", err)
		}
	})
}

// TestViewStops: a Select that succeeds while Run ends counts, and the end of Run wakes a Remove.
// Without a Run a call waits for one, as the informer may show what the last Select was to hide.
func TestViewStops(t *testing.T) {
	for name, err := range map[string]error{"it succeeds": nil, "it fails": errDenied} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := false
				view := &filter.View{Ranges: shard.Ranges{N: 8}, Select: func(ctx context.Context, _ string) error {
					if slow {
						<-ctx.Done()
						return err
					}
					return nil
				}}
				run := func() (stop func()) {
					ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), testlog.Silent()))
					ended := make(chan error)
					go func() { ended <- view.Run(ctx) }()
					return func() {
						cancel()
						if err := <-ended; err != nil {
							t.Error(err)
						}
					}
				}
				within := func() context.Context {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					t.Cleanup(cancel)
					return ctx
				}
				stop := run()
				if err := view.Add(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				slow = true
				removed := make(chan error, 1)
				go func() { removed <- view.Remove(within(), 0) }()
				synctest.Wait()
				stop()
				begin := time.Now()
				if got := <-removed; (got == nil) != (err == nil) {
					t.Errorf("Remove = %v after a Select that returned %v", got, err)
				}
				if err == nil && time.Since(begin) > 0 {
					t.Errorf("Remove returned %v after the end of Run", time.Since(begin))
				}
				// The informer may not show the shard: the last Select was to hide it.
				if err := view.Add(within(), 0); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Add = %v without a Run, want that it waits for one", err)
				}
				slow = false
				stop = run()
				if err := view.Add(t.Context(), 0); err != nil {
					t.Error(err)
				}
				stop()
			})
		})
	}
}
