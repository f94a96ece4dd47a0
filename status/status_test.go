package status_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/status"
)

// What the clients of client-go have fits without casts.
var (
	_ status.Updater[*policyv1.PodDisruptionBudget] = policyclient.PodDisruptionBudgetInterface(nil)
	_ status.Updater[*unstructured.Unstructured]    = dynamic.ResourceInterface(nil)
	_ status.Object[*policyv1.PodDisruptionBudget]  = (*policyv1.PodDisruptionBudget)(nil)
	_ status.Object[*unstructured.Unstructured]     = (*unstructured.Unstructured)(nil)
)

var errBoom = errors.New("boom")

func budget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "u", ResourceVersion: "7", Generation: 3, Labels: map[string]string{"a": "b"}},
		Status: policyv1.PodDisruptionBudgetStatus{
			CurrentHealthy: 2,
			Conditions: []metav1.Condition{{
				Type: "Ready", Status: metav1.ConditionTrue, Reason: "Fine", ObservedGeneration: 3, LastTransitionTime: metav1.Unix(1e9, 0),
			}},
		},
	}
}

// TestUpdate proves S1, S3, S4.
func TestUpdate(t *testing.T) {
	type pdb = policyv1.PodDisruptionBudget
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "poddisruptionbudgets"}, "one", errBoom)
	tests := []struct {
		name      string
		version   string // resourceVersion of obj, "-" for none
		mutate    func(*pdb) error
		answer    error // of the server
		wantCalls int
		wantErr   error
		wantText  string
	}{
		{name: "nothing to do", mutate: func(*pdb) error { return nil }},
		{name: "same value", mutate: func(o *pdb) error { o.Status.CurrentHealthy = 2; return nil }},
		{name: "same condition", mutate: func(o *pdb) error {
			return status.Set(&o.Status.Conditions, o.Generation, status.True("Ready", "Fine", ""))
		}},
		{name: "empty for nil", mutate: func(o *pdb) error { o.Status.DisruptedPods = map[string]metav1.Time{}; return nil }},
		{name: "other value", mutate: func(o *pdb) error { o.Status.CurrentHealthy = 1; return nil }, wantCalls: 1},
		{name: "other condition", mutate: func(o *pdb) error {
			return status.Set(&o.Status.Conditions, o.Generation, status.False("Ready", "Broken", ""))
		}, wantCalls: 1},
		{name: "conflict", mutate: func(o *pdb) error { o.Status.CurrentHealthy = 1; return nil }, answer: conflict, wantCalls: 1, wantErr: conflict, wantText: "status: update: "},
		{name: "mutate fails", mutate: func(o *pdb) error { o.Status.CurrentHealthy = 1; return errBoom }, wantErr: errBoom, wantText: "status: mutate: "},
		{name: "label", mutate: func(o *pdb) error { o.Labels["a"] = "c"; return nil }, wantErr: status.ErrOutsideStatus, wantText: "metadata"},
		{name: "spec", mutate: func(o *pdb) error { o.Spec.Selector = &metav1.LabelSelector{}; return nil }, wantErr: status.ErrOutsideStatus, wantText: "spec"},
		{name: "spec and status", mutate: func(o *pdb) error {
			o.Status.CurrentHealthy, o.Spec.Selector = 1, &metav1.LabelSelector{}
			return nil
		}, wantErr: status.ErrOutsideStatus, wantText: "spec"},
		{name: "resourceVersion", mutate: func(o *pdb) error { o.Status.CurrentHealthy, o.ResourceVersion = 1, ""; return nil }, wantErr: status.ErrOutsideStatus, wantText: "metadata"},
		{name: "no resourceVersion", version: "-", mutate: func(o *pdb) error { o.Status.CurrentHealthy = 1; return nil }, wantErr: errAny, wantText: "metadata.resourceVersion"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			obj := budget()
			client := fake.NewClientset(budget())
			if tt.version == "-" {
				obj.ResourceVersion = ""
			}
			if tt.answer != nil {
				client.PrependReactor("update", "poddisruptionbudgets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.answer })
			}
			before := obj.DeepCopy()
			got, err := status.Update(t.Context(), client.PolicyV1().PodDisruptionBudgets("default"), obj, tt.mutate)
			if tt.wantErr == nil && err != nil || tt.wantErr != nil && (err == nil || tt.wantErr != errAny && !errors.Is(err, tt.wantErr)) {
				t.Fatalf("error = %v, want %v", err, tt.wantErr)
			}
			if err != nil && !strings.Contains(err.Error(), tt.wantText) {
				t.Errorf("error %q does not contain %q", err, tt.wantText)
			}
			if calls := updates(client); calls != tt.wantCalls {
				t.Errorf("%d requests, want %d", calls, tt.wantCalls)
			}
			switch {
			case err != nil && got != nil:
				t.Errorf("returned %v with an error", got)
			case err == nil && (got == obj) != (tt.wantCalls == 0):
				t.Errorf("returned the caller's object: %v, with %d requests", got == obj, tt.wantCalls)
			}
			if diff := cmp.Diff(before, obj); diff != "" {
				t.Errorf("Update changed the caller's object (-before +after):\n%s", diff)
			}
		})
	}
}

// errAny stands for an error that has no identity.
var errAny = errors.New("any")

