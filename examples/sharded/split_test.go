package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shard"
)

// TestSplit: the loops of many shards on one informer call their handlers at most twice for each object of a first list, by
// the informer and by Run, and once for an event. Each object is reconciled in the loop of its shard alone, also if the shard goes
// and comes back.
func TestSplit(t *testing.T) {
	const shards, number = 32, 200
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		var all []runtime.Object
		for i := range number {
			all = append(all, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("m", i), UID: types.UID(fmt.Sprint(i, "-0000"))}})
		}
		client := fake.NewClientset(all...)
		factory := informers.NewSharedInformerFactory(client, 0)
		informer := factory.Core().V1().ConfigMaps().Informer()
		ranges := shard.Ranges{N: shards}
		divided, err := newSplit(informer, ranges)
		if err != nil {
			t.Fatal(err)
		}
		factory.StartWithContext(ctx)
		factory.WaitForCacheSync(ctx.Done())

		var called atomic.Int64
		var mu sync.Mutex
		ran := map[string][]int{} // the shards whose loops ran an object
		begin := func(index int) (end func()) {
			q := queue.New(queue.Config[types.NamespacedName]{Name: "publish"})
			c := &reconcile.Controller[types.NamespacedName]{Name: "publish", Queue: q, Workers: 1, Reconcile: func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
				mu.Lock()
				defer mu.Unlock()
				ran[key.Name] = append(ran[key.Name], index)
				return reconcile.Result{}, nil
			}}
			own := part{divided, index}
			_, err := c.Handle(own, enqueue.Handler(c.Source("configmaps"), func(m *corev1.ConfigMap) []types.NamespacedName {
				called.Add(1)
				return enqueue.KeyOf(m)
			}))
			if err != nil {
				t.Error(err)
			}
			ctx, cancel := context.WithCancel(ctx)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer own.removeEventHandler()
				if err := c.Run(ctx); err != nil {
					t.Error(err)
				}
			}()
			return func() { cancel(); <-ended }
		}
		// check compares the calls since the last one.
		check := func(when string, most int, want func(name string, of int) []int) {
			t.Helper()
			synctest.Wait()
			if got := int(called.Swap(0)); got > most {
				t.Errorf("%s: the handlers were called %d times, want at most %d", when, got, most)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, obj := range all {
				m := obj.(*corev1.ConfigMap)
				of, err := ranges.Of(m)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := ran[m.Name], want(m.Name, of); !slices.Equal(got, want) {
					t.Errorf("%s: %s of shard %d ran in the loops of the shards %v, want %v", when, m.Name, of, got, want)
				}
			}
			clear(ran)
		}
		own := func(_ string, of int) []int { return []int{of} }

		var ends []func()
		for i := range shards {
			ends = append(ends, begin(i))
		}
		check("all shards begin", 2*number, own)

		m0 := all[0].(*corev1.ConfigMap)
		of0, _ := ranges.Of(m0)
		change := func(verb func(ctx context.Context, m *corev1.ConfigMap) error) {
			t.Helper()
			if err := verb(ctx, m0.DeepCopy()); err != nil {
				t.Fatal(err)
			}
		}
		update := func(ctx context.Context, m *corev1.ConfigMap) error {
			m.Data = map[string]string{"a": "b"}
			_, err := client.CoreV1().ConfigMaps("ns").Update(ctx, m, metav1.UpdateOptions{})
			return err
		}
		only := func(name string, of int) []int {
			if name == m0.Name {
				return []int{of}
			}
			return nil
		}
		change(update)
		check("an update", 2, only)
		change(func(ctx context.Context, m *corev1.ConfigMap) error {
			return client.CoreV1().ConfigMaps("ns").Delete(ctx, m.Name, metav1.DeleteOptions{})
		})
		check("a deletion", 1, only)
		change(func(ctx context.Context, m *corev1.ConfigMap) error {
			_, err := client.CoreV1().ConfigMaps("ns").Create(ctx, m, metav1.CreateOptions{})
			return err
		})
		check("a creation", 1, only)

		ends[of0]()
		change(update)
		check("an update without the shard", 0, func(string, int) []int { return nil })
		ends[of0] = begin(of0)
		check("the shard is back", number, func(_ string, of int) []int {
			if of == of0 {
				return []int{of}
			}
			return nil
		})

		for _, end := range ends {
			end()
		}
		stop()
		factory.Shutdown()
	})
}

// TestSplitOfReplacedObject: an update between two objects with one name, and a deletion that the informer missed, reach the
// shards of the objects.
func TestSplitOfReplacedObject(t *testing.T) {
	ranges := shard.Ranges{N: 2}
	var of [2]*corev1.ConfigMap
	for i := 0; of[0] == nil || of[1] == nil; i++ {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: types.UID(fmt.Sprint(i, "-0000"))}}
		index, err := ranges.Of(m)
		if err != nil {
			t.Fatal(err)
		}
		of[index] = m
	}
	divided := &split{ranges: ranges}
	var got []string
	for i := range 2 {
		if _, err := (part{divided, i}).AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { got = append(got, fmt.Sprint("add ", i)) },
			UpdateFunc: func(_, _ any) { got = append(got, fmt.Sprint("update ", i)) },
			DeleteFunc: func(any) { got = append(got, fmt.Sprint("delete ", i)) },
		}); err != nil {
			t.Fatal(err)
		}
	}
	divided.OnUpdate(of[0], of[1])
	divided.OnUpdate(of[1], of[1])
	divided.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/m", Obj: of[1]})
	divided.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/m"})
	if want := []string{"delete 0", "add 1", "update 1", "delete 1"}; !slices.Equal(got, want) {
		t.Errorf("the handlers got %q, want %q", got, want)
	}
}
