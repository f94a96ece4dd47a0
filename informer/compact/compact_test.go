package compact_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/queue"
)

// fakeMaps returns a fake client with ConfigMaps, and what lists and watches them.
func fakeMaps(objects ...runtime.Object) (kubernetes.Interface, cache.ListerWatcher) {
	client := fake.NewClientset(objects...)
	c := client.CoreV1().ConfigMaps("")
	return client, cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{ListWithContextFunc: lists(c.List), WatchFuncWithContext: c.Watch}, client)
}

func configMap(name string, data ...string) *corev1.ConfigMap {
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": name}}}
	for _, d := range data {
		if c.Data == nil {
			c.Data = map[string]string{}
		}
		c.Data[d] = "value of " + d
	}
	return c
}

func maps3(t *testing.T, options compact.Options) *compact.Informer[*corev1.ConfigMap] {
	t.Helper()
	_, lw := fakeMaps(configMap("a", "x"), configMap("b", "y"), configMap("c", "x"))
	return made(compact.Over[*corev1.ConfigMap](lw, options))(t)
}

// destroy sets everything that it can reach to something else.
func destroy(c *corev1.ConfigMap) {
	for k := range c.Data {
		c.Data[k] = "destroyed"
	}
	for k := range c.Labels {
		c.Labels[k] = "destroyed"
	}
	c.Name, c.UID, c.ResourceVersion = "destroyed", "destroyed", "destroyed"
}

// TestPrivate destroys all that it gets. Proves CP1.
func TestPrivate(t *testing.T) {
	inf := maps3(t, compact.Options{Indexers: cache.Indexers{"data": func(obj any) ([]string, error) {
		return slices.Collect(maps.Keys(obj.(*corev1.ConfigMap).Data)), nil
	}}})
	handled := make(chan struct{}, 10)
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		destroy(obj.(*corev1.ConfigMap)) // against the rule
		handled <- struct{}{}
	}}); err != nil {
		t.Fatal(err)
	}
	start(t, inf)
	for range 3 {
		<-handled
	}
	before := inf.Encoded("default", "a")
	for range 2 {
		got := map[string]*corev1.ConfigMap{}
		one := func(how string, obj *corev1.ConfigMap, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(obj, configMap("a", "x")) {
				t.Errorf("%s: %+v", how, obj)
			}
			for other, o := range got {
				if o == obj {
					t.Errorf("%s and %s return one object", how, other)
				}
			}
			got[how] = obj
		}
		first := func(objects []*corev1.ConfigMap, err error) (*corev1.ConfigMap, error) {
			for _, o := range objects {
				if o.Name == "a" {
					return o, err
				}
			}
			return nil, errors.Join(err, errors.New("not found"))
		}
		typed := func(objects []any, err error) (*corev1.ConfigMap, error) {
			var all []*corev1.ConfigMap
			for _, o := range objects {
				all = append(all, o.(*corev1.ConfigMap))
			}
			return first(all, err)
		}
		obj, err := inf.Get("default", "a")
		one("Get", obj, err)
		obj, err = first(inf.List("", nil))
		one("List", obj, err)
		obj, err = first(inf.List("default", labels.SelectorFromSet(labels.Set{"app": "a"})))
		one("List of a selector", obj, err)
		obj, err = first(inf.ByIndex("data", "x"))
		one("ByIndex", obj, err)
		for o, err := range inf.All() {
			if err != nil || o.Name == "a" {
				one("All", o, err)
			}
		}
		obj, err = typed(inf.GetStore().List(), nil)
		one("the List of the store", obj, err)
		obj, err = typed(inf.GetIndexer().ByIndex("data", "x"))
		one("the ByIndex of the indexer", obj, err)
		obj, err = typed(inf.GetIndexer().Index("data", configMap("other", "x")))
		one("the Index of the indexer", obj, err)
		item, ok, err := inf.GetStore().GetByKey("default/a")
		if !ok {
			t.Fatal("GetByKey has no object")
		}
		one("GetByKey", item.(*corev1.ConfigMap), err)
		item, _, err = inf.GetStore().Get(configMap("a"))
		one("the Get of the store", item.(*corev1.ConfigMap), err)
		lister := corelisters.NewConfigMapLister(inf.GetIndexer())
		obj, err = lister.ConfigMaps("default").Get("a")
		one("Get of the lister", obj, err)
		obj, err = first(lister.ConfigMaps("default").List(labels.Everything()))
		one("List of the lister", obj, err)
		h, ok := inf.Header("default", "a")
		if !ok || h.GetLabels()["app"] != "a" {
			t.Fatal("no header")
		}
		h.GetLabels()["app"] = "destroyed"
		for _, o := range got {
			destroy(o)
		}
		if now := inf.Encoded("default", "a"); now != before {
			t.Fatalf("the cache has changed: %q, before %q", now, before)
		}
	}
}

