package controllertest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/watcher"
)

// An observer watches the cluster without faults, each resource once for all runs. An object belongs to the run whose namespace its
// namespace or its name contains. A cluster-scoped object of another name, such as one with the uid
// of an object, belongs to the run whose client creates it. The observer knows that before the API
// server has the request, so no watch is earlier.
type observer struct {
	dyn    dynamic.Interface
	ctx    context.Context
	wg     sync.WaitGroup
	prefix []byte         // of the namespaces of all runs
	mine   *regexp.Regexp // finds a run's namespace in a name

	mu      sync.Mutex
	runs    map[string]*run // by namespace
	types   map[string]*observed
	claims  map[objectKey]*run // cluster-scoped objects whose names do not contain their run's namespace
	created map[types.UID]bool // the claimed objects that a run has created
	named   map[string]maker   // the same, and those that a run may have created, by name; also of ended runs
}

// A maker is the run that creates an object.
type maker struct {
	namespace string // of the run
	made      bool   // the object did not exist before
}

// An observed resource.
type observed struct {
	gvr        schema.GroupVersionResource
	namespaced bool
	known      chan struct{} // closed when the watch has begun, or the resource has no list

	// Guarded by observer.mu:
	noList  error // why the API server does not list the resource, or nil
	settled bool  // known is closed
}

func newObserver(ctx context.Context, prefix string) *observer {
	return &observer{
		ctx: ctx, prefix: []byte(prefix), mine: regexp.MustCompile(regexp.QuoteMeta(prefix) + `-\d+`),
		runs: map[string]*run{}, types: map[string]*observed{}, claims: map[objectKey]*run{}, created: map[types.UID]bool{}, named: map[string]maker{},
	}
}

// claim stores that a run is about to write a cluster-scoped object. A watch can deliver the object
// before the response arrives. The error names the cure if the write would disturb another run.
func (o *observer) claim(r *run, op *fault.Op) error {
	if op.Namespace != "" || unobserved(op.Resource) {
		return nil
	}
	key := objectKey{resource: op.Resource, name: op.Name}
	own := r.env.Namespace
	creates := (op.Verb == "create" || op.Verb == "apply") && op.Subresource == ""
	prefixed := o.mine.FindString(op.Name)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch of := cmp.Or(prefixed, o.named[op.Name].namespace); {
	case op.Verb == "deletecollection" && r.x.options.Parallel != 1:
		return fmt.Errorf("a request deletes a collection of %s, in which other runs have objects: delete single objects, or set Options.Parallel to 1", op.Resource)
	case creates && prefixed == "" && op.Generated:
		return fmt.Errorf("%s has a generated name, so its run is unknown: let metadata.generateName contain the namespace of the run", key)
	case creates && o.claims[key] != nil && o.claims[key] != r:
		return fmt.Errorf("%s is written by two runs at once: let its name contain the namespace of the run or the uid of an object, or set Options.Parallel to 1", key)
	case !creates && of != "" && of != own && o.runs[of] != nil:
		return fmt.Errorf("%s belongs to another run at the same time, and this run sends %s: let the controller write only objects that it has read by its configuration, or set Options.Parallel to 1", key, op.Verb)
	}
	if creates && prefixed == "" {
		o.claims[key] = r
		o.named[op.Name] = maker{own, o.named[op.Name] == maker{own, true}}
	}
	return nil
}

// answered stores whether a run has created a claimed object. An object that existed before is of no
// run, so all see it.
func (o *observer) answered(r *run, op *fault.Op, status int) {
	if op.Verb != "create" && op.Verb != "apply" || op.Namespace != "" || op.Subresource != "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch m, ok := o.named[op.Name]; {
	case !ok || m.namespace != r.env.Namespace:
	case status == http.StatusCreated:
		o.named[op.Name] = maker{m.namespace, true}
	case !m.made:
		delete(o.named, op.Name)
	}
}

// appeared stores that a claimed object did not exist before, also if its creator has not seen the
// response.
func (o *observer) appeared(resource string, obj *unstructured.Unstructured) {
	if obj.GetNamespace() != "" || o.mine.MatchString(obj.GetName()) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if r := o.claims[objectKey{resource: resource, name: obj.GetName()}]; r != nil {
		o.named[obj.GetName()] = maker{r.env.Namespace, true}
		o.created[obj.GetUID()] = true
	}
}

// wants reports whether an event, as text, can be about an object of a run.
func (o *observer) wants(event []byte) bool {
	if bytes.Contains(event, o.prefix) {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.named)+len(o.claims) == 0 {
		return false
	}
	namespace, name, ok := namesOf(event)
	if !ok || namespace != "" {
		return !ok
	}
	if _, ok := o.named[name]; ok {
		return true
	}
	for key := range o.claims { // of objects that existed before
		if key.name == name {
			return true
		}
	}
	return false
}

// mayBeOthers reports whether a text can be about an object of a run.
func (o *observer) mayBeOthers(text []byte) bool {
	if bytes.Contains(text, o.prefix) {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.named) > 0
}

// other reports whether an object belongs to another run than that of the namespace.
func (o *observer) other(own string) func(namespace, name string) bool {
	return func(namespace, name string) bool {
		found := cmp.Or(o.mine.FindString(namespace), o.mine.FindString(name))
		if found == "" && namespace == "" {
			o.mu.Lock()
			found = o.named[name].namespace
			o.mu.Unlock()
		}
		return found != "" && found != own
	}
}

