package applyset_test

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// An object that the API server does not know the kind of, or does not find valid, is
// tried a second time if the batch has its CustomResourceDefinition, and once if not.
func TestBatchAgain(t *testing.T) {
	paints := schema.GroupResource{Group: "example.com", Resource: "paints"}
	unserved := apierrors.NewGenericServerResponse(404, "PATCH", schema.GroupResource{}, "", "404 page not found", 0, true)
	undeclared := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500, Message: "failed to create typed patch object (a/one; example.com/v1, Kind=Paint): .spec.gloss: field not declared in schema"}}
	tests := []struct {
		name    string
		answers []error
		alone   bool // without the CustomResourceDefinition
		stop    time.Duration
		want    error
		tries   int
		took    time.Duration
	}{
		{name: "fine", answers: []error{nil}, tries: 1},
		{name: "not served yet", answers: []error{unserved, nil}, tries: 2, took: time.Second},
		{name: "a new field", answers: []error{undeclared, nil}, tries: 2, took: time.Second},
		{name: "a new value", answers: []error{apierrors.NewInvalid(schema.GroupKind{}, "one", nil), nil}, tries: 2, took: time.Second},
		{name: "never served", answers: []error{unserved, unserved}, want: unserved, tries: 2, took: time.Second},
		{name: "another error then", answers: []error{unserved, errBoom}, want: errBoom, tries: 2, took: time.Second},
		{name: "forbidden", answers: []error{apierrors.NewForbidden(paints, "one", errBoom)}, want: errBoom, tries: 1},
		{name: "no namespace", answers: []error{apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "a")}, want: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "a"), tries: 1},
		{name: "another's kind", alone: true, answers: []error{unserved}, want: unserved, tries: 1},
		{name: "stopped", answers: []error{unserved}, stop: time.Second / 2, want: unserved, tries: 1, took: time.Second / 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				client := fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
					if name != "one" {
						return object(`{"metadata":{"name":"%s"},"status":{"conditions":[{"type":"Established","status":"True"}]}}`, name), nil
					}
					tries++
					return object(`{"metadata":{"name":"one"}}`), tt.answers[tries-1]
				}}
				mapper := batchMapper(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"})
				mapper.Reset()
				b := &applyset.Batch{Client: client, Mapper: mapper, Manager: manager}
				ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tt.stop, time.Hour))
				defer cancel()
				objects := []any{object(`{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"one","namespace":"a"}}`), applycorev1.ConfigMap("two", "a")}
				if !tt.alone {
					objects = append(objects, object(paintCRD, "example.com", "example.com"))
				}
				start := time.Now()
				answers, err := b.Apply(ctx, objects...)
				if took := time.Since(start); tries != tt.tries || took != tt.took {
					t.Errorf("%d tries in %v, want %d in %v", tries, took, tt.tries, tt.took)
				}
				all := objectErrors(t, err)
				if o := all[0]; (o == nil) != (tt.want == nil) || (answers[0] == nil) != (tt.want != nil) || o != nil && !strings.Contains(o.Error(), tt.want.Error()) || answers[1] == nil {
					t.Errorf("answers %v, error %v, want %v", answers, err, tt.want)
				}
			})
		})
	}
}

// An object that was tried keeps the error of that, although the context ended before
// it was tried again.
func TestBatchAgainStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		tries := 0
		client := fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
			if name != "one" && name != "two" {
				return object(`{"metadata":{"name":"%s"},"status":{"conditions":[{"type":"Established","status":"True"}]}}`, name), nil
			}
			if tries++; tries == 3 {
				cancel()
			}
			return nil, apierrors.NewInvalid(schema.GroupKind{}, name, nil)
		}}
		b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager, Concurrency: 1}
		paint := `{"apiVersion":"example.com/v1","kind":"Paint","metadata":{"name":"%s","namespace":"a"}}`
		_, err := b.Apply(ctx, object(paint, "one"), object(paint, "two"), object(paintCRD, "example.com", "example.com"))
		if all := objectErrors(t, err); tries != 3 || !apierrors.IsInvalid(all[0]) || !apierrors.IsInvalid(all[1]) {
			t.Errorf("%d tries, error %v, want 3 and two Invalid", tries, err)
		}
	})
}

