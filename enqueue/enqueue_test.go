package enqueue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/internal/malformed"
	"github.com/controllerkit/controllerkit/queue"
)

// TestHandler proves EQ1.
func TestHandler(t *testing.T) {
	for _, tc := range []struct {
		name      string
		event     func(h cache.ResourceEventHandler)
		kind      string   // with AddEvent
		want      []string // with AddWith
		wantPlain []string // without
	}{
		{
			name:  "add",
			kind:  "add",
			event: func(h cache.ResourceEventHandler) { h.OnAdd(pod("p", "1", "a", "b"), false) },
			want:  []string{"a", "b"}, wantPlain: []string{"a", "b"},
		},
		{
			name:  "initial list",
			kind:  "list",
			event: func(h cache.ResourceEventHandler) { h.OnAdd(pod("p", "1", "a", "b"), true) },
			want:  []string{"a at -100", "b at -100"}, wantPlain: []string{"a", "b"},
		},
		{
			name:  "update",
			kind:  "update",
			event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod("p", "1", "a"), pod("p", "2", "a")) },
			want:  []string{"a"}, wantPlain: []string{"a"},
		},
		{
			name:  "update that moves the object to another owner",
			kind:  "update",
			event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod("p", "1", "a"), pod("p", "2", "b")) },
			want:  []string{"b", "a"}, wantPlain: []string{"b", "a"},
		},
		{
			name: "update of many keys, some of them twice",
			kind: "update",
			event: func(h cache.ResourceEventHandler) {
				h.OnUpdate(pod("p", "1", "a", "a", "b", "c"), pod("p", "2", "d", "a"))
			},
			want: []string{"d", "a", "b", "c"}, wantPlain: []string{"d", "a", "b", "c"},
		},
		{
			name:  "update that changes nothing but moves the object, which no server does",
			kind:  "resync",
			event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod("p", "1", "a"), pod("p", "1", "b")) },
			want:  []string{"b at -100", "a at -100"}, wantPlain: []string{"b", "a"},
		},
		{
			name:  "resync",
			kind:  "resync",
			event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod("p", "2", "a"), pod("p", "2", "a")) },
			want:  []string{"a at -100"}, wantPlain: []string{"a"},
		},
		{
			name:  "update of objects without resourceVersion, as fakes make them",
			kind:  "update",
			event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod("p", "", "a"), pod("p", "", "a")) },
			want:  []string{"a"}, wantPlain: []string{"a"},
		},
		{
			name:  "delete",
			kind:  "delete",
			event: func(h cache.ResourceEventHandler) { h.OnDelete(pod("p", "2", "a")) },
			want:  []string{"a"}, wantPlain: []string{"a"},
		},
		{
			name: "tombstone",
			kind: "delete",
			event: func(h cache.ResourceEventHandler) {
				h.OnDelete(cache.DeletedFinalStateUnknown{Key: "default/p", Obj: pod("p", "2", "a")})
			},
			want: []string{"a"}, wantPlain: []string{"a"},
		},
		{
			name: "tombstone by pointer",
			kind: "delete",
			event: func(h cache.ResourceEventHandler) {
				h.OnDelete(&cache.DeletedFinalStateUnknown{Key: "default/p", Obj: pod("p", "2", "a")})
			},
			want: []string{"a"}, wantPlain: []string{"a"},
		},
		{
			name:  "an object that names no keys",
			event: func(h cache.ResourceEventHandler) { h.OnAdd(pod("p", "1"), true) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			with, plain := &priorityRecorder{}, &recorder{}
			tc.event(enqueue.Handler(with, ownerNames))
			tc.event(enqueue.Handler(plain, ownerNames))
			if diff := cmp.Diff(tc.want, with.got); diff != "" {
				t.Errorf("with AddWith (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantPlain, plain.got); diff != "" {
				t.Errorf("without AddWith (-want +got):\n%s", diff)
			}
			var wantEvents []string
			for _, want := range tc.want {
				key, low := strings.CutSuffix(want, " at -100")
				priority := 0
				if low {
					priority = -100
				}
				wantEvents = append(wantEvents, fmt.Sprintf("%s of %s at %d", tc.kind, key, priority))
			}
			events := &eventRecorder{}
			tc.event(enqueue.Handler(events, ownerNames))
			if diff := cmp.Diff(wantEvents, events.got); diff != "" {
				t.Errorf("with AddEvent (-want +got):\n%s", diff)
			}
		})
	}
}

