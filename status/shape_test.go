package status_test

import (
	"context"
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/status"
)

// Common is embedded in statuses.
type Common struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

type embedding struct {
	Common `json:",inline"`
	Size   int `json:"size"`
}

type pointing struct {
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
}

type texting struct {
	ObservedGeneration string `json:"observedGeneration,omitempty"`
}

// back tries to let the generation go back.
func back[S any](t *testing.T, name string, s S, copy func(S) S, mutate func(S) S) {
	t.Helper()
	obj := &shaped[S]{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u", ResourceVersion: "1", Generation: 3}, Status: s, copy: copy}
	_, err := status.Patch(t.Context(), silent[*shaped[S]]{t}, obj, func(o *shaped[S]) { o.Status = mutate(o.Status) })
	refused(t, name, err, "shows generation 3")
}

// A status is read by its names in JSON, whatever its shape in Go.
//
// Proves S4.
func TestShapes(t *testing.T) {
	three, two := int64(3), int64(2)
	back(t, "embedded", embedding{Common: Common{ObservedGeneration: 3}}, func(s embedding) embedding { return s },
		func(s embedding) embedding { s.ObservedGeneration = 2; return s })
	back(t, "embedded conditions", embedding{Common: Common{Conditions: []metav1.Condition{{Type: "Ready", ObservedGeneration: 3}}}}, func(s embedding) embedding { return s },
		func(s embedding) embedding {
			s.Conditions = []metav1.Condition{{Type: "Ready", ObservedGeneration: 2}}
			return s
		})
	back(t, "pointer to a number", pointing{ObservedGeneration: &three}, func(s pointing) pointing { return s },
		func(s pointing) pointing { s.ObservedGeneration = &two; return s })
	back(t, "no number left", pointing{ObservedGeneration: &three}, func(s pointing) pointing { return s },
		func(s pointing) pointing { s.ObservedGeneration = nil; return s })
	back(t, "pointer to a status", &Common{ObservedGeneration: 3}, func(s *Common) *Common { c := *s; return &c },
		func(s *Common) *Common { s.ObservedGeneration = 2; return s })
	back(t, "embedded, not exported", struct{ hidden }{hidden{3}}, func(s struct{ hidden }) struct{ hidden } { return s },
		func(s struct{ hidden }) struct{ hidden } { s.ObservedGeneration = 2; return s })
	back(t, "embedded and outer", outerWins{ObservedGeneration: 3}, func(s outerWins) outerWins { return s },
		func(s outerWins) outerWins { s.ObservedGeneration = 2; return s })
	back(t, "no status left", &Common{ObservedGeneration: 3}, func(s *Common) *Common { c := *s; return &c },
		func(*Common) *Common { return nil })
	back(t, "text", texting{"3"}, func(s texting) texting { return s },
		func(s texting) texting { s.ObservedGeneration = "2"; return s })
}

type hidden struct {
	ObservedGeneration int64 `json:"observedGeneration"`
}

type outerWins struct {
	Common             `json:",inline"`
	ObservedGeneration int64 `json:"observedGeneration"`
}

// Parent has all that kinds have, and is embedded in them.
type Parent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Size int `json:"size"`
	} `json:"spec"`
	Status Common `json:"status"`
}

type child struct {
	Parent `json:",inline"`
	memo   int // unexported: no business of anybody
	Memo   int `json:"-"` // nor this
}

func (c *child) DeepCopyObject() runtime.Object {
	next := *c
	next.ObjectMeta = *c.ObjectMeta.DeepCopy()
	next.memo++
	return &next
}

// The spec and the status can be in an embedded struct, and what is not in JSON does
// not count.
//
// Proves S1.
func TestEmbeddedObject(t *testing.T) {
	obj := &child{}
	obj.Name, obj.UID, obj.ResourceVersion, obj.Generation = "one", "u", "1", 3
	for _, tt := range []struct {
		name   string
		mutate func(*child)
		want   string // the patch of the status
		text   string // of the error
	}{
		{name: "nothing", mutate: func(*child) {}},
		{name: "status", mutate: func(c *child) { c.Status.ObservedGeneration = 3 }, want: `{"observedGeneration":3}`},
		{name: "no field in JSON", mutate: func(c *child) { c.Memo++ }},
		{name: "spec", mutate: func(c *child) { c.Spec.Size++ }, text: "mutate changed spec"},
		{name: "kind", mutate: func(c *child) { c.Kind = "Child" }, text: "mutate changed kind"},
		{name: "label", mutate: func(c *child) { c.Labels = map[string]string{"a": "b"} }, text: "mutate changed metadata"},
	} {
		r := &recorder[*child]{}
		_, err := status.Patch(t.Context(), r, obj, tt.mutate)
		refused(t, tt.name, err, tt.text)
		want := ""
		if tt.want != "" {
			want = `{"metadata":{"resourceVersion":"1","uid":"u"},"status":` + tt.want + `}`
		}
		if string(r.data) != want {
			t.Errorf("%s: patch %s, want %s", tt.name, r.data, want)
		}
	}
}

