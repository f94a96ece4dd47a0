package status_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/status"
)

// silentApplier is the same for Apply.
type silentApplier[T, C any] struct{ t *testing.T }

func (s silentApplier[T, C]) ApplyStatus(_ context.Context, config C, _ metav1.ApplyOptions) (T, error) {
	s.t.Errorf("ApplyStatus is called with %+v", config)
	return *new(T), nil
}

// What the API server would refuse or misunderstand is an error that names the
// field, and no request.
//
// Proves CK2.
func TestBadObject(t *testing.T) {
	type pdb = policyv1.PodDisruptionBudget
	tests := []struct {
		name    string
		object  func(*pdb)
		null    bool // the object is nil
		want    string
		updates bool // Update does not need it
	}{
		{name: "nil", null: true, want: "object is nil"},
		{name: "no name", object: func(o *pdb) { o.Name = "" }, want: "metadata.name"},
		{name: "no resourceVersion", object: func(o *pdb) { o.ResourceVersion = "" }, want: "metadata.resourceVersion"},
		{name: "resourceVersion of any", object: func(o *pdb) { o.ResourceVersion = "0" }, want: "metadata.resourceVersion"},
		{name: "no uid", object: func(o *pdb) { o.UID = "" }, want: "metadata.uid", updates: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			obj := budget()
			if tt.null {
				obj = nil
			} else {
				tt.object(obj)
			}
			fine := func(o *pdb) error { return nil }
			if !tt.updates {
				_, err := status.Update(t.Context(), silent[*pdb]{t}, obj, fine)
				refused(t, "Update", err, tt.want)
			}
			_, err := status.Patch(t.Context(), silent[*pdb]{t}, obj, fine)
			refused(t, "Patch", err, tt.want)
			_, err = status.Apply(t.Context(), "a", silentApplier[*pdb, *policyac.PodDisruptionBudgetApplyConfiguration]{t}, obj, policyac.PodDisruptionBudget("one", "default"))
			refused(t, "Apply", err, tt.want)
		})
	}

	_, err := status.Patch(t.Context(), silent[*unstructured.Unstructured]{t}, &unstructured.Unstructured{}, func(*unstructured.Unstructured) {})
	refused(t, "no content", err, "metadata.name")
	var mutate func(*pdb)
	_, err = status.Update(t.Context(), silent[*pdb]{t}, budget(), mutate)
	refused(t, "no mutate", err, "mutate is nil")

	grow := func(o *pdb) { o.Status.CurrentHealthy++ }
	_, err = status.Update(t.Context(), nil, budget(), grow)
	refused(t, "Update without a client", err, "client is nil")
	var typed *recorder[*pdb]
	_, err = status.Patch(t.Context(), typed, budget(), grow)
	refused(t, "Patch with a typed nil", err, "client is nil")
	var applier status.Applier[*pdb, *policyac.PodDisruptionBudgetApplyConfiguration]
	_, err = status.Apply(t.Context(), "m", applier, budget(), policyac.PodDisruptionBudget("one", "default"), status.True("Ready", "Fine", ""))
	refused(t, "Apply without a client", err, "client is nil")
	refused(t, "Set without conditions", status.Set((*[]metav1.Condition)(nil), 1, status.True("Ready", "Fine", "")), "conditions is nil")
	refused(t, "Set of nothing unstructured", status.Set((*unstructured.Unstructured)(nil), 1), "the unstructured object is nil")
	refused(t, "Set of an empty unstructured", status.Set(&unstructured.Unstructured{}, 1), "the unstructured object is nil")
}

