package integration_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/examples/tenant/internal/observer"
	"github.com/controllerkit/controllerkit/internal/lab"
)

// TestReplicas runs two replicas, with a hand-over by SIGTERM during a reconcile and
// a hand-over by SIGKILL. A proxy for each replica records the writes.
func TestReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// The renew deadline also bounds the release of the Lease. While other tests run,
	// the API server can take seconds for a request.
	args := []string{
		"-leader-elect", "-leader-election-namespace", observer.SystemNamespace,
		"-lease-duration", "30s", "-renew-deadline", "25s", "-retry-period", "10s",
	}
	lead := func(not string) (holder string) {
		t.Helper()
		w.await(func() error {
			if holder = w.Leader(); holder == "" || holder == not {
				return fmt.Errorf("the Lease is held by %q, want another holder", holder)
			}
			return nil
		})
		return holder
	}

	a, b := w.replica(args...), w.replica(args...)
	w.start(a)
	first := lead("")
	w.start(b)
	w.awaitState(w.create(tenant("blue")), created())

	t.Run("SIGTERM during a reconcile", func(t *testing.T) {
		// The signal arrives during a write of a reconcile.
		signalled := make(chan error, 1)
		var armed atomic.Bool
		armed.Store(true)
		w.Hook(func(op lab.Op) bool {
			if op.Write && !op.Lease && armed.CompareAndSwap(true, false) {
				go func() { signalled <- a.Stop() }()
			}
			return true
		}, nil)
		green := w.create(tenant("green"))
		if err := <-signalled; err != nil {
			t.Fatal(err)
		}
		w.Hook(nil, nil)
		lead(first)
		w.awaitState(green, created())
		var release, acquire time.Time
		w.await(func() (err error) { // the observer can be earlier than the proxy's record
			release, acquire, err = w.HandOver()
			return err
		})
		for _, op := range w.Writes(release) {
			if op.At.Before(acquire) {
				t.Errorf("%s between the release of the Lease and its acquisition", op)
			}
		}
		t.Logf("hand-over took %v from release to acquisition", acquire.Sub(release))
		if gap := acquire.Sub(release); gap > 9*time.Second {
			t.Errorf("hand-over took %v, want less than the retry period of 10s: the standby does not watch", gap)
		}
	})

	t.Run("SIGKILL", func(t *testing.T) {
		second := lead("")
		b.Kill()
		w.start(a)
		lead(second)
		w.awaitState(w.edit("blue"), edited())
	})

	for _, name := range []string{"blue", "green"} {
		w.delete(name)
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
	w.await(func() error {
		if holder := w.Leader(); holder != "" {
			return errors.New("the Lease is held by " + holder)
		}
		return nil
	})
}

// TestStop sends SIGTERM during a call that takes 12s, with the default times: the call
// ends, then the Lease is released, and the process exits with 0.
func TestStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.replica("-leader-elect", "-leader-election-namespace", observer.SystemNamespace)
	w.start(r)
	w.awaitState(w.create(tenant("blue")), created())
	begun := make(chan time.Time, 1)
	var held atomic.Bool
	w.Hook(func(op lab.Op) bool {
		if op.Write && !op.Lease && !strings.Contains(op.Path, "/events") && held.CompareAndSwap(false, true) {
			begun <- time.Now()
			<-time.After(12 * time.Second) // the slow service
		}
		return true
	}, nil)
	w.edit("blue")
	call := <-begun
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(call); took < 12*time.Second {
		t.Errorf("the controller stopped after %v, before the end of the call", took)
	}
	if holder := w.Leader(); holder != "" {
		t.Errorf("the Lease is held by %q, want it released", holder)
	}
	if strings.Contains(r.Output(), "context canceled") {
		t.Errorf("the call was cancelled:\n%s", r.Tail(20))
	}
}
