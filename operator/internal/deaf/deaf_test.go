package deaf_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/deaf"
)

const timeout = 15 * time.Second

// call runs a call that takes a time.
func call(ctx context.Context, c *deaf.Calls, took time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer c.End(c.Begin(ctx))
	time.Sleep(took)
}

// TestCalls: a call that goes on after its Timeout is logged within 10s, once an hour.
func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := testlog.New()
		ctx := logs.Context(t.Context())
		c := &deaf.Calls{Timeout: timeout}
		for range 100 { // the calls of a worker, and one that ends soon after its Timeout
			call(ctx, c, timeout-time.Second)
		}
		call(ctx, c, timeout+4*time.Second)
		if lines := logs.All(); len(lines) > 0 {
			t.Errorf("logged %+v for calls that end", lines)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			call(ctx, c, 2*time.Hour)
		}()
		time.Sleep(timeout + 4*time.Second)
		synctest.Wait()
		if lines := logs.All(); len(lines) > 0 {
			t.Errorf("logged %+v after 4s", lines)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if lines := logs.Find(deaf.Line); len(lines) != 1 || lines[0].Values["timeout"] != timeout {
			t.Errorf("logged %+v after 10s, want one line", logs.All())
		}
		<-done
		if n := len(logs.Find(deaf.Line)); n != 2 {
			t.Errorf("%d lines in two hours, want 2", n)
		}
		time.Sleep(time.Hour) // the timer ends
	})
}

// TestCancelled: calls of a stop, and those of a controller without a Timeout, are not logged.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := testlog.New()
		for _, c := range []*deaf.Calls{{Timeout: timeout}, {}} {
			ctx, cancel := context.WithCancel(logs.Context(t.Context()))
			number := c.Begin(ctx)
			cancel()
			time.Sleep(time.Hour)
			c.End(number)
			time.Sleep(time.Hour)
		}
		if lines := logs.All(); len(lines) > 0 {
			t.Errorf("logged %+v", lines)
		}
	})
}
