package status_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/status"
)

// observing is an object of generation 5 with a condition Ready for it and what else
// is in the list.
func observing(t *testing.T, beside string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(`{"apiVersion":"example.com/v1","kind":"Widget",
		"metadata":{"name":"one","namespace":"default","uid":"u","resourceVersion":"1","generation":5},
		"status":{"observedGeneration":5,"conditions":[{"type":"Ready","status":"True","reason":"Fine","message":"","observedGeneration":5,"lastTransitionTime":"2026-01-01T00:00:00Z"}`+beside+`]}}`), u); err != nil {
		t.Fatal(err)
	}
	return u
}

// showing gives the first condition another observedGeneration and status.
func showing(generation any) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		first := list[0].(map[string]any)
		first["observedGeneration"], first["status"] = generation, "False"
		_ = unstructured.SetNestedSlice(u.Object, list, "status", "conditions")
	}
}

// unreadable are conditions that others can store where the schema lets them pass,
// and that no metav1.Condition can hold.
var unreadable = []string{
	`,{"type":"Foreign","status":"True","lastTransitionTime":""}`,
	`,{"type":"Foreign","status":"True","lastTransitionTime":"yesterday"}`,
	`,{"type":"Foreign","status":"True","lastTransitionTime":"2026-01-01t00:00:00z"}`, // which the format date-time allows
	`,{"type":"Foreign","status":"True","observedGeneration":"many"}`,
	`,{"type":"Foreign","status":"True","observedGeneration":"7"}`,
	`,{"type":"Foreign","status":"True","observedGeneration":1.5}`,
	`,{"type":"Foreign","status":true}`,
	`,{"type":7}`,
	`,{"type":{"a":["b"]},"observedGeneration":{}}`,
	`,"text"`,
	`,null`,
}

// One condition that cannot be read does not turn the check of the others off, and
// does not stop the writes of them.
//
// Proves S4.
func TestForeignCondition(t *testing.T) {
	for _, beside := range append([]string{""}, unreadable...) {
		obj := observing(t, beside)
		for _, tt := range []struct {
			generation any
			text       string
		}{
			{int64(3), `condition "Ready" shows generation 5, this result is for generation 3`},
			{nil, `condition "Ready" shows generation 5, this result is for generation 0`},
			{"4", `condition "Ready" shows generation 5, this result is for generation 4`},
			{int64(99), `condition "Ready" would show generation 99 of an object with metadata.generation 5`},
			{"10", `condition "Ready" would show generation 10 of an object with metadata.generation 5`},
			{"many", `condition "Ready" shows generation 5, this result is for generation 0`},
			{int64(5), ""},
			{"5", ""},
		} {
			if tt.text == "" {
				r := &recorder[*unstructured.Unstructured]{}
				_, err := status.Patch(t.Context(), r, obj, showing(tt.generation))
				if refused(t, beside, err, ""); r.data == nil {
					t.Errorf("beside %s: no patch to %v", beside, tt.generation)
				}
				continue
			}
			_, err := status.Update(t.Context(), silent[*unstructured.Unstructured]{t}, obj, showing(tt.generation))
			refused(t, "Update beside "+beside, err, tt.text)
			_, err = status.Patch(t.Context(), silent[*unstructured.Unstructured]{t}, obj, showing(tt.generation))
			refused(t, "Patch beside "+beside, err, tt.text)
		}
	}
}

// An observedGeneration that is not a number is refused from the caller, and left
// alone where it was.
//
// Proves S4.
func TestUnreadableGeneration(t *testing.T) {
	obj := observing(t, "")
	for _, value := range []any{"many", 5.5, true, []any{}, map[string]any{}} {
		_, err := status.Patch(t.Context(), silent[*unstructured.Unstructured]{t}, obj, func(u *unstructured.Unstructured) {
			list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
			list = append(list, map[string]any{"type": "New", "observedGeneration": value})
			_ = unstructured.SetNestedSlice(u.Object, list, "status", "conditions")
		})
		refused(t, "a condition", err, `condition "New" would show generation`)
		blank := observing(t, "")
		delete(blank.Object["status"].(map[string]any), "observedGeneration")
		_, err = status.Patch(t.Context(), silent[*unstructured.Unstructured]{t}, blank, func(u *unstructured.Unstructured) {
			u.Object["status"].(map[string]any)["observedGeneration"] = value
		})
		refused(t, "the status", err, `status.observedGeneration would show generation`)
	}

	// That of conditions of another type in Go counts too.
	type other struct {
		Conditions []struct {
			Type               string `json:"type"`
			ObservedGeneration int32  `json:"observedGeneration"`
		} `json:"conditions"`
	}
	three := other{}
	if err := json.Unmarshal([]byte(`{"conditions":[{"type":"Ready","observedGeneration":3}]}`), &three); err != nil {
		t.Fatal(err)
	}
	back(t, "conditions of another type", three, func(s other) other {
		c := other{}
		c.Conditions = append(c.Conditions, s.Conditions...)
		return c
	}, func(s other) other { s.Conditions[0].ObservedGeneration = 2; return s })
}

