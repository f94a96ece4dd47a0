package applyset_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// A context that ends while a CustomResourceDefinition is waited for, and a Namespace
// that is being deleted, are said as what they are.
//
// Proves AS1.
func TestServerBatchStopped(t *testing.T) {
	w := newArena(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	stop := errors.New("the lease is lost")
	b, process := w.process(t, func(op *fault.Op) fault.Fault {
		if op.Verb == "watch" {
			return fault.Fault{Finally: func() { time.AfterFunc(50*time.Millisecond, func() { cancel(stop) }) }}
		}
		return fault.Fault{}
	})
	t.Cleanup(process.Hold(crdResource.GroupResource().String()))
	_, err := b.Apply(ctx, object(paintCRD, w.group, w.group), applycorev1.ConfigMap("one", w.name))
	if all := objectErrors(t, err); !errors.Is(all[0], stop) || !strings.Contains(all[0].Error(), "not established") || !errors.Is(all[1], applyset.ErrNotTried) {
		t.Errorf("stopped: error %v", err)
	}

	namespaces := w.Resource(namespaceResource)
	if _, err := namespaces.Create(t.Context(), object(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"%s","finalizers":["example.com/keep"]}}`, w.name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := namespaces.Patch(context.WithoutCancel(t.Context()), w.name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	if err := namespaces.Delete(t.Context(), w.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = b.Apply(t.Context(), applycorev1.Namespace(w.name), applycorev1.ConfigMap("one", w.name))
	if all := objectErrors(t, err); all[0] == nil || !strings.Contains(all[0].Error(), "being deleted") || !errors.Is(all[1], applyset.ErrNotTried) {
		t.Errorf("being deleted: error %v", err)
	}
}

// A process that dies at any of its writes, before it arrives or after, is followed by
// one that does the same: the end is the one without a crash. Meanwhile somebody else
// writes to the same objects.
//
// Proves CK4.
func TestServerBatchCrash(t *testing.T) {
	const objects = 4
	var want map[string]string
	for at := 0; at <= objects+2; at++ {
		for _, lost := range []bool{false, true} {
			if at == 0 && lost {
				continue // nobody dies
			}
			w := newArena(t)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { // a second writer
				maps := w.Resource(configMapResource).Namespace(w.name)
				for i := 0; ctx.Err() == nil; i++ {
					_, err := maps.Patch(ctx, fmt.Sprint("object-", i%(objects-1)), types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}},"data":{"color":"blue"}}`, i), metav1.PatchOptions{FieldManager: "painter"})
					if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil && !apierrors.IsConflict(err) {
						t.Error(err)
					}
				}
			})
			// life runs a flow to its end through a death at its at'th write.
			life := func(flow func(*applyset.Batch) error) {
				t.Helper()
				dies := at > 0
				for run := 0; ; run++ {
					var process *fault.Incarnation
					var mu sync.Mutex
					writes := 0
					b, process := w.process(t, func(op *fault.Op) fault.Fault {
						if !op.IsWrite() {
							return fault.Fault{}
						}
						mu.Lock()
						defer mu.Unlock()
						writes++
						switch {
						case !dies || writes != at:
							return fault.Fault{}
						case lost:
							return fault.Fault{After: func() { process.Kill() }, Lose: true}
						default:
							return fault.Fault{Before: func() { process.Kill() }, Drop: true}
						}
					})
					err := flow(b)
					if err == nil {
						if dies {
							t.Errorf("nothing died at write %d", at)
						}
						return
					}
					if !dies || run > 0 {
						t.Errorf("write %d: after the restart: %v", at, err)
						return
					}
					dies = false
				}
			}
			var answers []*unstructured.Unstructured
			life(func(b *applyset.Batch) (err error) {
				answers, err = b.Apply(t.Context(), w.objects(objects)...)
				return err
			})
			stop()
			wg.Wait()
			life(func(b *applyset.Batch) (err error) { // what the second writer wrote last
				answers, err = b.Apply(t.Context(), w.objects(objects)...)
				return err
			})
			got := w.state(t)
			if want == nil {
				want = got
			}
			if diff := cmp.Diff(want, got); diff != "" || len(got) != objects+2 {
				t.Errorf("crash at write %d, lost %v: -want +got:\n%s", at, lost, diff)
			}
			var given []any
			for _, a := range answers {
				given = append(given, a)
			}
			life(func(b *applyset.Batch) error {
				return b.Delete(t.Context(), metav1.DeletePropagationBackground, given...)
			})
			if left := w.state(t); len(left) != 0 {
				t.Errorf("crash at write %d, lost %v: deleted, there is %v", at, lost, left)
			}
		}
	}
}

// With the mapper of a discovery client, which knows the kind of the batch late, a
// batch is applied at the first try.
//
// Proves AS1.
func TestServerBatchDiscovery(t *testing.T) {
	a := newArena(t)
	b, process := a.process(t, nil)
	client, err := discovery.NewDiscoveryClientForConfig(process.Config())
	if err != nil {
		t.Fatal(err)
	}
	b.Mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))
	var given []any
	for range 2 {
		answers, err := b.Apply(t.Context(), a.objects(3)...)
		if err != nil {
			t.Fatal(err)
		}
		given = nil
		for _, o := range answers {
			given = append(given, o)
		}
	}
	for range 2 {
		if err := b.Delete(t.Context(), metav1.DeletePropagationBackground, given...); err != nil {
			t.Error(err)
		}
	}
	if left := a.state(t); len(left) != 0 {
		t.Errorf("deleted, there is %v", left)
	}
}

// What is applied with an owner goes with it, and what has another controller keeps
// that one.
func TestServerBatchOwner(t *testing.T) {
	client, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	namespace := testserver.Namespace(t)
	maps := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
	b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager, OwnerKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}}
	var owners []metav1.Object
	for _, name := range []string{"first", "second"} {
		owner, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		owners = append(owners, owner)
	}
	b.Owner = owners[0]
	answers, err := b.Apply(t.Context(), configMaps(2, namespace)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if !metav1.IsControlledBy(a, owners[0]) {
			t.Errorf("%s has the owners %v", a.GetName(), a.GetOwnerReferences())
		}
	}
	taker := *b
	taker.Owner, taker.Manager = owners[1], "example.org/fashion"
	_, err = taker.Apply(t.Context(), configMaps(3, namespace)...)
	all := objectErrors(t, err)
	if len(all) != 2 || !apierrors.IsInvalid(all[0]) || !apierrors.IsInvalid(all[1]) {
		t.Errorf("another controller: error %v, want two Invalid", err)
	}
	w, err := maps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=object-0", ResourceVersion: answers[0].GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := maps.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case event := <-w.ResultChan():
			if event.Type == watch.Deleted {
				return
			}
		case <-timeout:
			t.Fatal("its owner is gone, and it is not")
		}
	}
}
