package ssa_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/controllerkit/controllerkit/ssa"
)

// answering is a client whose server answers one thing.
type answering struct{ answer *corev1.ConfigMap }

func (a *answering) Apply(context.Context, *config, metav1.ApplyOptions) (*corev1.ConfigMap, error) {
	return a.answer.DeepCopy(), nil
}

type configMapMemory = ssa.Memory[*corev1.ConfigMap, *config]

// A Memory knows what changed nothing by the resourceVersion, and by the content when
// that is all that changed. It forgets when anything else does.
func TestMemory(t *testing.T) {
	const other = "somebody"
	owned := []metav1.ManagedFieldsEntry{
		{Manager: string(manager), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:color":{}}}`)},
		{Manager: other, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:size":{}}}`)},
	}
	// The configuration is never found in it, so that only the memory can skip.
	live := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "a", ResourceVersion: "7", Generation: 1, ManagedFields: owned},
		Data:       map[string]string{"color": "as a webhook wants it", "size": "1"},
	}
	red := func() *config {
		return applycorev1.ConfigMap("one", "default").WithData(map[string]string{"color": "red"})
	}
	tests := []struct {
		name    string
		change  func(*corev1.ConfigMap)
		config  *config
		manager ssa.FieldManager
		typed   bool // live has apiVersion and kind, and the responses have none
		want    bool
	}{
		{name: "nothing", want: false},
		{name: "a value at the same resourceVersion, as after a restore of etcd", change: func(o *corev1.ConfigMap) { o.Data["size"] = "2" }, want: true},
		{name: "apiVersion and kind, which caches set", change: func(o *corev1.ConfigMap) { o.ResourceVersion = "8" }, want: false, typed: true},
		{name: "the resourceVersion", change: func(o *corev1.ConfigMap) { o.ResourceVersion, o.Generation = "8", 2 }, want: false},
		{name: "no managedFields any more", change: func(o *corev1.ConfigMap) { o.ManagedFields, o.ResourceVersion = nil, "8" }, want: true},
		{name: "who owns a status", want: false, change: func(o *corev1.ConfigMap) {
			o.ResourceVersion = "8"
			o.ManagedFields = append(o.ManagedFields, metav1.ManagedFieldsEntry{Manager: other, Subresource: "status", FieldsV1: metav1.NewFieldsV1(`{}`)})
		}},
		{name: "the time of an entry", want: false, change: func(o *corev1.ConfigMap) {
			o.ResourceVersion, o.ManagedFields[0].Time = "8", &metav1.Time{}
		}},
		{name: "the order of the entries, which the server moves with their times", want: false, change: func(o *corev1.ConfigMap) {
			o.ResourceVersion = "8"
			slices.Reverse(o.ManagedFields)
		}},
		{name: "the uid", change: func(o *corev1.ConfigMap) { o.UID = "b" }, want: true},
		{name: "a value", change: func(o *corev1.ConfigMap) { o.ResourceVersion, o.Data["size"] = "8", "2" }, want: true},
		{name: "a label", change: func(o *corev1.ConfigMap) { o.ResourceVersion, o.Labels = "8", map[string]string{"a": "b"} }, want: true},
		{name: "what is owned", want: true, change: func(o *corev1.ConfigMap) {
			o.ResourceVersion, o.ManagedFields[0].FieldsV1 = "8", metav1.NewFieldsV1(`{}`)
		}},
		{name: "what another owns", want: true, change: func(o *corev1.ConfigMap) {
			o.ResourceVersion, o.ManagedFields[1].FieldsV1 = "8", metav1.NewFieldsV1(`{"f:data":{"f:color":{}}}`)
		}},
		{name: "the configuration", config: red().WithLabels(map[string]string{"a": "b"}), want: true},
		{name: "the manager", manager: other, want: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			memory := &configMapMemory{}
			r := &answering{answer: live}
			before := live.DeepCopy()
			if tt.typed {
				before.APIVersion, before.Kind = "v1", "ConfigMap"
			}
			if _, applied, err := memory.ApplyChanged(t.Context(), manager, r.Apply, red(), before, nil); err != nil || !applied {
				t.Fatalf("first: applied = %v, error %v", applied, err)
			}
			then := before.DeepCopy()
			if tt.change != nil {
				tt.change(then)
			}
			c, fm := red(), manager
			if tt.config != nil {
				c = tt.config
			}
			if tt.manager != "" {
				fm = tt.manager
			}
			r.answer = then
			if _, applied, err := memory.ApplyChanged(t.Context(), fm, r.Apply, c, then, nil); err != nil || applied != tt.want {
				t.Errorf("applied = %v, error %v, want %v", applied, err, tt.want)
			}
		})
	}

	// A precondition is for the server to judge, whatever is remembered.
	memory := &configMapMemory{}
	r := &answering{answer: live}
	guarded := func() *config { return red().WithResourceVersion("7") }
	if _, _, err := memory.ApplyChanged(t.Context(), manager, r.Apply, guarded(), live, nil); err != nil {
		t.Fatal(err)
	}
	then := live.DeepCopy()
	then.ResourceVersion = "8"
	if _, applied, err := memory.ApplyChanged(t.Context(), manager, r.Apply, guarded(), then, nil); err != nil || !applied {
		t.Errorf("another resourceVersion than that of the configuration: applied = %v, error %v", applied, err)
	}
}

