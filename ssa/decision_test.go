package ssa_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/controllerkit/controllerkit/ssa"
)

// Decisions that only the one rule makes which is named. The first three columns are
// behind the metadata of the configuration and of live, and fieldsV1.
//
// Proves A2, A4.
func TestDecisions(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		config, live, fields string
		configMeta, liveMeta string
		others               string // fieldsV1 of another manager
		want                 bool   // it applies
		because              string
	}{
		{
			name:   "a stored and owned null",
			config: `,"spec":{"a":null}`, live: `,"spec":{"a":null}`, fields: `{"f:spec":{"f:a":{}}}`, want: false,
		},
		{
			name:   "a null that is not stored",
			config: `,"spec":{"a":null}`, live: `,"spec":{}`, fields: `{"f:spec":{"f:a":{}}}`, want: true, because: ".spec.a: null",
		},
		{
			name:   "a null in place of a value",
			config: `,"spec":{"a":null}`, live: `,"spec":{"a":1}`, fields: `{"f:spec":{"f:a":{}}}`, want: true, because: ".spec.a: null",
		},
		{
			name:   "an owned empty map value that is gone",
			config: `,"spec":{"maps":{"a":{}}}`, live: `,"spec":{"maps":{}}`, fields: `{"f:spec":{"f:maps":{"f:a":{}}}}`, want: true, because: ".spec.maps.a: empty, and not there",
		},
		{
			name:   "an owned empty map value",
			config: `,"spec":{"maps":{"a":{}}}`, live: `,"spec":{"maps":{"a":{}}}`, fields: `{"f:spec":{"f:maps":{"f:a":{}}}}`, want: false,
		},
		{
			name:       "a field that metadata does not have",
			configMeta: `,"labelz":{"a":"b"}`, fields: `{}`, want: true, because: ".metadata.labelz: not owned",
		},
		{
			name:       "a scalar that metadata does not have",
			configMeta: `,"generatName":"x"`, fields: `{}`, want: true, because: ".metadata.generatName: not owned",
		},
		{
			name:   "a zero of an unstructured object that is gone",
			config: `,"spec":{"a":false}`, live: `,"spec":{}`, fields: `{"f:spec":{"f:a":{}}}`, want: true, because: ".spec.a: empty, and not there",
		},
		{
			name:   "an item that is no object and cannot have the owned key",
			config: `,"spec":{"l":[""]}`, live: `,"spec":{"l":[""]}`, fields: `{"f:spec":{"f:l":{"k:{\"name\":\"\"}":{}}}}`, want: true, because: ".spec.l[]: an item is not owned",
		},
		{
			name:   "an item that omits a part of its key",
			config: `,"spec":{"l":[{"port":80}]}`, live: `,"spec":{"l":[{"port":80,"protocol":"TCP"}]}`,
			fields: `{"f:spec":{"f:l":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}}`, want: false,
		},
		{
			name:   "an item that omits an owned part of its key",
			config: `,"spec":{"l":[{"port":80}]}`, live: `,"spec":{"l":[{"port":80,"protocol":"TCP"}]}`,
			fields: `{"f:spec":{"f:l":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:protocol":{}}}}}`, want: true, because: "an item is not owned",
		},
		{
			name:   "an item with another part of its key",
			config: `,"spec":{"l":[{"port":80,"protocol":"UDP"}]}`, live: `,"spec":{"l":[{"port":80,"protocol":"UDP"}]}`,
			fields: `{"f:spec":{"f:l":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:protocol":{}}}}}`, want: true, because: "an item is not owned",
		},
		{
			name:   "too many values",
			config: `,"spec":{"a":1}`, live: `,"spec":{"a":1,"l":[0` + strings.Repeat(",0", 1<<15) + `]}`, fields: `{"f:spec":{"f:a":{}}}`, want: true, because: "too large",
		},
		{
			name:   "too many values in maps",
			config: `,"spec":{"a":1}`, live: `,"spec":{"a":1,"l":[{}` + strings.Repeat(`,{"a":0}`, 1<<14) + `]}`, fields: `{"f:spec":{"f:a":{}}}`, want: true, because: "too large",
		},
		{
			name:   "too deep",
			config: `,"spec":{"a":1}`, live: `,"spec":{"a":1,"l":` + strings.Repeat(`{"a":`, 600) + "1" + strings.Repeat("}", 600) + `}`, fields: `{"f:spec":{"f:a":{}}}`, want: true, because: "too large",
		},
		{
			name:   "a name with the separators of a path",
			config: `,"spec":{"x":{"y":{}}}`, live: `,"spec":{"x":{"y":{"evil":"1"}}}`, fields: `{"f:spec":{"f:x":{"f:y":{}}}}`, want: true, because: "empty, and only the API server knows whether it is atomic",
		},
		{
			name:       "labels that another manager owns, and that are not stored",
			configMeta: `,"labels":{}`, fields: `{"f:metadata":{"f:labels":{}}}`, others: `{"f:metadata":{"f:labels":{}}}`, want: true, because: "owned by others too",
		},
		{
			name:       "labels that are not stored",
			configMeta: `,"labels":{}`, fields: `{"f:metadata":{"f:labels":{}}}`, others: `{"f:metadata":{"f:annotations":{}}}`, want: false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := untypedObject(t, "example.com/v1", "Thing", tt.configMeta, tt.config, "")
			live := untypedObject(t, "example.com/v1", "Thing", tt.liveMeta, tt.live, tt.fields)
			if tt.others != "" {
				live.SetManagedFields(append(live.GetManagedFields(), entry("painter", "Apply", "example.com/v1", "", tt.others)))
			}
			memory := &ssa.Memory[*unstructured.Unstructured, *unstructured.Unstructured]{}
			// A hostile object of the kind teaches a Memory nothing about another object.
			hostile := untypedObject(t, "example.com/v1", "Thing", "", `,"spec":{"x\u0000y":{"k":"v"}}`, `{"f:spec":{"f:x\u0000y":{".":{},"f:k":{}}}}`)
			if _, _, err := memory.ApplyChanged(t.Context(), manager, (&untypedAnswers{answer: hostile}).Apply, hostileConfig(t), nil, nil); err != nil {
				t.Fatal(err)
			}
			ctx, why := because(t.Context())
			_, applied, err := memory.ApplyChanged(ctx, manager, (&untypedAnswers{answer: live}).Apply, config, live, nil)
			if err != nil || applied != tt.want || !strings.Contains(*why, tt.because) {
				t.Errorf("applied = %v because %s, error %v; want %v because %s", applied, *why, err, tt.want, tt.because)
			}
		})
	}
}