// Only the highest observedGeneration of a type is checked, and only in status.conditions.
//
// Proves S4.
func TestCheckedGenerations(t *testing.T) {
	nested := `{"conditions":[{"type":"A","observedGeneration":5}],"listeners":[{"conditions":[{"type":"A","observedGeneration":%s}]}]}`
	twice := `{"conditions":[{"type":"A","observedGeneration":%s},{"type":"A","observedGeneration":%s}]}`
	for _, tt := range []struct{ name, before, after, text string }{
		{"nested, lowered", fmt.Sprintf(nested, "5"), fmt.Sprintf(nested, "4"), ""},
		{"nested, raised", fmt.Sprintf(nested, "5"), fmt.Sprintf(nested, "6"), ""},
		{"twice, the highest lowered", fmt.Sprintf(twice, "3", "5"), fmt.Sprintf(twice, "3", "4"), `condition "A" shows generation 5`},
		{"twice, the other one lowered", fmt.Sprintf(twice, "3", "5"), fmt.Sprintf(twice, "2", "5"), ""},
		{"twice, the other one raised", fmt.Sprintf(twice, "3", "5"), fmt.Sprintf(twice, "6", "5"), `condition "A" would show generation 6`},
	} {
		obj := observing(t, "")
		content := func(text string) (status map[string]any) {
			if err := json.Unmarshal([]byte(text), &status); err != nil {
				t.Fatal(err)
			}
			return status
		}
		obj.Object["status"] = content(tt.before)
		r := &recorder[*unstructured.Unstructured]{}
		_, err := status.Patch(t.Context(), r, obj, func(u *unstructured.Unstructured) { u.Object["status"] = content(tt.after) })
		refused(t, tt.name, err, tt.text)
	}
}

// Apply changes its own conditions beside those that cannot be read, and repairs one
// of its own type.
//
// Proves S3 and S4.
func TestApplyBesideForeign(t *testing.T) {
	for _, beside := range unreadable[:9] { // the others are no conditions to any list
		obj := observing(t, beside)
		sent := 0
		c := anyApplier(func(config *unstructured.Unstructured) {
			sent++
			list, _, _ := unstructured.NestedSlice(config.Object, "status", "conditions")
			if len(list) != 1 || list[0].(map[string]any)["type"] != "Foreign" || list[0].(map[string]any)["lastTransitionTime"] == "" {
				t.Errorf("beside %s: sent %v, want the one condition", beside, list)
			}
		})
		blank := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": "default"}}}
		_, err := status.Apply(t.Context(), "m", c, obj, blank, status.False("Foreign", "Mended", ""))
		if strings.Contains(beside, `"7"`) {
			refused(t, beside, err, "shows generation 7, this result is for generation 5")
			continue
		}
		if refused(t, beside, err, ""); sent != 1 {
			t.Errorf("beside %s: %d requests, want 1", beside, sent)
		}
	}
}

type anyApplier func(*unstructured.Unstructured)

func (f anyApplier) ApplyStatus(_ context.Context, config *unstructured.Unstructured, _ metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	f(config)
	return config, nil
}

// The schema of the server accepts such conditions: the harm is there, and the generations
// hold all the same.
//
// Proves S4.
func TestServerForeignCondition(t *testing.T) {
	t.Parallel()
	dyn, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	const group = "foreign.status.controllerkit.dev"
	d := definition(group)
	items := at(d.Object, "spec", "versions", "schema", "openAPIV3Schema", "properties", "status", "properties", "conditions", "items")
	delete(at(items, "properties", "lastTransitionTime"), "format")
	items["required"] = []any{"type"}
	testserver.InstallCRD(t, d.Object)
	resource := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	namespace := testserver.Namespace(t)
	c := dyn.Resource(resource).Namespace(namespace)
	blank := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": namespace},
	}}
	createServed(t, c, blank)
	for _, size := range []string{"1", "2", "3", "4"} {
		if _, err = c.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"spec":{"size":`+size+`}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const ready = `{"type":"Ready","status":"True","reason":"Fine","message":"","observedGeneration":5,"lastTransitionTime":"2026-01-01T00:00:00Z"}`
	for _, beside := range []string{"", unreadable[0], unreadable[1], unreadable[2]} {
		obj, err := c.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"status":{"conditions":[`+ready+beside+`]}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
		if beside != "" {
			var typed struct {
				Status struct {
					Conditions []metav1.Condition `json:"conditions"`
				} `json:"status"`
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &typed); err == nil {
				t.Errorf("%s is read by a typed client: the check reports what is no harm", beside)
			}
		}
		_, err = status.Update(t.Context(), c, obj, showing(int64(3)))
		refused(t, "Update beside "+beside, err, "shows generation 5")
		_, err = status.Patch(t.Context(), c, obj, showing(int64(3)))
		refused(t, "Patch beside "+beside, err, "shows generation 5")
		if _, err = status.Apply(t.Context(), "m", applier{c}, obj, blank, status.True("Mine", "Fine", beside)); err != nil {
			t.Errorf("Apply beside %s: %v", beside, err)
		}
	}
	live, err := c.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
	if list[0].(map[string]any)["observedGeneration"] != int64(5) {
		t.Errorf("conditions %v, want Ready for generation 5", list)
	}
}
