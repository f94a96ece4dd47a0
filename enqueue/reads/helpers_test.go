package reads_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	corev1 "k8s.io/api/core/v1"

	"github.com/controllerkit/controllerkit/enqueue/reads"
	"github.com/controllerkit/controllerkit/reconcile"
)

type (
	secret  = corev1.Secret
	name    = types.NamespacedName
	tracker = reads.Tracker[name]
)

var resource = schema.GroupResource{Resource: "secrets"}

// world is an informer whose cache and events the test makes.
type world struct {
	cache.SharedIndexInformer
	indexer cache.Indexer
	handler cache.ResourceEventHandler
	added   added
}

func newWorld() *world {
	return &world{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}), added: added{}}
}

func (w *world) GetIndexer() cache.Indexer                 { return w.indexer }
func (w *world) AddIndexers(indexers cache.Indexers) error { return w.indexer.AddIndexers(indexers) }

// added is a queue that keeps what was added.
type added map[name]int

func (a added) Add(key name) { a[key]++ }

// take returns the keys that were added since the last take.
func (w *world) take() map[name]int {
	taken := w.added
	w.added = added{}
	w.handler = nil
	return taken
}

// sink forwards to the world's current map.
type sink struct{ w *world }

func (s sink) Add(key name) { s.w.added.Add(key) }

func read(t *testing.T, tr *tracker, w *world, indexes map[string]func(*secret) []string) *reads.Reader[*secret, name] {
	t.Helper()
	r, err := reads.From(tr, resource, w, indexes)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func object(namespace, n, version string, l map[string]string) *secret {
	return &secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: n, ResourceVersion: version, Labels: l}}
}

// call runs one call of a key.
func call(t *testing.T, tr *tracker, key name, f func(ctx context.Context)) {
	t.Helper()
	_, err := reads.Track(tr, func(ctx context.Context, _ name) (reconcile.Result, error) {
		f(ctx)
		return reconcile.Result{}, nil
	})(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
}

func parse(t *testing.T, selector string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
