package applyset_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// TryApply rejects an apply that would replace a map in which another manager owns fields.
// The API server reports no conflict for it.
func TestBatchTaken(t *testing.T) {
	live := object(`{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"one","namespace":"a","uid":"u","resourceVersion":"1","managedFields":[
		{"manager":"painter","operation":"Apply","apiVersion":"example.com/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:conf":{"f:host":{}}}}}
	]},"spec":{"conf":{"host":"db"}}}`)
	for _, tt := range []struct {
		conf     string
		conflict bool
	}{
		{conf: `"text"`, conflict: true},
		{conf: `["l"]`, conflict: true},
		{conf: `{"port":1}`},
	} {
		t.Run(tt.conf, func(t *testing.T) {
			patches := 0
			client := fakeClient{
				get: func(context.Context, string) (*unstructured.Unstructured, error) { return live.DeepCopy(), nil },
				patch: func(string) (*unstructured.Unstructured, error) {
					patches++
					return live.DeepCopy(), nil
				},
			}
			mapper := batchMapper(live.GroupVersionKind())
			mapper.Reset()
			b := &applyset.Batch{Client: client, Mapper: mapper, Manager: manager}
			_, err := b.TryApply(t.Context(), object(`{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"one","namespace":"a"},"spec":{"conf":%s}}`, tt.conf))
			cause, _ := apierrors.StatusCause(err, metav1.CauseTypeFieldManagerConflict)
			if tt.conflict && (patches != 0 || cause.Field != ".spec.conf" || !strings.Contains(cause.Message, `"painter"`)) {
				t.Errorf("%d patches, error %v, want none and a conflict with painter about .spec.conf", patches, err)
			}
			if !tt.conflict && (patches != 1 || err != nil) {
				t.Errorf("%d patches, error %v, want one and no error", patches, err)
			}
		})
	}
}

// If the context ends between the read and the apply, TryApply does not apply.
func TestBatchTryStopped(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		live := object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"a","uid":"u","resourceVersion":"1","managedFields":[
			{"manager":"painter","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:color":{}}}}
		]}}`)
		patches := 0
		client := fakeClient{
			get: func(context.Context, string) (*unstructured.Unstructured, error) {
				if stopped {
					cancel()
				}
				return live.DeepCopy(), nil
			},
			patch: func(string) (*unstructured.Unstructured, error) {
				patches++
				return live.DeepCopy(), nil
			},
		}
		b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager}
		_, err := b.TryApply(ctx, object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"a"},"data":{"size":"1"}}`))
		if errors.Is(err, context.Canceled) != stopped || (patches == 0) != stopped {
			t.Errorf("stopped %t: error %v and %d patches", stopped, err, patches)
		}
	}
}

// TryApply applies without a live object only if the API server says that there is none.
func TestBatchTryUnread(t *testing.T) {
	unserved := apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Resource: "configmaps"}, "one", "", 0, true)
	resource := schema.GroupResource{Resource: "configmaps"}
	for _, tt := range []struct {
		read    error
		patches int
	}{
		{read: apierrors.NewNotFound(resource, "one"), patches: 1},
		{read: unserved, patches: 1},
		{read: apierrors.NewNotFound(resource, "two"), patches: 0}, // of a proxy
		{read: apierrors.NewForbidden(resource, "one", errors.New("no Role")), patches: 0},
	} {
		patches := 0
		b := &applyset.Batch{Mapper: batchMapper(), Manager: manager, Client: fakeClient{
			get:   func(context.Context, string) (*unstructured.Unstructured, error) { return nil, tt.read },
			patch: func(string) (*unstructured.Unstructured, error) { patches++; return &unstructured.Unstructured{}, nil },
		}}
		_, err := b.TryApply(t.Context(), object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"a"}}`))
		if patches != tt.patches || errors.Is(err, tt.read) != (tt.patches == 0) {
			t.Errorf("%v: %d patches, error %v", tt.read, patches, err)
		}
	}
}

// The kinds of a CustomResourceDefinition of the batch are known with their scope, and
// those of a malformed one are not. Every error names its object.
//
// Proves CK2.
func TestBatchDefines(t *testing.T) {
	const paint = `{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"one"}}`
	const inNamespace = `{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"one","namespace":"a"}}`
	for _, tt := range []struct {
		name     string
		old, new string // in the CustomResourceDefinition
		object   string
		want     string // "" means no error
	}{
		{name: "namespaced", object: inNamespace},
		{name: "namespaced, without namespace", object: paint, want: "applyset: Paint one (object 0 of the batch): metadata.namespace"},
		{name: "cluster-scoped", old: `"Namespaced"`, new: `"Cluster"`, object: paint},
		{name: "cluster-scoped, with namespace", old: `"Namespaced"`, new: `"Cluster"`, object: inNamespace, want: "applyset: Paint a/one (object 0 of the batch): metadata.namespace"},
		{name: "no plural", old: `"plural":"paints"`, new: `"plural":""`, object: inNamespace, want: "applyset: Paint a/one (object 0 of the batch): apiVersion and kind"},
		{name: "no kind", old: `"kind":"Paint"`, new: `"kind":""`, object: inNamespace, want: "applyset: Paint a/one (object 0 of the batch): apiVersion and kind"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
				return object(`{"metadata":{"name":"%s"},"status":{"conditions":[{"type":"Established","status":"True"}]}}`, name), nil
			}}
			b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager}
			crd := strings.ReplaceAll(paintCRD, "%s", "example.com")
			if tt.old != "" {
				if crd = strings.Replace(crd, tt.old, tt.new, 1); !strings.Contains(crd, tt.new) {
					t.Fatalf("the definition has no %s", tt.old)
				}
			}
			_, err := b.Apply(t.Context(), object("%s", tt.object), object("%s", crd))
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error = %v, want %s", err, tt.want)
			}
		})
	}
}