// TestHandlerAt tests that the caller chooses the priority of the initial list and
// of resyncs, and only of these.
func TestHandlerAt(t *testing.T) {
	with, plain, events := &priorityRecorder{}, &recorder{}, &eventRecorder{}
	for _, q := range []controllerkit.Adder[string]{with, plain, events} {
		h := enqueue.HandlerAt(q, ownerNames, -3)
		h.OnAdd(pod("p", "1", "listed"), true)
		h.OnAdd(pod("p", "1", "added"), false)
		h.OnUpdate(pod("p", "1", "updated"), pod("p", "2", "updated"))
		h.OnUpdate(pod("p", "2", "resynced"), pod("p", "2", "resynced"))
		h.OnDelete(pod("p", "2", "deleted"))
	}
	for _, tc := range []struct {
		name      string
		got, want []string
	}{
		{"AddWith", with.got, []string{"listed at -3", "added", "updated", "resynced at -3", "deleted"}},
		{"Add", plain.got, []string{"listed", "added", "updated", "resynced", "deleted"}},
		{"AddEvent", events.got, []string{
			"list of listed at -3", "add of added at 0", "update of updated at 0",
			"resync of resynced at -3", "delete of deleted at 0",
		}},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// TestTombstoneWithoutAnObject tests that a handler adds the key of the tombstone.
//
// It proves EQ1.
func TestTombstoneWithoutAnObject(t *testing.T) {
	type object interface {
		metav1.Object
		runtime.Object
	}
	type phased interface {
		metav1.Object
		Phase() string
	}
	type pointing struct{ *corev1.Pod }
	type holding struct{ metav1.Object }
	type deeper struct{ pointing }
	type keeping struct {
		metav1.ObjectMeta
		*metav1.TypeMeta
		Owner *corev1.Pod
	}
	web := []types.NamespacedName{{Namespace: "default", Name: "web"}}
	byValue := cache.DeletedFinalStateUnknown{Key: "default/web"}
	malformedPod := cache.DeletedFinalStateUnknown{Key: "default/web", Obj: &malformed.Object{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "set", Controller: new(true)}},
	}}}
	never := func(what string) []types.NamespacedName {
		t.Errorf("keys is given %s", what)
		return nil
	}
	for _, tc := range []struct {
		name   string
		delete func(obj any) []types.NamespacedName
		obj    any
		want   []types.NamespacedName
	}{
		{"a struct", keysOf(enqueue.KeyOf[*corev1.Pod]), byValue, web},
		{"by pointer", keysOf(enqueue.KeyOf[*corev1.Pod]), &byValue, web},
		{"a nil pointer in it", keysOf(enqueue.KeyOf[*corev1.Pod]), cache.DeletedFinalStateUnknown{Key: "default/web", Obj: (*corev1.Pod)(nil)}, web},
		{"cluster-scoped", keysOf(enqueue.KeyOf[*corev1.Node]), cache.DeletedFinalStateUnknown{Key: "one"}, []types.NamespacedName{{Name: "one"}}},
		{"unstructured", keysOf(enqueue.KeyOf[*unstructured.Unstructured]), byValue, web},
		{"cluster-scoped and unstructured", keysOf(enqueue.KeyOf[*unstructured.Unstructured]), cache.DeletedFinalStateUnknown{Key: "one"}, []types.NamespacedName{{Name: "one"}}},
		{"metadata", keysOf(enqueue.KeyOf[*metav1.PartialObjectMetadata]), byValue, web},
		{"an interface", keysOf(enqueue.KeyOf[metav1.Object]), byValue, web},
		{"a larger interface", keysOf(enqueue.KeyOf[object]), byValue, web},
		{"an interface that metadata does not satisfy", keysOf(enqueue.KeyOf[phased]), byValue, nil},
		{"an interface without a name", keysOf(func(any) []types.NamespacedName { return never("any") }), byValue, nil},
		{"a struct with a pointer to the metadata", keysOf(enqueue.KeyOf[*pointing]), byValue, nil},
		{"a struct with an interface to the metadata", keysOf(enqueue.KeyOf[*holding]), byValue, nil},
		{"a struct with a struct with a pointer to it", keysOf(enqueue.KeyOf[*deeper]), byValue, nil},
		{"a struct with pointers to other things", keysOf(enqueue.KeyOf[*keeping]), byValue, web},
		{"no object at all", keysOf(func(int) []types.NamespacedName { return never("an int") }), byValue, nil},
		{"a key of too many parts", keysOf(func(*corev1.Pod) []types.NamespacedName { return never("a Pod") }), cache.DeletedFinalStateUnknown{Key: "a/b/c"}, nil},
		{"an empty key", keysOf(func(*corev1.Pod) []types.NamespacedName { return never("a Pod") }), cache.DeletedFinalStateUnknown{}, nil},
		{"a nil tombstone", keysOf(func(*corev1.Pod) []types.NamespacedName { return never("a Pod") }), (*cache.DeletedFinalStateUnknown)(nil), nil},
		{"an object that never fit its type", keysOf(enqueue.KeyOf[*corev1.Pod]), malformedPod, web},
		{"its owner", keysOf(enqueue.ControllerOf[*corev1.Pod](appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind())), malformedPod, []types.NamespacedName{{Namespace: "default", Name: "set"}}},
		{"its owner by an interface", keysOf(enqueue.ControllerOf[metav1.Object](appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind())), malformedPod, []types.NamespacedName{{Namespace: "default", Name: "set"}}},
		{
			"the owner is not known",
			keysOf(enqueue.ControllerOf[*corev1.Pod](appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind())), byValue, nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.delete(tc.obj)); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWrongObjects tests that both handlers panic at an object of another type.
func TestWrongObjects(t *testing.T) {
	var none *corev1.Pod
	some, secret := pod("p", "1", "a"), &corev1.Secret{}
	const (
		wrongType = " for *v1.Pod got a *v1.Secret: register it with the informer of its type"
		isNil     = " for *v1.Pod got a nil object"
	)
	for _, tc := range []struct {
		name  string
		event func(h cache.ResourceEventHandler)
		want  string
	}{
		{"add, wrong type", func(h cache.ResourceEventHandler) { h.OnAdd(secret, false) }, wrongType},
		{"update, wrong type", func(h cache.ResourceEventHandler) { h.OnUpdate(secret, secret) }, wrongType},
		{"update, wrong old type", func(h cache.ResourceEventHandler) { h.OnUpdate(secret, some) }, wrongType},
		{"delete, wrong type", func(h cache.ResourceEventHandler) { h.OnDelete(secret) }, wrongType},
		{"tombstone, wrong type", func(h cache.ResourceEventHandler) { h.OnDelete(cache.DeletedFinalStateUnknown{Obj: secret}) }, wrongType},
		{"tombstone by pointer, wrong type", func(h cache.ResourceEventHandler) { h.OnDelete(&cache.DeletedFinalStateUnknown{Obj: secret}) }, wrongType},
		{"add, untyped nil", func(h cache.ResourceEventHandler) { h.OnAdd(nil, false) }, isNil},
		{"delete, untyped nil", func(h cache.ResourceEventHandler) { h.OnDelete(nil) }, isNil},
		{"add, nil", func(h cache.ResourceEventHandler) { h.OnAdd(none, true) }, isNil},
		{"update, nil", func(h cache.ResourceEventHandler) { h.OnUpdate(some, none) }, isNil},
		{"update, old nil", func(h cache.ResourceEventHandler) { h.OnUpdate(none, some) }, isNil},
		{"delete, nil", func(h cache.ResourceEventHandler) { h.OnDelete(none) }, isNil},
	} {
		q := &recorder{}
		all := func(enqueue.Event[*corev1.Pod]) bool { return true }
		for name, h := range map[string]cache.ResourceEventHandler{
			"Handler": enqueue.Handler(q, ownerNames),
			"Filter":  enqueue.Filter(cache.ResourceEventHandlerFuncs{}, all),
		} {
			func() {
				defer func() {
					if got, want := recover(), "enqueue: "+name+tc.want; got != want {
						t.Errorf("%s: got panic %v, want %q", tc.name, got, want)
					}
				}()
				tc.event(h)
			}()
		}
		if len(q.got) > 0 {
			t.Errorf("%s: added %v before the panic, want nothing", tc.name, q.got)
		}
	}
}

func TestControllerOf(t *testing.T) {
	keys := enqueue.ControllerOf[*corev1.Pod](appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind())
	ref := func(apiVersion, kind string, controller *bool) *corev1.Pod {
		p := pod("p", "1")
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: "other"},
			{APIVersion: apiVersion, Kind: kind, Name: "web", Controller: controller},
		}
		return p
	}
	web := []types.NamespacedName{{Namespace: "default", Name: "web"}}
	for _, tc := range []struct {
		name string
		pod  *corev1.Pod
		want []types.NamespacedName
	}{
		{"controlled", ref("apps/v1", "ReplicaSet", ptr.To(true)), web},
		{"another version", ref("apps/v1beta2", "ReplicaSet", ptr.To(true)), web},
		{"another group", ref("example.com/v1", "ReplicaSet", ptr.To(true)), nil},
		{"no group", ref("v1", "ReplicaSet", ptr.To(true)), nil},
		{"bad group", ref("a/b/c", "ReplicaSet", ptr.To(true)), nil},
		{"another kind", ref("apps/v1", "DaemonSet", ptr.To(true)), nil},
		{"owned, not controlled", ref("apps/v1", "ReplicaSet", nil), nil},
		{"controller false", ref("apps/v1", "ReplicaSet", ptr.To(false)), nil},
		{"no owner", pod("p", "1"), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := tc.pod.DeepCopy()
			if diff := cmp.Diff(tc.want, keys(tc.pod)); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.pod); diff != "" {
				t.Errorf("the object was changed:\n%s", diff)
			}
		})
	}
}