// TestNewInformer: a manager that does not copy what it reads is safe for all kinds of objects. Proves CP1.
func TestNewInformer(t *testing.T) {
	for _, obj := range []runtime.Object{
		configMap("a", "x"),
		&metav1.PartialObjectMetadata{ObjectMeta: configMap("a").ObjectMeta},
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "default", "labels": map[string]any{"app": "a"}}}},
	} {
		source := controllerSource(t)
		source.Add(obj)
		inf := compact.NewInformer(source, obj, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		start(t, inf)
		one := func(objects []any, err error) any {
			if err != nil || len(objects) != 1 {
				t.Fatalf("%T: %d objects, %v", obj, len(objects), err)
			}
			return objects[0]
		}
		for how, read := range map[string]func() any{
			"GetByKey": func() any { o, _, _ := inf.GetStore().GetByKey("default/a"); return o },
			"Get":      func() any { o, _, _ := inf.GetIndexer().Get(obj); return o },
			"List":     func() any { return one(inf.GetStore().List(), nil) },
			"ByIndex":  func() any { return one(inf.GetIndexer().ByIndex(cache.NamespaceIndex, "default")) },
			"Index":    func() any { return one(inf.GetIndexer().Index(cache.NamespaceIndex, obj)) },
		} {
			for range 2 {
				got := read().(metav1.Object)
				if got.GetName() != "a" || got.GetLabels()["app"] != "a" {
					t.Fatalf("%s of a %T: %v", how, obj, got)
				}
				labels := got.GetLabels()
				labels["app"] = "changed"
				got.SetLabels(labels)
				got.SetName("changed")
			}
		}
		if o, ok, err := inf.GetStore().GetByKey("default/absent"); o != nil || ok || err != nil {
			t.Errorf("GetByKey of an absent %T: %v, %v, %v", obj, o, ok, err)
		}
	}
}

func TestReads(t *testing.T) {
	inf := maps3(t, compact.Options{})
	start(t, inf)
	if _, err := inf.Get("default", "absent"); !apierrors.IsNotFound(err) {
		t.Errorf("Get of an absent object: %v", err)
	}
	if _, ok := inf.Header("default", "absent"); ok {
		t.Error("Header of an absent object")
	}
	if list, err := inf.List("other", nil); err != nil || len(list) != 0 {
		t.Errorf("List of another namespace: %v, %v", list, err)
	}
	if list, err := inf.List("default", labels.SelectorFromSet(labels.Set{"app": "b"})); err != nil || len(list) != 1 || list[0].Name != "b" {
		t.Errorf("List of a selector: %v, %v", list, err)
	}
	if _, err := inf.ByIndex("absent", "x"); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("ByIndex without an index: %v", err)
	}
	if keys, err := inf.GetIndexer().IndexKeys(cache.NamespaceIndex, "default"); err != nil || len(keys) != 3 {
		t.Errorf("IndexKeys: %v, %v", keys, err)
	}
	if names := slices.Collect(maps.Keys(inf.GetIndexer().GetIndexers())); !slices.Equal(names, []string{cache.NamespaceIndex}) {
		t.Errorf("indexers: %v", names)
	}
	n := 0
	for range inf.All() {
		if n++; n == 2 {
			break
		}
	}
	for range inf.Headers() {
		if n++; n == 4 {
			break
		}
	}
	if n != 4 {
		t.Errorf("the loops ran %d times, want 4", n)
	}
}

