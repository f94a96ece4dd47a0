package single

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

type key = types.NamespacedName

// server counts the watches of each object, and lists it or an error.
type server struct {
	mu       sync.Mutex
	watching map[key]int
	object   *corev1.Secret
	err      error
}

func (s *server) informer(k key) (cache.SharedIndexInformer, error) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			list := &corev1.SecretList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			if s.object != nil {
				list.Items = append(list.Items, *s.object)
			}
			return list, s.err
		},
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.watching[k]++
			context.AfterFunc(ctx, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.watching[k]--
			})
			return watch.NewFake(), nil
		},
	}
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, unsupported{}), &corev1.Secret{}, 0, cache.Indexers{}), nil
}

// unsupported makes client-go list and watch.
type unsupported struct{}

func (unsupported) IsWatchListSemanticsUnSupported() bool { return true }

func (s *server) open(k key) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watching[k]
}

// TestSweep: an object has one watch for all its reads, which ends when no key needs it and nobody has read it
// for a minute.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{watching: map[key]int{}, object: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}}
		var mu sync.Mutex
		needed := true
		w := New(s.informer, cache.ResourceEventHandlerFuncs{}, func(key) bool {
			mu.Lock()
			defer mu.Unlock()
			return needed
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		at := key{Namespace: "a", Name: "b"}
		for range 3 {
			if item, err := w.Get(ctx, at); err != nil || item.(*corev1.Secret).Name != "b" {
				t.Errorf("Get() = %v, %v", item, err)
			}
		}
		if item, err := w.Get(ctx, key{Namespace: "a", Name: "absent"}); err != nil && item != nil {
			t.Errorf("Get() of an absent object = %v, %v", item, err)
		}
		synctest.Wait()
		if n := s.open(at); n != 1 {
			t.Errorf("%d watches, want 1", n)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := s.open(at); n != 1 {
			t.Errorf("%d watches of a needed object, want 1", n)
		}
		mu.Lock()
		needed = false
		mu.Unlock()
		if _, err := w.Get(ctx, at); err != nil {
			t.Error(err)
		}
		time.Sleep(sweep - time.Second)
		synctest.Wait()
		if n := s.open(at); n != 1 {
			t.Errorf("%d watches of an object that was read just now, want 1", n)
		}
		time.Sleep(sweep + time.Second)
		synctest.Wait()
		if n := s.open(at); n != 0 || len(w.open) != 0 {
			t.Errorf("%d watches, %d of them known, of objects that nobody needs", n, len(w.open))
		}
		if item, err := w.Get(ctx, at); err != nil || item == nil {
			t.Errorf("Get() = %v, %v after the watch has ended", item, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestFailingList: a Get returns the reason why the object cannot be listed, in a bounded time, and not that
// time's end.
func TestFailingList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{watching: map[key]int{}, err: apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "b", nil)}
		w := New(s.informer, cache.ResourceEventHandlerFuncs{}, func(key) bool { return true })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		begin := time.Now()
		_, err := w.Get(ctx, key{Namespace: "a", Name: "b"})
		if !apierrors.IsForbidden(err) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "its list was not answered within 5s") {
			t.Errorf("Get() = %v", err)
		}
		if d := time.Since(begin); d > wait {
			t.Errorf("Get takes %v", d)
		}
		cancel()
		<-done
		time.Sleep(time.Minute) // a pause of client-go before its next attempt
	})
}