// ownList is a status whose conditions have a type of their own.
type ownList struct {
	Conditions conditions `json:"conditions,omitempty"`
}

type conditions []metav1.Condition

type appliedConfig[T any] struct{ sent *unstructured.Unstructured }

func (a *appliedConfig[T]) ApplyStatus(_ context.Context, config *unstructured.Unstructured, _ metav1.ApplyOptions) (T, error) {
	a.sent = config
	return *new(T), nil
}

// Apply takes conditions of a type of their own, as package operator does.
func TestApplyToOwnType(t *testing.T) {
	old := metav1.Unix(1e9, 0)
	obj := &shaped[ownList]{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "u", ResourceVersion: "7", Generation: 3},
		Status:     ownList{conditions{{Type: "Ready", Status: "True", Reason: "Fine", ObservedGeneration: 2, LastTransitionTime: old}}},
	}
	blank := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": "default"}}}
	c := &appliedConfig[*shaped[ownList]]{}
	if _, err := status.Apply(t.Context(), "m", c, obj, blank, status.True("Ready", "Fine", "")); err != nil || c.sent == nil {
		t.Fatalf("Apply = %v, sent %v", err, c.sent)
	}
	list, _, _ := unstructured.NestedSlice(c.sent.Object, "status", "conditions")
	if len(list) != 1 || list[0].(map[string]any)["lastTransitionTime"] != "2001-09-09T01:46:40Z" {
		t.Errorf("sent %v, want the condition with the old time of its transition", list)
	}
	if got := obj.Status.Conditions[0].ObservedGeneration; got != 2 {
		t.Errorf("Apply has changed the object: generation %d", got)
	}
}

// An object without a status yet can have conditions if its type can.
//
// Proves S3.
func TestApplyToNoStatus(t *testing.T) {
	obj := &shaped[*Common]{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u", ResourceVersion: "1", Generation: 3}}
	sent := 0
	_, err := status.Apply(t.Context(), "m", applies[*shaped[*Common]](func() { sent++ }), obj, policyac.PodDisruptionBudget("one", ""), status.True("Ready", "Fine", ""))
	if err != nil || sent != 1 {
		t.Errorf("%d requests, error %v, want 1", sent, err)
	}
}

type applies[T any] func()

func (f applies[T]) ApplyStatus(context.Context, *policyac.PodDisruptionBudgetApplyConfiguration, metav1.ApplyOptions) (T, error) {
	f()
	return *new(T), nil
}

// A field of the status that the type does not know is not in the patch.
//
// Proves S3.
func TestPatchOfOlderType(t *testing.T) {
	type old struct {
		Size int `json:"size"`
	}
	obj := &shaped[old]{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u", ResourceVersion: "1"}, copy: func(s old) old { return s }}
	r := &recorder[*shaped[old]]{}
	if _, err := status.Patch(t.Context(), r, obj, func(o *shaped[old]) { o.Status.Size = 4 }); err != nil {
		t.Fatal(err)
	}
	if got, want := string(r.data), `{"metadata":{"resourceVersion":"1","uid":"u"},"status":{"size":4}}`; got != want {
		t.Errorf("patch %s, want %s", got, want)
	}
}

// T can be an interface. An object whose DeepCopyObject returns another type is rejected.
func TestAnyKind(t *testing.T) {
	var obj controllerkit.Object = budget()
	r := &recorder[controllerkit.Object]{}
	if _, err := status.Patch(t.Context(), r, obj, func(o controllerkit.Object) { o.(*pdb).Status.CurrentHealthy = 2 }); err != nil || r.data != nil {
		t.Errorf("an equal status: %s, %v", r.data, err)
	}
	_, err := status.Patch(t.Context(), r, obj, func(o controllerkit.Object) { o.(*pdb).Status.CurrentHealthy = 1 })
	if want := `"status":{"currentHealthy":1}`; err != nil || !strings.Contains(string(r.data), want) {
		t.Errorf("the patch is %s, %v, want %s", r.data, err, want)
	}
	if got := obj.(*pdb).Status.CurrentHealthy; got != 2 {
		t.Errorf("the caller's object has %d", got)
	}

	type promoting struct{ policyv1.PodDisruptionBudget } // without a DeepCopyObject of its own
	const text = "DeepCopyObject of *status_test.promoting returns *v1.PodDisruptionBudget: generate it"
	wrong := &promoting{*budget()}
	_, err = status.Update(t.Context(), silent[*promoting]{t}, wrong, func(*promoting) {})
	refused(t, "a type", err, text)
	_, err = status.Update(t.Context(), silent[controllerkit.Object]{t}, controllerkit.Object(wrong), func(controllerkit.Object) {})
	refused(t, "an interface", err, text)
}