// TestHeaderIndex: GetIndexers has an index of metadata, whose function gets no decoded object.
func TestHeaderIndex(t *testing.T) {
	const name = headers.Index + "app"
	byApp := cache.Indexers{name: func(obj any) ([]string, error) {
		if c, ok := obj.(*corev1.ConfigMap); ok {
			t.Errorf("the function got the decoded %s", c.Name)
		}
		return []string{obj.(metav1.Object).GetLabels()["app"]}, nil
	}}
	inf := maps3(t, compact.Options{Indexers: cache.Indexers{"name": func(obj any) ([]string, error) { return []string{obj.(*corev1.ConfigMap).Name}, nil }}})
	if err := inf.AddIndexers(byApp); err != nil {
		t.Fatal(err)
	}
	if inf.GetIndexer().GetIndexers()[name] == nil {
		t.Error("GetIndexers lacks the index of metadata")
	}
	if err := inf.AddIndexers(byApp); err == nil || !strings.HasPrefix(err.Error(), "compact: ") {
		t.Errorf("the index a second time: %v, want an error of compact", err)
	}
	start(t, inf)
	for _, index := range []string{name, "name"} {
		if list, err := inf.ByIndex(index, "b"); err != nil || len(list) != 1 || list[0].Name != "b" {
			t.Errorf("ByIndex of %s: %v, %v, want b", index, list, err)
		}
	}
}

// TestWrites has the methods of the store that tests of controllers use.
func TestWrites(t *testing.T) {
	inf := made(compact.Over[*corev1.ConfigMap](controllerSource(t), compact.Options{Drop: []string{"data"}}))(t)
	store := inf.GetIndexer()
	if err := store.Add(configMap("a", "x")); err != nil {
		t.Fatal(err)
	}
	if err := store.Update(configMap("b", "x")); err != nil {
		t.Fatal(err)
	}
	if got, err := inf.Get("default", "a"); err != nil || got.Data != nil {
		t.Errorf("Get: %v, %v", got, err)
	}
	if err := store.Delete(configMap("a")); err != nil {
		t.Fatal(err)
	}
	if keys := store.ListKeys(); !slices.Equal(keys, []string{"default/b"}) {
		t.Errorf("keys: %v", keys)
	}
	if err := store.Replace([]any{configMap("c")}, "7"); err != nil {
		t.Fatal(err)
	}
	if keys := store.ListKeys(); !slices.Equal(keys, []string{"default/c"}) {
		t.Errorf("keys: %v", keys)
	}
	for name, err := range map[string]error{"Add": store.Add(&corev1.Pod{}), "Update": store.Update(nil), "Replace": store.Replace([]any{(*corev1.ConfigMap)(nil)}, "8")} {
		if err == nil || !strings.Contains(err.Error(), "in place of a *v1.ConfigMap") {
			t.Errorf("%s of another type: %v", name, err)
		}
	}
}

func controllerSource(t *testing.T) *cachetesting.FakeControllerSource {
	source := cachetesting.NewFakeControllerSource()
	t.Cleanup(source.Shutdown)
	return source
}

