package informer_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/alive"
)

// The error of a function of AddRun is in that of Run, once, also if it comes at the stop. A
// function that ends by itself ends Run.
func TestAddRun(t *testing.T) {
	failed := errors.New("failed")
	for name, tc := range map[string]struct {
		run  func(context.Context) error
		stop bool
		want string
	}{
		"fails":          {func(context.Context) error { return failed }, false, `informer: "watches": failed`},
		"ends":           {func(context.Context) error { return nil }, false, `informer: "watches" ended by itself: only the Set may start and stop it`},
		"fails to stop":  {func(ctx context.Context) error { <-ctx.Done(); return failed }, true, `informer: "watches": failed`},
		"stops":          {func(ctx context.Context) error { <-ctx.Done(); return nil }, true, ""},
		"a nil function": {nil, false, `informer: Add("watches") got a nil informer: pass one`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				set := &informer.Set{Mutated: func(informer.Mutation) {}}
				set.AddRun("watches", tc.run)
				ctx, cancel := context.WithCancel(quiet(t))
				defer cancel()
				if tc.stop {
					time.AfterFunc(time.Minute, cancel)
				}
				got := ""
				if err := set.Run(ctx); err != nil {
					got = err.Error()
				}
				if got != tc.want {
					t.Errorf("Run = %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// Check and Ready name the part of an informer that is stalled or refused, and the reason why an
// informer with parts is not synced is in the error of Run.
func TestParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &informer.Set{}
		set.AddRun("watches", func(ctx context.Context) error {
			for _, name := range []string{"blue", "green"} {
				part := alive.From(ctx).Part(name)
				defer part.End()
				part.Begin(alive.Watch)
				if name == "green" { // goes on
					tick := time.NewTicker(time.Minute)
					defer tick.Stop()
					go func() {
						for {
							select {
							case <-tick.C:
								part.Begin(alive.Watch)
							case <-ctx.Done():
								return
							}
						}
					}()
				}
			}
			<-ctx.Done()
			return nil
		})
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		time.Sleep(5 * time.Minute)
		if err := errors.Join(set.Check(), set.Ready()); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Minute)
		if err := set.Check(); err == nil || err.Error() != `informer: "watches": blue is stalled: it has sent no request and received no data for 10m0s` {
			t.Errorf("Check = %v, want a stall of blue", err)
		}
		if err := set.Relist("watches"); err != nil {
			t.Errorf("Relist = %v", err)
		}
		if last := set.LastEvents()["watches"]; time.Since(last) != 10*time.Minute {
			t.Errorf("the last event was at %v, want the start of the parts", last)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A part that gets no events because of an object that does not fit the Go type is named by Ready,
// and counted. A restart of the process, which a failing Check causes, would stop the other parts.
func TestBlindPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := badParts{}
		set := &informer.Set{Metrics: metrics}
		set.AddRun("watches", func(ctx context.Context) error {
			part := alive.From(ctx).Part("blue")
			defer part.End()
			read := func(kind alive.Kind) {
				body := part.Body(io.NopCloser(strings.NewReader("data")), kind, part.Begin(kind))
				_, _ = io.ReadAll(body)
				_ = body.Close()
			}
			read(alive.Watch) // is decoded
			for range 3 {
				read(alive.List)
				part.Failed(errors.New("cannot decode"))
			}
			<-ctx.Done()
			return nil
		})
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		synctest.Wait()
		if err := set.Ready(); err == nil || !strings.HasPrefix(err.Error(), `informer: not synced: "watches": blue gets no events: its last 3 lists cannot be decoded: `) {
			t.Errorf("Ready = %v, want an error that names blue", err)
		}
		if err := set.Check(); err != nil {
			t.Errorf("Check = %v", err)
		}
		if n := metrics["watches"](); n != 1 {
			t.Errorf("%d malformed objects, want 1", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// badParts has the functions of InformerMalformed.
type badParts map[string]func() int

func (badParts) InformerListed(string, time.Duration)           {}
func (badParts) InformerWatched(string, time.Duration)          {}
func (badParts) InformerLast(string, func() time.Time)          {}
func (badParts) InformerMutated(string, int)                    {}
func (c badParts) InformerMalformed(name string, of func() int) { c[name] = of }

// A part whose client has no transport of EndSilentWatches cannot list again.
func TestPartWithoutTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &informer.Set{}
		set.AddRun("watches", func(ctx context.Context) error {
			defer alive.From(ctx).Part("blue").End()
			<-ctx.Done()
			return nil
		})
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		synctest.Wait()
		if err := set.Relist("watches"); err == nil || !strings.Contains(err.Error(), `Relist("watches"): blue: the informer's client has no transport`) {
			t.Errorf("Relist = %v, want the cure", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Relist makes the parts that have sent a request list again, also if another one has just begun.
func TestRelistNewPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &informer.Set{}
		ended := make(chan string, 2)
		set.AddRun("watches", func(ctx context.Context) error {
			for _, name := range []string{"blue", "green"} {
				part := alive.From(ctx).Part(name)
				defer part.End()
				if name == "blue" {
					part.Begin(alive.Watch)
					part.Watch(false, func() { ended <- name })
				}
			}
			<-ctx.Done()
			return nil
		})
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		synctest.Wait()
		if err := set.Relist("watches"); err != nil || len(ended) != 1 {
			t.Errorf("Relist = %v, and ended %d watches, want that of blue", err, len(ended))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
