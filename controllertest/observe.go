package controllertest

import (
	"context"
	"fmt"
	"regexp"
	"runtime/pprof"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/watcher"
)

// An observer watches the cluster with eyes of its own, which no fault reaches:
// each resource once for all runs. Runs are told apart by their namespace, which
// is part of the name or the namespace of every object of theirs.
type observer struct {
	dyn  dynamic.Interface
	ctx  context.Context
	wg   sync.WaitGroup
	mine *regexp.Regexp // finds a run's namespace in a name

	mu    sync.Mutex
	runs  map[string]*run // by namespace
	types map[string]*observed
}

// An observed resource.
type observed struct {
	gvr        schema.GroupVersionResource
	namespaced bool
	synced     chan struct{}
}

func newObserver(ctx context.Context, dyn dynamic.Interface, prefix string) *observer {
	return &observer{
		dyn: dyn, ctx: ctx, mine: regexp.MustCompile(regexp.QuoteMeta(prefix) + `-\d+`),
		runs: map[string]*run{}, types: map[string]*observed{},
	}
}

// observe sees to it that a resource is watched.
func (o *observer) observe(gvr schema.GroupVersionResource, namespaced bool) {
	name := gvr.GroupResource().String()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.types[name] != nil || unobserved(name) {
		return
	}
	t := &observed{gvr: gvr, namespaced: namespaced, synced: make(chan struct{})}
	o.types[name] = t
	o.wg.Go(func() {
		pprof.SetGoroutineLabels(context.Background()) // it is not of the run that happens to be first
		o.watch(name, t)
	})
}

// unobserved are resources that are no part of a state: how often they are
// written is nobody's business, or they are no objects.
func unobserved(resource string) bool {
	switch resource {
	case "events", "events.events.k8s.io", leases, "bindings":
		return true
	}
	return resource == "" || resource[0] == '/'
}

const leases = "leases.coordination.k8s.io"

func (o *observer) watch(name string, t *observed) {
	w := &watcher.RetryWatcher[*unstructured.Unstructured]{Source: watcher.Client[*unstructured.Unstructured](o.dyn.Resource(t.gvr))}
	synced := sync.OnceFunc(func() { close(t.synced) })
	for event, err := range w.Events(o.ctx) {
		if err != nil {
			return
		}
		switch event.Type {
		case watch.Added, watch.Modified, watch.Deleted:
			if r := o.runOf(event.Object); r != nil {
				r.observe(name, event.Type, event.Object)
			}
		case watcher.Synced:
			synced()
		}
	}
}

func (o *observer) runOf(obj *unstructured.Unstructured) *run {
	namespace := o.mine.FindString(obj.GetNamespace())
	if namespace == "" {
		namespace = o.mine.FindString(obj.GetName())
	}
	if namespace == "" {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.runs[namespace]
}

func (o *observer) gvr(resource string) schema.GroupVersionResource {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.types[resource]; t != nil {
		return t.gvr
	}
	return schema.GroupVersionResource{}
}

// all are the resources that were written.
func (o *observer) all() []schema.GroupVersionResource {
	o.mu.Lock()
	defer o.mu.Unlock()
	var found []schema.GroupVersionResource
	for _, t := range o.types {
		found = append(found, t.gvr)
	}
	return found
}

// isMine reports whether an object belongs to a run, a present or a past one.
func (o *observer) isMine(obj *unstructured.Unstructured) bool {
	return o.mine.MatchString(obj.GetNamespace()) || o.mine.MatchString(obj.GetName())
}

func (o *observer) add(r *run) {
	o.mu.Lock()
	o.runs[r.env.Namespace] = r
	o.mu.Unlock()
}

func (o *observer) remove(r *run) {
	o.mu.Lock()
	delete(o.runs, r.env.Namespace)
	o.mu.Unlock()
}

// resources are those that are watched, and whose watch has begun.
func (o *observer) resources(ctx context.Context) (map[string]*observed, error) {
	o.mu.Lock()
	types := make(map[string]*observed, len(o.types))
	for name, t := range o.types {
		types[name] = t
	}
	o.mu.Unlock()
	for name, t := range types {
		select {
		case <-t.synced:
		case <-ctx.Done():
			return nil, fmt.Errorf("watch %s: %w", name, context.Cause(ctx))
		}
	}
	return types, nil
}
