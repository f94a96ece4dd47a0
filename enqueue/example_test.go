package enqueue_test

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
)

// A Node controls its static Pods. The owner has no namespace.
func ExampleControllerOf_clusterScoped() {
	node := enqueue.ControllerOf[*corev1.Pod](corev1.SchemeGroupVersion.WithKind("Node").GroupKind())
	nodeOf := func(pod *corev1.Pod) []types.NamespacedName {
		keys := node(pod)
		for i := range keys {
			keys[i].Namespace = ""
		}
		return keys
	}
	q := queue.New(queue.Config[types.NamespacedName]{})
	enqueue.Handler(q, nodeOf).OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:       "kube-system",
		Name:            "etcd-one",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "one", Controller: ptr.To(true)}},
	}}, false)
	key, _ := q.Get()
	fmt.Printf("%q %q\n", key.Namespace, key.Name)
	// Output: "" "one"
}

// A change of a ConfigMap adds the keys of all Deployments that use it. The function
// may use a lister, and return any number of keys.
func ExampleHandler_manyKeys() {
	users := map[string][]string{"settings": {"web", "api"}}
	q := queue.New(queue.Config[types.NamespacedName]{})
	h := enqueue.Handler(q, func(cm *corev1.ConfigMap) (keys []types.NamespacedName) {
		for _, name := range users[cm.Name] {
			keys = append(keys, types.NamespacedName{Namespace: cm.Namespace, Name: name})
		}
		return keys
	})
	h.OnAdd(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}}, false)
	for q.Len() > 0 {
		key, _ := q.Get()
		fmt.Println(key)
	}
	// Output:
	// default/web
	// default/api
}

// deployment returns one version of a Deployment.
func deployment(version string, generation int64, set map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web", ResourceVersion: version, Generation: generation, Labels: set,
	}}
}

func ExampleFilter() {
	q := queue.New(queue.Config[types.NamespacedName]{})
	handler := enqueue.Handler(q, enqueue.KeyOf[*appsv1.Deployment])
	h := enqueue.Filter(handler, func(e enqueue.Event[*appsv1.Deployment]) bool {
		return e.Created || e.Deleted || e.Old.Status.ReadyReplicas != e.New.Status.ReadyReplicas
	})
	before, after := deployment("1", 1, nil), deployment("2", 1, nil)
	h.OnUpdate(before, after)
	fmt.Println(q.Len())
	after.Status.ReadyReplicas = 1
	h.OnUpdate(before, after)
	fmt.Println(q.Len())
	// Output:
	// 0
	// 1
}

func ExampleGenerationChanged() {
	q := queue.New(queue.Config[types.NamespacedName]{})
	h := enqueue.Filter(enqueue.Handler(q, enqueue.KeyOf[*appsv1.Deployment]), enqueue.GenerationChanged[*appsv1.Deployment])
	h.OnUpdate(deployment("1", 1, nil), deployment("2", 1, nil)) // a label or the status
	fmt.Println(q.Len())
	h.OnUpdate(deployment("2", 1, nil), deployment("3", 2, nil)) // the spec
	fmt.Println(q.Len())
	// Output:
	// 0
	// 1
}

func ExampleResourceVersionChanged() {
	q := queue.New(queue.Config[types.NamespacedName]{})
	h := enqueue.Filter(enqueue.Handler(q, enqueue.KeyOf[*appsv1.Deployment]), enqueue.ResourceVersionChanged[*appsv1.Deployment])
	h.OnUpdate(deployment("1", 1, nil), deployment("1", 1, nil)) // a resync
	fmt.Println(q.Len())
	h.OnUpdate(deployment("1", 1, nil), deployment("2", 1, nil))
	fmt.Println(q.Len())
	// Output:
	// 0
	// 1
}

// An object passes when it enters the selection, and when it leaves it.
func ExampleSelects() {
	q := queue.New(queue.Config[types.NamespacedName]{})
	web := enqueue.Selects[*appsv1.Deployment](labels.SelectorFromSet(labels.Set{"tier": "web"}))
	h := enqueue.Filter(enqueue.Handler(q, enqueue.KeyOf[*appsv1.Deployment]), web)
	h.OnUpdate(deployment("1", 1, nil), deployment("2", 1, nil))
	fmt.Println(q.Len())
	h.OnUpdate(deployment("2", 1, map[string]string{"tier": "web"}), deployment("3", 1, nil))
	fmt.Println(q.Len())
	// Output:
	// 0
	// 1
}

