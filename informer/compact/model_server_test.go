package compact_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

var (
	steps = flag.Int("steps", 150, "number of changes of TestServerModel for each kind")
	seed  = flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of TestServerModel")
)

// world is a kind in the model.
type world[T controllerkit.Object] struct {
	typed   func(*rest.Config) cache.SharedIndexInformer
	compact func(*rest.Config) *compact.Informer[T]
	create  func(ctx context.Context, name string, n int) (metav1.Object, error)
	patch   func(ctx context.Context, name string, data []byte) (metav1.Object, error)
	remove  func(ctx context.Context, name string) error
	field   func(T) string
}

// TestServerModel runs client-go's typed informer and a compact one beside each other, through
// random changes, broken and refused watches and restarts. Their caches and indexes are equal, and
// their handlers get the same events. Proves CP2.
func TestServerModel(t *testing.T) {
	t.Logf("-seed %d", *seed)
	t.Run("protobuf", func(t *testing.T) {
		t.Parallel()
		namespace := testserver.Namespace(t)
		client := clientset(t, testserver.Config(t)).CoreV1().ConfigMaps(namespace)
		model(t, world[*corev1.ConfigMap]{
			typed: func(config *rest.Config) cache.SharedIndexInformer {
				return informers.NewSharedInformerFactoryWithOptions(clientset(t, config), 0, informers.WithNamespace(namespace)).Core().V1().ConfigMaps().Informer()
			},
			compact: func(config *rest.Config) *compact.Informer[*corev1.ConfigMap] {
				return made(compact.New[*corev1.ConfigMap](clientset(t, config).CoreV1().RESTClient(), "configmaps", compact.Options{Namespace: namespace}))(t)
			},
			create: func(ctx context.Context, name string, n int) (metav1.Object, error) {
				return client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"text": text(n)}, BinaryData: map[string][]byte{"b": {0, byte(n)}}}, metav1.CreateOptions{})
			},
			patch: func(ctx context.Context, name string, data []byte) (metav1.Object, error) {
				return client.Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
			},
			remove: func(ctx context.Context, name string) error {
				return client.Delete(ctx, name, metav1.DeleteOptions{})
			},
			field: func(c *corev1.ConfigMap) string { return c.Data["text"] },
		}, `{"data":{"text":%q}}`)
	})
	t.Run("JSON", func(t *testing.T) {
		t.Parallel()
		testserver.InstallCRD(t, gadgetDefinition())
		namespace := testserver.Namespace(t)
		client := restClient(t, testserver.Config(t))
		result := func(r rest.Result) (metav1.Object, error) {
			g := &Gadget{}
			return g, r.Into(g)
		}
		model(t, world[*Gadget]{
			typed: func(config *rest.Config) cache.SharedIndexInformer {
				client := restClient(t, config)
				request := func(opts metav1.ListOptions) *rest.Request {
					return client.Get().Namespace(namespace).Resource("gadgets").SpecificallyVersionedParams(&opts, metav1.ParameterCodec, metav1.SchemeGroupVersion)
				}
				return cache.NewSharedIndexInformer(&cache.ListWatch{
					ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
						list := &GadgetList{}
						return list, request(opts).Do(ctx).Into(list)
					},
					WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
						opts.Watch = true
						return request(opts).Watch(ctx)
					},
				}, &Gadget{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
			},
			compact: func(config *rest.Config) *compact.Informer[*Gadget] {
				return made(compact.New[*Gadget](restClient(t, config), "gadgets", compact.Options{Namespace: namespace}))(t)
			},
			create: func(ctx context.Context, name string, n int) (metav1.Object, error) {
				return result(client.Post().Namespace(namespace).Resource("gadgets").Body(fmt.Appendf(nil,
					`{"apiVersion":"compact.example.com/v1","kind":"Gadget","metadata":{"name":%q},"spec":{"text":%q,"unknown":[{"a":1}],"tags":{"n":"%d"}}}`, name, text(n), n)).Do(ctx))
			},
			patch: func(ctx context.Context, name string, data []byte) (metav1.Object, error) {
				return result(client.Patch(types.MergePatchType).Namespace(namespace).Resource("gadgets").Name(name).Body(data).Do(ctx))
			},
			remove: func(ctx context.Context, name string) error {
				return client.Delete().Namespace(namespace).Resource("gadgets").Name(name).Do(ctx).Error()
			},
			field: func(g *Gadget) string { return g.Spec.Text },
		}, `{"spec":{"text":%q}}`)
	})
}

// text is one of a few texts, some of which JSON escapes.
func text(n int) string {
	return []string{"", "plain", "\"}]{[\\", "line\nline", "\u2028é<>&", strings.Repeat("long", 500)}[n%6]
}

