package status_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/client-go/dynamic"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/status"
)

// apply makes conditions those of manager on obj.
func apply(ctx context.Context, c status.Applier[*policyv1.PodDisruptionBudget, *policyac.PodDisruptionBudgetApplyConfiguration], manager string, obj *policyv1.PodDisruptionBudget, conditions ...metav1.Condition) (*policyv1.PodDisruptionBudget, error) {
	return status.Apply(ctx, manager, c, obj, policyac.PodDisruptionBudget(obj.Name, obj.Namespace), conditions...)
}

// One request if the conditions of the manager change, in value or in ownership,
// and none if not; those of others stay as they are.
//
// Proves S3 and S1.
func TestServerApply(t *testing.T) {
	t.Parallel()
	c, requests := newBudgets(t)
	obj := createBudget(t, c)
	obj, err := status.Update(t.Context(), c, obj, func(o *policyv1.PodDisruptionBudget) error {
		o.Status.CurrentHealthy = 4
		return status.Set(&o.Status.Conditions, o.Generation, status.True("Bystander", "There", ""), status.True("B", "Fine", ""))
	})
	if err != nil {
		t.Fatal(err)
	}
	type list = []metav1.Condition
	steps := []struct {
		name    string
		manager string
		set     list
		want    int64
		types   []string
	}{
		{name: "nothing of nothing", manager: "a", types: []string{"Bystander", "B"}},
		{name: "first", manager: "a", set: list{status.True("A", "Fine", "x")}, want: 1, types: []string{"Bystander", "B", "A"}},
		{name: "same", manager: "a", set: list{status.True("A", "Fine", "x")}, types: []string{"Bystander", "B", "A"}},
		{name: "another manager", manager: "b", set: list{status.True("C", "Fine", "not \xff UTF-8")}, want: 1, types: []string{"Bystander", "B", "A", "C"}},
		{name: "another manager again", manager: "b", set: list{status.True("C", "Fine", "not \xff UTF-8")}, types: []string{"Bystander", "B", "A", "C"}},
		{name: "the first again", manager: "a", set: list{status.True("A", "Fine", "x")}, types: []string{"Bystander", "B", "A", "C"}},
		{name: "same value, not owned", manager: "a", set: list{status.True("A", "Fine", "x"), status.True("B", "Fine", "")}, want: 1, types: []string{"Bystander", "B", "A", "C"}},
		{name: "same value, owned", manager: "a", set: list{status.True("A", "Fine", "x"), status.True("B", "Fine", "")}, types: []string{"Bystander", "B", "A", "C"}},
		{name: "other order", manager: "a", set: list{status.True("B", "Fine", ""), status.True("A", "Fine", "x")}, types: []string{"Bystander", "B", "A", "C"}},
		{name: "other message", manager: "a", set: list{status.True("A", "Fine", "y"), status.True("B", "Fine", "")}, want: 1, types: []string{"Bystander", "B", "A", "C"}},
		{name: "flip", manager: "b", set: list{status.False("C", "Broken", "")}, want: 1, types: []string{"Bystander", "B", "A", "C"}},
		{name: "with a domain", manager: "b", set: list{status.False("C", "Broken", ""), status.True("example.com/D.e_f", "Fine", "")}, want: 1, types: []string{"Bystander", "B", "A", "C", "example.com/D.e_f"}},
		{name: "with a domain again", manager: "b", set: list{status.False("C", "Broken", ""), status.True("example.com/D.e_f", "Fine", "")}, types: []string{"Bystander", "B", "A", "C", "example.com/D.e_f"}},
		{name: "one less", manager: "b", set: list{status.True("example.com/D.e_f", "Fine", "")}, want: 1, types: []string{"Bystander", "B", "A", "example.com/D.e_f"}},
		{name: "all of one go", manager: "b", want: 1, types: []string{"Bystander", "B", "A"}},
		{name: "all of one are gone", manager: "b", types: []string{"Bystander", "B", "A"}},
	}
	for _, tt := range steps {
		before := requests.Load()
		answer, err := apply(t.Context(), c, tt.manager, obj, tt.set...)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if n := requests.Load() - before; n != tt.want {
			t.Errorf("%s: %d requests, want %d; managedFields %v", tt.name, n, tt.want, obj.ManagedFields)
		}
		if (answer == obj) != (tt.want == 0) {
			t.Errorf("%s: the answer is the object given: %v", tt.name, answer == obj)
		}
		for _, c := range tt.set {
			old, stored := meta.FindStatusCondition(obj.Status.Conditions, c.Type), meta.FindStatusCondition(answer.Status.Conditions, c.Type)
			if old != nil && old.Status == c.Status && !old.LastTransitionTime.Equal(&stored.LastTransitionTime) {
				t.Errorf("%s: lastTransitionTime of %s moved from %v to %v", tt.name, c.Type, old.LastTransitionTime, stored.LastTransitionTime)
			}
			if stored.Status != c.Status || stored.Reason != c.Reason || stored.ObservedGeneration != obj.Generation {
				t.Errorf("%s: stored %+v, want %+v for generation %d", tt.name, stored, c, obj.Generation)
			}
		}
		obj = get(t, c)
		var types []string
		for _, c := range obj.Status.Conditions {
			types = append(types, c.Type)
		}
		if diff := cmp.Diff(tt.types, types); diff != "" {
			t.Errorf("%s: conditions (-want +stored):\n%s", tt.name, diff)
		}
	}
	if obj.Status.CurrentHealthy != 4 {
		t.Errorf("currentHealthy = %d, want 4 as before", obj.Status.CurrentHealthy)
	}
}

