package applyset_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer/ondemand"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

const (
	setLabel    = "applyset.kubernetes.io/id"      // of a parent
	memberLabel = "applyset.kubernetes.io/part-of" // of a member, with the same value
)

// watches has an informer for each kind that a set has, and for no other kind.
type watches struct {
	mapper    meta.RESTMapper
	informers ondemand.Informers[schema.GroupVersionResource] // run it with the AddRun of an informer.Set
	handler   cache.ResourceEventHandler

	mu   sync.Mutex
	open map[schema.GroupVersionResource]*kindWatch
}

// kindWatch is the watch of a kind, with the parents whose sets have it.
type kindWatch struct {
	*ondemand.Watch
	parents map[types.UID]bool
}

// newWatches returns watches that add the keys of parents to the queue when members change.
// The names of parents in the indexer are indexed by their label, with parentsBySet.
func newWatches(client dynamic.Interface, mapper meta.RESTMapper, parents cache.Indexer, queue controllerkit.Adder[types.NamespacedName]) *watches {
	w := &watches{mapper: mapper, open: map[schema.GroupVersionResource]*kindWatch{}}
	w.informers.New = func(resource schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
		// Only members. They keep their managedFields, by which a Set skips an apply.
		members := func(o *metav1.ListOptions) { o.LabelSelector = memberLabel }
		return dynamicinformer.NewFilteredDynamicInformer(client, resource, "", 0, cache.Indexers{}, members).Informer(), nil
	}
	w.handler = enqueue.Handler(queue, func(member metav1.Object) (keys []types.NamespacedName) {
		found, err := parents.ByIndex("set", member.GetLabels()[memberLabel])
		if err != nil {
			return nil
		}
		for _, obj := range found {
			keys = append(keys, enqueue.KeyOf(obj.(metav1.Object))...)
		}
		return keys
	})
	return w
}

// parentsBySet is the index "set" of the parents' informer.
func parentsBySet(obj any) ([]string, error) {
	return []string{obj.(metav1.Object).GetLabels()[setLabel]}, nil
}

// follow watches the kinds of the results of the parent's set, until a later call has other
// kinds. Call it after Set.Apply, and with no results after Set.Delete.
func (w *watches) follow(ctx context.Context, parent metav1.Object, results []applyset.Result) error {
	wanted := map[schema.GroupVersionResource]bool{}
	for _, r := range results {
		mapping, err := w.mapper.RESTMapping(r.Kind.GroupKind(), r.Kind.Version)
		switch {
		case meta.IsNoMatchError(err), err == nil && r.Action == applyset.Pruned: // not served yet, or gone
		case err != nil:
			return err
		default:
			wanted[mapping.Resource] = true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for resource := range wanted {
		if w.open[resource] == nil {
			watch, err := w.informers.Open(resource)
			if err != nil {
				return err
			}
			if _, err := watch.AddEventHandler(w.handler); err != nil {
				return errors.Join(err, watch.Close(ctx))
			}
			w.open[resource] = &kindWatch{Watch: watch, parents: map[types.UID]bool{}}
		}
		w.open[resource].parents[parent.GetUID()] = true
	}
	for resource, k := range w.open {
		if wanted[resource] {
			continue
		}
		delete(k.parents, parent.GetUID())
		if len(k.parents) == 0 {
			if err := k.Close(ctx); err != nil {
				return err
			}
			delete(w.open, resource)
		}
	}
	return nil
}

// live returns the object of the cache, for Member.Live, or nil.
func (w *watches) live(resource schema.GroupVersionResource, name types.NamespacedName) metav1.Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k := w.open[resource]; k != nil {
		if obj, ok, err := k.GetIndexer().GetByKey(cache.NewObjectName(name.Namespace, name.Name).String()); err == nil && ok {
			return obj.(metav1.Object)
		}
	}
	return nil
}

// A controller watches the kinds of its sets, and no others. The informer of a kind starts with
// the first set that has a member of it, and stops with the last.
func Example_watches() {
	set, parent := exampleSet()
	// In a program: a dynamic client, the indexer of the parents' informer, and the queue.
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "configmaps"}: "ConfigMapList",
	})
	parents := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{"set": parentsBySet})
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())
	defer queue.ShutDown()

	w := newWatches(client, set.Mapper, parents, queue)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- w.informers.Run(ctx) }()

	reconcile := func(ctx context.Context, members ...applyset.Member) error {
		results, err := set.Apply(ctx, parent, members...)
		return errors.Join(err, w.follow(ctx, parent, results))
	}
	paint := types.NamespacedName{Namespace: "studio", Name: "paint"}
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	fmt.Println(reconcile(ctx, applyset.Member{
		Object: applycorev1.ConfigMap(paint.Name, paint.Namespace).WithData(map[string]string{"color": "red"}),
		Live:   w.live(configMaps, paint),
	}))
	fmt.Println(len(w.open), "kind is watched")
	fmt.Println(w.follow(ctx, parent, nil)) // after Set.Delete
	fmt.Println(len(w.open), "kinds are watched")

	stop()
	fmt.Println(<-stopped)
	// Output:
	// <nil>
	// 1 kind is watched
	// <nil>
	// 0 kinds are watched
	// <nil>
}