// TestHandlerWithInformer tests that a changed object comes before the initial list,
// and that a queue of client-go, which has no priorities, gets the same keys.
func TestHandlerWithInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset(pod("old1", "1"), pod("old2", "1"))
		factory := informers.NewSharedInformerFactory(client, 0)
		informer := factory.Core().V1().Pods().Informer()

		own := queue.New(queue.Config[types.NamespacedName]{})
		theirs := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())
		for _, h := range []cache.ResourceEventHandler{
			enqueue.Handler(own, enqueue.KeyOf[*corev1.Pod]),
			enqueue.Handler(theirs, enqueue.KeyOf[*corev1.Pod]),
		} {
			if _, err := informer.AddEventHandler(h); err != nil {
				t.Fatal(err)
			}
		}
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
		synctest.Wait()
		if _, err := client.CoreV1().Pods("default").Create(ctx, pod("new", "2"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		var got []string
		for range 3 {
			key, priority, _ := own.GetWithPriority()
			got = append(got, fmt.Sprint(key, " ", priority))
		}
		slices.Sort(got[1:]) // the order of the list is the fake's
		if diff := cmp.Diff([]string{"default/new 0", "default/old1 -100", "default/old2 -100"}, got); diff != "" {
			t.Errorf("keys (-want +got):\n%s", diff)
		}
		if n := theirs.Len(); n != 3 {
			t.Errorf("client-go's queue: got %d keys, want 3", n)
		}
		own.ShutDown()
		theirs.ShutDown()
		cancel()
		factory.Shutdown()
	})
}
