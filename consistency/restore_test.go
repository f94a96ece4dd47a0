package consistency_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
)

// After etcd was restored from a backup its versions are lower than those recorded
// before. A store that goes back shows it. What was recorded before is not waited for,
// and the next run reads live; what is recorded after is waited for.
//
// Proves C8.
func TestRestore(t *testing.T) {
	one := types.NamespacedName{Namespace: "ns", Name: "one"}
	for _, tc := range []struct {
		name   string
		record func(s *consistency.Store)
	}{
		{"a write", func(s *consistency.Store) { s.WroteAt(owner, "u", pods, "5000") }},
		{"two writes", func(s *consistency.Store) {
			s.WroteAt(owner, "u", secrets, "4000")
			s.WroteAt(owner, "u", pods, "5000")
		}},
		{"a refused write", func(s *consistency.Store) { s.Refused(owner, "u", pods, one, "5000") }},
		{"a deletion", func(s *consistency.Store) { deleted(s, "a") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := cacheOf(t, podWith("one", "a", "4500"))
				s := consistency.New(consistency.Config{Stores: stores{pods: c, secrets: at("9000")}, MaxWait: -1})
				tc.record(s)
				woken := 0
				if s.Ready(owner, func() { woken++ }) {
					t.Fatal("Ready = true before the cache shows it")
				}
				waited := make(chan error, 1)
				go func() { waited <- s.Wait(t.Context(), owner) }()
				synctest.Wait()
				restored := podWith("one", "a", "3000")
				if err := c.Replace([]any{restored}, "3100"); err != nil {
					t.Fatal(err)
				}
				s.Handler().OnUpdate(nil, restored)
				time.Sleep(time.Second) // RecheckInterval
				synctest.Wait()
				if woken != 1 {
					t.Fatalf("woken %d times, want once", woken)
				}
				if err := <-waited; err != nil {
					t.Errorf("Wait = %v", err)
				}
				if !s.Ready(owner, nil) || !consistency.LiveRead(s.Begin(t.Context(), owner)) {
					t.Error("the run after a restore does not read live")
				}
				s.WroteAt(owner, "", pods, "3200") // what that run has read, or written
				s.End(owner)
				if s.Ready(owner, nil) {
					t.Error("Ready = true before the cache shows what was read after the restore")
				}
				_ = c.Add(podWith("two", "b", "3200"))
				if !s.Ready(owner, nil) || consistency.LiveRead(s.Begin(t.Context(), owner)) {
					t.Error("the cache is there, and is not used")
				}
			})
		})
	}
}

