package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/reconcile"
)

// TestReady: Ready fails until Run has called each key that a Source reported before the
// caches were synced, and no later key counts.
func TestReady(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		synced := make(checker)
		c := &controller{Name: "x", Queue: q, Workers: 1, HasSynced: []cache.DoneChecker{synced}, Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
			time.Sleep(time.Second)
			if key == "bad" {
				return reconcile.Result{}, errors.New("no")
			}
			return reconcile.Result{}, nil
		}}
		is := func(when, want string) {
			t.Helper()
			if err := c.Ready(); fmt.Sprint(err) != want {
				t.Errorf("%s: Ready() = %v, want %s", when, err, want)
			}
		}
		is("before Run", `reconcile: controller "x" is not running`)
		pods := c.Source("pods")
		pods.Add("a")
		pods.AddEvent(event("list"), addOptions{}, "b", "bad")
		r := start(t, t.Context(), c)
		pods.Add("a") // a second event of a key
		time.Sleep(time.Minute)
		is("before the caches are synced", `reconcile: controller "x" waits for HasSynced`)
		pods.AddEvent(event("list"), addOptions{After: 2*time.Minute + 10*time.Second}, "late")
		close(synced)
		time.Sleep(500 * time.Millisecond)
		is("while the first call runs", `reconcile: controller "x" has not reconciled 4 keys of the first list`)
		pods.AddEvent(event("update"), addOptions{}, "a", "new") // of these, one runs and one is no key of the list
		time.Sleep(time.Second)
		is("after the first call", `reconcile: controller "x" has not reconciled 3 keys of the first list`)
		time.Sleep(time.Minute)
		is("when a key is delayed", `reconcile: controller "x" has not reconciled 1 keys of the first list`)
		time.Sleep(2 * time.Minute)
		is("after all", "<nil>")
		pods.Add("more")
		is("with a new key", "<nil>")
		r.stop()
		is("after Run", `reconcile: controller "x" is not running`)
	})
}

// TestReadyOfManyKeys: keys that are delayed because they run too often still count once, and
// those that are not remembered do not count.
func TestReadyOfManyKeys(t *testing.T) {
	bothQueues(t, func(t *testing.T, q queueOf) {
		c := &controller{Name: "x", Queue: q, Workers: 4, Reconcile: func(context.Context, string) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		}}
		pods := c.Source("pods")
		const more = 1<<16 + 100
		for i := range more {
			pods.Add(fmt.Sprint(i))
		}
		r := start(t, t.Context(), c)
		time.Sleep(time.Minute)
		if err := c.Ready(); err != nil {
			t.Errorf("Ready() = %v after all keys were called", err)
		}
		r.stop()
	})
}
