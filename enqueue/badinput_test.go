package enqueue_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
)

// TestNil tests that constructors reject nil arguments at once. A panic at a later
// event would come in the informer's goroutine, or never.
func TestNil(t *testing.T) {
	yes := podPredicate(func(podEvent) bool { return true })
	var noQueue *queue.Queue[types.NamespacedName]
	for _, tc := range []struct {
		name string
		f    func()
		want string
	}{
		{
			"Handler, q", func() { enqueue.Handler(nil, enqueue.KeyOf[*corev1.Pod]) },
			"enqueue: Handler: q is nil: make the queue before its handlers",
		},
		{
			"Handler, q is a nil pointer", func() { enqueue.Handler(noQueue, enqueue.KeyOf[*corev1.Pod]) },
			"enqueue: Handler: q is nil: make the queue before its handlers",
		},
		{
			"Handler, keys", func() { enqueue.Handler[*corev1.Pod](&recorder{}, nil) },
			"enqueue: Handler: keys is nil: use KeyOf to add the key of each object",
		},
		{
			"Filter, h", func() { enqueue.Filter(nil, yes) },
			"enqueue: Filter: h is nil: set the handler for the events that pass",
		},
		{
			"Filter, pass", func() { enqueue.Filter[*corev1.Pod](cache.ResourceEventHandlerFuncs{}, nil) },
			"enqueue: Filter: predicate 1 of 1 is nil",
		},
		{"And", func() { enqueue.And(yes, yes, nil) }, "enqueue: And: predicate 3 of 3 is nil"},
		{"Or", func() { enqueue.Or(yes, nil) }, "enqueue: Or: predicate 2 of 2 is nil"},
		{"Not", func() { enqueue.Not[*corev1.Pod](nil) }, "enqueue: Not: predicate 1 of 1 is nil"},
		{
			"Selects", func() { enqueue.Selects[*corev1.Pod](nil) },
			"enqueue: Selects: selector is nil: use labels.Everything() to match every object",
		},
		{
			"ControllerOf, of an object that does not know its kind",
			func() { enqueue.ControllerOf[*corev1.Pod]((&corev1.Node{}).GroupVersionKind().GroupKind()) },
			`enqueue: ControllerOf: owner has no kind: use e.g. appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind()`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer func() {
				if got := recover(); got != tc.want {
					t.Errorf("got panic %v, want %q", got, tc.want)
				}
			}()
			tc.f()
		})
	}
}

// TestPredicatesOfTheCaller tests that And and Or copy the caller's slice.
func TestPredicatesOfTheCaller(t *testing.T) {
	yes := podPredicate(func(podEvent) bool { return true })
	mine := []podPredicate{yes}
	and, or := enqueue.And(mine...), enqueue.Or(mine...)
	mine[0] = nil
	if !and(podEvent{}) || !or(podEvent{}) {
		t.Error("And or Or does not pass what its only predicate passes")
	}
}
