package enqueue_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue"
)

// recorder is a queue that records the added keys. It has only Add, as the queues
// of client-go.
type recorder struct{ got []string }

func (r *recorder) Add(key string) { r.got = append(r.got, key) }

type priorityRecorder struct{ recorder }

func (r *priorityRecorder) AddWith(o controllerkit.AddOptions, keys ...string) {
	for _, key := range keys {
		r.got = append(r.got, fmt.Sprintf("%s at %d", key, o.Priority))
	}
}

type eventRecorder struct {
	recorder
	events []controllerkit.Event
}

func (r *eventRecorder) AddEvent(e controllerkit.Event, o controllerkit.AddOptions, keys ...string) {
	for _, key := range keys {
		r.got = append(r.got, fmt.Sprintf("%s of %s at %d", e.Kind, key, o.Priority))
	}
	r.events = append(r.events, e)
}

func pod(name, version string, owners ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version}}
	for _, owner := range owners {
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, Controller: ptr.To(true),
		})
	}
	return p
}

func ownerNames(p *corev1.Pod) (names []string) {
	for _, ref := range p.OwnerReferences {
		names = append(names, ref.Name)
	}
	return names
}

// keysOf returns a function that returns the keys that Handler adds if obj is deleted.
func keysOf[T any](keys func(T) []types.NamespacedName) func(obj any) []types.NamespacedName {
	return func(obj any) (got []types.NamespacedName) {
		enqueue.Handler(addFunc(func(key types.NamespacedName) { got = append(got, key) }), keys).OnDelete(obj)
		return got
	}
}

type addFunc func(types.NamespacedName)

func (f addFunc) Add(key types.NamespacedName) { f(key) }

// change returns an object for an event.
func change(version string, generation int64, label string) *corev1.Pod {
	p := pod("p", version)
	p.UID, p.Generation = "uid", generation
	if label != "" {
		p.Labels = map[string]string{"app": label}
	}
	return p
}

type (
	podEvent     = enqueue.Event[*corev1.Pod]
	podPredicate = enqueue.Predicate[*corev1.Pod]
)