// A Namespace that is being deleted takes all with it: nothing is applied into it.
//
// Proves AS1.
func TestBatchTerminating(t *testing.T) {
	second := 0
	client := fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
		if name != "a" {
			second++
		}
		return object(`{"metadata":{"name":"%s","deletionTimestamp":"2020-01-01T00:00:00Z"}}`, name), nil
	}}
	b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager}
	answers, err := b.Apply(t.Context(), applycorev1.ConfigMap("one", "a"), applycorev1.Namespace("a"))
	all := objectErrors(t, err)
	if len(all) != 2 || !errors.Is(all[0], applyset.ErrNotTried) || !strings.Contains(all[1].Error(), "being deleted") || answers[1] != nil || second != 0 {
		t.Errorf("answers %v with %d requests of the second stage, error %v", answers, second, err)
	}
	if kube.Waits(err) != 5*time.Second {
		t.Errorf("error %v waits %v, want 5s", err, kube.Waits(err))
	}
}

// An API server that does not serve the kind has not looked for the object.
func TestBatchDeleteUnserved(t *testing.T) {
	unserved := apierrors.NewGenericServerResponse(404, "DELETE", schema.GroupResource{}, "", "404 page not found", 0, true)
	mapper := batchMapper(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Paint"}, schema.GroupVersionKind{Group: "example.com", Version: "v3", Kind: "Paint"})
	mapper.Reset()
	b := &applyset.Batch{Client: fakeClient{delete: func(string) error { return unserved }}, Mapper: mapper}
	for version, want := range map[string]string{"v1": "", "v3": "does not serve example.com/v3"} {
		crd := object(paintCRD, "example.com", "example.com")
		crd.SetUID("u")
		paint := object(`{"apiVersion":"example.com/%s","kind":"Paint","metadata":{"name":"one","namespace":"a","uid":"u"}}`, version)
		err := b.Delete(t.Context(), metav1.DeletePropagationBackground, paint)
		if all := objectErrors(t, err); all[0] == nil || !apierrors.IsNotFound(all[0]) || !strings.Contains(all[0].Error(), "does not serve") {
			t.Errorf("%s: error %v, want one that says that it is not served", version, err)
		}
		// The kind went with its CustomResourceDefinition, in the versions that this has.
		client := fakeClient{delete: func(name string) error {
			if name == "one" {
				return unserved
			}
			return apierrors.NewNotFound(schema.GroupResource{}, name)
		}}
		err = (&applyset.Batch{Client: client, Mapper: mapper}).Delete(t.Context(), metav1.DeletePropagationBackground, paint, crd)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s, and its CustomResourceDefinition: error %v, want %q", version, err, want)
		}
	}
}

// What a Conflict at a deletion is about is looked up.
func TestBatchDeleteConflict(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{}, "one", errBoom)
	tests := []struct {
		name string
		get  func(context.Context, string) (*unstructured.Unstructured, error)
		want func(error) bool
	}{
		{name: "replaced", get: func(context.Context, string) (*unstructured.Unstructured, error) {
			return object(`{"metadata":{"name":"one","uid":"v"}}`), nil
		}, want: func(err error) bool { return err == nil }},
		{name: "gone", get: func(_ context.Context, name string) (*unstructured.Unstructured, error) {
			return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
		}, want: func(err error) bool { return err == nil }},
		{name: "there", get: func(context.Context, string) (*unstructured.Unstructured, error) {
			return object(`{"metadata":{"name":"one","uid":"u"}}`), nil
		}, want: apierrors.IsConflict},
		{name: "who knows", get: func(context.Context, string) (*unstructured.Unstructured, error) { return nil, errBoom }, want: func(err error) bool {
			return apierrors.IsConflict(err) && errors.Is(err, errBoom)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := &applyset.Batch{Client: fakeClient{delete: func(string) error { return conflict }, get: tt.get}, Mapper: batchMapper()}
			err := b.Delete(t.Context(), metav1.DeletePropagationOrphan, applycorev1.ConfigMap("one", "a").WithUID(types.UID("u")))
			if !tt.want(err) {
				t.Errorf("error = %v", err)
			}
		})
	}
}

// A client that ends its goroutine is an error of its object, and no success.
func TestClientExits(t *testing.T) {
	client := fakeClient{patch: func(name string) (*unstructured.Unstructured, error) {
		if name == "object-1" {
			runtime.Goexit()
		}
		return object(`{"metadata":{"name":"%s"}}`, name), nil
	}}
	b := &applyset.Batch{Client: client, Mapper: batchMapper(), Manager: manager}
	answers, err := b.Apply(t.Context(), configMaps(2, "a")...)
	all := objectErrors(t, err)
	if answers[0] == nil || all[0] != nil || all[1] == nil || !strings.Contains(all[1].Error(), "runtime.Goexit") {
		t.Errorf("answers %v, error %v, want an error that names runtime.Goexit for the second object", answers, err)
	}
}
