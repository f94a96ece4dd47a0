package prioritized_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/managerkit/internal/prioritized"
	"github.com/controllerkit/controllerkit/queue"
)

// TestShutDown: after ShutDown a waiting Get returns, and no Get returns a ready key.
func TestShutDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := prioritized.New(queue.Config[string]{})
		waiting := make(chan bool)
		go func() {
			_, shutdown := q.Get()
			waiting <- shutdown
		}()
		synctest.Wait()
		q.ShutDown()
		if !<-waiting {
			t.Error("the waiting Get has a key")
		}
	})
	q := prioritized.New(queue.Config[string]{})
	q.Add("a")
	q.ShutDown()
	if key, priority, shutdown := q.GetWithPriority(); !shutdown {
		t.Errorf("GetWithPriority() = %q, %d after ShutDown, want none", key, priority)
	}
}

// TestShutDownRemovesKeys: after ShutDown the queue has only running keys, also if they were added again.
func TestShutDownRemovesKeys(t *testing.T) {
	q := prioritized.New(queue.Config[string]{})
	q.Add("a")
	q.Add("b")
	q.AddAfter("c", time.Hour)
	key, _ := q.Get()
	q.Add(key)
	q.ShutDown()
	if got := q.Pending(); len(got) != 1 || got[0] != key {
		t.Errorf("after ShutDown the queue has %q, want the running key %q", got, key)
	}
	q.Done(key)
	if got := q.Pending(); len(got) > 0 {
		t.Errorf("after Done the queue has %q", got)
	}
}

// TestOptions: all fields are used, and no priority is 0.
func TestOptions(t *testing.T) {
	got := prioritized.Options{After: time.Second, RateLimited: true, Priority: new(-100)}.Of()
	if want := (controllerkit.AddOptions{After: time.Second, RateLimited: true, Priority: -100}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := (prioritized.Options{}).Of(); got != (controllerkit.AddOptions{}) {
		t.Errorf("the zero Options give %+v", got)
	}
}
