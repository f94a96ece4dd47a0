package applyset_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/controllerkit/controllerkit/ssa/applyset"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// fakeParents has any number of parents without members. Unlike client-go's fake it runs
// requests at the same time.
type fakeParents struct {
	metadata.Getter

	requests *atomic.Int64
	get      func(name string) // is called by each Get
}

func (f fakeParents) Resource(schema.GroupVersionResource) metadata.Getter { return f }

func (f fakeParents) Namespace(string) metadata.ResourceInterface { return f }

func (f fakeParents) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	f.requests.Add(1)
	if f.get != nil {
		f.get(name)
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: parentOf(name).ObjectMeta}, nil
}

func (f fakeParents) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	f.requests.Add(1)
	return &metav1.PartialObjectMetadataList{}, nil
}

// parentOf returns a parent with an empty inventory.
func parentOf(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "a", UID: types.UID(name), ResourceVersion: "1", Finalizers: []string{setFinalizer},
		Labels:      map[string]string{idLabel: inventory.ID(schema.GroupKind{Kind: "ConfigMap"}, "a", name)},
		Annotations: map[string]string{tooling: manager + "/v1", groupKinds: "", namespaces: ""},
	}}
}

func setOf(f fakeParents) *applyset.Set {
	return &applyset.Set{
		Client: fakeClient{}, Metadata: f, Mapper: setMapper(), Manager: manager,
		ParentKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Finalizer: setFinalizer,
	}
}

// However many parents there are, a second call for each makes no request. The memory of a
// parent ends an hour after its last call, and at once after Delete.
//
// Proves AS5.
func TestSetManyParents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parents = 10_001
		f := fakeParents{requests: new(atomic.Int64)}
		s := setOf(f)
		for pass := range 2 {
			f.requests.Store(0)
			for i := range parents {
				if _, err := s.Apply(t.Context(), parentOf(fmt.Sprint("parent-", i))); err != nil {
					t.Fatal(err)
				}
			}
			if n := f.requests.Load(); n > 0 && pass > 0 {
				t.Errorf("pass %d over %d parents made %d requests", pass, parents, n)
			}
		}
		if n := applyset.Remembered(s); n != parents {
			t.Errorf("the Set remembers %d parents, want %d", n, parents)
		}
		if _, err := s.Delete(t.Context(), parentOf("parent-0")); err != nil {
			t.Fatal(err)
		}
		if n := applyset.Remembered(s); n != parents-1 {
			t.Errorf("after a Delete the Set remembers %d parents, want %d", n, parents-1)
		}
		time.Sleep(30 * time.Minute)
		if _, err := s.Apply(t.Context(), parentOf("parent-1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		if _, err := s.Apply(t.Context(), parentOf("parent-2")); err != nil {
			t.Fatal(err)
		}
		if n := applyset.Remembered(s); n != 2 {
			t.Errorf("after an hour the Set remembers %d parents, want 2", n)
		}
	})
}

// Calls for one parent never run at once: not among calls for many other parents, not for
// longer than a memory lasts, and not after a Delete, whose memory the waiting calls share.
func TestSetOneCallAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		step := make(chan struct{})
		f := fakeParents{requests: new(atomic.Int64)}
		f.get = func(name string) {
			if name != "one" {
				return
			}
			most.Store(max(most.Load(), running.Add(1)))
			<-step
			running.Add(-1)
		}
		s := setOf(f)
		var calls sync.WaitGroup
		remove := func() {
			calls.Go(func() {
				if _, err := s.Delete(t.Context(), parentOf("one")); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		remove()
		for i := range 100 {
			if _, err := s.Apply(t.Context(), parentOf(fmt.Sprint("parent-", i))); err != nil {
				t.Fatal(err)
			}
		}
		remove()
		time.Sleep(2 * time.Hour)
		if _, err := s.Apply(t.Context(), parentOf("another")); err != nil {
			t.Fatal(err)
		}
		remove()
		ctx, stop := context.WithCancelCause(t.Context())
		stop(errBoom)
		if _, err := s.Apply(ctx, parentOf("one")); !errors.Is(err, errBoom) {
			t.Errorf("a call that waits until its context ends: error %v", err)
		}
		step <- struct{}{} // the first ends, and the second runs
		synctest.Wait()
		remove()
		for range 3 {
			step <- struct{}{}
			synctest.Wait()
		}
		calls.Wait()
		if n := most.Load(); n != 1 {
			t.Errorf("%d calls for one parent ran at once", n)
		}
		if n := applyset.Remembered(s); n != 1 {
			t.Errorf("the Set remembers %d parents, want the other one", n)
		}
	})
}