// A Memory holds as many objects as it may, and can be used by many at once.
func TestMemoryBounded(t *testing.T) {
	memory := &configMapMemory{Objects: 2}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 20 {
				live, c := applied(t)
				live.UID, live.Data["color"] = types.UID(fmt.Sprint(i)), "as a webhook wants it"
				if _, _, err := memory.ApplyChanged(t.Context(), manager, (&answering{answer: live}).Apply, c, live, nil); err != nil {
					t.Errorf("error %v", err)
				}
			}
		})
	}
	wg.Wait()
	for _, uid := range []types.UID{"b", "c"} {
		live, c := applied(t)
		live.UID, live.Data["color"] = uid, "as a webhook wants it"
		if _, _, err := memory.ApplyChanged(t.Context(), manager, (&answering{answer: live}).Apply, c, live, nil); err != nil {
			t.Errorf("error %v", err)
		}
		if n := memory.Len(); n != 2 {
			t.Errorf("%d objects are remembered, want 2", n)
		}
	}
}

// A change of the status ends the memory only of a configuration that has a status.
func TestMemoryStatus(t *testing.T) {
	for rest, want := range map[string]bool{`,"spec":{"a":1}`: false, `,"spec":{"a":1},"status":{"b":1}`: true} {
		memory := &ssa.Memory[*unstructured.Unstructured, *unstructured.Unstructured]{}
		var applied bool
		for _, status := range []string{`{"b":1}`, `{"b":1,"c":1}`} {
			config := untypedObject(t, "example.com/v1", "Thing", "", rest, "")
			live := untypedObject(t, "example.com/v1", "Thing", "", `,"spec":{"a":2},"status":`+status, `{"f:spec":{"f:a":{}}}`)
			var err error
			if _, applied, err = memory.ApplyChanged(t.Context(), manager, (&untypedAnswers{answer: live}).Apply, config, live, nil); err != nil {
				t.Fatal(err)
			}
		}
		if applied != want {
			t.Errorf("%s: applied = %v after a change of the status, want %v", rest, applied, want)
		}
	}
}

// moving is a server that moves the resourceVersion at each apply, and changes nothing
// else. What is applied is never found in its answers.
type moving struct {
	live *corev1.ConfigMap
	n    int
}

func (m *moving) Apply(context.Context, *config, metav1.ApplyOptions) (*corev1.ConfigMap, error) {
	m.n++
	m.live = m.live.DeepCopy()
	m.live.ResourceVersion = fmt.Sprint(m.n)
	return m.live, nil
}

