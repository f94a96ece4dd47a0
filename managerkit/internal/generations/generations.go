// Package generations remembers which objects have a new generation, from the predicates of a
// builder to the queue: an event handler of controller-runtime adds a request without its object.
package generations

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit"
)

// maxNames bounds the names and the objects that are remembered.
const maxNames = 4096

// Names has the names of objects of any kind with a new generation. The zero value is empty. It is
// safe for concurrent use.
type Names struct {
	mu  sync.Mutex
	due map[types.NamespacedName]struct{} // no request has had the generation

	// newest has generations that were due. They are kept after the request, because the controller of a standby
	// calls the predicates too, later or earlier.
	newest map[object]int64
}

// object names an object. Another one of the name, of another kind or after a deletion, has its own generations.
type object struct {
	types.NamespacedName
	uid types.UID
}

// Filter returns a predicate that passes each event and notes the new generations.
func (n *Names) Filter() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		if e.ObjectOld != nil && e.ObjectNew != nil && (e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID()) {
			name := types.NamespacedName{Namespace: e.ObjectNew.GetNamespace(), Name: e.ObjectNew.GetName()}
			n.note(object{name, e.ObjectNew.GetUID()}, e.ObjectNew.GetGeneration())
		}
		return true
	}}
}

func (n *Names) note(of object, generation int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	newest, ok := n.newest[of]
	switch {
	case ok && newest >= generation:
		return
	case n.newest == nil || !ok && len(n.newest) >= maxNames:
		n.newest, n.due = map[object]int64{}, map[types.NamespacedName]struct{}{}
	}
	n.newest[of] = generation
	n.due[of.NamespacedName] = struct{}{}
}

// Event returns the event of a kind that adds a request. It has objects only if the request is the
// first one for an object with a new generation. They have no UID, because another object of the
// name may have added the request.
func (n *Names) Event(kind string, key any) controllerkit.Event {
	e := controllerkit.Event{Kind: kind}
	request, ok := key.(crreconcile.Request)
	if !ok {
		return e
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.due[request.NamespacedName]; ok {
		delete(n.due, request.NamespacedName)
		newer := metav1.ObjectMeta{Namespace: request.Namespace, Name: request.Name}
		older := newer
		newer.Generation = older.Generation + 1
		e.Object, e.Old = &newer, &older
	}
	return e
}
