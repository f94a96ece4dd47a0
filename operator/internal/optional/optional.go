// Package optional has the informers of resources that an API server need not serve.
package optional

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// ErrUnknown is wrapped by the [crd.ErrNotServed] of a resource that may be served.
var ErrUnknown = errors.New("it is not known")

// Informer is an informer that is empty and synced while the resource is not served.
type Informer struct {
	*scope.Informer

	kind      schema.GroupVersionKind
	resource  schema.GroupResource
	selection scope.Selection // while it is served
	gone      chan struct{}   // has an element when a list or watch was not found
	readable  atomic.Bool     // Changed was called with nil, and not with an error since
	changed   []func(err error)
}

// New returns an informer of the kind in a namespace, "" for all. informer returns a new informer of a
// namespace.
func New(kind schema.GroupVersionKind, resource schema.GroupResource, namespace string, informer func(namespace string) (cache.SharedIndexInformer, error)) *Informer {
	return &Informer{
		Informer: scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) { return informer(p.Namespace) }),
		kind:     kind, resource: resource, selection: scope.Selection{Namespaces: []string{namespace}},
		gone: make(chan struct{}, 1),
	}
}

// Changed adds a function that Observe calls with nil when the objects are in the cache, and with a [crd.ErrNotServed],
// or with the error of the list, before they are removed from it. It must be called before Observe.
func (i *Informer) Changed(f func(err error)) { i.changed = append(i.changed, f) }

// now calls the functions of Changed. No read that they allow is of a cache that counts as empty.
func (i *Informer) now(err error) {
	if err == nil {
		i.readable.Store(true)
	} else {
		defer i.readable.Store(false)
	}
	for _, f := range i.changed {
		f(err)
	}
}

// GetStore implements cache.SharedInformer. While each read of the objects is an error, no cache can be old, also if
// they cannot be listed: the calls of keys that read other things need not read live.
func (i *Informer) GetStore() cache.Store {
	return store{i.GetIndexer().(versions), &i.readable}
}

// versions is the store of a scope.Informer, with the methods that package consistency asks for.
type versions interface {
	cache.Indexer
	LastStoreSyncResourceVersionOf(namespace string) (version string, ok bool)
	Showing() any
}

type store struct {
	versions
	readable *atomic.Bool
}

// SelectsNothing reports whether no read is possible. Package consistency asks for it.
func (s store) SelectsNothing() bool { return !s.readable.Load() }

// SetWatchErrorHandlerWithContext implements cache.SharedInformer. handler does not get the error of a
// resource that is not served.
func (i *Informer) SetWatchErrorHandlerWithContext(handler cache.WatchErrorHandlerWithContext) error {
	return i.Informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if !isNotServed(err) {
			handler(ctx, r, err)
			return
		}
		select {
		case i.gone <- struct{}{}:
		default: // Observe has not seen the last one yet
		}
	})
}

// isNotServed reports whether the error of a list or watch means that the resource is not served.
func isNotServed(err error) bool {
	return apierrors.IsNotFound(err) || errors.Is(err, crd.ErrNotServed)
}

// Intervals are the times between two questions whether the API server serves a resource.
type Intervals struct{ Absent, Present time.Duration }

// Observe shows the objects while the API server serves the resource, until ctx is done. ask returns the kind
// of a resource, which is empty if it is not served, and whether its objects are in namespaces. If they are not, the
// namespace of the informer does not count. The informer becomes synced without the objects if the first
// attempt fails or takes longer than every.Absent: other keys do not wait for them. The objects go at the second
// answer in a row that the resource is not served, or at the first after a list or watch that was not found.
func (i *Informer) Observe(ctx context.Context, ask func(ctx context.Context, version schema.GroupVersion, resource string) (kind string, namespaced bool, err error), every Intervals) {
	i.now(fmt.Errorf("%w %s yet: %w", crd.ErrNotServed, i.resource, ErrUnknown))
	logger := klog.FromContext(ctx).WithValues("resource", i.resource)
	const unknown, absent, present = 0, 1, 2
	state := unknown
	doubted := false             // the last answer, or a list or watch of the shown objects, was that there is no such resource
	unanswered, failed := "", "" // the last error of ask and of a list, which are logged once
	fail := func(last *string, err error) {
		if text := err.Error(); ctx.Err() == nil && text != *last {
			*last = text
			logger.Info("An optional resource is not known", "reason", kube.Printable(text, 4<<10))
		}
	}
	for ctx.Err() == nil {
		attempt, cancel := ctx, context.CancelFunc(func() {})
		if !i.HasSynced() {
			attempt, cancel = context.WithTimeout(ctx, every.Absent)
		}
		kind, namespaced, err := ask(attempt, i.kind.GroupVersion(), i.resource.Resource)
		if err == nil {
			unanswered = "" // the next outage is another one
		}
		selection := i.selection
		if !namespaced {
			selection = scope.Selection{Namespaces: []string{""}}
		}
		var notServed error
		switch {
		case kind == "":
			notServed = fmt.Errorf("%w %s in version %s", crd.ErrNotServed, i.resource, i.kind.Version)
		case kind != i.kind.Kind:
			notServed = fmt.Errorf("%w %s of kind %s: its objects are of kind %s", crd.ErrNotServed, i.resource, i.kind.Kind, kube.Printable(kind, 100))
		}
		switch {
		case err != nil:
			fail(&unanswered, err)
		case notServed == nil && state == present:
			doubted = false
		case notServed == nil:
			if err := i.Select(attempt, selection); err != nil {
				if isNotServed(err) { // discovery is ahead or behind. A reader must not take the 404 for an absent object
					err = fmt.Errorf("%w %s: %w, because discovery has it: %s", crd.ErrNotServed, i.resource, ErrUnknown, kube.Printable(err.Error(), 4<<10))
				}
				if state != unknown || err.Error() != failed {
					i.now(fmt.Errorf("operator: %w", err))
				}
				state = unknown // it is selected, so its absence is a change
				fail(&failed, err)
				break
			}
			state, failed, doubted = present, "", false
			i.now(nil)
			logger.Info("An optional resource is served")
		case state == present && !doubted:
			doubted = true // one of several API servers may be older
		case state != absent:
			i.now(notServed)
			if err := i.Select(ctx, scope.Selection{}); err != nil {
				fail(&failed, err)
				break
			}
			if state == present {
				logger.Info("An optional resource is no longer served", "reason", notServed.Error())
			}
			state, failed = absent, ""
		}
		cancel()
		if !i.HasSynced() {
			if err := i.Select(ctx, scope.Selection{}); err != nil {
				fail(&failed, err)
			}
		}
		wait := every.Absent
		if state == present && !doubted {
			wait = every.Present
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait + rand.N(wait/10+1)): // replicas do not ask at once
		case <-i.gone:
			doubted = true
			if state != present { // its lists fail until it is served
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				}
			}
		}
	}
}