func hostileConfig(t *testing.T) *unstructured.Unstructured {
	return untypedObject(t, "example.com/v1", "Thing", "", `,"spec":{"x\u0000y":{"k":"v"}}`, "")
}

// A zero that the Go type of live does not write is there, also in embedded structs and
// behind pointers.
//
// Proves A2.
func TestTypedZero(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config *applyappsv1.DeploymentApplyConfiguration
		fields string
		want   bool
	}{
		{"paused: false", applyappsv1.Deployment("one", "default").WithSpec(applyappsv1.DeploymentSpec().WithPaused(false)), `{"f:spec":{"f:paused":{}}}`, false},
		{"minReadySeconds: 0", applyappsv1.Deployment("one", "default").WithSpec(applyappsv1.DeploymentSpec().WithMinReadySeconds(0)), `{"f:spec":{"f:minReadySeconds":{}}}`, false},
		{"generateName", applyappsv1.Deployment("one", "default").WithGenerateName(""), `{"f:metadata":{"f:generateName":{}}}`, false},
		{"replicas: 0, a pointer that is nil", applyappsv1.Deployment("one", "default").WithSpec(applyappsv1.DeploymentSpec().WithReplicas(0)), `{"f:spec":{"f:replicas":{}}}`, true},
		{"paused: true", applyappsv1.Deployment("one", "default").WithSpec(applyappsv1.DeploymentSpec().WithPaused(true)), `{"f:spec":{"f:paused":{}}}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			live := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "u", ManagedFields: []metav1.ManagedFieldsEntry{
				entry(string(manager), "Apply", "apps/v1", "", tt.fields),
			}}}
			request := (&answers[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]{answer: live}).Apply
			_, applied, err := ssa.ApplyChanged(t.Context(), manager, request, tt.config, live, applyappsv1.ExtractDeployment)
			if err != nil || applied != tt.want {
				t.Errorf("applied = %v, error %v, want %v", applied, err, tt.want)
			}
			// A zero that another manager owns too is taken from it by an apply.
			live.ManagedFields = append(live.ManagedFields, entry("painter", "Update", "apps/v1", "", tt.fields))
			if _, applied, err := ssa.ApplyChanged(t.Context(), manager, request, tt.config, live, applyappsv1.ExtractDeployment); err != nil || !applied {
				t.Errorf("owned by another manager too: applied = %v, error %v", applied, err)
			}
		})
	}
}

// An atomic field with more than the configuration has makes a difference.
//
// Proves A2, A4.
func TestAtomicField(t *testing.T) {
	labels := map[string]string{"a": "b"}
	config := applyappsv1.Deployment("one", "default").WithSpec(applyappsv1.DeploymentSpec().WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)))
	for _, tt := range []struct {
		live map[string]string
		want bool
	}{{labels, false}, {map[string]string{"a": "b", "c": "d"}, true}, {map[string]string{"a": "c"}, true}, {map[string]string{"c": "b"}, true}, {nil, true}} {
		live := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "u", ManagedFields: []metav1.ManagedFieldsEntry{
			entry(string(manager), "Apply", "apps/v1", "", `{"f:spec":{"f:selector":{}}}`),
		}}}
		live.Spec.Selector = &metav1.LabelSelector{MatchLabels: tt.live}
		request := (&answers[*appsv1.Deployment, *applyappsv1.DeploymentApplyConfiguration]{answer: live}).Apply
		_, applied, err := ssa.ApplyChanged(t.Context(), manager, request, config, live, applyappsv1.ExtractDeployment)
		if err != nil || applied != tt.want {
			t.Errorf("live has %v: applied = %v, error %v, want %v", tt.live, applied, err, tt.want)
		}
	}
}

// Raw JSON in a typed object can have a member twice. The last one counts for the API
// server, so no decision is made about such an object.
//
// Proves A4.
func TestDuplicateMembers(t *testing.T) {
	config := applyappsv1.ControllerRevision("one", "default").WithData(runtime.RawExtension{Raw: []byte(`{"a":1}`)})
	live := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "u", ManagedFields: []metav1.ManagedFieldsEntry{
		entry(string(manager), "Apply", "apps/v1", "", `{"f:data":{"f:a":{}}}`),
	}}}
	for raw, want := range map[string]bool{`{"a":1}`: false, `{"a":1,"a":2}`: true} {
		live.Data.Raw = []byte(raw)
		request := (&answers[*appsv1.ControllerRevision, *applyappsv1.ControllerRevisionApplyConfiguration]{answer: live}).Apply
		_, applied, err := ssa.ApplyChanged(t.Context(), manager, request, config, live, applyappsv1.ExtractControllerRevision)
		if err != nil || applied != want {
			t.Errorf("%s: applied = %v, error %v, want %v", raw, applied, err, want)
		}
	}
}

// The API server rejects a misspelt field of the metadata, so ApplyChanged must send it.
func TestServerStrictMetadata(t *testing.T) {
	s := newServer(t)
	c := newDynamic(t)
	live, err := ssa.Apply(t.Context(), manager, c.Apply, object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"`+s.namespace+`"},"data":{"a":"b"}}`))
	if err != nil {
		t.Fatal(err)
	}
	misspelt := object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"` + s.namespace + `","labelz":{"a":"b"}},"data":{"a":"b"}}`)
	if _, _, err := ssa.ApplyChanged(t.Context(), manager, c.Apply, misspelt, live, nil); !apierrors.IsBadRequest(err) && !strings.Contains(err.Error(), "labelz") {
		t.Errorf("error = %v, want one about labelz", err)
	}
}
