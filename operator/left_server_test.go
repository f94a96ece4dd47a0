package operator_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// testLeft: if the namespace leaves the selection in the middle of a call, the reads of the call show none of its objects.
// The call then prunes no children, whose informer has no selection, and the finalizer stays.
func testLeft(t *testing.T, s *shelf) {
	var boxes *scope.Informer
	choose := func(namespaces ...string) {
		if err := boxes.Select(t.Context(), scope.Selection{Namespaces: namespaces}); err != nil {
			t.Error(err)
		}
	}
	var reconciles, cleans, returns atomic.Bool // the next such call changes the selection before its read, and again after it
	read := func(ctx context.Context, during *atomic.Bool) ([]*corev1.ConfigMap, error) {
		leaves := during.CompareAndSwap(true, false)
		if leaves {
			choose()
		}
		all, err := s.items.List(ctx, s.namespace, labels.Everything())
		if leaves && len(all) > 0 {
			t.Errorf("%d items are shown: this test checks nothing", len(all))
		}
		if leaves && returns.Load() {
			choose(s.namespace)
		}
		return all, err
	}
	cleaned := make(chan int, 100)
	s.Finalizer, s.Prune = boxFinalizer, true
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		objects := []any{applycorev1.ServiceAccount("fixed", s.namespace)}
		items, err := read(ctx, &reconciles)
		if err != nil {
			return reconcile.Result{}, err
		}
		for _, item := range items {
			objects = append(objects, applycorev1.ServiceAccount(item.Name, s.namespace))
		}
		_, err = s.c.Apply(ctx, objects...)
		return reconcile.Result{}, err
	}
	s.Cleanup = func(ctx context.Context, _ *Box) error {
		items, err := read(ctx, &cleans)
		cleaned <- len(items)
		return err
	}
	s.register = func(op *operator.Operator) *operator.Controller {
		client, err := crd.New[*Box](op.Config, boxVersion.WithKind("Box"), "boxes")
		if err != nil {
			t.Fatal(err)
		}
		kube, byNamespace := kubernetes.NewForConfigOrDie(op.Config), cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		boxes = scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
			return client.Namespace(p.Namespace).Informer(0, p.Options).Informer(), nil
		})
		op.Inform(boxVersion.WithResource("boxes").GroupResource(), boxes)
		op.Inform(corev1.Resource("configmaps"), boxes.With(func(p scope.Part) (cache.SharedIndexInformer, error) {
			return coreinformers.NewFilteredConfigMapInformer(kube, p.Namespace, 0, byNamespace, p.Options), nil
		}))
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		operator.Children(c, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), applycorev1.ExtractServiceAccount)
		s.items = operator.Reads(c, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reading[*corev1.ConfigMap]{})
		return c
	}
	children := func() int {
		all, err := s.kube.CoreV1().ServiceAccounts(s.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Items)
	}
	result := func(want string) {
		t.Helper()
		s.until(func(e ended) string {
			if e.result == want && !reconciles.Load() && !cleans.Load() {
				return ""
			}
			return fmt.Sprintf("%v, want %s", e, want)
		})
	}
	for _, name := range []string{"x", "y"} {
		create(t, testserver.Config(t), s.namespace, name)
	}
	s.create("a", "")
	s.start(operator.Options{})
	choose(s.namespace)
	s.until(func(e ended) string {
		if n := children(); n != 3 {
			return fmt.Sprintf("%d children: %v", n, e)
		}
		return ""
	})
	for i, back := range []bool{false, true} {
		returns.Store(back)
		reconciles.Store(true)
		s.edit("a", fmt.Sprintf(`{"spec":{"text":"%d"}}`, i))
		result("stale")
		if n := children(); n != 3 {
			t.Fatalf("%d children are left after a call without its namespace, want 3", n)
		}
		choose(s.namespace)
		result("success")
	}
	returns.Store(false)
	cleans.Store(true)
	if err := s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	result("stale")
	if b := s.get("a"); !finalizer.Has(b, boxFinalizer) {
		t.Fatalf("after a cleanup without its namespace, the finalizers are %q", b.Finalizers)
	}
	returns.Store(true)
	cleans.Store(true)
	choose(s.namespace)
	result("stale")
	result("success")
	for _, want := range []int{0, 0, 2} {
		if n := receive(t, cleaned); n != want {
			t.Errorf("a cleanup saw %d items, want %d", n, want)
		}
	}
	if _, err := s.boxes.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the box is left: %v", err)
	}
}