func made[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// pair is the two informers of one life.
type pair[T controllerkit.Object] struct {
	lines   [2]*line
	typed   cache.SharedIndexInformer
	compact *compact.Informer[T]
	events  [2]*record
	stops   []func()
}

// record has the events that a handler got, by key.
type record struct {
	mu      sync.Mutex
	events  map[string][]string
	version map[string]string // of the last state
	signal  chan struct{}
}

func (r *record) note(key, event, version string) {
	r.mu.Lock()
	r.events[key] = append(r.events[key], event)
	if r.version[key] = version; version == "" {
		delete(r.version, key)
	}
	r.mu.Unlock()
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

func plain(obj any) string {
	o := obj.(runtime.Object).DeepCopyObject()
	o.(metav1.Object).SetManagedFields(nil)
	return fmt.Sprintf("%+v", o)
}

func (r *record) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			o := obj.(metav1.Object)
			r.note(o.GetName(), fmt.Sprintf("add %v %s", initial, plain(obj)), o.GetResourceVersion())
		},
		UpdateFunc: func(before, after any) {
			o := after.(metav1.Object)
			r.note(o.GetName(), fmt.Sprintf("update %s to %s", plain(before), plain(after)), o.GetResourceVersion())
		},
		DeleteFunc: func(obj any) {
			lost, missed := obj.(cache.DeletedFinalStateUnknown)
			if missed {
				obj = lost.Obj
			}
			r.note(obj.(metav1.Object).GetName(), fmt.Sprintf("delete %v %s %s", missed, lost.Key, plain(obj)), "")
		},
	}
}

// until waits until the handler has seen the versions.
func (r *record) until(t *testing.T, want map[string]string) {
	t.Helper()
	timeout := time.After(time.Minute) // bounds a failing test
	for {
		r.mu.Lock()
		equal := maps.Equal(r.version, want)
		r.mu.Unlock()
		if equal {
			return
		}
		select {
		case <-r.signal:
		case <-timeout:
			r.mu.Lock()
			defer r.mu.Unlock()
			t.Fatalf("the handler saw %v, want %v", r.version, want)
		}
	}
}

func (w world[T]) begin(t *testing.T) *pair[T] {
	p := &pair[T]{}
	for i := range p.lines {
		p.lines[i] = &line{}
		p.events[i] = &record{events: map[string][]string{}, version: map[string]string{}, signal: make(chan struct{}, 1)}
	}
	config := func(i int) *rest.Config {
		c := testserver.Config(t)
		c.Wrap(func(next http.RoundTripper) http.RoundTripper { return p.lines[i].wrap(next) })
		return c
	}
	p.typed, p.compact = w.typed(config(0)), w.compact(config(1))
	indexers := cache.Indexers{"field": func(obj any) ([]string, error) {
		return []string{w.field(obj.(T)), obj.(metav1.Object).GetLabels()["l"]}, nil
	}}
	for i, inf := range []cache.SharedIndexInformer{p.typed, p.compact} {
		if err := inf.AddIndexers(indexers); err != nil {
			t.Fatal(err)
		}
		if _, err := inf.AddEventHandler(p.events[i].handler()); err != nil {
			t.Fatal(err)
		}
		p.stops = append(p.stops, start(t, inf))
	}
	return p
}

func (p *pair[T]) stop() {
	for _, stop := range p.stops {
		stop()
	}
}

func (p *pair[T]) until(t *testing.T, want map[string]string) {
	t.Helper()
	for _, r := range p.events {
		r.until(t, want)
	}
}

