package operator_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// testInTheWay: the deletion of an object that has the name of a child runs the key at once, long before its deadline.
func testInTheWay(t *testing.T, s *shelf) {
	configMaps := s.kube.CoreV1().ConfigMaps(s.namespace)
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	if _, err := configMaps.Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		_, err := s.c.Apply(ctx, s.wanted(b)...)
		return reconcile.Result{RequeueAfter: time.Hour}, err
	}
	s.start(operator.Options{})
	b := s.create("a", "mine", "x")
	for generation := range int64(3) {
		s.until(func(e ended) string {
			if got := ready(s.get("a")); e.result != "rejected" || !strings.HasPrefix(got, fmt.Sprintf("False Rejected at %d", b.Generation+generation)) {
				return fmt.Sprint(e, got)
			}
			return ""
		})
		if generation < 2 {
			s.edit("a", fmt.Sprintf(`{"spec":{"text":"%d"}}`, generation))
		}
	}
	if err := configMaps.Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.until(func(e ended) string {
		if got := ready(s.get("a")); e.result != "requeue" || !strings.HasPrefix(got, "True") {
			return fmt.Sprint(e, got)
		}
		return ""
	})
}

// vanishing is an informer whose cache shows the deletion of x after the first read in a call.
type vanishing struct {
	cache.SharedIndexInformer
	cache.Indexer
	reads *atomic.Int64
}

func (v vanishing) GetIndexer() cache.Indexer { return v }
func (v vanishing) GetStore() cache.Store     { return v }
func (v vanishing) AddIndexers(indexers cache.Indexers) error {
	return v.SharedIndexInformer.AddIndexers(indexers)
}
func (v vanishing) GetByKey(key string) (any, bool, error) {
	if strings.HasSuffix(key, "/x") && v.reads.Add(1) > 1 {
		return nil, false, nil
	}
	return v.Indexer.GetByKey(key)
}

// testGoneFromTheWay: if the cache shows the deletion of an object that has the name of a child in the middle of the call,
// no event runs the key any more. The call is stale, and the next one comes soon.
func testGoneFromTheWay(t *testing.T, s *shelf) {
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	if _, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var reads atomic.Int64
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		reads.Store(0)
		_, err := s.c.Apply(ctx, s.wanted(b)...)
		return reconcile.Result{}, err
	}
	s.register = func(op *operator.Operator) *operator.Controller {
		byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		shown := coreinformers.NewConfigMapInformer(kubernetes.NewForConfigOrDie(op.Config), s.namespace, 0, byNamespace)
		op.Inform(corev1.Resource("configmaps"), vanishing{shown, shown.GetIndexer(), &reads})
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
		return c
	}
	s.start(operator.Options{})
	s.create("a", "mine", "x")
	s.until(func(e ended) string {
		if e.result != "stale" || !strings.Contains(e.err.Error(), "the object that had its name is deleted") {
			return fmt.Sprint(e)
		}
		return ""
	})
}

// testDroppedKind: a kind that is registered and no longer applied is pruned. So a release that drops a kind keeps its
// registration for one more release.
func testDroppedKind(t *testing.T, s *shelf) {
	s.Prune = true
	s.register = func(op *operator.Operator) *operator.Controller {
		c := operator.Kind(op, boxVersion.WithResource("boxes"), s.Reconciler)
		operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
		operator.Children(c, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), applycorev1.ExtractServiceAccount)
		return c
	}
	s.Reconcile = func(ctx context.Context, b *Box) (reconcile.Result, error) {
		children := s.wanted(b)
		if b.Spec.Text == "former" {
			children = append(children, applycorev1.ServiceAccount("x", s.namespace))
		}
		_, err := s.c.Apply(ctx, children...)
		return reconcile.Result{}, err
	}
	s.start(operator.Options{})
	s.create("a", "former", "x")
	accounts := s.kube.CoreV1().ServiceAccounts(s.namespace)
	s.until(func(e ended) string {
		if _, err := accounts.Get(t.Context(), "x", metav1.GetOptions{}); err != nil {
			return fmt.Sprint(e, err)
		}
		return ""
	})
	s.edit("a", `{"spec":{"text":"new"}}`)
	s.until(func(e ended) string {
		if _, err := accounts.Get(t.Context(), "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(e, err)
		}
		return ""
	})
}
