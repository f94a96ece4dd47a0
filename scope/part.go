package scope

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

// part is an opened Part. It is the handler of its informer.
type part struct {
	scope *Informer
	key   Part
	watch Watch // set once, under the lock of scope

	// The lock of scope guards the fields below.
	visible bool                     // of the selection
	closed  bool                     // events are ignored
	holding bool                     // events go to held
	held    []event                  // raw events
	heldAt  string                   // a version that no event before those in held exceeds
	objects map[cache.ObjectName]any // the objects that the events have shown
}

// OnAdd implements cache.ResourceEventHandler.
func (p *part) OnAdd(obj any, initial bool) { p.handle(event{kind: added, new: obj, initial: initial}) }

// OnUpdate implements cache.ResourceEventHandler.
func (p *part) OnUpdate(old, obj any) { p.handle(event{kind: updated, old: old, new: obj}) }

// OnDelete implements cache.ResourceEventHandler.
func (p *part) OnDelete(obj any) { p.handle(event{kind: deleted, old: obj}) }

func (p *part) handle(e event) {
	p.scope.mu.Lock()
	defer p.scope.mu.Unlock()
	switch {
	case p.closed:
	case p.holding:
		p.held = append(p.held, e)
	default:
		p.applyLocked(e)
	}
}

// applyLocked notes an event of the informer, and sends it if the part is visible.
func (p *part) applyLocked(e event) {
	obj := e.new
	if e.kind == deleted {
		obj = e.old
	}
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		return // no informer holds an object without metadata
	}
	if e.kind == deleted {
		delete(p.objects, name)
	} else {
		p.objects[name] = obj
	}
	if p.visible {
		p.scope.sendLocked(e)
	}
}

// closeLocked begins the end of the part's Watch and does not wait for it: whoever runs the
// informer does.
func (p *part) closeLocked() {
	p.closed, p.visible, p.holding = true, false, false
	if p.watch == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.watch.Close(ctx) // the error is ctx's
}

// version returns the version of the part's cache.
func (p *part) version() string { return p.watch.GetStore().LastStoreSyncResourceVersion() }

// addIndexers adds the indexers that the part's cache does not have: another scope may have
// added them to a shared one.
func (p *part) addIndexers(indexers cache.Indexers) error {
	for name, f := range indexers {
		if _, err := p.watch.GetIndexer().IndexKeys(name, ""); err == nil {
			continue
		}
		if err := p.watch.AddIndexers(cache.Indexers{name: f}); err != nil {
			return fmt.Errorf("add index %q: %w", name, err)
		}
	}
	return nil
}

// same reports whether two objects are the same version of one object.
func same(a, b any) bool {
	x, err := meta.Accessor(a)
	if err != nil {
		return false
	}
	y, err := meta.Accessor(b)
	if err != nil {
		return false
	}
	return x.GetResourceVersion() != "" && x.GetResourceVersion() == y.GetResourceVersion() && x.GetUID() == y.GetUID()
}

// namespaces finds the part of an object.
type namespaces map[string]*part

func byNamespace(parts []*part) namespaces {
	n := namespaces{}
	for _, p := range parts {
		n[p.key.Namespace] = p
	}
	return n
}

// of returns the part that has the objects of a namespace, or nil.
func (n namespaces) of(namespace string) *part {
	if p := n[""]; p != nil {
		return p
	}
	return n[namespace]
}

// object returns the object that a part has shown.
func (n namespaces) object(name cache.ObjectName) (any, bool) {
	p := n.of(name.Namespace)
	if p == nil {
		return nil, false
	}
	obj, ok := p.objects[name]
	return obj, ok
}
