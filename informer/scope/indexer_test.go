package scope_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// The indexer equals that of a client-go informer over the same objects.
func TestIndexer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, objects, _ := setup(t)
		app := func(obj any) ([]string, error) { return []string{obj.(*corev1.ConfigMap).Labels["app"]}, nil }
		for i, n := range all {
			s.put(n, "one", "x")
			s.put(n, fmt.Sprint("o", i), "y")
		}
		s.setDelay(func() time.Duration { return time.Second })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := objects.Select(ctx, in("c")); err == nil {
			t.Error("Select = nil before the list")
		}
		time.Sleep(time.Minute) // c is shown
		must(t, objects.AddIndexers(cache.Indexers{"other": app}))
		must(t, objects.Select(t.Context(), in("d")))
		must(t, objects.Select(t.Context(), in("b")))
		time.Sleep(time.Minute) // the informer of d has ended
		selected := make(chan error, 1)
		go func() { selected <- objects.Select(t.Context(), in("a", "b")) }()
		time.Sleep(time.Millisecond)
		must(t, objects.AddIndexers(cache.Indexers{"app": app})) // a, which is not selected yet, gets the index
		must(t, <-selected)
		s.setDelay(nil)
		must(t, objects.Select(t.Context(), in("a", "c"))) // c gets the index
		if err := objects.AddIndexers(cache.Indexers{"app": app}); err == nil {
			t.Error("an index was added twice")
		}
		want := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{"app": app, cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		for _, n := range []string{"a", "c"} {
			for _, o := range s.objects {
				if o.Namespace == n {
					must(t, want.Add(o))
				}
			}
		}
		got := objects.GetIndexer()
		names := func(found []any, err error) []string {
			keys := []string{fmt.Sprint(err)}
			for _, o := range found {
				keys = append(keys, o.(*corev1.ConfigMap).Namespace+"/"+o.(*corev1.ConfigMap).Name)
			}
			slices.Sort(keys)
			return keys
		}
		sorted := func(keys []string, err error) []string {
			keys = append(slices.Clone(keys), fmt.Sprint(err))
			slices.Sort(keys)
			return keys
		}
		for what, read := range map[string]func(cache.Indexer) []string{
			"List":                func(x cache.Indexer) []string { return names(x.List(), nil) },
			"ListKeys":            func(x cache.Indexer) []string { return sorted(x.ListKeys(), nil) },
			"ByIndex":             func(x cache.Indexer) []string { return names(x.ByIndex("app", "y")) },
			"ByIndex of a":        func(x cache.Indexer) []string { return names(x.ByIndex(cache.NamespaceIndex, "a")) },
			"ByIndex of b":        func(x cache.Indexer) []string { return names(x.ByIndex(cache.NamespaceIndex, "b")) },
			"Index":               func(x cache.Indexer) []string { return names(x.Index("app", s.objects["d/one"])) },
			"IndexKeys":           func(x cache.Indexer) []string { return sorted(x.IndexKeys("app", "x")) },
			"ListIndexFuncValues": func(x cache.Indexer) []string { return sorted(x.ListIndexFuncValues("app"), nil) },
			"namespaces":          func(x cache.Indexer) []string { return sorted(x.ListIndexFuncValues(cache.NamespaceIndex), nil) },
			"Get": func(x cache.Indexer) []string {
				o, ok, err := x.Get(s.objects["c/one"])
				return names([]any{o}, fmt.Errorf("%v %w", ok, err))
			},
			"GetByKey of no object": func(x cache.Indexer) []string {
				o, ok, err := x.GetByKey("a/none")
				return []string{fmt.Sprint(o, ok, err)}
			},
			"GetByKey out of it": func(x cache.Indexer) []string {
				o, ok, err := x.GetByKey("b/one")
				return []string{fmt.Sprint(o, ok, err)}
			},
			"GetByKey of no key": func(x cache.Indexer) []string {
				o, ok, err := x.GetByKey("a/b/c")
				return []string{fmt.Sprint(o, ok, err)}
			},
			"a namespace of nowhere": func(x cache.Indexer) []string { return names(x.ByIndex(cache.NamespaceIndex, "x")) },
		} {
			if diff := cmp.Diff(read(want), read(got)); diff != "" {
				t.Errorf("%s (-client-go +scope):\n%s", what, diff)
			}
		}
		if _, err := got.ByIndex("none", ""); err == nil {
			t.Error("ByIndex of an index that does not exist = nil")
		}
	})
}
