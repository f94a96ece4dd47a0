package integration_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/controllerkit/controllerkit/internal/lab"
)

// TestKill kills the controller with SIGKILL at each write in a tenant's life, before the
// write reaches the server or before the controller gets the response, and starts it again.
// Each life must reach the same states as without a kill: the same objects, one account for
// each tenant, and no account after the deletion.
func TestKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run()

	var (
		mu      sync.Mutex // guards the variables below and r.Process
		left    = -1       // writes until the kill; negative means none
		late    bool       // kill after the server's response
		current string     // the request at which the process was killed
		restart = make(chan struct{}, 1)
	)
	kill := func(op lab.Op, phase string) bool {
		r.Kill()
		current = phase + " " + op.String()
		restart <- struct{}{}
		return false
	}
	w.Hook(func(op lab.Op) bool {
		if !op.Write {
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if left > 0 {
			left--
		}
		if left == 0 && !late {
			left = -1
			return kill(op, "before")
		}
		return true
	}, func(op lab.Op) bool {
		mu.Lock()
		defer mu.Unlock()
		if op.Write && left == 0 && late {
			left = -1
			return kill(op, "after")
		}
		return true
	})
	// The supervisor starts the process again, as the kubelet does.
	supervised := make(chan struct{})
	go func() {
		defer close(supervised)
		for range restart {
			mu.Lock()
			w.start(r)
			mu.Unlock()
		}
	}()
	defer func() {
		w.Hook(nil, nil)
		close(restart)
		<-supervised
	}()

	writes := 0 // at which it was killed
	names := []string{}
	at := lab.Moments(t)
	for moment := 0; ; moment++ {
		write, after := at(moment)
		mu.Lock()
		left, late, current = write, after, ""
		mu.Unlock()
		name := fmt.Sprintf("kill-%d", moment)
		names = append(names, name)

		obj := w.create(tenant(name))
		w.awaitState(obj, created())
		obj = w.edit(name)
		w.awaitState(obj, edited())
		w.removeQuota(name)
		w.awaitState(obj, edited())
		w.delete(name)
		if n := w.accounts(obj); n != 0 {
			t.Errorf("%d accounts of a deleted tenant, want none", n)
		}

		mu.Lock()
		killed := current
		left = -1
		mu.Unlock()
		if killed == "" {
			break // this life had no more writes
		}
		if t.Failed() {
			t.Fatalf("killed %s", killed)
		}
		writes = write
		t.Logf("killed %s: same states", killed)
	}
	if writes < 10 {
		t.Errorf("the last kill was at write %d, want at least 10", writes)
	}
	if accounts := w.billing.Accounts(); len(accounts) > 0 {
		t.Errorf("accounts left: %v", accounts)
	}
	for _, name := range names {
		w.await(func() error { return w.NamespaceGone(name) })
	}
}