// Deployments of one tier, when their specs change.
func ExampleAnd() {
	web := enqueue.Selects[*appsv1.Deployment](labels.SelectorFromSet(labels.Set{"tier": "web"}))
	pass := enqueue.And(enqueue.GenerationChanged, web)
	before, after := deployment("1", 1, map[string]string{"tier": "web"}), deployment("2", 2, map[string]string{"tier": "web"})
	fmt.Println(pass(enqueue.Event[*appsv1.Deployment]{Old: before, New: after}))
	fmt.Println(pass(enqueue.Event[*appsv1.Deployment]{Old: before, New: before}))
	// Output:
	// true
	// false
}

// Changes of the spec, or of one annotation. GenerationChanged passes creations and
// deletions, so the second predicate sees only updates, which have both objects.
func ExampleOr() {
	annotation := func(e enqueue.Event[*appsv1.Deployment]) bool {
		return e.Old.Annotations["example.com/restart"] != e.New.Annotations["example.com/restart"]
	}
	pass := enqueue.Or(enqueue.GenerationChanged, annotation)
	before, after := deployment("1", 1, nil), deployment("2", 1, nil)
	fmt.Println(pass(enqueue.Event[*appsv1.Deployment]{Old: before, New: after}))
	after.Annotations = map[string]string{"example.com/restart": "now"}
	fmt.Println(pass(enqueue.Event[*appsv1.Deployment]{Old: before, New: after}))
	// Output:
	// false
	// true
}

// Not filters the update that ends a pause. The opposite selector passes it.
func ExampleNot() {
	paused, err := labels.Parse("paused=true")
	if err != nil {
		panic(err)
	}
	active, err := labels.Parse("paused!=true")
	if err != nil {
		panic(err)
	}
	ends := enqueue.Event[*appsv1.Deployment]{
		Old: deployment("1", 1, map[string]string{"paused": "true"}),
		New: deployment("2", 1, nil),
	}
	fmt.Println(enqueue.Not(enqueue.Selects[*appsv1.Deployment](paused))(ends))
	fmt.Println(enqueue.Selects[*appsv1.Deployment](active)(ends))
	// Output:
	// false
	// true
}

// The informer missed a deletion and has only the name of the object.
func ExampleHandler_tombstone() {
	q := queue.New(queue.Config[types.NamespacedName]{})
	h := enqueue.Handler(q, enqueue.KeyOf[*corev1.Pod])
	h.OnDelete(cache.DeletedFinalStateUnknown{Key: "default/gone"})
	key, _ := q.Get()
	fmt.Println(key)
	// Output: default/gone
}

// informer is a fake of an informer of Pods.
type informer struct{ handlers []cache.ResourceEventHandler }

func (i *informer) AddEventHandler(h cache.ResourceEventHandler) { i.handlers = append(i.handlers, h) }

func ExampleHandler() {
	q := queue.New(queue.Config[types.NamespacedName]{})
	var pods informer
	pods.AddEventHandler(enqueue.Handler(q, enqueue.KeyOf[*corev1.Pod]))

	for _, h := range pods.handlers {
		h.OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "from-list"}}, true)
		h.OnDelete(cache.DeletedFinalStateUnknown{
			Key: "default/gone",
			Obj: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gone"}},
		})
	}
	for q.Len() > 0 {
		key, priority, _ := q.GetWithPriority()
		fmt.Println(key, priority)
	}
	// Output:
	// default/gone 0
	// default/from-list -100
}

// A change of a Pod adds the key of the ReplicaSet that controls it.
func ExampleControllerOf() {
	q := queue.New(queue.Config[types.NamespacedName]{})
	replicaSet := appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind()
	h := enqueue.Handler(q, enqueue.ControllerOf[*corev1.Pod](replicaSet))
	h.OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default",
		Name:      "web-1",
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", Controller: ptr.To(true)},
		},
	}}, false)
	key, _ := q.Get()
	fmt.Println(key)
	// Output: default/web
}

func ExampleKeyOf() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	fmt.Println(enqueue.KeyOf(pod))
	// Output: [default/web]
}

// A controller that handles its initial list before all later changes.
func ExampleHandlerAt() {
	q := queue.New(queue.Config[types.NamespacedName]{})
	h := enqueue.HandlerAt(q, enqueue.KeyOf[*corev1.PersistentVolumeClaim], 10)
	h.OnAdd(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new"}}, false)
	h.OnAdd(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "from-list"}}, true)
	for q.Len() > 0 {
		key, priority, _ := q.GetWithPriority()
		fmt.Println(key, priority)
	}
	// Output:
	// default/from-list 10
	// default/new 0
}
