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

// maxNames bounds the names that are remembered.
const maxNames = 4096

// Names has the names of objects of any kind with a new generation. The zero value is empty. It is
// safe for concurrent use.
type Names struct {
	mu    sync.Mutex
	names map[types.NamespacedName]state
}

// state is the newest generation of a name. It is kept after its request, because the controller of
// a standby calls the predicates too, later or earlier.
type state struct {
	generation int64
	due        bool // no request has had it
}

// Filter returns a predicate that passes each event and notes the new generations.
func (n *Names) Filter() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		if e.ObjectOld != nil && e.ObjectNew != nil && e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() {
			n.note(types.NamespacedName{Namespace: e.ObjectNew.GetNamespace(), Name: e.ObjectNew.GetName()}, e.ObjectNew.GetGeneration())
		}
		return true
	}}
}

func (n *Names) note(name types.NamespacedName, generation int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	have, ok := n.names[name]
	switch {
	case have.generation == generation:
		return
	case n.names == nil || !ok && len(n.names) >= maxNames:
		n.names = map[types.NamespacedName]state{}
	}
	n.names[name] = state{generation, true}
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
	if s := n.names[request.NamespacedName]; s.due {
		s.due = false
		n.names[request.NamespacedName] = s
		object := metav1.ObjectMeta{Namespace: request.Namespace, Name: request.Name}
		older := object
		object.Generation = older.Generation + 1
		e.Object, e.Old = &object, &older
	}
	return e
}