// A status that says less than before, or more than can be, is refused: by Update,
// by Patch, for generated types and for maps.
//
// Proves S4.
func TestGenerations(t *testing.T) {
	tests := []struct {
		name             string
		generation       int64 // of the object
		before, after    int64 // status.observedGeneration
		ready, readyNext int64 // observedGeneration of Ready
		want             string
	}{
		{name: "same", generation: 3, before: 3, after: 3, ready: 3, readyNext: 3},
		{name: "forward", generation: 3, before: 1, after: 3, ready: 1, readyNext: 3},
		{name: "forward, not to the last", generation: 3, before: 1, after: 2, ready: 1, readyNext: 2},
		{name: "back", generation: 3, before: 3, after: 2, ready: 3, readyNext: 3, want: "status.observedGeneration shows generation 3"},
		{name: "back to none", generation: 3, before: 3, after: 0, ready: 3, readyNext: 3, want: "status.observedGeneration shows generation 3"},
		{name: "ahead", generation: 3, before: 3, after: 4, ready: 3, readyNext: 3, want: "status.observedGeneration would show generation 4"},
		{name: "condition back", generation: 3, before: 3, after: 3, ready: 3, readyNext: 2, want: `condition "Ready" shows generation 3`},
		{name: "condition back to none", generation: 3, before: 3, after: 3, ready: 3, want: `condition "Ready" shows generation 3`},
		{name: "condition ahead", generation: 3, before: 3, after: 3, ready: 3, readyNext: 4, want: `condition "Ready" would show generation 4`},
		{name: "restored, left alone", generation: 1, before: 7, after: 7, ready: 7, readyNext: 7},
		{name: "restored, further", generation: 1, before: 7, after: 8, ready: 7, readyNext: 7, want: "status.observedGeneration would show generation 8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list := func(generation int64, message string) []metav1.Condition {
				return []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Fine", Message: message, ObservedGeneration: generation, LastTransitionTime: metav1.Unix(1e9, 0)}}
			}
			obj := budget()
			obj.Generation = tt.generation
			obj.Status.ObservedGeneration, obj.Status.Conditions = tt.before, list(tt.ready, "")
			mutate := func(o *policyv1.PodDisruptionBudget) {
				o.Status.ObservedGeneration, o.Status.Conditions = tt.after, list(tt.readyNext, "new")
			}
			_, err := status.Update(t.Context(), echo{}, obj, mutate)
			refused(t, "Update", err, tt.want)
			_, err = status.Patch(t.Context(), &recorder[*policyv1.PodDisruptionBudget]{}, obj, mutate)
			refused(t, "Patch", err, tt.want)

			asMap := func(observed, ready int64, message string) map[string]any {
				return map[string]any{"observedGeneration": observed, "conditions": []any{map[string]any{
					"type": "Ready", "status": "True", "reason": "Fine", "message": message, "observedGeneration": ready, "lastTransitionTime": "2001-09-09T01:46:40Z",
				}}}
			}
			u := &unstructured.Unstructured{Object: map[string]any{
				"metadata": map[string]any{"name": "one", "uid": "u", "resourceVersion": "1", "generation": tt.generation},
				"status":   asMap(tt.before, tt.ready, ""),
			}}
			_, err = status.Patch(t.Context(), &recorder[*unstructured.Unstructured]{}, u, func(u *unstructured.Unstructured) {
				u.Object["status"] = asMap(tt.after, tt.readyNext, "new")
			})
			refused(t, "Patch of a map", err, tt.want)
		})
	}
}

// 1 MiB of status is too much, 1 MiB of other things is nobody's concern.
//
// Proves CK2.
func TestBigObject(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	obj := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u", ResourceVersion: "1", Annotations: map[string]string{"a": long}},
	}
	fill := func(o *corev1.Node) { o.Status.Phase = corev1.NodePhase(long) }
	_, err := status.Update(t.Context(), silent[*corev1.Node]{t}, obj, fill)
	refused(t, "Update", err, "bytes, more than 1048576: ")
	var mark controllerkit.RejectedError
	if !errors.As(err, &mark) || !mark.Rejected() {
		t.Error("Update's error is not rejected, and no retry cures it")
	}
	_, err = status.Patch(t.Context(), silent[*corev1.Node]{t}, obj, fill)
	refused(t, "Patch", err, "status has 10")

	r := &recorder[*corev1.Node]{}
	_, err = status.Patch(t.Context(), r, obj, func(o *corev1.Node) { o.Status.Phase = "Running" })
	refused(t, "a small change of it", err, "")
	if len(r.data) == 0 || len(r.data) > 100 {
		t.Errorf("the patch has %d bytes, want some and at most 100", len(r.data))
	}

	var many []metav1.Condition
	for i := range 33 {
		many = append(many, status.True("T"+strings.Repeat("x", i), "Fine", long[:32768]))
	}
	_, err = status.Apply(t.Context(), "a", silentApplier[*policyv1.PodDisruptionBudget, *policyac.PodDisruptionBudgetApplyConfiguration]{t}, budget(), policyac.PodDisruptionBudget("one", "default"), many...)
	refused(t, "Apply", err, "status has 10")
}

