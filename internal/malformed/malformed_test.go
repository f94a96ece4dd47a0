package malformed_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/malformed"
)

var errBad = errors.New("crd: bad")

// meta returns the metadata of an object of the form name/uid@version.
func meta(text string) metav1.ObjectMeta {
	name, version, _ := strings.Cut(text, "@")
	name, uid, _ := strings.Cut(name, "/")
	return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid), ResourceVersion: version, Labels: map[string]string{"at": version}}
}

// good returns an object whose data is its version.
func good(text string) *corev1.ConfigMap {
	m := meta(text)
	return &corev1.ConfigMap{ObjectMeta: m, Data: map[string]string{"v": m.ResourceVersion}}
}

func bad(text string) *malformed.Object {
	return &malformed.Object{ObjectMeta: meta(text), Err: errBad}
}

// world is what an informer lists and watches.
type world struct {
	list   []runtime.Object
	watch  *watch.FakeWatcher
	events []string
}

func (w *world) informer() *malformed.Informer {
	return malformed.New(cache.NewSharedIndexInformerWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: w.list}, nil
		},
		WatchFuncWithContext: func(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			if opts.SendInitialEvents != nil {
				return nil, errors.New("no streamed list")
			}
			w.watch = watch.NewFakeWithChanSize(10, false)
			return w.watch, nil
		},
	}, nil, cache.SharedIndexInformerOptions{
		ObjectDescription: "*v1.ConfigMap",
		Indexers:          cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, malformed.Index: malformed.Values},
	}), "*v1.ConfigMap")
}

// relist makes the informer list these objects.
func (w *world) relist(objects ...runtime.Object) {
	w.list = objects
	w.watch.Error(&metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired})
}

// settle waits until an informer has handled all events. client-go pauses before it lists again.
func settle() {
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

// show returns an object as name/uid@version=data.
func show(obj any) string {
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		if o.Labels["at"] != o.ResourceVersion {
			return "the metadata of another version"
		}
		return fmt.Sprintf("%s/%s@%s=%s", o.Name, o.UID, o.ResourceVersion, o.Data["v"])
	case cache.DeletedFinalStateUnknown:
		return o.Key + " lost " + show(o.Obj)
	case *malformed.Object:
		return "malformed " + o.Name
	}
	return fmt.Sprintf("%T", obj)
}

func (w *world) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { w.events = append(w.events, fmt.Sprintf("add %s %v", show(obj), initial)) },
		UpdateFunc: func(old, obj any) { w.events = append(w.events, "update "+show(old)+" "+show(obj)) },
		DeleteFunc: func(obj any) { w.events = append(w.events, "delete "+show(obj)) },
	}
}