// check compares the two informers, whose handlers have seen all events.
func (p *pair[T]) check(t *testing.T, want map[string]string, gone string) {
	t.Helper()
	for _, r := range p.events {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	if !reflect.DeepEqual(p.events[0].events, p.events[1].events) {
		for key := range p.events[0].events {
			a, b := p.events[0].events[key], p.events[1].events[key]
			if !slices.Equal(a, b) {
				t.Fatalf("events of %s:\n%s\nthe compact informer:\n%s", key, strings.Join(a, "\n"), strings.Join(b, "\n"))
			}
		}
		t.Fatal("other keys have events")
	}
	store, headers := p.typed.GetIndexer(), 0
	for h := range p.compact.Headers() {
		obj, ok, _ := store.GetByKey(h.GetNamespace() + "/" + h.GetName())
		if !ok || obj.(metav1.Object).GetUID() != h.GetUID() || obj.(metav1.Object).GetResourceVersion() != h.GetResourceVersion() {
			t.Fatalf("the header of %s is %s %s", h.GetName(), h.GetUID(), h.GetResourceVersion())
		}
		headers++
	}
	if headers != len(want) {
		t.Fatalf("%d headers of %d objects", headers, len(want))
	}
	for name := range want {
		obj := p.sameObject(t, name)
		for _, value := range []string{obj.GetLabels()["l"], "absent"} {
			a, _ := store.ByIndex("field", value)
			b, err := p.compact.ByIndex("field", value)
			if err != nil {
				t.Fatal(err)
			}
			if x, y := names(a), names(b); !slices.Equal(x, y) {
				t.Fatalf("index %q has %v, want %v", value, y, x)
			}
			c, err := p.compact.GetIndexer().ByIndex("field", value)
			if x := names(c); err != nil || !slices.Equal(names(a), x) {
				t.Fatalf("the indexer's index %q has %v, want %v: %v", value, x, names(a), err)
			}
		}
	}
	if a, b := store.ListIndexFuncValues("field"), p.compact.GetIndexer().ListIndexFuncValues("field"); !sameSet(a, b) {
		t.Fatalf("the index has the values %q, want %q", b, a)
	}
	if a, b := store.ListKeys(), p.compact.GetIndexer().ListKeys(); !sameSet(a, b) {
		t.Fatalf("keys %q, want %q", b, a)
	}
	if a, b := names(store.List()), names(p.compact.GetStore().List()); !slices.Equal(a, b) {
		t.Fatalf("List has %v, want %v", b, a)
	}
	for obj, err := range p.compact.All() {
		if err != nil || want[obj.GetName()] != obj.GetResourceVersion() {
			t.Fatalf("All yields %s, %v", obj.GetName(), err)
		}
	}
	if gone != "" && want[gone] == "" {
		if _, ok := p.compact.Header("", gone); ok {
			t.Fatalf("%s is there", gone)
		}
	}
}

func (p *pair[T]) sameObject(t *testing.T, name string) metav1.Object {
	t.Helper()
	var key string
	for _, k := range p.typed.GetStore().ListKeys() {
		if strings.HasSuffix(k, "/"+name) {
			key = k
		}
	}
	namespace, _, _ := strings.Cut(key, "/")
	want, _, _ := p.typed.GetStore().GetByKey(key)
	got, err := p.compact.Get(namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := p.compact.GetStore().GetByKey(key)
	if err != nil {
		t.Fatal(err)
	}
	trimmed := want.(runtime.Object).DeepCopyObject()
	trimmed.(metav1.Object).SetManagedFields(nil)
	if !reflect.DeepEqual(trimmed, any(got)) || !reflect.DeepEqual(trimmed, other) {
		t.Fatalf("Get of %s:\n%+v\nGetByKey:\n%+v\nwant\n%+v", name, got, other, trimmed)
	}
	got.SetLabels(map[string]string{"changed": "by the caller"}) // the next check finds it if the cache has it
	return want.(metav1.Object)
}

func names[T any](objects []T) []string {
	result := make([]string, 0, len(objects))
	for _, obj := range objects {
		o := any(obj).(metav1.Object)
		result = append(result, o.GetName()+" "+o.GetResourceVersion())
	}
	slices.Sort(result)
	return result
}

func sameSet(a, b []string) bool {
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func model[T controllerkit.Object](t *testing.T, w world[T], patch string) {
	r := rand.New(rand.NewPCG(*seed, 1))
	ctx := t.Context()
	want := map[string]string{} // versions by name
	var last string
	change := func(n int) {
		name := fmt.Sprintf("object-%d", r.IntN(12))
		last = name
		var obj metav1.Object
		var err error
		switch {
		case want[name] == "":
			obj, err = w.create(ctx, name, n)
		case r.IntN(4) == 0:
			err = w.remove(ctx, name)
			delete(want, name)
		case r.IntN(2) == 0:
			obj, err = w.patch(ctx, name, fmt.Appendf(nil, `{"metadata":{"labels":{"l":"%d"},"annotations":{"n":"%d"}}}`, r.IntN(3), n))
		default:
			obj, err = w.patch(ctx, name, fmt.Appendf(nil, patch, text(n)+fmt.Sprint(n%7)))
		}
		if err != nil {
			t.Fatal(err)
		}
		if obj != nil {
			want[name] = obj.GetResourceVersion()
		}
	}
	// The handlers have seen all events before a change of the marker: a list again, which may have
	// events without a new version, ends with the first one, and the second one follows it.
	mark := func() {
		obj, err := w.patch(ctx, "marker", fmt.Appendf(nil, `{"metadata":{"labels":{"m":"%d"}}}`, r.Uint32()))
		if err != nil {
			t.Fatal(err)
		}
		want["marker"] = obj.GetResourceVersion()
	}
	marker, err := w.create(ctx, "marker", 0)
	if err != nil {
		t.Fatal(err)
	}
	want["marker"] = marker.GetResourceVersion()
	p := w.begin(t)
	for n := 0; n < *steps; {
		burst := 1 + r.IntN(8)
		fault := r.IntN(6)
		if fault < 3 {
			for _, l := range p.lines {
				l.hold()
			}
		}
		for range burst {
			change(n)
			n++
		}
		mark()
		switch fault {
		case 0, 1, 2: // late events, a broken watch that resumes, one that must list again
			for _, l := range p.lines {
				l.release(fault > 0, fault == 2)
			}
		case 3:
			p.stop()
			p = w.begin(t)
		}
		p.until(t, want)
		mark()
		p.until(t, want)
		p.check(t, want, last)
	}
	p.stop()
}
