package queue_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/queue"
)

// recorder is a queue that writes down what is added. Without AddWith it is as
// client-go's queues are.
type recorder struct{ got []string }

func (r *recorder) Add(key string) { r.got = append(r.got, key) }

type priorityRecorder struct{ recorder }

func (r *priorityRecorder) AddWith(o queue.AddOptions, keys ...string) {
	for _, key := range keys {
		r.got = append(r.got, fmt.Sprintf("%s at %d", key, o.Priority))
	}
}

func pod(name, version string, owners ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version}}
	for _, owner := range owners {
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, Controller: ptr.To(true),
		})
	}
	return p
}

func ownerNames(p *corev1.Pod) (names []string) {
	for _, ref := range p.OwnerReferences {
		names = append(names, ref.Name)
	}
	return names
}

func TestEventHandler(t *testing.T) {
	for _, tc := range []struct {
		name      string
		event     func(h cache.ResourceEventHandler)
		want      []string // with AddWith
		wantPlain []string // without
	}{
		{
			name:  "add",
			event: func(h cache.ResourceEventHandler) { h.OnAdd(pod("p", "1", "a", "b"), false) },
			want:  []string{"a", "b"}, wantPlain: []string{"a", "b"},
		},
		{
			name:  "initial list",
			event: func(h cache.ResourceEventHandler) { h.OnAdd(pod("p", "1", "a", "b"), true) },
			want:  []string{"a at -100", "b at -100"}, wantPlain: []string{"a", "b"},
		},
		{
			name:  "update",
			event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod("p", "1", "a"), pod("p", "2", "a")) },
			want:  []string{"a"}, wantPlain: []string{"a"},
		},
		{
			name:  "update that moves the object to another owner",
			event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod("p", "1", "a"), pod("p", "2", "b")) },
			want:  []string{"b", "a"}, wantPlain: []string{"b", "a"},
		},
		{
			name:  "resync",
			event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod("p", "2", "a"), pod("p", "2", "a")) },
			want:  []string{"a at -100"}, wantPlain: []string{"a"},
		},
		{
			name:  "update of objects without resourceVersion, as fakes make them",
			event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod("p", "", "a"), pod("p", "", "a")) },
			want:  []string{"a"}, wantPlain: []string{"a"},
		},
		{
			name:  "delete",
			event: func(h cache.ResourceEventHandler) { h.OnDelete(pod("p", "2", "a")) },
			want:  []string{"a"}, wantPlain: []string{"a"},
		},
		{
			name: "tombstone",
			event: func(h cache.ResourceEventHandler) {
				h.OnDelete(cache.DeletedFinalStateUnknown{Key: "default/p", Obj: pod("p", "2", "a")})
			},
			want: []string{"a"}, wantPlain: []string{"a"},
		},
		{
			name: "tombstone without an object",
			event: func(h cache.ResourceEventHandler) {
				h.OnDelete(cache.DeletedFinalStateUnknown{Key: "default/p"})
			},
		},
		{
			name:  "an object that names no keys",
			event: func(h cache.ResourceEventHandler) { h.OnAdd(pod("p", "1"), true) },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			with, plain := &priorityRecorder{}, &recorder{}
			tc.event(queue.EventHandler(with, ownerNames))
			tc.event(queue.EventHandler(plain, ownerNames))
			if diff := cmp.Diff(tc.want, with.got); diff != "" {
				t.Errorf("with AddWith (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantPlain, plain.got); diff != "" {
				t.Errorf("without AddWith (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEventHandlerOfTheWrongType(t *testing.T) {
	h := queue.EventHandler(&recorder{}, ownerNames)
	for name, event := range map[string]func(){
		"add":       func() { h.OnAdd(&corev1.Secret{}, false) },
		"update":    func() { h.OnUpdate(&corev1.Secret{}, &corev1.Secret{}) },
		"delete":    func() { h.OnDelete(&corev1.Secret{}) },
		"tombstone": func() { h.OnDelete(cache.DeletedFinalStateUnknown{Obj: &corev1.Secret{}}) },
	} {
		func() {
			defer func() {
				want := "queue: EventHandler for *v1.Pod is given a *v1.Secret: register it with the informer of its type"
				if got := recover(); got != want {
					t.Errorf("%s: got panic %q, want %q", name, got, want)
				}
			}()
			event()
		}()
	}
}

func TestControllerOf(t *testing.T) {
	keys := queue.ControllerOf[*corev1.Pod](appsv1.SchemeGroupVersion.WithKind("ReplicaSet").GroupKind())
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

// With a real informer: what changes goes before the initial list, with this
// queue and, without priorities, with client-go's.
func TestEventHandlerWithInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset(pod("old1", "1"), pod("old2", "1"))
		factory := informers.NewSharedInformerFactory(client, 0)
		informer := factory.Core().V1().Pods().Informer()

		own := queue.New(queue.Config[types.NamespacedName]{})
		theirs := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())
		for _, h := range []cache.ResourceEventHandler{
			queue.EventHandler(own, queue.KeyOf[*corev1.Pod]),
			queue.EventHandler(theirs, queue.KeyOf[*corev1.Pod]),
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
