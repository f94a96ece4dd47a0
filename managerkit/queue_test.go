package managerkit_test

import (
	"testing"

	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// TestNewQueueStops: after ShutDown a worker gets no more keys, although the queue has some.
func TestNewQueueStops(t *testing.T) {
	q := managerkit.NewQueue(queue.Config[string]{})("mk-stops", nil)
	q.Add("a")
	if key, shutdown := q.Get(); key != "a" || shutdown {
		t.Errorf("Get() = %q, %t, want the key", key, shutdown)
	}
	q.Add("b")
	q.ShutDown()
	if key, shutdown := q.Get(); !shutdown {
		t.Errorf("Get() = %q after ShutDown, want none", key)
	}
}
