package status_test

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/status"
)

func ready(reason string) func(*policyv1.PodDisruptionBudget) error {
	return func(o *policyv1.PodDisruptionBudget) error {
		o.Status.CurrentHealthy = 1
		return status.Set(&o.Status.Conditions, o.Generation, status.True("Ready", reason, "not \xff UTF-8"))
	}
}

// One write if something changed, none if not: what is computed equals what is
// stored, to the fraction of a second and the last byte of a message.
//
// Proves S1.
func TestServerUpdate(t *testing.T) {
	c, requests := newBudgets(t)
	obj := createBudget(t, c)
	steps := []struct {
		name   string
		mutate func(*policyv1.PodDisruptionBudget) error
		want   int64
	}{
		{name: "first", mutate: ready("Fine"), want: 1},
		{name: "same", mutate: ready("Fine"), want: 0},
		{name: "other reason", mutate: ready("Better"), want: 1},
		{name: "same again", mutate: ready("Better"), want: 0},
		{name: "flip", mutate: func(o *policyv1.PodDisruptionBudget) error {
			return status.Set(&o.Status.Conditions, o.Generation, status.False("Ready", "Broken", ""))
		}, want: 1},
	}
	for _, tt := range steps {
		before := requests.Load()
		updated, err := status.Update(t.Context(), c, obj, tt.mutate)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if n := requests.Load() - before; n != tt.want {
			t.Errorf("%s: %d requests, want %d", tt.name, n, tt.want)
		}
		if (updated.ResourceVersion != obj.ResourceVersion) != (tt.want > 0) {
			t.Errorf("%s: resourceVersion %s became %s", tt.name, obj.ResourceVersion, updated.ResourceVersion)
		}
		if updated.Status.Conditions[0].ObservedGeneration != obj.Generation || obj.Generation == 0 {
			t.Errorf("%s: observedGeneration %d of generation %d", tt.name, updated.Status.Conditions[0].ObservedGeneration, obj.Generation)
		}
		// Work with what is stored, not with the answer.
		if obj, err = c.Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(updated, obj); diff != "" {
			t.Errorf("%s: answer and stored object (-answer +stored):\n%s", tt.name, diff)
		}
	}
}

// A stale copy is a Conflict after one request, and the status it did not see
// stays.
//
// Proves S2.
func TestServerConflict(t *testing.T) {
	c, requests := newBudgets(t)
	stale := createBudget(t, c)
	if _, err := status.Update(t.Context(), c, stale, ready("Fine")); err != nil {
		t.Fatal(err)
	}
	before := requests.Load()
	got, err := status.Update(t.Context(), c, stale, ready("Stale"))
	if !apierrors.IsConflict(err) || got != nil {
		t.Errorf("returned %v, error %v, want a Conflict", got, err)
	}
	if n := requests.Load() - before; n != 1 {
		t.Errorf("%d requests, want 1: a conflict is not retried", n)
	}
	stored, err := c.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || stored.Status.Conditions[0].Reason != "Fine" {
		t.Errorf("stored %+v, error %v, want reason Fine", stored.Status.Conditions, err)
	}
}

// Many kinds take a write without a resourceVersion as permission to overwrite.
//
// Proves S2.
func TestServerBlindWrite(t *testing.T) {
	config, requests := testserver.Counted(t)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c := client.CoreV1().ResourceQuotas(testserver.Namespace(t))
	obj, err := c.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	use := func(cpu string) func(*corev1.ResourceQuota) error {
		return func(o *corev1.ResourceQuota) error {
			o.Status.Used = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
			return nil
		}
	}
	if _, err := status.Update(t.Context(), c, obj, use("2")); err != nil {
		t.Fatal(err)
	}
	blind := obj.DeepCopy()
	blind.ResourceVersion = ""
	before := requests.Load()
	if _, err := status.Update(t.Context(), c, blind, use("3")); err == nil || requests.Load() != before {
		t.Errorf("written without a resourceVersion: error %v, %d requests", err, requests.Load()-before)
	}
	// The premise of that refusal.
	if _, err := c.UpdateStatus(t.Context(), blind, metav1.UpdateOptions{}); err != nil {
		t.Errorf("the server refuses such a write itself: %v", err)
	}
}