// What moves the resourceVersion at each apply does not become a loop, though an
// informer drops the managedFields.
//
// Proves A4.
func TestMemoryWithoutManagedFields(t *testing.T) {
	server := &moving{live: &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "a", ResourceVersion: "0", ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: string(manager), Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:color":{}}}`)},
		}},
		Data: map[string]string{"color": "as a webhook wants it"},
	}}
	c := applycorev1.ConfigMap("one", "default").WithData(map[string]string{"color": "red"})
	memory := &configMapMemory{}
	reconcile := func(c *config) (applied bool) {
		live := server.live.DeepCopy()
		live.ManagedFields = nil
		_, applied, err := memory.ApplyChanged(t.Context(), manager, server.Apply, c, live, nil)
		if err != nil {
			t.Fatal(err)
		}
		return applied
	}
	for i, want := range []bool{true, false, false, false} {
		if got := reconcile(c); got != want {
			t.Errorf("reconcile %d: applied = %v, want %v", i, got, want)
		}
	}
	server.live.Data["size"], server.live.ResourceVersion = "1", "100"
	if !reconcile(c) {
		t.Error("another value: skipped")
	}
	if !reconcile(applycorev1.ConfigMap("one", "default").WithData(map[string]string{"color": "blue"})) {
		t.Error("another configuration: skipped")
	}
}

// A Memory applies again after ten minutes, because the schema of the kind can change
// while the object does not.
//
// Proves A4.
func TestMemoryExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := untypedObject(t, "example.com/v1", "Thing", "", `,"spec":{"a":[1]}`, `{"f:spec":{"f:a":{}}}`)
		config := untypedObject(t, "example.com/v1", "Thing", "", `,"spec":{"a":[1]}`, "")
		memory := &ssa.Memory[*unstructured.Unstructured, *unstructured.Unstructured]{}
		for i, want := range []bool{true, false, true} {
			_, applied, err := memory.ApplyChanged(t.Context(), manager, (&untypedAnswers{answer: live}).Apply, config, live, nil)
			if err != nil || applied != want {
				t.Errorf("apply %d: applied = %v, error %v, want %v", i, applied, err, want)
			}
			if i > 0 {
				time.Sleep(10 * time.Minute)
			}
		}
	})
}

// Kinds that the mapper does not know, and namespaces that do not fit, are errors that
// name the field, before a request.
//
// Proves CK2.
func TestDynamicBadInput(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	for _, tt := range []struct {
		name                  string
		apiVersion, kind      string
		objectName, namespace string
		text                  string
		noMatch               bool
	}{
		{name: "unknown kind", apiVersion: "v1", kind: "ConfigMop", objectName: "one", namespace: "default", text: `kind "ConfigMop"`, noMatch: true},
		{name: "unknown version", apiVersion: "v2", kind: "ConfigMap", objectName: "one", namespace: "default", text: "v2", noMatch: true},
		{name: "no namespace", apiVersion: "v1", kind: "ConfigMap", objectName: "one", text: "metadata.namespace"},
		{name: "a namespace too many", apiVersion: "v1", kind: "Namespace", objectName: "one", namespace: "default", text: "metadata.namespace"},
		{name: "no name", apiVersion: "v1", kind: "ConfigMap", namespace: "default", text: "metadata.name"},
		{name: "no kind", apiVersion: "v1", objectName: "one", namespace: "default", text: "kind"},
		{name: "no apiVersion", kind: "ConfigMap", objectName: "one", namespace: "default", text: "apiVersion"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
			c := &unstructured.Unstructured{Object: map[string]any{"apiVersion": tt.apiVersion, "kind": tt.kind, "metadata": map[string]any{"name": tt.objectName}}}
			c.SetNamespace(tt.namespace)
			_, err := ssa.Apply(t.Context(), manager, ssa.Dynamic(client, mapper), c)
			_, statusErr := ssa.Apply(t.Context(), manager, ssa.Dynamic(client, mapper, "status"), c)
			for _, err := range []error{err, statusErr} {
				if err == nil || !strings.Contains(err.Error(), tt.text) || meta.IsNoMatchError(err) != tt.noMatch {
					t.Errorf("error = %v, want one with %q, about no match: %v", err, tt.text, tt.noMatch)
				}
			}
			if n := len(client.Actions()); n > 0 {
				t.Errorf("%d requests", n)
			}
		})
	}
	withManagedFields := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "one", "managedFields": []any{}}}}
	if _, err := ssa.Apply(t.Context(), manager, ssa.Dynamic(dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), mapper), withManagedFields); err == nil || !strings.Contains(err.Error(), "metadata.managedFields") {
		t.Errorf("managedFields: error = %v", err)
	}
}