func updates(client *fake.Clientset) int {
	n := 0
	for _, action := range client.Actions() {
		if u, ok := action.(clienttesting.UpdateAction); ok && u.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

// Quantities are compared by value.
//
// Proves S1.
func TestUpdateQuantity(t *testing.T) {
	obj := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", ResourceVersion: "1"},
		Status:     corev1.ResourceQuotaStatus{Used: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
	}
	client := fake.NewClientset(obj.DeepCopy())
	for _, tt := range []struct {
		cpu  string
		want int
	}{{cpu: "1000m", want: 0}, {cpu: "1001m", want: 1}} {
		client.ClearActions()
		_, err := status.Update(t.Context(), client.CoreV1().ResourceQuotas("default"), obj, func(o *corev1.ResourceQuota) error {
			o.Status.Used[corev1.ResourceCPU] = resource.MustParse(tt.cpu)
			return nil
		})
		if err != nil || updates(client) != tt.want {
			t.Errorf("%s: %d requests, error %v, want %d", tt.cpu, updates(client), err, tt.want)
		}
	}
}

// TestUpdateUnstructured proves S3.
func TestUpdateUnstructured(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "one", "namespace": "default", "resourceVersion": "1"},
		"spec":     map[string]any{"size": int64(1)},
	}}
	tests := []struct {
		name      string
		path      []string
		value     any
		wantCalls int
		wantText  string
	}{
		{name: "status", path: []string{"status", "size"}, value: int64(1), wantCalls: 1},
		{name: "spec", path: []string{"spec", "size"}, value: int64(2), wantText: "mutate changed spec"},
		{name: "spec is same", path: []string{"spec", "size"}, value: int64(1)},
		{name: "new field", path: []string{"extra"}, value: "x", wantText: "mutate changed extra"},
		{name: "field gone", path: []string{"spec"}, wantText: "mutate changed spec"},
		{name: "not a map", path: []string{"kind", "x"}, value: "x", wantText: "status: mutate: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), obj.DeepCopy())
			before := obj.DeepCopy()
			_, err := status.Update(t.Context(), client.Resource(widgets).Namespace("default"), obj, func(o *unstructured.Unstructured) error {
				if tt.value == nil {
					unstructured.RemoveNestedField(o.Object, tt.path...)
					return nil
				}
				return unstructured.SetNestedField(o.Object, tt.value, tt.path...)
			})
			if (err != nil) != (tt.wantText != "") || err != nil && !strings.Contains(err.Error(), tt.wantText) {
				t.Errorf("error = %v, want one with %q", err, tt.wantText)
			}
			if n := len(client.Actions()); n != tt.wantCalls {
				t.Errorf("%d requests, want %d", n, tt.wantCalls)
			}
			if diff := cmp.Diff(before, obj); diff != "" {
				t.Errorf("Update changed the caller's object (-before +after):\n%s", diff)
			}
		})
	}
}

func ExampleUpdate() {
	ctx := context.Background()
	obj := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Namespace: "default", Generation: 2, ResourceVersion: "1",
	}}
	client := fake.NewClientset(obj).PolicyV1().PodDisruptionBudgets("default")

	for range 2 {
		updated, err := status.Update(ctx, client, obj, func(o *policyv1.PodDisruptionBudget) error {
			o.Status.CurrentHealthy = 3
			return status.Set(&o.Status.Conditions, o.Generation,
				status.True("Ready", "EnoughPods", "3 of 3 pods are healthy"))
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		c := updated.Status.Conditions[0]
		fmt.Println(c.Type, c.Status, c.ObservedGeneration, "written:", updated != obj)
		obj = updated
	}
	// Output:
	// Ready True 2 written: true
	// Ready True 2 written: false
}

func ExampleSet() {
	var conditions []metav1.Condition
	err := status.Set(&conditions, 4,
		status.True("Deployed", "Available", "3 of 3 replicas"),
		status.Unknown("Routed", "NoAnswer", "the load balancer has not answered"))
	if err != nil {
		fmt.Println(err)
	}
	for _, c := range conditions {
		fmt.Println(c.Type, c.Status, c.ObservedGeneration)
	}
	fmt.Println(status.Set(&conditions, 3, status.False("Deployed", "Failed", "")) != nil)
	// Output:
	// Deployed True 4
	// Routed Unknown 4
	// true
}

func ExampleSummary() {
	var conditions []metav1.Condition
	err := status.Set(&conditions, 4,
		status.True("Deployed", "Available", "3 of 3 replicas"),
		status.False("Routed", "NoAddress", "waiting for an address"))
	if err != nil {
		fmt.Println(err)
	}
	ready := status.Summary(conditions, 4, "Ready", "Deployed", "Routed", "Certified")
	fmt.Println(ready.Type, ready.Status, ready.Reason)
	fmt.Println(ready.Message)
	// Output:
	// Ready False NoAddress
	// Routed: waiting for an address; Certified: not reported
}

// TestUpdateWithoutError holds that a function that cannot fail need not
// return an error.
func TestUpdateWithoutError(t *testing.T) {
	client := fake.NewClientset(budget())
	answer, err := status.Update(t.Context(), client.PolicyV1().PodDisruptionBudgets("default"), budget(),
		func(o *policyv1.PodDisruptionBudget) { o.Status.CurrentHealthy = 9 })
	if err != nil {
		t.Fatal(err)
	}
	if answer.Status.CurrentHealthy != 9 {
		t.Errorf("currentHealthy = %d, want 9", answer.Status.CurrentHealthy)
	}
	if got := len(client.Actions()); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
}
