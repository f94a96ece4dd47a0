package applyset_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// keysOf passes on the keys that it is given.
type keysOf chan types.NamespacedName

func (k keysOf) Add(key types.NamespacedName) { k <- key }

// TestServerWatches: the watches of Example_watches are those of the kinds of the sets, wake the
// right parent, and make the objects known by which a Set makes no request.
//
// Proves AS5.
func TestServerWatches(t *testing.T) {
	g := newGallery(t)
	config, requests := testserver.Counted(t)
	set := newSet(t, config)
	one, two := g.parent(t, "one"), g.parent(t, "two")
	parents := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{"set": parentsBySet})
	keys := make(keysOf, 100)
	w := newWatches(g.objects, set.Mapper, parents, keys)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.informers.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer stop()

	configMaps, secrets := corev1.SchemeGroupVersion.WithResource("configmaps"), corev1.SchemeGroupVersion.WithResource("secrets")
	secret := wantKind("v1", "Secret", g.one, "red")
	apply := func(parent *corev1.ConfigMap, members ...applyset.Member) []applyset.Result {
		t.Helper()
		results, err := set.Apply(t.Context(), g.read(t, parent), members...)
		if err != nil {
			t.Fatal(err)
		}
		if err := parents.Add(g.read(t, parent)); err != nil {
			t.Fatal(err)
		}
		if err := w.follow(t.Context(), parent, results); err != nil {
			t.Fatal(err)
		}
		return results
	}
	opened := func(want ...schema.GroupVersionResource) {
		t.Helper()
		if len(w.open) != len(want) {
			t.Errorf("%d kinds are watched, want %v", len(w.open), want)
		}
		for _, resource := range want {
			if k := w.open[resource]; k == nil {
				t.Fatalf("%v is not watched", resource)
			} else if err := k.WaitForSync(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply(one, wantConfigMap(g.one, "blue", "blue"), secret)
	opened(configMaps, secrets)
	apply(two, wantConfigMap(g.two, "green", "green"))
	opened(configMaps, secrets)

	wake := func(namespace, name string, parent *corev1.ConfigMap) {
		t.Helper()
		for len(keys) > 0 { // of earlier events
			<-keys
		}
		if _, err := g.CoreV1().ConfigMaps(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(`{"data":{"foreign":"`+name+`"}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		for want := (types.NamespacedName{Namespace: parent.Namespace, Name: parent.Name}); ; {
			select {
			case got := <-keys:
				if got == want {
					return
				}
			case <-t.Context().Done():
				t.Fatalf("%v is not woken", want)
			}
		}
	}
	wake(g.one, "blue", one)
	wake(g.two, "green", two)

	// With the objects of the watches there is no request.
	blue := wantConfigMap(g.one, "blue", "blue")
	blue.Live = w.live(configMaps, types.NamespacedName{Namespace: g.one, Name: "blue"})
	secret.Live = w.live(secrets, types.NamespacedName{Namespace: g.one, Name: "red"})
	if blue.Live == nil || secret.Live == nil {
		t.Fatal("the caches lack a member")
	}
	before := requests.Load()
	results := apply(one, blue, secret)
	if got := actions(results); strings.Count(got, string(applyset.Unchanged)) != 2 {
		t.Errorf("actions %s, want two unchanged members", got)
	}
	if n := requests.Load() - before; n != 0 {
		t.Errorf("%d requests for members that did not change", n)
	}

	apply(one, blue) // prunes the Secret
	results, err := set.Apply(t.Context(), g.read(t, one), blue)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.follow(t.Context(), one, results); err != nil {
		t.Fatal(err)
	}
	opened(configMaps)
	if w.live(secrets, types.NamespacedName{Namespace: g.one, Name: "red"}) != nil {
		t.Error("a kind that is not watched has a live object")
	}
	for _, parent := range []*corev1.ConfigMap{one, two} {
		if err := w.follow(t.Context(), parent, nil); err != nil {
			t.Fatal(err)
		}
	}
	opened()
}