// TestOnce counts the decodings of an event that several handlers get.
func TestOnce(t *testing.T) {
	decodings.Store(0)
	source := controllerSource(t)
	source.Add(&counted{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	inf := made(compact.Over[*counted](source, compact.Options{}))(t)
	var seen [5]chan any
	for i := range seen {
		seen[i] = make(chan any, 10)
		if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { seen[i] <- obj },
			UpdateFunc: func(_, obj any) { seen[i] <- obj },
			DeleteFunc: func(obj any) { seen[i] <- obj },
		}); err != nil {
			t.Fatal(err)
		}
	}
	start(t, inf)
	all := func() {
		t.Helper()
		first := <-seen[0]
		for _, s := range seen[1:] {
			if obj := <-s; obj != first {
				t.Error("handlers get different objects")
			}
		}
	}
	all()
	if n := decodings.Load(); n != 1 {
		t.Errorf("%d decodings of an addition, want 1", n)
	}
	source.Modify(&counted{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"b": "c"}}})
	all()
	if n := decodings.Load(); n != 2 {
		t.Errorf("%d decodings after an update, want 2: the old object is known", n)
	}
	source.Delete(&counted{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	all()
	if n := decodings.Load(); n != 3 {
		t.Errorf("%d decodings after a deletion, want 3", n)
	}
}

// TestMetadataAlone: handlers that need the metadata alone, such as enqueue's, cause no decoding.
func TestMetadataAlone(t *testing.T) {
	source := controllerSource(t)
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "owner", UID: "u", Controller: new(true)}
	source.Add(&counted{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", OwnerReferences: []metav1.OwnerReference{owner}}})
	inf := made(compact.Over[*counted](source, compact.Options{}))(t)
	q := queue.New(queue.Config[types.NamespacedName]{})
	owners := enqueue.ControllerOf[metav1.Object](appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind())
	store := consistency.New(consistency.Config{})
	for _, h := range []cache.ResourceEventHandler{
		enqueue.Handler(q, enqueue.KeyOf[metav1.Object]),
		enqueue.Filter(enqueue.Handler(q, owners), enqueue.GenerationChanged[metav1.Object]),
	} {
		if _, err := inf.AddEventHandler(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.AddInformer(appsv1.Resource("counteds"), inf); err != nil {
		t.Fatal(err)
	}
	start(t, inf)
	decodings.Store(0)
	take := func(names ...string) {
		t.Helper()
		var got []string
		for range names {
			key, _ := q.Get()
			got = append(got, key.Name)
			q.Done(key)
		}
		slices.Sort(got)
		if !slices.Equal(got, names) {
			t.Errorf("keys %v, want %v", got, names)
		}
	}
	take("a", "owner")
	source.Modify(&counted{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", Generation: 2, OwnerReferences: []metav1.OwnerReference{owner}}})
	take("a", "owner")
	source.Delete(&counted{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", OwnerReferences: []metav1.OwnerReference{owner}}})
	take("a", "owner")
	if n := decodings.Load(); n != 0 {
		t.Errorf("%d decodings, want none", n)
	}
	q.ShutDown()
}

// TestSize: informer.Size, which an operator's metrics use, knows what the cache holds of an object.
func TestSize(t *testing.T) {
	inf := maps3(t, compact.Options{})
	sizes := make(chan int64, 3)
	if _, err := inf.AddEventHandler(sized{cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { sizes <- informer.Size(obj) }}}); err != nil {
		t.Fatal(err)
	}
	start(t, inf)
	for range 3 {
		encoding := int64(len(inf.Encoded("default", "a")))
		if got := <-sizes; got < encoding || got > encoding+128 {
			t.Errorf("Size is %d, want the encoding's %d and at most 128 more", got, encoding)
		}
	}
}

type sized struct {
	cache.ResourceEventHandlerFuncs
}

func (sized) MetadataAlone() bool { return true }

var decodings atomic.Int64

// counted is a type that counts how often it is decoded.
type counted struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Count counter `json:"count"`
}

type counter struct{}

func (*counter) UnmarshalJSON([]byte) error  { decodings.Add(1); return nil }
func (counter) MarshalJSON() ([]byte, error) { return []byte("1"), nil }

func (c *counted) DeepCopyObject() runtime.Object {
	out := *c
	out.ObjectMeta = *c.ObjectMeta.DeepCopy()
	return &out
}

// Proves CP4.
func TestIndexFails(t *testing.T) {
	var decoded atomic.Int64
	indexers := cache.Indexers{
		"panics": func(obj any) ([]string, error) {
			decoded.Add(1)
			if obj.(*corev1.ConfigMap).Name == "b" {
				panic("of the test")
			}
			return []string{"x"}, nil
		},
		"fails": func(obj any) ([]string, error) {
			if obj.(*corev1.ConfigMap).Name == "c" {
				return []string{"x"}, errors.New("of the test")
			}
			return []string{"x"}, nil
		},
		"works": func(any) ([]string, error) { return []string{"x"}, nil },
	}
	inf := maps3(t, compact.Options{Indexers: indexers})
	start(t, inf)
	for index, want := range map[string]string{
		"panics": `compact: index "panics" of ConfigMap default/b: panic: of the test`,
		"fails":  `compact: index "fails" of ConfigMap default/c: of the test`,
	} {
		objects, err := inf.ByIndex(index, "x")
		if len(objects) != 2 || err == nil || err.Error() != want {
			t.Errorf("%s: %d objects, %v", index, len(objects), err)
		}
		if others, err := inf.GetIndexer().ByIndex(index, "x"); len(others) != 2 || err == nil || err.Error() != want {
			t.Errorf("%s of the indexer: %d objects, %v", index, len(others), err)
		}
	}
	if objects, err := inf.ByIndex("works", "x"); len(objects) != 3 || err != nil {
		t.Errorf("works: %d objects, %v", len(objects), err)
	}
	if _, err := inf.Get("default", "b"); err != nil {
		t.Errorf("Get of an object that is not indexed: %v", err)
	}
	// Values are kept.
	if err := inf.AddIndexers(cache.Indexers{"later": func(any) ([]string, error) { return []string{"y"}, nil }}); err != nil {
		t.Fatal(err)
	}
	if objects, err := inf.ByIndex("later", "y"); len(objects) != 3 || err != nil {
		t.Errorf("an index that was added later: %d objects, %v", len(objects), err)
	}
	if n := decoded.Load(); n != 3 {
		t.Errorf("the function was called %d times for 3 objects", n)
	}
	for name, indexers := range map[string]cache.Indexers{`"works"`: {"works": indexers["works"]}, `"none" of ConfigMap has no function`: {"none": nil}} {
		if err := inf.AddIndexers(indexers); err == nil || !strings.Contains(err.Error(), strings.Trim(name, `"`)) {
			t.Errorf("AddIndexers of %s: %v", name, err)
		}
	}
	if objects, err := inf.ByIndex("works", "x"); len(objects) != 3 || err != nil {
		t.Errorf("works after that: %d objects, %v", len(objects), err)
	}
}

func TestTransform(t *testing.T) {
	with := func(transforms ...cache.TransformFunc) *compact.Informer[*corev1.ConfigMap] {
		c := configMap("a", "x", "y")
		c.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
		c.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "kept": "yes"}
		_, lw := fakeMaps(c)
		inf := made(compact.Over[*corev1.ConfigMap](lw, compact.Options{ManagedFields: true}))(t)
		for _, transform := range transforms {
			if err := inf.SetTransform(transform); err != nil {
				t.Fatal(err)
			}
		}
		start(t, inf)
		if err := inf.SetTransform(nil); err == nil {
			t.Error("SetTransform of a running informer returned no error")
		}
		return inf
	}
	get := func(transforms ...cache.TransformFunc) *corev1.ConfigMap {
		return made(with(transforms...).Get("default", "a"))(t)
	}
	if c := get(nil); len(c.ManagedFields) != 1 || len(c.Data) != 2 {
		t.Errorf("without a transform: %+v", c)
	}
	for name, trim := range map[string]cache.TransformFunc{"Trim": informer.Trim, "a function that calls it": func(obj any) (any, error) { return informer.Trim(obj) }} {
		if c := get(trim); c.ManagedFields != nil || !reflect.DeepEqual(c.Annotations, map[string]string{"kept": "yes"}) || len(c.Data) != 2 {
			t.Errorf("%s: %+v", name, c)
		}
	}
	shorten := func(obj any) (any, error) { delete(obj.(*corev1.ConfigMap).Data, "x"); return obj, nil }
	if c := get(shorten); len(c.Data) != 1 {
		t.Errorf("a transform: %+v", c)
	}
	// The last one counts, as in client-go.
	if c := get(informer.Trim, nil); len(c.ManagedFields) != 1 || len(c.Annotations) != 2 || len(c.Data) != 2 {
		t.Errorf("no transform after Trim: %+v", c)
	}
	if c := get(informer.Trim, shorten); len(c.ManagedFields) != 1 || len(c.Annotations) != 2 || len(c.Data) != 1 {
		t.Errorf("a transform after Trim: %+v", c)
	}
	if c := get(shorten, informer.Trim); c.ManagedFields != nil || len(c.Annotations) != 1 || len(c.Data) != 2 {
		t.Errorf("Trim after a transform: %+v", c)
	}
}

func TestBadInput(t *testing.T) {
	client := clientFor("v1")
	_, lw := fakeMaps()
	for want, err := range map[string]error{
		"compact: New of Pod without a client: a fake clientset has none, so use Over with a ListWatch of it": second(compact.New[*corev1.Pod](nil, "pods", compact.Options{})),
		"compact: New of Pod without a client":                                   second(compact.New[*corev1.Pod](fake.NewClientset().CoreV1().RESTClient(), "pods", compact.Options{})),
		"compact: New of Pod without a resource":                                 second(compact.New[*corev1.Pod](client, "", compact.Options{})),
		"compact: New: v1.Deployment does not belong to the client's version v1": second(compact.New[*appsv1.Deployment](client, "deployments", compact.Options{})),
		"compact: New: v2.HorizontalPodAutoscaler does not belong to the client's version autoscaling/v1: use the RESTClient of its version": second(
			compact.New[*autoscalingv2.HorizontalPodAutoscaler](clientFor("autoscaling/v1"), "horizontalpodautoscalers", compact.Options{})),
		`compact: Drop of Pod: path "spec.nothing": no field "nothing" in a v1.PodSpec`:                 second(compact.New[*corev1.Pod](client, "pods", compact.Options{Drop: []string{"spec.nothing"}})),
		"compact: *unstructured.Unstructured has no fields to decode":                                   second(compact.New[*unstructured.Unstructured](client, "pods", compact.Options{})),
		"compact: Over of ConfigMap without a ListerWatcher":                                            second(compact.Over[*corev1.ConfigMap](nil, compact.Options{})),
		"compact: Over of ConfigMap with a Namespace or Tweak: the ListerWatcher decides what it lists": second(compact.Over[*corev1.ConfigMap](lw, compact.Options{Namespace: "default"})),
		`compact: index "none" of ConfigMap has no function`:                                            second(compact.Over[*corev1.ConfigMap](lw, compact.Options{Indexers: cache.Indexers{"none": nil}})),
		"compact: controllerkit.Object is no pointer to a struct: use e.g. *corev1.Pod":                 second(compact.Over[controllerkit.Object](lw, compact.Options{})),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := second(compact.New[*corev1.Pod](client, "pods", compact.Options{})); err != nil {
		t.Error(err)
	}
	if err := second(compact.New[*autoscalingv2.HorizontalPodAutoscaler](clientFor("autoscaling/v2"), "horizontalpodautoscalers", compact.Options{})); err != nil {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// clientFor returns a client of a version without a server.
func clientFor(version string) rest.Interface {
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "127.0.0.1:1"})
	if version == "autoscaling/v1" {
		return client.AutoscalingV1().RESTClient()
	}
	if version == "autoscaling/v2" {
		return client.AutoscalingV2().RESTClient()
	}
	return client.CoreV1().RESTClient()
}

// TestWrongType has a ListerWatcher of another type.
func TestWrongType(t *testing.T) {
	_, lw := fakeMaps(configMap("a"))
	inf := made(compact.Over[*corev1.Pod](lw, compact.Options{}))(t)
	failed := make(chan error, 1)
	if err := inf.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		select {
		case failed <- err:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(logged(t))
	done := make(chan struct{})
	go func() { defer close(done); inf.RunWithContext(ctx) }()
	if err := <-failed; !strings.Contains(err.Error(), "a *v1.ConfigMap in place of a *v1.Pod") {
		t.Error(err)
	}
	cancel()
	<-done
}

// TestLongName: the API server limits the names of few kinds, and an object with a long one is like any other.
// Proves CP2.
func TestLongName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := controllerSource(t)
		name := strings.Repeat("n", 300)
		source.Add(configMap("short"))
		source.Add(configMap(name))
		inf := made(compact.Over[*corev1.ConfigMap](source, compact.Options{}))(t)
		ctx, cancel := context.WithTimeout(logged(t), time.Minute)
		defer cancel()
		go inf.RunWithContext(ctx)
		if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
			t.Fatal("the informer has not synced")
		}
		for _, name := range []string{"short", name} {
			if c, err := inf.Get("default", name); err != nil || c.Name != name {
				t.Errorf("Get of %s: %v, %v", name, c, err)
			}
		}
		if list, err := inf.List("", nil); err != nil || len(list) != 2 {
			t.Errorf("List: %d objects, %v, want 2", len(list), err)
		}
	})
}

// TestDropAnnotations: the bookmark that ends an initial list keeps its annotation, so the informer syncs.
func TestDropAnnotations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
		annotated := configMap("a")
		annotated.Annotations = map[string]string{"large": "x"}
		inf := made(compact.Over[*corev1.ConfigMap](&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return nil, errors.New("test: watch")
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				w := watch.NewFakeWithChanSize(2, false)
				w.Add(annotated)
				w.Action(watch.Bookmark, end)
				return w, nil
			},
		}, compact.Options{Drop: []string{"metadata.annotations"}}))(t)
		ctx, cancel := context.WithTimeout(logged(t), time.Minute)
		defer cancel()
		go inf.RunWithContext(ctx)
		if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
			t.Fatal("the informer has not synced")
		}
		if c, err := inf.Get("default", "a"); err != nil || c.Annotations != nil {
			t.Errorf("%v, %v, want no annotations", c, err)
		}
	})
}

