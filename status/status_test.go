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
)

// TestUpdate proves S1 and CK1.
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
		{name: "label", mutate: func(o *pdb) error { o.Labels["a"] = "c"; return nil }, wantErr: errAny, wantText: "changed metadata"},
		{name: "spec", mutate: func(o *pdb) error { o.Spec.Selector = &metav1.LabelSelector{}; return nil }, wantErr: errAny, wantText: "changed spec"},
		{name: "spec and status", mutate: func(o *pdb) error {
			o.Status.CurrentHealthy, o.Spec.Selector = 1, &metav1.LabelSelector{}
			return nil
		}, wantErr: errAny, wantText: "changed spec"},
		{name: "resourceVersion", mutate: func(o *pdb) error { o.Status.CurrentHealthy, o.ResourceVersion = 1, ""; return nil }, wantErr: errAny, wantText: "changed metadata"},
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

// Times are compared as they are stored, in whole seconds.
//
// Proves S1.
func TestUpdateTime(t *testing.T) {
	obj := budget()
	obj.Status.DisruptedPods = map[string]metav1.Time{"web-1": metav1.Unix(1e9, 0)}
	client := fake.NewClientset(obj.DeepCopy())
	for _, tt := range []struct {
		time metav1.Time
		want int
	}{{time: metav1.Unix(1e9, 999), want: 0}, {time: metav1.Unix(1e9+1, 0), want: 1}} {
		client.ClearActions()
		got, err := status.Update(t.Context(), client.PolicyV1().PodDisruptionBudgets("default"), obj, func(o *policyv1.PodDisruptionBudget) {
			o.Status.DisruptedPods["web-1"] = tt.time
		})
		if err != nil || updates(client) != tt.want || (got == obj) != (tt.want == 0) {
			t.Errorf("%v: %d requests, error %v, want %d", tt.time, updates(client), err, tt.want)
		}
	}
}

// So are strings, in UTF-8.
//
// Proves S1.
func TestUpdateText(t *testing.T) {
	stored := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", ResourceVersion: "1"}, Status: corev1.NodeStatus{Phase: "a\uFFFDb"}}
	got, err := status.Update(t.Context(), silent[*corev1.Node]{t}, stored, func(o *corev1.Node) { o.Status.Phase = "a\xffb" })
	if err != nil || got != stored {
		t.Errorf("returned %v, error %v, want the object given", got, err)
	}
}

// TestUpdateUnstructured proves CK1.
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
		{name: "status is null", path: []string{"status"}, value: (*int)(nil)},
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
				if pointer, ok := tt.value.(*int); ok {
					o.Object[tt.path[0]] = pointer
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

// A map can have any Go type in it. It is compared, checked and sent as what it is in
// JSON.
//
// Proves S1, S3, S4.
func TestPlainMaps(t *testing.T) {
	type m = map[string]any
	condition := func(generation int64) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Fine", ObservedGeneration: generation, LastTransitionTime: metav1.Unix(1e9, 0)}}
	}
	stored := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: m{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": m{"name": "one", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": int64(3)},
			"status": m{"size": int64(5), "load": 0.5, "observedGeneration": int64(3), "conditions": []any{m{
				"type": "Ready", "status": "True", "reason": "Fine", "message": "", "observedGeneration": int64(3), "lastTransitionTime": "2001-09-09T01:46:40Z",
			}}},
		}}
	}
	for _, tt := range []struct {
		name, field string
		value       any
		want        int
		text        string
	}{
		{name: "same int", field: "size", value: 5},
		{name: "same float", field: "size", value: 5.0},
		{name: "same float32", field: "load", value: float32(0.5)},
		{name: "same generation", field: "observedGeneration", value: 3},
		{name: "same conditions", field: "conditions", value: condition(3)},
		{name: "other int", field: "size", value: 6, want: 1},
		{name: "older generation", field: "observedGeneration", value: 2, text: "shows generation 3, this result is for generation 2"},
		{name: "generation ahead", field: "observedGeneration", value: int32(4), text: "would show generation 4"},
		{name: "older conditions", field: "conditions", value: condition(2), text: `condition "Ready" shows generation 3`},
		{name: "no JSON", field: "size", value: func() {}, text: "cannot be written as JSON"},
	} {
		mutate := func(u *unstructured.Unstructured) { u.Object["status"].(m)[tt.field] = tt.value }
		client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), stored())
		obj := stored()
		_, err := status.Update(t.Context(), client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("default"), obj, mutate)
		refused(t, "Update, "+tt.name, err, tt.text)
		if n := len(client.Actions()); n != tt.want {
			t.Errorf("Update, %s: %d requests, want %d", tt.name, n, tt.want)
		}
		r := &recorder[*unstructured.Unstructured]{}
		_, err = status.Patch(t.Context(), r, obj, mutate)
		refused(t, "Patch, "+tt.name, err, tt.text)
		if (r.data != nil) != (tt.want > 0) {
			t.Errorf("Patch, %s: sends %s, want %d requests", tt.name, r.data, tt.want)
		}
		if diff := cmp.Diff(stored(), obj); diff != "" {
			t.Errorf("%s: the caller's object changed (-before +after):\n%s", tt.name, diff)
		}
	}
}

// A status that goes is not sent as null, which no schema takes.
//
// Proves S1.
func TestStatusGoes(t *testing.T) {
	obj := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "one", "resourceVersion": "1"}, "status": map[string]any{"size": int64(1)},
	}}
	got, err := status.Update(t.Context(), same{}, obj, func(u *unstructured.Unstructured) { u.Object["status"] = nil })
	if _, ok := got.Object["status"]; ok || err != nil || got == obj {
		t.Errorf("sent %v, error %v, want no status", got, err)
	}
}

type same struct{}

func (same) UpdateStatus(_ context.Context, u *unstructured.Unstructured, _ metav1.UpdateOptions) (*unstructured.Unstructured, error) {
	return u, nil
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