// TestBadApply proves CK2.
func TestBadApply(t *testing.T) {
	type pdb = policyv1.PodDisruptionBudget
	type config = *policyac.PodDisruptionBudgetApplyConfiguration
	fine := func() config { return policyac.PodDisruptionBudget("one", "default") }
	ready := status.True("Ready", "Fine", "")
	for _, tt := range []struct {
		name    string
		manager string
		config  config
		set     []metav1.Condition
		want    string
	}{
		{name: "no manager", config: fine(), want: "fieldManager: the field manager is empty"},
		{name: "long manager", manager: strings.Repeat("m", 129), config: fine(), want: "fieldManager"},
		{name: "unprintable manager", manager: "a\nb", config: fine(), want: "fieldManager"},
		{name: "no config", manager: "m", want: "config is"},
		{name: "other name", manager: "m", config: policyac.PodDisruptionBudget("two", "default"), want: "metadata.name"},
		{name: "other namespace", manager: "m", config: policyac.PodDisruptionBudget("one", "kube-system"), want: "metadata.namespace"},
		{name: "no metadata", manager: "m", config: &policyac.PodDisruptionBudgetApplyConfiguration{}, want: "metadata.name"},
		{name: "a spec", manager: "m", config: fine().WithSpec(policyac.PodDisruptionBudgetSpec()), want: "config has spec"},
		{name: "a status", manager: "m", config: fine().WithStatus(policyac.PodDisruptionBudgetStatus()), want: "config has status"},
		{name: "labels", manager: "m", config: fine().WithLabels(map[string]string{"a": "b"}), want: "config has metadata.labels"},
		{name: "a finalizer", manager: "m", config: fine().WithFinalizers("example.com/a"), want: "config has metadata.finalizers"},
		{name: "a uid", manager: "m", config: fine().WithUID("v"), want: "config has metadata.uid"},
		{name: "no kind", manager: "m", config: fine().WithKind(""), want: "config has no kind"},
		{name: "no apiVersion", manager: "m", config: fine().WithAPIVersion(""), want: "config has no apiVersion"},
		{name: "bad reason", manager: "m", config: fine(), set: []metav1.Condition{status.True("Ready", "a sentence", "")}, want: "reason"},
		{name: "bad type", manager: "m", config: fine(), set: []metav1.Condition{status.True("-", "Fine", "")}, want: "type"},
		{name: "twice", manager: "m", config: fine(), set: []metav1.Condition{ready, ready}, want: "twice"},
	} {
		_, err := status.Apply(t.Context(), tt.manager, silentApplier[*pdb, config]{t}, budget(), tt.config, tt.set...)
		refused(t, tt.name, err, tt.want)
	}

	// An older generation than what is there.
	obj := budget()
	obj.Generation = 2
	_, err := status.Apply(t.Context(), "m", silentApplier[*pdb, config]{t}, obj, fine(), ready)
	refused(t, "older generation", err, "shows generation 3")

	// Types whose conditions are of another kind, or that have none.
	deployment := &appsv1.Deployment{ObjectMeta: obj.ObjectMeta}
	_, err = status.Apply(t.Context(), "m", silentApplier[*appsv1.Deployment, config]{t}, deployment, fine(), ready)
	refused(t, "own condition type", err, "status.conditions")
	type bare struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	kind := metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"}
	_, err = status.Apply(t.Context(), "m", silentApplier[*pdb, *bare]{t}, budget(), &bare{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default"}}, ready)
	refused(t, "config without conditions", err, "status.conditions")
	_, err = status.Apply(t.Context(), "m", silentApplier[*pdb, bare]{t}, budget(), bare{}, ready)
	refused(t, "config is no pointer", err, "pointer")
}

// TestPatchBody proves S3.
func TestPatchBody(t *testing.T) {
	guard := `"metadata":{"resourceVersion":"1","uid":"u"}`
	type m = map[string]any
	for _, tt := range []struct {
		name          string
		before, after any
		want          string // the patch of the status, "" for no request
	}{
		{name: "first", before: nil, after: m{"a": int64(1)}, want: `{"a":1}`},
		{name: "same", before: m{"a": int64(1)}, after: m{"a": int64(1)}},
		{name: "one of two", before: m{"a": int64(1), "b": int64(1)}, after: m{"a": int64(1), "b": int64(2)}, want: `{"b":2}`},
		{name: "one goes", before: m{"a": int64(1), "b": int64(1)}, after: m{"a": int64(1)}, want: `{"b":null}`},
		{name: "all goes", before: m{"a": int64(1)}, after: nil, want: `null`},
		{name: "deep", before: m{"a": m{"b": m{"c": "x", "d": "y"}}}, after: m{"a": m{"b": m{"c": "z", "d": "y"}}}, want: `{"a":{"b":{"c":"z"}}}`},
		{name: "a list is whole", before: m{"a": []any{"x"}}, after: m{"a": []any{"x", "y"}}, want: `{"a":["x","y"]}`},
		{name: "map for a value", before: m{"a": "x"}, after: m{"a": m{"b": "y", "c": nil}}, want: `{"a":{"b":"y"}}`},
		{name: "value for a map", before: m{"a": m{"b": "y"}}, after: m{"a": "x"}, want: `{"a":"x"}`},
		{name: "empty map", before: m{}, after: m{"a": m{}}, want: `{"a":{}}`},
		{name: "null is nothing", before: m{"b": int64(1)}, after: m{"a": nil, "b": int64(1)}},
		{name: "nothing is null", before: m{"a": nil, "b": int64(1)}, after: m{"b": int64(1)}},
		{name: "to null", before: m{"a": "x"}, after: m{"a": nil}, want: `{"a":null}`},
		{name: "from null", before: m{"a": nil}, after: m{"a": "x"}, want: `{"a":"x"}`},
		{name: "empty string", before: m{}, after: m{"a": ""}, want: `{"a":""}`},
	} {
		r := &recorder[*unstructured.Unstructured]{}
		obj := &unstructured.Unstructured{Object: m{"metadata": m{"name": "one", "uid": "u", "resourceVersion": "1"}}}
		if tt.before != nil {
			obj.Object["status"] = tt.before
		}
		before := obj.DeepCopy()
		answer, err := status.Patch(t.Context(), r, obj, func(u *unstructured.Unstructured) {
			if u.Object["status"] = tt.after; tt.after == nil {
				delete(u.Object, "status")
			}
		})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		want := recorder[*unstructured.Unstructured]{}
		if tt.want != "" {
			want = recorder[*unstructured.Unstructured]{name: "one", pt: string(types.MergePatchType), sub: "status", data: []byte(`{` + guard + `,"status":` + tt.want + `}`)}
		} else if answer != obj {
			t.Errorf("%s: the answer is not the object given", tt.name)
		}
		if diff := cmp.Diff(want, *r, cmp.AllowUnexported(want)); diff != "" {
			t.Errorf("%s: request (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(before, obj); diff != "" {
			t.Errorf("%s: the caller's object changed (-before +after):\n%s", tt.name, diff)
		}
	}
}

// Only the entry of an apply by this manager to the status, in this version, with
// these fields and no others, saves the request.
//
// Proves S1.
func TestApplyOwnership(t *testing.T) {
	const fields = `{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:observedGeneration":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`
	entry := func(change func(*metav1.ManagedFieldsEntry)) metav1.ManagedFieldsEntry {
		e := metav1.ManagedFieldsEntry{
			Manager: "m", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "policy/v1", Subresource: "status",
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}
		if change != nil {
			change(&e)
		}
		return e
	}
	fieldsOf := func(text string) func(*metav1.ManagedFieldsEntry) {
		return func(e *metav1.ManagedFieldsEntry) { e.FieldsV1 = metav1.NewFieldsV1(text) }
	}
	ready := []metav1.Condition{status.True("Ready", "Fine", "")}
	for _, tt := range []struct {
		name    string
		entries []metav1.ManagedFieldsEntry
		set     []metav1.Condition
		twice   string // a type that the list has once more at its end, and once more
		want    int
	}{
		{name: "owned", entries: []metav1.ManagedFieldsEntry{entry(nil)}, set: ready},
		{name: "among others", entries: []metav1.ManagedFieldsEntry{
			entry(func(e *metav1.ManagedFieldsEntry) { e.Manager = "n" }), entry(func(e *metav1.ManagedFieldsEntry) { e.Subresource = ""; fieldsOf(`{}`)(e) }), entry(nil),
		}, set: ready},
		{name: "other value", entries: []metav1.ManagedFieldsEntry{entry(nil)}, set: []metav1.Condition{status.True("Ready", "Better", "")}, want: 1},
		{name: "no entry", set: ready, want: 1},
		{name: "other manager", entries: []metav1.ManagedFieldsEntry{entry(func(e *metav1.ManagedFieldsEntry) { e.Manager = "n" })}, set: ready, want: 1},
		{name: "update", entries: []metav1.ManagedFieldsEntry{entry(func(e *metav1.ManagedFieldsEntry) { e.Operation = metav1.ManagedFieldsOperationUpdate })}, set: ready, want: 1},
		{name: "main resource", entries: []metav1.ManagedFieldsEntry{entry(func(e *metav1.ManagedFieldsEntry) { e.Subresource = "" })}, set: ready, want: 1},
		{name: "other version", entries: []metav1.ManagedFieldsEntry{entry(func(e *metav1.ManagedFieldsEntry) { e.APIVersion = "policy/v1beta1" })}, set: ready, want: 1},
		{name: "a field less", entries: []metav1.ManagedFieldsEntry{entry(fieldsOf(strings.Replace(fields, `,"f:type":{}`, "", 1)))}, set: ready, want: 1},
		{name: "a field more", entries: []metav1.ManagedFieldsEntry{entry(fieldsOf(strings.Replace(fields, `{"f:conditions"`, `{"f:currentHealthy":{},"f:conditions"`, 1)))}, set: ready, want: 1},
		{name: "no fields", entries: []metav1.ManagedFieldsEntry{entry(func(e *metav1.ManagedFieldsEntry) { e.FieldsV1 = nil })}, set: ready, want: 1},
		{name: "not JSON", entries: []metav1.ManagedFieldsEntry{entry(fieldsOf(`{`))}, set: ready, want: 1},
		{name: "gives up", entries: []metav1.ManagedFieldsEntry{entry(nil)}, want: 1},
		{name: "nobody knows what it owns", want: 1},
		{name: "a duplicate of its own", entries: []metav1.ManagedFieldsEntry{entry(nil)}, set: ready, twice: "Ready", want: 1},
		{name: "a duplicate of others", entries: []metav1.ManagedFieldsEntry{entry(nil)}, set: ready, twice: "Other"},
		{name: "has nothing to give up", entries: []metav1.ManagedFieldsEntry{entry(func(e *metav1.ManagedFieldsEntry) { e.Manager = "n" })}},
	} {
		obj := budget()
		obj.ManagedFields = tt.entries
		if tt.twice != "" {
			again := metav1.Condition{Type: tt.twice, Status: "False", Reason: "Again", ObservedGeneration: 3, LastTransitionTime: metav1.Unix(1e9, 0)}
			obj.Status.Conditions = append(obj.Status.Conditions, again, again)
		}
		s := &sender{}
		answer, err := status.Apply(t.Context(), "m", s, obj, policyac.PodDisruptionBudget("one", "default"), tt.set...)
		if err != nil || s.n != tt.want || (answer == obj) != (tt.want == 0) {
			t.Errorf("%s: %d requests, error %v, want %d", tt.name, s.n, err, tt.want)
		}
		if s.n > 0 && tt.set != nil && len(s.last.Status.Conditions) != len(tt.set) {
			t.Errorf("%s: %d conditions are sent, want %d", tt.name, len(s.last.Status.Conditions), len(tt.set))
		}
	}
}

// Types that a list has twice, as one that is no map can: what nobody touches stays
// and stops nobody, and what is set is there once.
//
// Proves S4.
func TestTwice(t *testing.T) {
	condition := func(typ string, s metav1.ConditionStatus, generation int64) metav1.Condition {
		return metav1.Condition{Type: typ, Status: s, Reason: "R", ObservedGeneration: generation, LastTransitionTime: metav1.Unix(1e9, 0)}
	}
	for _, tt := range []struct {
		name string
		has  []metav1.Condition
		set  []metav1.Condition // for generation 3
		want []metav1.Condition // transition times aside
		text string             // of the error
	}{
		{
			name: "others stay", has: []metav1.Condition{condition("A", "True", 3), condition("A", "True", 2), condition("B", "True", 2), condition("B", "False", 3)},
			set:  []metav1.Condition{condition("C", "True", 3)},
			want: []metav1.Condition{condition("A", "True", 3), condition("A", "True", 2), condition("B", "True", 2), condition("B", "False", 3), condition("C", "True", 3)},
		},
		{
			name: "what is set is there once", has: []metav1.Condition{condition("A", "True", 3), condition("B", "True", 1), condition("A", "False", 2), condition("C", "True", 3), condition("A", "True", 3)},
			set:  []metav1.Condition{condition("A", "True", 3)},
			want: []metav1.Condition{condition("A", "True", 3), condition("B", "True", 1), condition("C", "True", 3)},
		},
		{name: "the second is newer", has: []metav1.Condition{condition("A", "True", 3), condition("A", "True", 4)}, set: []metav1.Condition{condition("A", "True", 3)}, text: "shows generation 4"},
	} {
		obj := budget()
		obj.Status.Conditions = tt.has
		before := obj.DeepCopy()
		got, err := status.Update(t.Context(), echo{}, obj, func(o *policyv1.PodDisruptionBudget) error {
			o.Status.CurrentHealthy++
			return status.Set(&o.Status.Conditions, 3, tt.set...)
		})
		refused(t, tt.name, err, tt.text)
		if diff := cmp.Diff(before, obj); diff != "" {
			t.Errorf("%s: the caller's object changed (-before +after):\n%s", tt.name, diff)
		}
		if err != nil {
			continue
		}
		for i := range got.Status.Conditions {
			got.Status.Conditions[i].LastTransitionTime = metav1.Unix(1e9, 0)
		}
		if diff := cmp.Diff(tt.want, got.Status.Conditions); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", tt.name, diff)
		}
	}
	// The newest of two may not be taken away to write an older one.
	obj := budget()
	obj.Status.Conditions = []metav1.Condition{condition("A", "True", 2), condition("A", "True", 3), condition("A", "True", 2)}
	_, err := status.Update(t.Context(), echo{}, obj, func(o *policyv1.PodDisruptionBudget) { o.Status.Conditions = o.Status.Conditions[:1] })
	refused(t, "the newest goes", err, `condition "A" shows generation 3`)
	refused(t, "Set", status.Set(&obj.Status.Conditions, 2, condition("A", "True", 2)), "shows generation 3")
}
