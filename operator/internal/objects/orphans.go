package objects

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/listless"
)

// Orphans has the deleted owners whose children stay, because the user asked for --cascade=orphan. The API server
// shows that by a finalizer, which the garbage collector removes after it has released the children that it knows.
type Orphans struct {
	mu   sync.Mutex
	uids map[types.UID]struct{}
}

// Has reports whether the children of a deleted owner stay.
func (o *Orphans) Has(owner metav1.Object) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, noted := o.uids[owner.GetUID()]
	return noted || finalizer.Has(owner, metav1.FinalizerOrphanDependents)
}

// note notes an owner.
func (o *Orphans) note(obj any) {
	owner, ok := obj.(metav1.Object)
	if !ok || owner.GetDeletionTimestamp() == nil || !finalizer.Has(owner, metav1.FinalizerOrphanDependents) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.uids == nil {
		o.uids = map[types.UID]struct{}{}
	}
	o.uids[owner.GetUID()] = struct{}{}
}

// forget forgets an owner that is gone.
func (o *Orphans) forget(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	if owner, ok := obj.(metav1.Object); ok {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.uids, owner.GetUID())
	}
}

// Before returns a handler of the owners' events that notes them before it calls the next one.
func (o *Orphans) Before(next cache.ResourceEventHandler) cache.ResourceEventHandler {
	return &noting{next, o}
}

type noting struct {
	cache.ResourceEventHandler
	orphans *Orphans
}

// MetadataAlone reports whether the next handler needs no more than metadata.
func (n *noting) MetadataAlone() bool { return headers.Alone(n.ResourceEventHandler) }

// Listless reports whether the next handler needs no first list. For Orphans an update has also the old object.
func (n *noting) Listless() bool { return listless.Is(n.ResourceEventHandler) }

// OnAdd implements cache.ResourceEventHandler.
func (n *noting) OnAdd(obj any, isInInitialList bool) {
	n.orphans.note(obj)
	n.ResourceEventHandler.OnAdd(obj, isInInitialList)
}

// OnUpdate implements cache.ResourceEventHandler.
func (n *noting) OnUpdate(old, obj any) {
	n.orphans.note(old)
	n.orphans.note(obj)
	n.ResourceEventHandler.OnUpdate(old, obj)
}

// OnDelete implements cache.ResourceEventHandler.
func (n *noting) OnDelete(obj any) {
	n.orphans.forget(obj)
	n.ResourceEventHandler.OnDelete(obj)
}