// TestHandler: a handler sees objects that fit, and a deletion exactly when the API server has
// deleted the object.
func TestHandler(t *testing.T) {
	for name, tc := range map[string]struct {
		first []runtime.Object
		then  func(w *world)
		want  []string
	}{
		"becomes malformed, changes, and fits again": {
			first: []runtime.Object{good("a/u@1")},
			then: func(w *world) {
				w.watch.Modify(bad("a/u@2"))
				w.watch.Modify(bad("a/u@3"))
				w.watch.Modify(good("a/u@4"))
				w.watch.Modify(good("a/u@5"))
			},
			want: []string{"add a/u@1=1 true", "update a/u@1=1 a/u@2=1", "update a/u@2=1 a/u@3=1", "update a/u@3=1 a/u@4=4", "update a/u@4=4 a/u@5=5"},
		},
		"is deleted while it is malformed": {
			first: []runtime.Object{good("a/u@1")},
			then:  func(w *world) { w.watch.Modify(bad("a/u@2")); w.watch.Delete(bad("a/u@3")) },
			want:  []string{"add a/u@1=1 true", "update a/u@1=1 a/u@2=1", "delete a/u@3=1"},
		},
		"is deleted during a gap": {
			first: []runtime.Object{good("a/u@1")},
			then:  func(w *world) { w.watch.Modify(bad("a/u@2")); settle(); w.relist() },
			want:  []string{"add a/u@1=1 true", "update a/u@1=1 a/u@2=1", "delete shop/a lost a/u@2=1"},
		},
		"is malformed at its deletion": {
			first: []runtime.Object{good("a/u@1")},
			then:  func(w *world) { w.watch.Delete(bad("a/u@2")) },
			want:  []string{"add a/u@1=1 true", "delete shop/a lost malformed a"},
		},
		"fits at its deletion": {
			first: []runtime.Object{good("a/u@1")},
			then: func(w *world) {
				w.watch.Modify(bad("a/u@2"))
				w.watch.Delete(good("a/u@3"))
				w.watch.Add(bad("a/v@4"))
				w.watch.Modify(good("a/v@5"))
			},
			want: []string{"add a/u@1=1 true", "update a/u@1=1 a/u@2=1", "delete a/u@3=3", "add a/v@5=5 false"},
		},
		"never fits": {
			first: []runtime.Object{bad("a/u@1"), good("b/u@1")},
			then:  func(w *world) { w.watch.Modify(bad("a/u@2")); w.watch.Delete(bad("a/u@3")) },
			want:  []string{"add b/u@1=1 true", "delete shop/a lost malformed a"},
		},
		"never fits and is deleted during a gap": {
			first: []runtime.Object{bad("a/u@1")},
			then:  func(w *world) { w.relist() },
			want:  []string{"delete shop/a lost malformed a"},
		},
		"fits later": {
			first: []runtime.Object{bad("a/u@1")},
			then: func(w *world) {
				w.watch.Modify(good("a/u@2"))
				w.watch.Add(bad("b/u@3"))
				w.watch.Modify(good("b/u@4"))
			},
			want: []string{"add a/u@2=2 false", "add b/u@4=4 false"},
		},
		"stays over a list": {
			first: []runtime.Object{good("a/u@1"), good("b/u@1")},
			then: func(w *world) {
				w.watch.Modify(bad("a/u@2"))
				settle()
				w.relist(bad("a/u@2"), good("b/u@1"))
				settle()
				w.relist(good("a/u@3"), good("b/u@1"))
			},
			want: []string{"add a/u@1=1 true", "add b/u@1=1 true", "update a/u@1=1 a/u@2=1", "update a/u@2=1 a/u@2=1", "update b/u@1=1 b/u@1=1", "update a/u@2=1 a/u@3=3", "update b/u@1=1 b/u@1=1"},
		},
		"is another one after a gap": {
			first: []runtime.Object{good("a/u@1")},
			then:  func(w *world) { w.relist(bad("a/v@2")) },
			want:  []string{"add a/u@1=1 true", "delete shop/a lost a/u@1=1"},
		},
		"is another malformed one after a gap": {
			first: []runtime.Object{good("a/u@1")},
			then: func(w *world) {
				w.watch.Modify(bad("a/u@2"))
				settle()
				w.relist(bad("a/v@3"))
				settle()
				w.watch.Modify(good("a/v@4"))
			},
			want: []string{"add a/u@1=1 true", "update a/u@1=1 a/u@2=1", "delete shop/a lost a/u@2=1", "add a/v@4=4 false"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{list: tc.first}
				inf := w.informer()
				if _, err := inf.AddEventHandler(w.handler()); err != nil {
					t.Fatal(err)
				}
				lines := 0
				logger := funcr.New(func(_, line string) {
					if strings.Contains(line, `"error"="crd: bad"`) {
						lines++
					}
				}, funcr.Options{})
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
				done := make(chan struct{})
				go func() { defer close(done); inf.RunWithContext(ctx) }()
				synctest.Wait()
				tc.then(w)
				settle()
				if !slices.Equal(w.events, tc.want) {
					t.Errorf("events\n%s\nwant\n%s", strings.Join(w.events, "\n"), strings.Join(tc.want, "\n"))
				}
				cancel()
				<-done
				if lines != 1 {
					t.Errorf("%d lines of log, want 1 in a minute", lines)
				}
			})
		})
	}
}

