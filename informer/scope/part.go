package scope

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer/scope/internal/versions"
	"github.com/controllerkit/controllerkit/internal/alive"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// region is an opened Part: the parts of all informers of a selection.
type region struct {
	key   Part
	parts []*part // in the order of the informers

	// The lock of the selection guards the fields below.
	attached bool // the parts are handlers of their informers, or begin to be
	closed   bool
	unopened error // of the function of New when the region was opened again; nil if it has not failed
}

// part is what one Informer has of a region. It is the handler of the region's informer.
type part struct {
	scope    *Informer
	key      Part
	informer cache.SharedIndexInformer
	typed    func(any) any  // decodes what the informer holds; nil if it holds objects
	floor    versions.Floor // its version is set before the part is in a view

	// The lock of the selection guards the fields below.
	stop    context.CancelFunc       // nil until the informer runs
	failed  error                    // of the last list or watch before the informer was synced
	tries   int                      // that failed
	visible bool                     // of the selection
	closed  bool                     // events are ignored
	holding bool                     // events go to held
	held    []event                  // raw events
	heldAt  string                   // a version that no event before those in held exceeds
	objects map[cache.ObjectName]any // the objects that the events have shown
}

// maxTries is the number of failures of an informer that is not synced after which Select does
// not wait for it. If the API server has rejected it, Select waits for no second attempt.
const maxTries = 3

// newRegion makes the informers of a Part, which it does not start.
func (s *selection) newRegion(key Part) (*region, error) {
	r := &region{key: key}
	for _, i := range s.informers {
		p := &part{scope: i, key: key, objects: map[cache.ObjectName]any{}}
		var err error
		if p.informer, err = i.make(key); err == nil {
			err = p.prepare()
		}
		if err != nil {
			return nil, err
		}
		r.parts = append(r.parts, p)
	}
	return r, nil
}

// prepare makes a new informer report its failures.
func (p *part) prepare() error {
	switch {
	case kube.IsNil(p.informer):
		return fmt.Errorf("the function of New returned a nil informer: return a new one")
	case p.informer.IsStopped():
		return fmt.Errorf("the function of New returned an informer that has stopped: return a new one")
	}
	err := p.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		watched, next := alive.From(ctx), p.scope.watchError()
		rests := watched.Rests()
		next(ctx, r, err)
		if watched.Rests() == rests {
			p.fail(err)
		}
	})
	if err != nil {
		return fmt.Errorf("the function of New returned an informer that cannot be started: %w: return a new one", err)
	}
	if s, ok := p.informer.GetStore().(headers.Store); ok {
		p.typed = s.Typed
	}
	return nil
}

// fail notes the error of a list or watch.
func (p *part) fail(err error) {
	s := p.scope.selection
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.informer.HasSynced() || p.closed {
		return
	}
	p.failed = err
	p.tries++
	s.changeLocked()
}

// failing reports whether Select does not wait for the region, because a list or the function of
// New fails.
func (r *region) failing() bool {
	return r.unopened != nil || slices.ContainsFunc(r.parts, func(p *part) bool {
		return p.failed != nil && (p.tries >= maxTries || rejected(p.failed)) && !p.informer.HasSynced()
	})
}

// failure returns the last error of a part that is not synced, or of the function of New.
func (r *region) failure() error {
	if r.unopened != nil {
		return r.unopened
	}
	for _, p := range r.parts {
		if p.failed != nil && !p.informer.HasSynced() {
			return p.failed
		}
	}
	return nil
}

// rejected reports whether the same request will fail again.
func rejected(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

// startLocked runs the part's informer, if the Informer of the scope runs.
func (p *part) startLocked() {
	i := p.scope
	if i.run == nil || i.selection.stopped || p.stop != nil || p.closed {
		return
	}
	ctx, stop := context.WithCancel(i.run)
	p.stop = stop
	watched := alive.From(i.run).Part(p.key.String())
	i.wait.Go(func() {
		defer stop()
		defer watched.End()
		p.informer.RunWithContext(watched.Context(ctx))
		if ctx.Err() == nil {
			klog.FromContext(ctx).Info("An informer ended by itself: only its scope may start and stop it", "part", kube.Printable(p.key.String(), 253))
		}
	})
}

// MetadataAlone reports whether objects has encoded objects, which listeners decode.
func (p *part) MetadataAlone() bool { return headers.Decodes(p.informer.GetStore()) }

// TakesMalformed implements malformed.Taker: what a handler has seen of an object outlasts the part.
func (p *part) TakesMalformed() {}

// OnAdd implements cache.ResourceEventHandler.
func (p *part) OnAdd(obj any, initial bool) {
	p.handle(event{kind: onAdd, new: object{p, obj}, initial: initial})
}

// OnUpdate implements cache.ResourceEventHandler.
func (p *part) OnUpdate(old, obj any) {
	p.handle(event{kind: onUpdate, old: object{p, old}, new: object{p, obj}})
}

// OnDelete implements cache.ResourceEventHandler.
func (p *part) OnDelete(obj any) { p.handle(event{kind: onDelete, old: object{p, obj}}) }

func (p *part) handle(e event) {
	p.scope.selection.mu.Lock()
	defer p.scope.selection.mu.Unlock()
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
	obj := e.new.obj
	if e.kind == onDelete {
		obj = e.old.obj
	}
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		return // no informer holds an object without metadata
	}
	if e.kind == onDelete {
		delete(p.objects, name)
	} else {
		p.objects[name] = obj
	}
	if p.visible {
		p.scope.sendLocked(e)
	}
}

// holdLocked makes the part keep its events.
func (p *part) holdLocked() {
	p.holding = true
	p.heldAt = p.version() // not before holding is set
}

// releaseLocked applies the kept events.
func (p *part) releaseLocked() {
	held := p.held
	p.holding, p.held = false, nil
	for _, e := range held {
		p.applyLocked(e)
	}
}

// closeLocked begins the end of the region's informers and does not wait for it: the Informers
// that run them do.
func (r *region) closeLocked() {
	r.closed = true
	for _, p := range r.parts {
		p.closed, p.visible, p.holding, p.held = true, false, false, nil
		if p.stop != nil {
			p.stop()
		}
	}
}

// version returns the version of the part's cache.
func (p *part) version() string { return p.informer.GetStore().LastStoreSyncResourceVersion() }

// shownVersion returns the version of a part in a view.
func (p *part) shownVersion() string { return p.floor.Known(p.version()) }

// addIndexers adds the indexers that the part's cache does not have.
func (p *part) addIndexers(indexers cache.Indexers) error {
	for name, f := range indexers {
		if _, err := p.informer.GetIndexer().IndexKeys(name, ""); err == nil {
			continue
		}
		if err := p.informer.AddIndexers(cache.Indexers{name: f}); err != nil {
			return fmt.Errorf("add index %q: %w", name, err)
		}
	}
	return nil
}

// namespaces finds the region of an object by its namespace.
type namespaces map[string]*region

// of returns the region that has the objects of a namespace, or nil.
func (n namespaces) of(namespace string) *region {
	if r := n[""]; r != nil {
		return r
	}
	return n[namespace]
}

// overlap reports whether an object of a namespace can be in one of the regions. "" means any
// namespace.
func (n namespaces) overlap(namespace string) bool {
	return n.of(namespace) != nil || namespace == "" && len(n) > 0
}

// object returns the object that a region has shown to the informer with an index.
func (n namespaces) object(index int, name cache.ObjectName) (object, bool) {
	r := n.of(name.Namespace)
	if r == nil {
		return object{}, false
	}
	p := r.parts[index]
	obj, ok := p.objects[name]
	return object{p, obj}, ok
}