// A write after the restore is not taken for one from before, even where nobody has
// asked the store in between.
//
// Proves C8.
func TestRestoreThenWrite(t *testing.T) {
	store := at("4000")
	s := consistency.New(consistency.Config{Stores: stores{pods: store}})
	s.WroteAt(owner, "u", pods, "5000")
	store.set("3000")
	s.WroteAt(other, "u", pods, "3100")
	s.WroteAt(owner, "u", pods, "3200")
	for _, key := range []types.NamespacedName{owner, other} {
		if err := s.EnsureReady(key); err == nil {
			t.Errorf("%s: ready before the cache shows the write after the restore", key)
		}
	}
	store.set("")
	if err := s.EnsureReady(owner); err == nil {
		t.Error("ready by a store without a version")
	}
	store.set("3200")
	for _, key := range []types.NamespacedName{owner, other} {
		if err := s.EnsureReady(key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// A conflict after the restore is not taken for one from before.
//
// Proves C8.
func TestRestoreThenRefused(t *testing.T) {
	c := cacheOf(t, podWith("one", "a", "4500"))
	s := consistency.New(consistency.Config{Stores: stores{pods: c}})
	s.WroteAt(owner, "u", pods, "5000")
	if err := c.Replace([]any{podWith("one", "a", "3000")}, "3100"); err != nil {
		t.Fatal(err)
	}
	s.Refused(owner, "u", pods, types.NamespacedName{Namespace: "ns", Name: "one"}, "3000")
	if err := s.EnsureReady(owner); err == nil {
		t.Error("ready before the cache shows the change that caused the conflict")
	}
}

// A restore can raise the version of a store, while each object keeps its own. A conflict from before
// it is not waited for, and the next run reads live.
//
// Proves C8.
func TestRestoreRaised(t *testing.T) {
	for _, tc := range []struct {
		name, object, store string
		ready, live         bool
	}{
		{"the cache is late", "3990", "4999", false, false},
		{"restored", "3990", "5000", true, true},
		{"restored, the version was raised", "3990", "1000004000", true, true},
		{"the cache shows the version of the conflict", "5000", "1000004000", false, false},
		{"changed", "5001", "1000004000", true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := cacheOf(t, podWith("one", "a", "4500"))
			s := consistency.New(consistency.Config{Stores: stores{pods: c}, MaxWait: -1})
			s.Refused(owner, "u", pods, types.NamespacedName{Namespace: "ns", Name: "one"}, "5000")
			if s.Ready(owner, nil) {
				t.Fatal("Ready = true before the cache shows the change that caused the conflict")
			}
			if err := c.Replace([]any{podWith("one", "a", tc.object)}, tc.store); err != nil {
				t.Fatal(err)
			}
			if got := s.Ready(owner, nil); got != tc.ready {
				t.Errorf("Ready = %t, want %t", got, tc.ready)
			}
			if got := consistency.LiveRead(s.Begin(t.Context(), owner)); tc.ready && got != tc.live {
				t.Errorf("LiveRead = %t, want %t", got, tc.live)
			}
			s.End(owner)
			if again := consistency.LiveRead(s.Begin(t.Context(), owner)); tc.ready && again {
				t.Error("LiveRead = true in the run after it")
			}
		})
	}
}

// If a restore brings back an object whose deletion the cache has shown, no key waits for the
// deletion again, even while an ambiguous write keeps the key's record.
//
// Proves C8.
func TestRestoreOfDeleted(t *testing.T) {
	c := cacheOf(t, podWith("two", "c", "4500"))
	s := consistency.New(consistency.Config{Stores: stores{pods: c}})
	lose(t, s, owner)
	deleted(s, "a")
	if err := s.EnsureReady(owner); err != nil {
		t.Fatalf("EnsureReady = %v, want nil: the cache does not hold the object", err)
	}
	if err := c.Replace([]any{podWith("one", "a", "3000")}, "3100"); err != nil {
		t.Fatal(err)
	}
	s.WroteAt(owner, "u", pods, "3100") // the live read that the ambiguous write required
	if err := s.EnsureReady(owner); err != nil {
		t.Errorf("EnsureReady = %v after the restore, want nil", err)
	}
	if consistency.LiveRead(s.Begin(t.Context(), owner)) {
		t.Error("LiveRead is true for a deletion that the cache has shown")
	}
}

// A real informer sees a restore as a watch that ends and a list that is older.
//
// Proves C8.
func TestRestoreUnderAnInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		version, current := "4900", watch.NewFakeWithChanSize(10, false)
		lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (k8sruntime.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}}, nil
			},
			WatchFuncWithContext: func(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
				mu.Lock()
				defer mu.Unlock()
				if opts.ResourceVersion != version {
					return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old or too new: %s", opts.ResourceVersion))
				}
				return current, nil
			},
		}, noWatchList{})
		informer := cache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, nil)
		s := consistency.New(consistency.Config{MaxWait: -1})
		if err := s.AddInformer(pods, informer); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { informer.RunWithContext(ctx) })
		synctest.Wait()
		s.WroteAt(owner, "u", pods, "5000")
		woken := false
		if s.Ready(owner, func() { woken = true }) {
			t.Fatal("Ready = true before the cache shows the write")
		}
		mu.Lock()
		version = "3000"
		current.Stop()
		current = watch.NewFakeWithChanSize(10, false)
		mu.Unlock()
		time.Sleep(time.Minute) // the reflector's pause
		synctest.Wait()
		if !woken || !consistency.LiveRead(s.Begin(t.Context(), owner)) {
			t.Errorf("woken = %v after the informer has listed an older version; want a run that reads live", woken)
		}
		cancel()
		wg.Wait()
	})
}