// TestCache: the cache knows a malformed object by name, and shows it nowhere.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{list: []runtime.Object{good("a/u@1"), bad("b/u@1"), good("c/u@1")}}
		w.list[2].(*corev1.ConfigMap).Namespace = "other"
		inf := w.informer()
		transformed := 0
		if err := inf.SetTransform(func(obj any) (any, error) {
			transformed++
			return obj.(*corev1.ConfigMap), nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := inf.AddIndexers(cache.Indexers{"v": func(obj any) ([]string, error) { return []string{obj.(*corev1.ConfigMap).Data["v"]}, nil }}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		done := make(chan struct{})
		go func() { defer close(done); inf.RunWithContext(ctx) }()
		synctest.Wait()
		store, index := inf.GetStore(), inf.GetIndexer()
		if transformed != 2 {
			t.Errorf("%d objects were transformed", transformed)
		}
		keys := store.ListKeys()
		slices.Sort(keys)
		if len(store.List()) != 2 || !slices.Equal(keys, []string{"other/c", "shop/a", "shop/b"}) {
			t.Errorf("%d objects, keys %q", len(store.List()), keys)
		}
		for name, get := range map[string]func() (any, bool, error){
			"GetByKey": func() (any, bool, error) { return store.GetByKey("shop/b") },
			"Get":      func() (any, bool, error) { return store.Get(good("b/u@1")) },
		} {
			if obj, ok, err := get(); !ok || !errors.Is(err, errBad) || !malformed.Is(obj) {
				t.Errorf("%s = %v, %v, %v", name, obj, ok, err)
			}
		}
		for _, tc := range []struct {
			index, value string
			found        int
			err          bool
		}{
			{cache.NamespaceIndex, "shop", 1, true},
			{cache.NamespaceIndex, "other", 1, false},
			{"v", "1", 2, true},
			{"v", "2", 0, true},
			{"none", "", 0, true},
		} {
			got, err := index.ByIndex(tc.index, tc.value)
			if len(got) != tc.found || (err != nil) != tc.err {
				t.Errorf("ByIndex(%s, %s) = %d objects, %v", tc.index, tc.value, len(got), err)
			}
		}
		if got, err := index.Index("v", good("x/u@1")); len(got) != 2 || !errors.Is(err, errBad) {
			t.Errorf("Index = %d objects, %v", len(got), err)
		}
		if got := malformed.Keys(store); !slices.Equal(got, []string{"shop/b"}) {
			t.Errorf("malformed %q", got)
		}
		for namespace, want := range map[string]int{"": 3, "shop": 2, "other": 1} {
			if got, ok := malformed.List(index, namespace); len(got) != want || !ok {
				t.Errorf("List(%q) = %v, %v", namespace, got, ok)
			}
		}
		if got, ok := malformed.List(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), ""); ok {
			t.Errorf("List of another cache = %v", got)
		}
		// A generated lister is safe: it has the error, and no panic.
		lister := corelisters.NewConfigMapLister(index)
		if _, err := lister.ConfigMaps("shop").Get("b"); !errors.Is(err, errBad) {
			t.Errorf("Get = %v", err)
		}
		if got, err := lister.ConfigMaps("shop").List(labels.Everything()); len(got) != 1 || err != nil {
			t.Errorf("List = %v, %v", got, err)
		}
		if got := inf.HasSyncedChecker().Name(); got != "SharedIndexInformer *v1.ConfigMap" {
			t.Errorf("the checker is %q", got)
		}
		late := &world{}
		if _, err := inf.AddEventHandler(late.handler()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(late.events) != 2 {
			t.Errorf("a late handler got %q", late.events)
		}
		cancel()
		<-done
	})
}

// TestJoin: an error of many objects is bounded.
func TestJoin(t *testing.T) {
	var objects []*malformed.Object
	for i := range 1000 {
		objects = append(objects, &malformed.Object{Err: fmt.Errorf("object %d: %w", i, errBad)})
	}
	if err := malformed.Join(nil); err != nil {
		t.Error(err)
	}
	if err := malformed.Join(objects[:10]); !errors.Is(err, errBad) || strings.Count(err.Error(), "\n") != 9 {
		t.Error(err)
	}
	if err := malformed.Join(objects); !errors.Is(err, errBad) || len(err.Error()) > 500 || !strings.HasPrefix(err.Error(), "1000 malformed objects") {
		t.Error(err)
	}
}
