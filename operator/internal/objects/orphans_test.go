package objects

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/guard"
	"github.com/controllerkit/controllerkit/internal/listless"
	"github.com/controllerkit/controllerkit/queue"
)

// TestOrphansStandby: the handler of an operator gets no first list while the operator does not lead. Nevertheless
// Orphans notes an owner of the list whose finalizer the garbage collector then removes.
func TestOrphansStandby(t *testing.T) {
	var o Orphans
	h := &guard.Handler{ResourceEventHandler: o.Before(enqueue.Handler(queue.New(queue.Config[types.NamespacedName]{}), enqueue.KeyOf[metav1.Object]))}
	if !listless.Is(h) || listless.Is(o.Before(cache.ResourceEventHandlerFuncs{})) {
		t.Error("a handler is listless if the next one is")
	}
	listed := &metav1.ObjectMeta{UID: "1", ResourceVersion: "1", DeletionTimestamp: ptr.To(metav1.Now()), Finalizers: []string{metav1.FinalizerOrphanDependents}}
	released := &metav1.ObjectMeta{UID: "1", ResourceVersion: "2", DeletionTimestamp: listed.DeletionTimestamp}
	h.OnUpdate(listed, released)
	if !o.Has(released) {
		t.Error("the children of the owner do not stay")
	}
	h.OnDelete(released)
	if o.Has(released) {
		t.Error("an owner that is gone stays in memory")
	}
}
