package pause_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/enqueue/pause"
)

// A reconcile function that obeys the annotations.
func ExampleAnnotations() {
	a := pause.Annotations{Prefix: "example.com"}
	reconcile := func(obj metav1.Object) {
		if obj.GetDeletionTimestamp() != nil {
			fmt.Println("clean up") // also of a paused object
			return
		}
		if a.Paused(obj) {
			c := a.Condition(obj)
			fmt.Println(c.Type, c.Status, c.Message)
			return
		}
		fmt.Println("reconcile, and note", a.Request(obj))
	}
	obj := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{
		"example.com/paused": "incident 42", "example.com/requested-at": "2026-05-01T12:00:00Z",
	}}}
	reconcile(obj)
	delete(obj.Annotations, "example.com/paused")
	reconcile(obj)
	// Output:
	// Paused True the annotation example.com/paused has the value "incident 42": remove it to go on. A deletion is still cleaned up
	// reconcile, and note 2026-05-01T12:00:00Z
}

// A handler that sees only new generations passes the begin and the end of a pause, too.
func ExampleChanged() {
	pass := enqueue.Or(enqueue.GenerationChanged[*corev1.Pod], pause.Changed[*corev1.Pod](pause.Annotations{}))
	former := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 1}}
	paused := former.DeepCopy()
	paused.Annotations = map[string]string{"controllerkit.github.io/paused": "true"}
	labelled := former.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	fmt.Println(pass(enqueue.Event[*corev1.Pod]{Old: former, New: paused}))
	fmt.Println(pass(enqueue.Event[*corev1.Pod]{Old: former, New: labelled}))
	// Output:
	// true
	// false
}

// The keys of the paused objects of an informer.
func ExampleSet() {
	paused := &pause.Set{} // informer.AddEventHandler(paused)
	paused.OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{"controllerkit.github.io/paused": ""}}}, true)
	fmt.Println(paused.Len(), paused.Keys(10), paused.Has(types.NamespacedName{Namespace: "shop", Name: "web"}))
	// Output: 1 [shop/web] true
}