// observe starts the watch of a resource.
func (o *observer) observe(gvr schema.GroupVersionResource, namespaced bool) {
	name := gvr.GroupResource().String()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.types[name] != nil || unobserved(name) {
		return
	}
	t := &observed{gvr: gvr, namespaced: namespaced, known: make(chan struct{})}
	o.types[name] = t
	o.wg.Go(func() {
		pprof.SetGoroutineLabels(context.Background()) // without the label of the first run
		o.watch(name, t)
	})
}

// unobserved reports whether a resource is no part of a state: its writes are not judged,
// or it has no objects.
func unobserved(resource string) bool {
	switch resource {
	case "events", "events.events.k8s.io", leases, "bindings":
		return true
	}
	return resource == "" || resource[0] == '/'
}

const leases = "leases.coordination.k8s.io"

func (o *observer) watch(name string, t *observed) {
	w := &watcher.RetryWatcher[*unstructured.Unstructured]{
		Source:   watcher.Client[*unstructured.Unstructured](o.dyn.Resource(t.gvr)),
		MaxDelay: time.Second, // until a definition is served
	}
	synced := false
	var position uint64 // the version up to which all events are known
	var listed []watcher.Event[*unstructured.Unstructured]
	for event, err := range w.Events(o.ctx) {
		if err != nil {
			o.settle(t, err)
			return
		}
		switch event.Type {
		case watcher.Retrying:
			if hasNoList(event.Err) {
				o.settle(t, event.Err)
			}
		case watch.Added, watch.Modified, watch.Deleted:
			if event.Type == watch.Added && !event.Synthetic {
				o.appeared(name, event.Object)
			}
			if event.Synthetic && synced {
				listed = append(listed, event)
			} else if r := o.runOf(name, event.Object); r != nil {
				r.observe(name, event.Type, event.Object)
			}
		case watcher.Synced:
			if synced {
				o.relisted(listed, gap{name, position, parseRevision(event.ResourceVersion)})
				listed = nil
			} else {
				synced = true
			}
			o.settle(t, nil)
		}
		if event.ResourceVersion != "" {
			position = parseRevision(event.ResourceVersion)
		}
	}
}

// settle stores whether a resource has a list.
func (o *observer) settle(t *observed, noList error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t.noList = noList
	if !t.settled {
		t.settled = true
		close(t.known)
	}
}

// hasNoList reports whether the API server does not list a resource. Then it shows no object of it.
func hasNoList(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)
}

// unserved returns a hint if written resources are not served.
func (o *observer) unserved() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for name, t := range o.types {
		if apierrors.IsNotFound(t.noList) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("; the API server does not serve %s: add its CRD to Scenario.CRDs", strings.Join(names, ", "))
}

// A gap is a time that the observer knows only by a list at its end: it lost its watch, as a
// busy server ends slow watches, and the events before the list have expired.
type gap struct {
	resource   string
	after, end uint64
}

// relisted stores the difference that a list has shown after a gap. No run waits any longer for
// the events of the gap: an object that was created and deleted in it has none.
func (o *observer) relisted(listed []watcher.Event[*unstructured.Unstructured], missed gap) {
	o.mu.Lock()
	runs := slices.Collect(maps.Values(o.runs))
	o.mu.Unlock()
	for _, r := range runs {
		r.miss(missed)
	}
	for _, event := range listed {
		if r := o.runOf(missed.resource, event.Object); r != nil {
			at := revision(event.Object)
			if event.Type == watch.Deleted {
				at = missed.end // the object is the last that was seen
			}
			r.observeAt(missed.resource, event.Type, event.Object, at)
		}
	}
}

func (o *observer) runOf(resource string, obj *unstructured.Unstructured) *run {
	namespace := cmp.Or(o.mine.FindString(obj.GetNamespace()), o.mine.FindString(obj.GetName()))
	o.mu.Lock()
	defer o.mu.Unlock()
	if namespace == "" {
		return o.claims[objectKey{resource, obj.GetNamespace(), obj.GetName()}]
	}
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

// all returns the written resources.
func (o *observer) all() []schema.GroupVersionResource {
	o.mu.Lock()
	defer o.mu.Unlock()
	var found []schema.GroupVersionResource
	for _, t := range o.types {
		found = append(found, t.gvr)
	}
	return found
}

// isMine reports whether an object belongs to a run of this exploration. created reports
// that a run has just created it, and not only written it.
func (o *observer) isMine(resource string, obj *unstructured.Unstructured, created bool) bool {
	if o.mine.MatchString(obj.GetNamespace()) || o.mine.MatchString(obj.GetName()) {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	claimed := o.claims[objectKey{resource, obj.GetNamespace(), obj.GetName()}] != nil
	if claimed && created {
		o.created[obj.GetUID()] = true
	}
	return claimed || o.created[obj.GetUID()]
}

func (o *observer) add(r *run) {
	o.mu.Lock()
	o.runs[r.env.Namespace] = r
	o.mu.Unlock()
}

func (o *observer) remove(r *run) {
	o.mu.Lock()
	delete(o.runs, r.env.Namespace)
	maps.DeleteFunc(o.claims, func(_ objectKey, of *run) bool { return of == r })
	o.mu.Unlock()
}

// resources returns the written resources after their watches have begun, or it is known that they
// have no list.
func (o *observer) resources(ctx context.Context) (map[string]*observed, error) {
	o.mu.Lock()
	all := maps.Clone(o.types)
	o.mu.Unlock()
	for name, t := range all {
		select {
		case <-t.known:
		case <-ctx.Done():
			return nil, fmt.Errorf("watch %s: %w", name, context.Cause(ctx))
		}
	}
	return all, nil
}