// Random applies of three managers and writes of a fourth: a request is made if and
// only if it changes something on the server.
//
// Proves S1.
func TestServerApplyAgrees(t *testing.T) {
	t.Parallel()
	c, requests := newBudgets(t)
	obj := createBudget(t, c)
	random := rand.New(rand.NewPCG(7, 11))
	types := []string{"A", "B", "C", "D", "E"}
	statuses := []metav1.ConditionStatus{"True", "False"}
	last := map[string][]metav1.Condition{}
	var sent, skipped, invalid int
	for step := range 400 {
		manager := []string{"x", "y", "z"}[random.IntN(3)]
		if random.IntN(10) == 0 {
			next, err := status.Update(t.Context(), c, obj, func(o *policyv1.PodDisruptionBudget) error {
				typ := types[random.IntN(len(types))]
				if random.IntN(3) == 0 {
					meta.RemoveStatusCondition(&o.Status.Conditions, typ)
					return nil
				}
				return status.Set(&o.Status.Conditions, o.Generation, metav1.Condition{Type: typ, Status: statuses[random.IntN(2)], Reason: "R"})
			})
			if err != nil {
				t.Fatal(err)
			}
			obj = next
			continue
		}
		set := last[manager]
		if random.IntN(2) == 0 {
			set = nil
			for _, typ := range types {
				if random.IntN(3) == 0 {
					set = append(set, metav1.Condition{Type: typ, Status: statuses[random.IntN(2)], Reason: "R", Message: []string{"", "m"}[random.IntN(2)]})
				}
			}
			last[manager] = set
		}
		before := requests.Load()
		answer, err := apply(t.Context(), c, manager, obj, set...)
		if apierrors.IsInvalid(err) {
			// It gives up a condition of which another manager has a part: the remedy.
			invalid++
			obj, err = status.Update(t.Context(), c, obj, func(o *policyv1.PodDisruptionBudget) {
				for _, typ := range types {
					if meta.FindStatusCondition(set, typ) == nil {
						meta.RemoveStatusCondition(&o.Status.Conditions, typ)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			before = requests.Load()
			answer, err = apply(t.Context(), c, manager, obj, set...)
		}
		if err != nil {
			t.Fatal(err)
		}
		if requests.Load() > before {
			sent++
			if answer.ResourceVersion == obj.ResourceVersion {
				t.Fatalf("step %d: a request of %s with %v changed nothing: %+v, managedFields %v", step, manager, set, obj.Status.Conditions, obj.ManagedFields)
			}
			obj = answer
			continue
		}
		// Had it been sent, as it is by who does not know managedFields, nothing would have changed.
		skipped++
		blind := obj.DeepCopy()
		blind.ManagedFields = nil
		if answer, err = apply(t.Context(), c, manager, blind, set...); err != nil {
			t.Fatal(err)
		}
		if answer.ResourceVersion != obj.ResourceVersion {
			t.Fatalf("step %d: no request of %s with %v, which would have changed %+v to %+v", step, manager, set, obj.Status.Conditions, answer.Status.Conditions)
		}
	}
	if sent < 100 || skipped < 50 {
		t.Errorf("%d sent and %d skipped: the test is wrong", sent, skipped)
	}
	t.Logf("%d sent, %d skipped, %d given up with a remedy", sent, skipped, invalid)
}

// What the guard is for: a stale copy, and an object that took the name.
//
// Proves S3.
func TestServerGuards(t *testing.T) {
	type pdb = policyv1.PodDisruptionBudget
	for _, form := range []struct {
		name  string
		write func(ctx context.Context, c policyclient.PodDisruptionBudgetInterface, obj *pdb, reason string) (*pdb, error)
	}{
		{name: "Update", write: func(ctx context.Context, c policyclient.PodDisruptionBudgetInterface, obj *pdb, reason string) (*pdb, error) {
			return status.Update(ctx, c, obj, ready(reason))
		}},
		{name: "Patch", write: func(ctx context.Context, c policyclient.PodDisruptionBudgetInterface, obj *pdb, reason string) (*pdb, error) {
			return status.Patch(ctx, c, obj, ready(reason))
		}},
		{name: "Apply", write: func(ctx context.Context, c policyclient.PodDisruptionBudgetInterface, obj *pdb, reason string) (*pdb, error) {
			return apply(ctx, c, "a", obj, status.True("Ready", reason, ""))
		}},
	} {
		t.Run(form.name, func(t *testing.T) {
			c, requests := newBudgets(t)
			stale := createBudget(t, c)
			if _, err := form.write(t.Context(), c, stale, "Fine"); err != nil {
				t.Fatal(err)
			}
			refused := func(when string, is func(error) bool) {
				t.Helper()
				before := requests.Load()
				got, err := form.write(t.Context(), c, stale, "Stale")
				if !is(err) || got != nil {
					t.Errorf("%s: returned %v, error %v", when, got, err)
				}
				if n := requests.Load() - before; n != 1 {
					t.Errorf("%s: %d requests, want 1", when, n)
				}
			}
			refused("stale", apierrors.IsConflict)
			if got := get(t, c).Status.Conditions; len(got) != 1 || got[0].Reason != "Fine" {
				t.Errorf("stored %+v, want the one with reason Fine", got)
			}
			if err := c.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			refused("deleted", apierrors.IsNotFound)
			createBudget(t, c)
			refused("created again", apierrors.IsConflict)
			if got := get(t, c).Status.Conditions; len(got) != 0 {
				t.Errorf("the new object has %+v, want none", got)
			}
		})
	}
}

// One patch or none, with what changed and nothing else, so that fields which the
// type does not know stay.
//
// Proves S3.
func TestServerPatch(t *testing.T) {
	c, requests := newBudgets(t)
	obj := createBudget(t, c)
	steps := []struct {
		name   string
		mutate func(*policyv1.PodDisruptionBudget) error
		want   int64
	}{
		{name: "first", mutate: ready("Fine"), want: 1},
		{name: "same", mutate: ready("Fine")},
		{name: "other reason", mutate: ready("Better"), want: 1},
		{name: "same again", mutate: ready("Better")},
		{name: "a field goes", mutate: func(o *policyv1.PodDisruptionBudget) error { o.Status.Conditions = nil; return nil }, want: 1},
		{name: "it is gone", mutate: func(o *policyv1.PodDisruptionBudget) error { o.Status.Conditions = nil; return nil }},
	}
	for _, tt := range steps {
		before := requests.Load()
		answer, err := status.Patch(t.Context(), c, obj, tt.mutate)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if n := requests.Load() - before; n != tt.want {
			t.Errorf("%s: %d requests, want %d", tt.name, n, tt.want)
		}
		if (answer.ResourceVersion != obj.ResourceVersion) != (tt.want > 0) {
			t.Errorf("%s: resourceVersion %s became %s", tt.name, obj.ResourceVersion, answer.ResourceVersion)
		}
		obj = get(t, c)
		if diff := cmp.Diff(answer, obj); diff != "" {
			t.Errorf("%s: answer and stored object (-answer +stored):\n%s", tt.name, diff)
		}
		wanted := obj.DeepCopy()
		if err := tt.mutate(wanted); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wanted, obj); diff != "" {
			t.Errorf("%s: wanted and stored object (-wanted +stored):\n%s", tt.name, diff)
		}
	}
}

// A cache that drops managedFields does not tell what a manager owns, so what it gives
// up is given up on the server.
//
// Proves S1.
func TestServerApplyStripped(t *testing.T) {
	t.Parallel()
	c, requests := newBudgets(t)
	obj, err := apply(t.Context(), c, "m", createBudget(t, c), status.True("Ready", "Fine", ""))
	if err != nil {
		t.Fatal(err)
	}
	obj.ManagedFields = nil
	before := requests.Load()
	answer, err := apply(t.Context(), c, "m", obj)
	if err != nil {
		t.Fatal(err)
	}
	if n := requests.Load() - before; n != 1 || len(answer.Status.Conditions) != 0 {
		t.Errorf("%d requests, conditions %v, want 1 and none", n, answer.Status.Conditions)
	}
}

// A list that became a map has a type twice. Apply sends it once, and then it is there
// once.
//
// Proves S3.
func TestServerApplyTwice(t *testing.T) {
	t.Parallel()
	const group = "twice.test.controllerkit.dev"
	config, requests := testserver.Counted(t)
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	d := definition(group)
	path := []string{"spec", "versions", "schema", "openAPIV3Schema", "properties", "status", "properties", "conditions"}
	delete(at(d.Object, path...), "x-kubernetes-list-type")
	delete(at(d.Object, path...), "x-kubernetes-list-map-keys")
	testserver.InstallCRD(t, d.Object)
	namespace := testserver.Namespace(t)
	widgets := dyn.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}).Namespace(namespace)
	blank := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": namespace},
		}}
	}
	item := func(typ, s string) map[string]any {
		return map[string]any{"type": typ, "status": s, "reason": "R", "message": "", "observedGeneration": int64(1), "lastTransitionTime": "2001-09-09T01:46:40Z"}
	}
	obj := createServed(t, widgets, blank())
	obj.Object["status"] = map[string]any{"conditions": []any{item("Ready", "True"), item("Other", "True"), item("Ready", "False")}}
	if obj, err = widgets.UpdateStatus(t.Context(), obj, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	fixed, err := dyn.Resource(definitions()).Get(t.Context(), d.GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at(fixed.Object, path...)["x-kubernetes-list-type"] = "map"
	at(fixed.Object, path...)["x-kubernetes-list-map-keys"] = []any{"type"}
	if _, err := dyn.Resource(definitions()).Update(t.Context(), fixed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// When the new schema is in force nothing tells: until then an apply is one to a list.
	// A dry run answers with one condition then, and with two when it is.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for inForce := false; !inForce; {
		trial := blank()
		trial.Object["status"] = map[string]any{"conditions": []any{item("Ready", "True")}}
		answer, err := widgets.ApplyStatus(ctx, "one", trial, metav1.ApplyOptions{FieldManager: "trial", Force: true, DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			t.Fatal(err)
		}
		list, _, _ := unstructured.NestedSlice(answer.Object, "status", "conditions")
		inForce = len(list) > 1
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	for i, want := range []int64{1, 0} {
		before := requests.Load()
		if obj, err = status.Apply(t.Context(), "m", applier{widgets}, obj, blank(), status.True("Ready", "Fine", "")); err != nil {
			t.Fatal(err)
		}
		if n := requests.Load() - before; n != want {
			t.Errorf("apply %d: %d requests, want %d", i, n, want)
		}
	}
	var types []string
	list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, c := range list {
		types = append(types, fmt.Sprint(c.(map[string]any)["type"], c.(map[string]any)["status"]))
	}
	slices.Sort(types)
	if diff := cmp.Diff([]string{"OtherTrue", "ReadyTrue"}, types); diff != "" {
		t.Errorf("conditions (-want +stored):\n%s", diff)
	}
}

// A cache that trims annotations takes none from the server: not with Patch and Apply.
// What Update does is documented with it.
//
// Proves S3.
func TestServerTrimmed(t *testing.T) {
	t.Parallel()
	c, _ := newBudgets(t)
	obj := createBudget(t, c)
	obj.Annotations = map[string]string{"example.com/a": "b"}
	obj, err := c.Update(t.Context(), obj, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	grow := func(o *policyv1.PodDisruptionBudget) { o.Status.CurrentHealthy++ }
	for _, f := range []struct {
		name  string
		write func(obj *policyv1.PodDisruptionBudget) (*policyv1.PodDisruptionBudget, error)
		keeps bool
	}{
		{name: "Patch", keeps: true, write: func(obj *policyv1.PodDisruptionBudget) (*policyv1.PodDisruptionBudget, error) {
			return status.Patch(t.Context(), c, obj, grow)
		}},
		{name: "Apply", keeps: true, write: func(obj *policyv1.PodDisruptionBudget) (*policyv1.PodDisruptionBudget, error) {
			return apply(t.Context(), c, "m", obj, status.True("Ready", "Fine", ""))
		}},
		{name: "Update", write: func(obj *policyv1.PodDisruptionBudget) (*policyv1.PodDisruptionBudget, error) {
			return status.Update(t.Context(), c, obj, grow)
		}},
	} {
		obj.ManagedFields, obj.Annotations = nil, nil
		if obj, err = f.write(obj); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		if kept := obj.Annotations["example.com/a"] == "b"; kept != f.keeps {
			t.Errorf("%s: annotations %v, want the one that the copy did not have: %v", f.name, obj.Annotations, f.keeps)
		}
	}
}
