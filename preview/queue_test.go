package preview_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/reconcile"
)

type staleError struct{ error }

func (staleError) Stale() bool { return true }

// gate lets a key run that has failed only after a while.
type gate struct {
	late   time.Duration
	first  bool         // also before its first call
	failed atomic.Value // the key
}

func (g *gate) Begin(ctx context.Context, _ string) context.Context { return ctx }

func (g *gate) End(string) {}

func (g *gate) Ready(key string, wake func()) bool {
	if key != g.failed.Load() {
		return true
	}
	time.AfterFunc(g.late, func() {
		g.failed.Store("")
		wake()
	})
	return false
}

// TestFailures has calls of package reconcile that fail once, or for ever: each class of error is tried again, and the last
// call counts.
func TestFailures(t *testing.T) {
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	conflict := apierrors.NewConflict(widgets, "one", errors.New("changed"))
	for name, tt := range map[string]struct {
		err   error
		gate  *gate
		after time.Duration // of a success
		most  int           // calls, if each fails
	}{
		"conflict":             {err: conflict, most: 3},
		"conflict with a gate": {err: conflict, gate: &gate{late: time.Second}, most: 3},
		"gate without a delay": {err: conflict, gate: &gate{}, most: 3},
		"gate before":          {err: conflict, gate: &gate{late: time.Second, first: true}, most: 3},
		"gate without an end":  {err: conflict, gate: &gate{late: time.Hour}, most: 1},
		"stale":                {err: staleError{errors.New("stale")}, most: 3},
		"server delay":         {err: apierrors.NewTooManyRequests("busy", 1), most: 3},
		"long server delay":    {err: apierrors.NewTooManyRequests("busy", 3600), most: 3},
		"rejected":             {err: apierrors.NewBadRequest("no"), most: 3},
		"forbidden":            {err: apierrors.NewForbidden(widgets, "one", errors.New("no")), most: 3},
		"other":                {err: errors.New("other"), most: 3},
		"terminal":             {err: reconcile.ErrTerminal, most: 1},
		"requeued":             {err: conflict, after: time.Hour, most: 3},
	} {
		for _, forever := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				p := &preview.Preview{}
				queue := preview.NewQueue[string](p)
				queue.Add("one")
				queue.Add("other")
				calls := map[string]int{}
				loop := &reconcile.Controller[string]{Name: "widgets", Queue: queue, Reconcile: func(ctx context.Context, key string) (res reconcile.Result, err error) {
					_, end := p.Begin(ctx, "widgets", key)
					defer func() { end(err) }()
					calls[key]++
					queue.Add(key) // an event of another write
					if key == "one" && (forever || calls[key] == 1) {
						if tt.gate != nil {
							tt.gate.failed.Store(key)
						}
						return res, tt.err
					}
					return reconcile.Result{RequeueAfter: tt.after}, nil
				}}
				if tt.gate != nil {
					loop.Gate = tt.gate
					if tt.gate.failed.Store(""); tt.gate.first {
						tt.gate.failed.Store("one")
					}
				}
				start := time.Now()
				if err := p.Run(t.Context(), loop.Run); err != nil {
					t.Error(err)
				}
				want, code := tt.most, 1
				if !forever {
					want = min(want, 2)
				}
				if want == 2 {
					code = 0
				}
				if got := p.Report().ExitCode(); calls["one"] != want || calls["other"] != 1 || got != code {
					t.Errorf("%s, forever %v: %d calls of a key that fails and %d of another one, exit code %d; want %d, 1 and %d", name, forever, calls["one"], calls["other"], got, want, code)
				}
				if took := time.Since(start); took > 20*time.Second {
					t.Errorf("%s: the preview took %v", name, took)
				}
			})
		}
	}
}

// busy is a gate that is not ready for the key "one" for some times. Another worker begins a call meanwhile.
type busy struct {
	p    *preview.Preview
	left int
}

func (g *busy) Begin(ctx context.Context, _ string) context.Context { return ctx }

func (g *busy) End(string) {}

func (g *busy) Ready(key string, wake func()) bool {
	if key != "one" || g.left == 0 {
		return true
	}
	g.left--
	_, end := g.p.Begin(context.Background(), "widgets", "another")
	end(nil)
	time.AfterFunc(time.Second, wake)
	return false
}

// TestOverlap: a call of another key does not count as that of a key whose gate is not ready.
func TestOverlap(t *testing.T) {
	for _, keys := range [][]string{{"one"}, {"first", "one"}} {
		t.Run(keys[0], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &preview.Preview{}
				queue := preview.NewQueue[string](p)
				for _, key := range keys {
					queue.Add(key)
				}
				called := false
				gate := &busy{p: p, left: 2}
				if len(keys) > 1 {
					gate.left = 5 // the queue knows the names of calls
				}
				loop := &reconcile.Controller[string]{Name: "widgets", Queue: queue, Gate: gate, Reconcile: func(ctx context.Context, key string) (res reconcile.Result, err error) {
					_, end := p.Begin(ctx, "widgets", key)
					defer func() { end(err) }()
					called = called || key == "one"
					return res, nil
				}}
				if err := p.Run(t.Context(), loop.Run); err != nil || !called {
					t.Errorf("Run = %v, and the key was called: %t", err, called)
				}
			})
		})
	}
}

// TestForgetful has a loop without Forget: a key whose call succeeds is given out once, and one that fails ends in time.
func TestForgetful(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := &preview.Preview{}
			queue := preview.NewQueue[string](p)
			queue.Add("one")
			var got []string
			start := time.Now()
			err := p.Run(t.Context(), func(ctx context.Context) error {
				context.AfterFunc(ctx, queue.ShutDown)
				for {
					key, stop := queue.Get()
					if stop {
						return nil
					}
					got = append(got, key)
					_, end := p.Begin(ctx, "widgets", key)
					if end(nil); fails {
						end(errors.New("no"))
					}
					queue.Done(key)
				}
			})
			if err != nil || !slices.Equal(got, []string{"one"}) {
				t.Errorf("got %q, %v", got, err)
			}
			if took := time.Since(start); !fails && took > 0 || took > 10*time.Second {
				t.Errorf("fails %v: the preview took %v", fails, took)
			}
		})
	}
}

// TestIdleQueue: if an event gives a queue a key that was empty before, Run waits for its call. Proves PV4.
func TestIdleQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &preview.Preview{}
		idle, busy := preview.NewQueue[string](p), preview.NewQueue[string](p)
		busy.Add("one")
		err := p.Run(t.Context(), func(ctx context.Context) error {
			defer idle.ShutDown()
			var key string
			got := make(chan struct{})
			go func() {
				key, _ = idle.Get()
				close(got)
			}()
			one, _ := busy.Get()
			synctest.Wait()
			idle.Add("two") // an event
			<-got
			busy.Forget(one)
			busy.Done(one)
			synctest.Wait()
			if ctx.Err() != nil {
				t.Error("the context ends during a call")
			}
			idle.Forget(key)
			idle.Done(key)
			synctest.Wait()
			if ctx.Err() == nil {
				t.Error("the context does not end after the last call")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