// Controllers that set one condition each, from copies of any age, lose nothing.
func TestServerRace(t *testing.T) {
	c, _ := newBudgets(t)
	first := createBudget(t, c)
	var wg sync.WaitGroup
	types := []string{"A", "B", "C", "D"}
	for _, typ := range types {
		wg.Go(func() {
			obj := first
			for {
				_, err := status.Update(t.Context(), c, obj, func(o *policyv1.PodDisruptionBudget) error {
					return status.Set(&o.Status.Conditions, o.Generation, status.True(typ, "Fine", ""))
				})
				if err == nil {
					return
				}
				if !apierrors.IsConflict(err) {
					t.Error(err)
					return
				}
				if obj, err = c.Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	stored, err := c.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range types {
		if !meta.IsStatusConditionTrue(stored.Status.Conditions, typ) {
			t.Errorf("condition %s is lost: %+v", typ, stored.Status.Conditions)
		}
	}
}

// The reason for that error: the server drops such a change without a word.
func TestServerOutsideStatus(t *testing.T) {
	c, requests := newBudgets(t)
	obj := createBudget(t, c)
	before := requests.Load()
	_, err := status.Update(t.Context(), c, obj, func(o *policyv1.PodDisruptionBudget) error {
		o.Spec.Selector.MatchLabels["a"] = "c"
		return nil
	})
	if n := requests.Load() - before; err == nil || n != 0 {
		t.Errorf("error %v with %d requests, want one and none", err, n)
	}
	obj.Spec.Selector.MatchLabels["a"] = "c"
	answer, err := c.UpdateStatus(t.Context(), obj, metav1.UpdateOptions{})
	if err != nil || answer.Spec.Selector.MatchLabels["a"] != "b" {
		t.Errorf("the server keeps %v, error %v, want it to drop the change", answer.Spec, err)
	}
}

// A custom resource with a status subresource, through the dynamic client. Its
// schema is the one of metav1.Condition, so the server validates what Set made.
func TestServerCustomResource(t *testing.T) {
	t.Parallel()
	config, requests := testserver.Counted(t)
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	widgets := dyn.Resource(widgetDefinition(t, "status.test.controllerkit.dev")).Namespace(testserver.Namespace(t))
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "status.test.controllerkit.dev/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "one"}, "spec": map[string]any{"size": int64(1)},
	}}
	ctx := t.Context()
	obj := createServed(t, widgets, widget)

	set := func(o *unstructured.Unstructured) error {
		var current struct {
			Conditions []metav1.Condition `json:"conditions"`
		}
		stored, _, err := unstructured.NestedMap(o.Object, "status")
		if err != nil {
			return err
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored, &current); err != nil {
			return err
		}
		if err := status.Set(&current.Conditions, o.GetGeneration(), status.True("Ready", "Fine", "")); err != nil {
			return err
		}
		next, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&current)
		if err != nil {
			return err
		}
		return unstructured.SetNestedMap(o.Object, next, "status")
	}
	for i, want := range []int64{1, 0, 0} {
		before := requests.Load()
		updated, err := status.Update(ctx, widgets, obj, set)
		if err != nil {
			t.Fatal(err)
		}
		if n := requests.Load() - before; n != want {
			t.Errorf("update %d: %d requests, want %d", i, n, want)
		}
		if want == 0 && updated != obj {
			t.Errorf("update %d: answer is not the object given", i)
		}
		obj = updated
	}
	spec := func(o *unstructured.Unstructured) error {
		return unstructured.SetNestedField(o.Object, int64(2), "spec", "size")
	}
	if _, err := status.Update(ctx, widgets, obj, spec); err == nil {
		t.Error("a change of the spec is not refused")
	}
	stale := obj.DeepCopy()
	if err := spec(obj); err != nil {
		t.Fatal(err)
	}
	if obj, err = widgets.Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	degrade := func(o *unstructured.Unstructured) error {
		return unstructured.SetNestedField(o.Object, "x", "status", "phase")
	}
	if _, err := status.Update(ctx, widgets, stale, degrade); !apierrors.IsConflict(err) {
		t.Errorf("a stale copy: error %v, want a Conflict", err)
	}
	// The generation moved on, and so does observedGeneration, with one write.
	before := requests.Load()
	if obj, err = status.Update(ctx, widgets, obj, set); err != nil || requests.Load()-before != 1 {
		t.Fatalf("%d requests, error %v", requests.Load()-before, err)
	}
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	if got := conditions[0].(map[string]any)["observedGeneration"]; got != obj.GetGeneration() || obj.GetGeneration() != 2 {
		t.Errorf("observedGeneration %v of generation %d, want 2", got, obj.GetGeneration())
	}
}

// A kind without the subresource answers NotFound.
func TestServerNoSubresource(t *testing.T) {
	dyn, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	c := dyn.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(testserver.Namespace(t))
	obj, err := c.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "one"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = status.Update(t.Context(), c, obj, func(o *unstructured.Unstructured) error {
		return unstructured.SetNestedField(o.Object, "x", "status", "phase")
	})
	if !apierrors.IsNotFound(err) {
		t.Errorf("error = %v, want NotFound", err)
	}
}
