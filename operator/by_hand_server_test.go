package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

// byHand is the controller of a shelf without Kind. docs/by-hand.md shows it.
type byHand struct {
	kube    kubernetes.Interface
	boxes   *crd.Client[*Box]
	cached  crd.Lister[*Box]
	items   corelisters.ConfigMapLister
	memory  ssa.Memory[*corev1.ConfigMap, *applycorev1.ConfigMapApplyConfiguration]
	event   func(obj metav1.Object, eventType, reason, action, note string, args ...any)
	cleanup func(ctx context.Context, held finalizer.Held[*Box]) error
}

func (r *byHand) register(op *operator.Operator, namespace string) (c *operator.Controller, err error) {
	if r.boxes, err = crd.New[*Box](op.Config, boxVersion.WithKind("Box"), "boxes"); err != nil {
		return nil, err
	}
	if r.kube, err = kubernetes.NewForConfig(op.Config); err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(r.kube, 0, informers.WithNamespace(namespace))
	boxes := boxVersion.WithResource("boxes").GroupResource()
	c = op.Controller("boxes", r.reconcile)
	r.event = c.Event
	r.cached = operator.For(c, boxes, r.boxes.Namespace(namespace).Informer(0, nil))
	r.items = operator.Owns(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
	op.Writes(boxes, "get", "patch")
	op.Writes(boxVersion.WithResource("boxes/status").GroupResource(), "patch")
	op.Writes(corev1.Resource("configmaps"), "get", "create", "patch", "delete")
	return c, nil
}

func (r *byHand) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	client := r.boxes.Namespace(key.Namespace)
	b, err := r.cached.Namespace(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	held, live, err := finalizer.Ensure(ctx, client, b, boxFinalizer, r.cleanup)
	if err != nil || !live {
		return reconcile.Result{}, err
	}
	// The API server can remove an object whose first finalizer comes in the middle of a deletion.
	if b, err = client.Get(ctx, held.Object().Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if b.UID != held.Object().UID || b.DeletionTimestamp != nil {
		return reconcile.Result{}, nil // an event of it follows
	}
	children, err := r.apply(ctx, b)
	if err == nil {
		err = r.prune(ctx, b)
	}
	_, statusErr := status.Patch(ctx, client, b, func(b *Box) error {
		ready := kstatus.Condition(children...)
		switch reconcile.Class(err) {
		case "success":
		case "terminal", "rejected", "forbidden":
			ready = status.False("Ready", "Failed", err.Error())
		default:
			return nil // the next call may succeed
		}
		b.Status.ObservedGeneration = b.Generation
		return status.Set(&b.Status.Conditions, b.Generation, ready)
	})
	return reconcile.Result{}, errors.Join(err, statusErr)
}

// apply makes the items children of the box.
func (r *byHand) apply(ctx context.Context, b *Box) (children []metav1.Object, err error) {
	client := r.kube.CoreV1().ConfigMaps(b.Namespace)
	ref, err := owner.Controller(b, boxVersion.WithKind("Box"))
	if err != nil {
		return nil, err
	}
	for _, name := range b.Spec.Items {
		live, err := r.items.ConfigMaps(b.Namespace).Get(name)
		if apierrors.IsNotFound(err) { // an object that the cache does not show yet must not be adopted
			if live, err = client.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
				live, err = nil, nil
			}
		}
		switch {
		case err != nil:
			return children, err
		case live != nil && !metav1.IsControlledBy(live, b):
			return children, fmt.Errorf("ConfigMap %s does not belong to this Box: %w", name, reconcile.ErrRejected)
		case live != nil && live.DeletionTimestamp != nil:
			children = append(children, live)
			continue
		}
		config := applycorev1.ConfigMap(name, b.Namespace).WithOwnerReferences(ref).WithData(map[string]string{"text": b.Spec.Text})
		applied, changed, err := r.memory.ApplyChanged(ctx, "shelf", client.Apply, config, live, applycorev1.ExtractConfigMap)
		if err != nil {
			return children, err
		}
		if changed {
			r.event(b, corev1.EventTypeNormal, "Changed", "Apply", "changed ConfigMap %s", name)
		}
		children = append(children, applied)
	}
	return children, nil
}

// prune deletes the items that the box no longer names.
func (r *byHand) prune(ctx context.Context, b *Box) error {
	all, err := r.items.ConfigMaps(b.Namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	confirmed := len(b.Spec.Items) == 0
	for _, item := range all {
		if !metav1.IsControlledBy(item, b) || item.DeletionTimestamp != nil || slices.Contains(b.Spec.Items, item.Name) || len(b.Spec.Items) == 0 {
			continue
		}
		if !confirmed { // an old spec must not delete what a newer one names
			live, err := r.boxes.Namespace(b.Namespace).Get(ctx, b.Name, metav1.GetOptions{})
			if err != nil || live.ResourceVersion != b.ResourceVersion {
				return errors.Join(errors.New("the box has changed"), err)
			}
			confirmed = true
		}
		err := r.kube.CoreV1().ConfigMaps(b.Namespace).Delete(ctx, item.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &item.UID, ResourceVersion: &item.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// testByHand: the controller by hand sends the requests of Kind.
func testByHand(t *testing.T, s *shelf) {
	s.Finalizer, s.Prune = boxFinalizer, true
	s.Cleanup = func(context.Context, *Box) error { return nil }
	hand := newShelf(t)
	hand.register = func(op *operator.Operator) *operator.Controller {
		r := &byHand{cleanup: func(context.Context, finalizer.Held[*Box]) error { return nil }}
		c, err := r.register(op, hand.namespace)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	requests := map[string][]string{}
	for name, s := range map[string]*shelf{"Kind": s, "by hand": hand} {
		s.start(operator.Options{})
		s.create("a", "one", "x", "y")
		at := func(generation int64) {
			t.Helper()
			s.until(func(e ended) string {
				if b := s.get("a"); e.err != nil || b.Status.ObservedGeneration != generation || !strings.HasPrefix(ready(b), "True Ready") {
					return fmt.Sprint(e, b.Status)
				}
				return ""
			})
		}
		at(1)
		s.succeeded()
		s.edit("a", `{"spec":{"text":"two","items":["y"]}}`)
		at(2)
		if err := s.boxes.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.until(func(ended) string {
			_, err := s.boxes.Get(t.Context(), "a", metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Sprint(err)
			}
			return ""
		})
		counts := map[string]int{}
		for _, request := range s.sent() {
			if request != "GET boxes a" { // one in each call, and the number of calls depends on the events
				counts[request]++
			}
		}
		for _, request := range slices.Sorted(maps.Keys(counts)) {
			requests[name] = append(requests[name], fmt.Sprintf("%d %s", counts[request], request))
		}
	}
	if diff := cmp.Diff(requests["by hand"], requests["Kind"]); diff != "" {
		t.Errorf("requests (-by hand +Kind):\n%s", diff)
	}
	t.Log(strings.Join(requests["Kind"], "\n"))
}

// TestByHandGone: a box that the cache still shows, with the finalizer, and that the API server has
// removed is no error.
func TestByHandGone(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		gone := apierrors.NewNotFound(boxVersion.WithResource("boxes").GroupResource(), "a").Status()
		gone.Kind, gone.APIVersion = "Status", "v1"
		_ = json.NewEncoder(w).Encode(gone)
	}))
	defer server.Close()
	boxes, err := crd.New[*Box](&rest.Config{Host: server.URL}, boxVersion.WithKind("Box"), "boxes")
	if err != nil {
		t.Fatal(err)
	}
	b := &Box{}
	b.Namespace, b.Name, b.UID, b.Finalizers = "default", "a", "1", []string{boxFinalizer}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := indexer.Add(b); err != nil {
		t.Fatal(err)
	}
	r := &byHand{boxes: boxes, cached: boxes.Lister(indexer), cleanup: func(context.Context, finalizer.Held[*Box]) error { return nil }}
	if got, err := r.reconcile(t.Context(), types.NamespacedName{Namespace: "default", Name: "a"}); err != nil {
		t.Errorf("reconcile = %v, %v, want no error", got, err)
	}
}