func pod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Namespace: "default", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: fmt.Sprint("node-", i)},
	}
}

// TestConcurrent reads while objects change, for the race detector. Proves CP1.
func TestConcurrent(t *testing.T) {
	source := controllerSource(t)
	for i := range 20 {
		source.Add(pod(i))
	}
	inf := made(compact.Over[*corev1.Pod](source, compact.Options{Indexers: cache.Indexers{"node": func(obj any) ([]string, error) {
		return []string{obj.(*corev1.Pod).Spec.NodeName}, nil
	}}}))(t)
	var events atomic.Int64
	for range 3 {
		if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(any, any) { events.Add(1) }}); err != nil {
			t.Fatal(err)
		}
	}
	start(t, inf)
	var readers sync.WaitGroup
	done := make(chan struct{})
	for n := range 4 {
		readers.Go(func() {
			for i := n; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				want := pod(i % 20)
				got, err := inf.Get(want.Namespace, want.Name)
				if err != nil || got.Spec.NodeName == "" {
					t.Errorf("Get: %v", err)
					return
				}
				got.Labels["a"] = "b"
				if list, err := inf.ByIndex("node", fmt.Sprint("node-", i%20)); err != nil || len(list) == 0 {
					t.Errorf("ByIndex: %d, %v", len(list), err)
					return
				}
				for h := range inf.Headers() {
					_ = h.GetLabels()
				}
			}
		})
	}
	for i := range 200 {
		source.Modify(pod(i % 20))
	}
	if err := inf.AddIndexers(cache.Indexers{"later": func(any) ([]string, error) { return nil, nil }}); err != nil {
		t.Error(err)
	}
	close(done)
	readers.Wait()
}
