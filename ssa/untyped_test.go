package ssa_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/controllerkit/controllerkit/ssa"
)

// TestMembersTwice: a member that is there twice does not stand for another one that is
// owned.
//
// Proves A4.
func TestMembersTwice(t *testing.T) {
	live := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "u", ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: string(manager), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:a":{},"f:b":{}}}`),
		}}},
		Data: map[string]string{"a": "1", "b": "2"},
	}
	for data, want := range map[string]int{`{"a":"1","b":"2"}`: 0, `{"a":"1","a":"1"}`: 1} {
		config := &rawConfig{json.RawMessage(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"default","uid":"u"},"data":` + data + `}`)}
		client := &rawApplier{}
		_, applied, err := ssa.ApplyChanged(t.Context(), manager, client.Apply, config, live, nil)
		if err != nil || client.applied != want || applied != (want > 0) {
			t.Errorf("data %s: applied %t with %d requests, %v; want %d", data, applied, client.applied, err, want)
		}
	}
}

// Decisions about unstructured objects, without a memory.
//
// Proves A4 and CK2.
func TestUntyped(t *testing.T) {
	const owner = `,"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"o","uid":"x"}]`
	version := func(u *unstructured.Unstructured, apiVersion string) *unstructured.Unstructured {
		u.SetAPIVersion(apiVersion)
		return u
	}
	tests := []struct {
		name         string
		config, live *unstructured.Unstructured
		want         bool
		text         string // of the error
	}{
		{
			name: "the same", want: false,
			config: untypedObject(t, "v1", "ConfigMap", "", `,"data":{"a":"1"}`, ""),
			live:   untypedObject(t, "v1", "ConfigMap", "", `,"data":{"a":"1"}`, `{"f:data":{"f:a":{}}}`),
		},
		{
			name: "of another kind", text: `kind of the configuration of "one"`,
			config: untypedObject(t, "v1", "Secret", "", `,"data":{"a":"MQ=="}`, ""),
			live:   untypedObject(t, "v1", "ConfigMap", "", `,"data":{"a":"MQ=="}`, `{"f:data":{"f:a":{}}}`),
		},
		{
			name: "of another version, in which a value can mean something else", want: true,
			config: untypedObject(t, "example.com/v1", "Thing", "", `,"timeout":5`, ""),
			live:   version(untypedObject(t, "example.com/v1", "Thing", "", `,"timeout":5`, `{"f:timeout":{}}`), "example.com/v1beta1"),
		},
		{
			name: "an owner reference, which is owned as one in every kind", want: false,
			config: untypedObject(t, "example.com/v1", "Thing", owner, "", ""),
			live:   untypedObject(t, "example.com/v1", "Thing", owner, "", `{"f:metadata":{"f:ownerReferences":{"k:{\"uid\":\"x\"}":{}}}}`),
		},
		{
			name: "an owner reference that says something else", want: true,
			config: untypedObject(t, "example.com/v1", "Thing", strings.Replace(owner, `"o"`, `"p"`, 1), "", ""),
			live:   untypedObject(t, "example.com/v1", "Thing", owner, "", `{"f:metadata":{"f:ownerReferences":{"k:{\"uid\":\"x\"}":{}}}}`),
		},
		{
			name: "a Secret, with stringData", want: false,
			config: untypedObject(t, "v1", "Secret", "", `,"stringData":{"a":"1"}`, ""),
			live:   untypedObject(t, "v1", "Secret", "", `,"data":{"a":"MQ==","b":"Mg=="}`, `{"f:stringData":{"f:a":{}}}`),
		},
		{
			name: "a Secret, with another stringData", want: true,
			config: untypedObject(t, "v1", "Secret", "", `,"stringData":{"a":"1"}`, ""),
			live:   untypedObject(t, "v1", "Secret", "", `,"data":{"a":"Mg=="}`, `{"f:stringData":{"f:a":{}}}`),
		},
		{
			name: "a Secret that has lost its data", want: true,
			config: untypedObject(t, "v1", "Secret", "", `,"stringData":{"a":""}`, ""),
			live:   untypedObject(t, "v1", "Secret", "", ``, `{"f:stringData":{"f:a":{}}}`),
		},
		{
			name: "a Secret, with one key less of stringData", want: true,
			config: untypedObject(t, "v1", "Secret", "", `,"stringData":{"a":"1"}`, ""),
			live:   untypedObject(t, "v1", "Secret", "", `,"data":{"a":"MQ==","b":"Mg=="}`, `{"f:stringData":{"f:a":{},"f:b":{}}}`),
		},
		{
			name: "a Secret, with another key of stringData", want: true,
			config: untypedObject(t, "v1", "Secret", "", `,"stringData":{"a":"1"}`, ""),
			live:   untypedObject(t, "v1", "Secret", "", `,"data":{"a":"MQ==","b":"MQ=="}`, `{"f:stringData":{"f:b":{}}}`),
		},
		{
			name: "managedFields", text: "metadata.managedFields",
			config: untypedObject(t, "v1", "ConfigMap", `,"managedFields":[]`, "", ""),
			live:   untypedObject(t, "v1", "ConfigMap", "", "", `{}`),
		},
		{
			name: "a Secret of another group, with stringData", want: false,
			config: untypedObject(t, "example.com/v1", "Secret", "", `,"stringData":{"a":"1"}`, ""),
			live:   untypedObject(t, "example.com/v1", "Secret", "", `,"stringData":{"a":"1"}`, `{"f:stringData":{"f:a":{}}}`),
		},
		{
			name: "a Secret of another group, whose data are the same and whose stringData are not", want: true,
			config: untypedObject(t, "example.com/v1", "Secret", "", `,"stringData":{"a":"1"}`, ""),
			live:   untypedObject(t, "example.com/v1", "Secret", "", `,"stringData":{"a":"2"},"data":{"a":"MQ=="}`, `{"f:stringData":{"f:a":{}}}`),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := &untypedAnswers{answer: tt.live}
			_, applied, err := ssa.ApplyChanged(t.Context(), manager, client.Apply, tt.config, tt.live, nil)
			if (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Fatalf("error = %v, want one with %q", err, tt.text)
			}
			if applied != tt.want || (client.n > 0) != tt.want {
				t.Errorf("applied = %v with %d requests, want %v", applied, client.n, tt.want)
			}
			if applied && (client.config.GetUID() != tt.live.GetUID() || tt.config.GetUID() != "") {
				t.Errorf("sent uid %q, want that of live, and the configuration unchanged", client.config.GetUID())
			}
		})
	}
}

