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
	if !filter.Update(event.UpdateEvent{ObjectOld: pod("a", 0), ObjectNew: pod("a", 1)}) || anew(request) {
		t.Error("an older generation that the standby's controller sees is new")
	}
	again := func(generation int64) *corev1.Pod {
		p := pod("a", generation)
		p.UID = "v"
		return p
	}
	if !filter.Update(event.UpdateEvent{ObjectOld: again(1), ObjectNew: again(2)}) || !anew(request) || anew(request) {
		t.Error("another object of the name has no new generation if the first one had it")
	}
	if !filter.Update(event.UpdateEvent{ObjectOld: pod("a", 1), ObjectNew: pod("a", 2)}) || anew(request) {
		t.Error("the generation of the first object is new again")
	}
	next := again(2)
	next.UID = "w"
	if !filter.Update(event.UpdateEvent{ObjectOld: again(2), ObjectNew: next}) || !anew(request) {
		t.Error("an object that was deleted and made again between two events is not new")
	}
	if !filter.Update(event.UpdateEvent{}) || !filter.Create(event.CreateEvent{}) || !filter.Delete(event.DeleteEvent{}) || !filter.Generic(event.GenericEvent{}) {
		t.Error("an event is dropped")
	}
	for i := range 2 * maxNames {
		n.note(object{NamespacedName: types.NamespacedName{Name: fmt.Sprint(i)}}, 2)
	}
	if len(n.newest) > maxNames || len(n.due) > maxNames {
		t.Errorf("%d objects and %d names are kept", len(n.newest), len(n.due))
	}
}
