package enqueue_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
)

// outage is a server whose first watch ends, and which has no history of the time
// after it: b was deleted, and a was deleted and created again.
type outage struct {
	*cache.ListWatch
	broken chan struct{} // closed by the test
}

func (outage) IsWatchListSemanticsUnSupported() bool { return true }

func newOutage(kept, lost *corev1.Pod, anew *corev1.Pod) outage {
	o := outage{broken: make(chan struct{})}
	lists, watches := 0, 0
	o.ListWatch = &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			lists++
			if lists == 1 {
				return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: []corev1.Pod{*kept, *lost}}, nil
			}
			return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "20"}, Items: []corev1.Pod{*anew}}, nil
		},
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			watches++
			switch watches {
			case 1:
				w := watch.NewFake()
				go func() {
					select {
					case <-o.broken:
					case <-ctx.Done():
					}
					w.Stop()
				}()
				return w, nil
			case 2:
				return nil, apierrors.NewResourceExpired("too old")
			}
			return watch.NewFake(), nil
		},
	}
	return o
}

// TestOutage tests the events after the informer had no connection. It reports the
// deletion as a tombstone with the object, and the object that was created again as
// an update. GenerationChanged passes both, although the generation is the same.
//
// It proves EQ1 and EQ2.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{})) // says nothing
		kept, lost, anew := pod("a", "1"), pod("b", "2"), pod("a", "15")
		for i, p := range []*corev1.Pod{kept, lost, anew} {
			p.UID, p.Generation = types.UID(fmt.Sprint("uid", i)), 1
		}
		server := newOutage(kept, lost, anew)
		informer := cache.NewSharedIndexInformer(server, &corev1.Pod{}, 0, nil)
		q := queue.New(queue.Config[types.NamespacedName]{})
		var seen []string
		h := enqueue.Filter(cache.ResourceEventHandlerDetailedFuncs{
			AddFunc:    func(any, bool) { seen = append(seen, "add") },
			UpdateFunc: func(any, any) { seen = append(seen, "update") },
			DeleteFunc: func(obj any) {
				tombstone, ok := obj.(cache.DeletedFinalStateUnknown)
				seen = append(seen, fmt.Sprint("delete ", ok, " ", tombstone.Obj != nil))
			},
		}, enqueue.GenerationChanged[*corev1.Pod])
		for _, h := range []cache.ResourceEventHandler{
			h, enqueue.Filter(enqueue.Handler(q, enqueue.KeyOf[*corev1.Pod]), enqueue.GenerationChanged[*corev1.Pod]),
		} {
			if _, err := informer.AddEventHandler(h); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() { informer.RunWithContext(ctx) })
		take := func() (keys []string) {
			synctest.Wait()
			for q.Len() > 0 {
				key, priority, _ := q.GetWithPriority()
				keys = append(keys, fmt.Sprint(key, " ", priority))
				q.Done(key)
			}
			slices.Sort(keys)
			return keys
		}
		if diff := cmp.Diff([]string{"default/a -100", "default/b -100"}, take()); diff != "" {
			t.Errorf("keys of the list (-want +got):\n%s", diff)
		}
		close(server.broken)
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"default/a 0", "default/b 0"}, take()); diff != "" {
			t.Errorf("keys after the outage (-want +got):\n%s", diff)
		}
		slices.Sort(seen)
		if diff := cmp.Diff([]string{"add", "add", "delete true true", "update"}, seen); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		q.ShutDown()
		cancel()
		wg.Wait()
	})
}