// contents is a configuration that has contents, and cannot be given others.
type contents struct{ content map[string]any }

func (c contents) UnstructuredContent() map[string]any { return c.content }

// A configuration that cannot take the uid of live is not sent without: it would bring
// back what was deleted.
//
// Proves A3 and CK2.
func TestNoUID(t *testing.T) {
	live := untypedObject(t, "v1", "ConfigMap", "", `,"data":{"a":"1"}`, `{"f:data":{"f:b":{}}}`)
	check := func(name string, applied bool, err error, requests int, guarded bool) {
		t.Helper()
		if applied != guarded || guarded != (err == nil && requests == 1) || !guarded && (requests > 0 || err == nil || !strings.Contains(err.Error(), "metadata.uid")) {
			t.Errorf("%s: %d requests, error %v", name, requests, err)
		}
	}
	of := &untypedAnswers{answer: live}
	_, applied, err := ssa.ApplyChanged(t.Context(), manager, of.Apply, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": "one"}}}, live, nil)
	check("metadata of another type", applied, err, of.n, false)

	valued := &answers[*unstructured.Unstructured, contents]{answer: live}
	_, applied, err = ssa.ApplyChanged(t.Context(), manager, valued.Apply, contents{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "one"}}}, live, nil)
	check("no pointer", applied, err, valued.n, false)

	raw := &answers[*unstructured.Unstructured, *rawConfig]{answer: live}
	_, applied, err = ssa.ApplyChanged(t.Context(), manager, raw.Apply, &rawConfig{json.RawMessage(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"}}`)}, live, nil)
	check("raw", applied, err, raw.n, false)
	_, applied, err = ssa.ApplyChanged(t.Context(), manager, raw.Apply, &rawConfig{json.RawMessage(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","uid":"a"}}`)}, live, nil)
	check("raw, with the uid", applied, err, raw.n, true)
}

// wrapped has its metadata behind a pointer.
type wrapped struct{ *corev1.ConfigMap }

// A copy of such an object shares its metadata, which must not be changed.
//
// Proves CK1.
func TestWrapped(t *testing.T) {
	live, c := applied(t)
	before := live.DeepCopy()
	client := &answers[*wrapped, *config]{answer: &wrapped{live}}
	if _, applied, err := ssa.ApplyChanged(t.Context(), manager, client.Apply, c, &wrapped{live}, nil); err != nil || !applied {
		t.Errorf("applied = %v, error %v", applied, err)
	}
	if diff := cmp.Diff(before, live); diff != "" {
		t.Errorf("live changed (-before +after):\n%s", diff)
	}
}

// An answer of nothing is no panic.
func TestNoAnswer(t *testing.T) {
	live, c := applied(t)
	live.Data["color"] = "blue"
	memory := &configMapMemory{}
	if answer, applied, err := memory.ApplyChanged(t.Context(), manager, (&answers[*corev1.ConfigMap, *config]{}).Apply, c, live, nil); answer != nil || err != nil || !applied {
		t.Errorf("answer %v, applied = %v, error %v", answer, applied, err)
	}
}

// To find that everything differs takes no longer than to find that nothing does.
func TestManyDifferences(t *testing.T) {
	data := func(prefix string) map[string]string {
		m := map[string]string{}
		for i := range 10_000 {
			m[fmt.Sprint(prefix, i)] = ""
		}
		return m
	}
	fields := map[string]any{}
	for name := range data("a") {
		fields["f:"+name] = struct{}{}
	}
	b, err := json.Marshal(map[string]any{"f:data": fields})
	if err != nil {
		t.Fatal(err)
	}
	live := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "a", ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: string(manager), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(string(b)),
		}}},
		Data: data("a"),
	}
	decide := func(prefix string, want bool) time.Duration {
		c := applycorev1.ConfigMap("one", "default").WithData(data(prefix))
		start := time.Now()
		if _, applied, err := ssa.ApplyChanged(t.Context(), manager, (&recorder{}).Apply, c, live, nil); err != nil || applied != want {
			t.Fatalf("applied = %v, error %v, want %v", applied, err, want)
		}
		return time.Since(start)
	}
	// The best of several: other work of the machine can stop each.
	same, differ := decide("a", false), decide("b", true)
	for try := 1; try < 10 && differ > 20*same; try++ {
		same, differ = min(same, decide("a", false)), min(differ, decide("b", true))
	}
	if differ > 20*same {
		t.Errorf("%s where everything differs, %s where nothing does", differ, same)
	}
}
