package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// testOrphan: if the user deletes a box with --cascade=orphan, its children in other namespaces stay, also if the garbage
// collector was faster than the first call.
func testOrphan(t *testing.T) {
	s := newShelf(t)
	other := testserver.Namespace(t)
	var slow atomic.Bool
	began, goOn := make(chan struct{}), make(chan struct{})
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		if b.Name == "slow" && slow.CompareAndSwap(true, false) {
			began <- struct{}{}
			<-goOn
		}
		_, err := s.c.Apply(ctx, newItem(other, b.Name, ""))
		return reconcile.Result{}, err
	}
	s.Finalizer, s.Elsewhere = boxFinalizer, true
	s.Cleanup = func(ctx context.Context, b *Box) error {
		if s.child(other, b.Name).Labels["controllerkit.github.io/owner-uid"] != "" {
			return errors.New("the child was not released before the cleanup")
		}
		return nil
	}
	s.start(operator.Options{Namespace: "*"})
	orphan := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}
	released := func(name string) {
		t.Helper()
		s.until(func(e ended) string {
			b, err := s.boxes.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && len(b.Finalizers) == 1 && b.Finalizers[0] == metav1.FinalizerOrphanDependents || apierrors.IsNotFound(err) {
				return ""
			}
			return fmt.Sprint(e, b, err)
		})
		far := s.child(other, name)
		if len(far.Labels) > 0 || len(far.Annotations) > 0 || far.DeletionTimestamp != nil {
			t.Errorf("the child has labels %v and annotations %v, deleted at %v", far.Labels, far.Annotations, far.DeletionTimestamp)
		}
	}
	s.create("fast", "")
	s.succeeded()
	if err := s.boxes.Delete(t.Context(), "fast", orphan); err != nil {
		t.Fatal(err)
	}
	released("fast")

	s.create("slow", "")
	s.until(func(e ended) string {
		if !strings.HasPrefix(ready(s.get("slow")), "True") {
			return fmt.Sprint(e)
		}
		return ""
	})
	slow.Store(true)
	s.edit("slow", `{"spec":{"text":"two"}}`)
	receive(t, began)
	if err := s.boxes.Delete(t.Context(), "slow", orphan); err != nil {
		t.Fatal(err)
	}
	if _, err := s.boxes.Patch(t.Context(), "slow", types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+boxFinalizer+`"]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.create("last", "") // its event follows those of slow
	s.until(func(e ended) string {
		if !strings.HasPrefix(ready(s.get("last")), "True") {
			return fmt.Sprint(e)
		}
		return ""
	})
	close(goOn)
	released("slow")
}

// child returns the ConfigMap that the API server has.
func (s *shelf) child(namespace, name string) *corev1.ConfigMap {
	s.t.Helper()
	x, err := s.kube.CoreV1().ConfigMaps(namespace).Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Error(err)
	}
	return x
}
