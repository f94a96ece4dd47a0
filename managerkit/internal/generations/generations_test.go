package generations

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func pod(name string, generation int64) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Generation: generation, UID: "u", ResourceVersion: "7"}}
}

// TestNames: the first request for an object with a new generation has it, and no other.
func TestNames(t *testing.T) {
	var n Names
	request := crreconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "a"}}
	filter := n.Filter()
	anew := func(key any) bool {
		e := n.Event("event", key)
		if e.Kind != "event" || e.Object != nil && (e.Object.GetUID() != "" || e.Object.GetName() != "a" || e.Object.GetGeneration() == e.Old.GetGeneration()) {
			t.Errorf("event %+v", e)
		}
		return e.Object != nil
	}
	if !filter.Update(event.UpdateEvent{ObjectOld: pod("a", 1), ObjectNew: pod("a", 1)}) || anew(request) {
		t.Error("an update of the status is a new generation")
	}
	if !filter.Update(event.UpdateEvent{ObjectOld: pod("a", 1), ObjectNew: pod("a", 2)}) || anew("ns/a") || !anew(request) || anew(request) {
		t.Error("a new generation is not that of the first request")
	}
	if !filter.Update(event.UpdateEvent{ObjectOld: pod("a", 1), ObjectNew: pod("a", 2)}) || anew(request) {
		t.Error("the generation that the standby's controller sees is new again")
	}
	if !filter.Update(event.UpdateEvent{}) || !filter.Create(event.CreateEvent{}) || !filter.Delete(event.DeleteEvent{}) || !filter.Generic(event.GenericEvent{}) {
		t.Error("an event is dropped")
	}
	for i := range 2 * maxNames {
		n.note(types.NamespacedName{Name: fmt.Sprint(i)}, 2)
	}
	if len(n.names) > maxNames {
		t.Errorf("%d names are kept", len(n.names))
	}
}
