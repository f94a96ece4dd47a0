package shutdown_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/shutdown"
)

func get(t *testing.T, h http.Handler) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if got, want := w.Header().Get("Content-Type"), "text/plain; charset=utf-8"; got != want {
		t.Errorf("Content-Type = %q, want %q", got, want)
	}
	return w.Code, w.Body.String()
}

// TestReadyAndLive proves D4.
func TestReadyAndLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &shutdown.Group{}
		var informers, queue, live error
		g.AddReady("informers", func() error { return informers })
		g.AddReady("queue", func() error { return queue })
		g.AddLive("worker", func() error { return live })
		g.Add("part", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second); return nil })

		secret := errors.New("token abc123 was refused")
		expect := func(when string, h http.Handler, code int, body string) {
			t.Helper()
			if c, b := get(t, h); c != code || b != body {
				t.Errorf("%s: got %d %q, want %d %q", when, c, b, code, body)
			}
		}
		expect("before Run", g.Ready(), 503, "starting\n")
		expect("before Run", g.Live(), 200, "ok\n")
		informers = secret
		expect("before Run with a failing check", g.Ready(), 503, "starting\nfailing: informers\n")

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		synctest.Wait()
		queue = secret
		expect("running, both fail", g.Ready(), 503, "failing: informers\nfailing: queue\n")
		expect("running, both fail", g.Live(), 200, "ok\n")
		informers, queue = nil, nil
		expect("running", g.Ready(), 200, "ok\n")
		live = secret
		expect("liveness fails", g.Live(), 503, "failing: worker\n")
		expect("liveness fails", g.Ready(), 200, "ok\n")
		live = nil

		cancel()
		synctest.Wait()
		expect("stopping", g.Ready(), 503, "stopping\n")
		expect("stopping", g.Live(), 200, "ok\n")
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		expect("stopped", g.Ready(), 503, "stopping\n")
	})
}

// TestSlowCheckDoesNotHideTheStop: what is answered after stopping began says so.
//
// Proves D4.
func TestSlowCheckDoesNotHideTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &shutdown.Group{}
		g.AddReady("slow", func() error { time.Sleep(2 * time.Second); return nil })
		g.Add("part", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(5 * time.Second); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		synctest.Wait()
		time.AfterFunc(time.Second, cancel)
		if c, b := get(t, g.Ready()); c != 503 || b != "stopping\n" {
			t.Errorf("answer a second after stopping began: %d %q, want 503 stopping", c, b)
		}
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

// TestNotReadyFromTheMomentAPartFails: nothing may be sent to a process that is
// on its way out, whatever the reason.
//
// Proves D4.
func TestNotReadyFromTheMomentAPartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &shutdown.Group{}
		g.Add("slow", func(ctx context.Context) error {
			<-ctx.Done()
			if c, b := get(t, g.Ready()); c != 503 || b != "stopping\n" {
				t.Errorf("when the first part is told: %d %q, want 503 stopping", c, b)
			}
			return nil
		})
		g.Add("bad", func(context.Context) error { return errors.New("broken") })
		if err := g.Run(t.Context()); err == nil {
			t.Error("Run() = nil, want an error")
		}
	})
}
