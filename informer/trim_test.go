package informer_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
)

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

func fat() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "default", Name: "a", UID: "u", ResourceVersion: "42", Generation: 3,
		Labels:        map[string]string{"l": "1"},
		Annotations:   map[string]string{lastApplied: "{}", "keep": "me"},
		Finalizers:    []string{"f"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: metav1.NewFieldsV1(`{}`)}},
	}
}

func thin() metav1.ObjectMeta {
	m := fat()
	m.ManagedFields = nil
	m.Annotations = map[string]string{"keep": "me"}
	return m
}

func toUnstructured(t *testing.T, obj any) *unstructured.Unstructured {
	t.Helper()
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: m}
}

func TestTrim(t *testing.T) {
	tombstone := cache.DeletedFinalStateUnknown{Key: "default/a", Obj: &corev1.ConfigMap{ObjectMeta: fat()}}
	only := fat()
	only.Annotations = map[string]string{lastApplied: "{}"}
	onlyThin := thin()
	onlyThin.Annotations = nil
	for _, tc := range []struct {
		name      string
		obj, want any
	}{
		{name: "typed", obj: &corev1.ConfigMap{ObjectMeta: fat(), Data: map[string]string{"k": "v"}}, want: &corev1.ConfigMap{ObjectMeta: thin(), Data: map[string]string{"k": "v"}}},
		{name: "nothing else annotated", obj: &corev1.ConfigMap{ObjectMeta: only}, want: &corev1.ConfigMap{ObjectMeta: onlyThin}},
		{name: "metadata only", obj: &metav1.PartialObjectMetadata{ObjectMeta: fat()}, want: &metav1.PartialObjectMetadata{ObjectMeta: thin()}},
		{name: "unstructured", obj: toUnstructured(t, &corev1.ConfigMap{ObjectMeta: fat()}), want: toUnstructured(t, &corev1.ConfigMap{ObjectMeta: thin()})},
		{name: "unstructured, nothing else annotated", obj: toUnstructured(t, &corev1.ConfigMap{ObjectMeta: only}), want: toUnstructured(t, &corev1.ConfigMap{ObjectMeta: onlyThin})},
		{name: "unstructured without metadata", obj: &unstructured.Unstructured{Object: map[string]any{"kind": "X"}}, want: &unstructured.Unstructured{Object: map[string]any{"kind": "X"}}},
		{name: "tombstone", obj: tombstone, want: cache.DeletedFinalStateUnknown{Key: "default/a", Obj: &corev1.ConfigMap{ObjectMeta: fat()}}},
		{name: "string", obj: "x", want: "x"},
		{name: "nil"},
		{name: "nil, typed", obj: (*corev1.ConfigMap)(nil), want: (*corev1.ConfigMap)(nil)},
		{name: "nil, unstructured", obj: (*unstructured.Unstructured)(nil), want: (*unstructured.Unstructured)(nil)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range 2 { // the second time must change nothing
				got, err := informer.Trim(tc.obj)
				if err != nil {
					t.Fatalf("Trim() = %v", err)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("Trim() (-want +got):\n%s", diff)
				}
				tc.obj = got
			}
		})
	}
}

func TestTrimLeavesASharedMapAlone(t *testing.T) {
	shared := map[string]string{lastApplied: "{}", "keep": "me"}
	before := maps.Clone(shared)
	if _, err := informer.Trim(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: shared}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, shared); diff != "" {
		t.Errorf("the map of another object changed (-want +got):\n%s", diff)
	}
	u := toUnstructured(t, &corev1.ConfigMap{ObjectMeta: fat()})
	annotations := u.Object["metadata"].(map[string]any)["annotations"].(map[string]any)
	if _, err := informer.Trim(u); err != nil {
		t.Fatal(err)
	}
	if len(annotations) != 2 {
		t.Errorf("the map of another unstructured object changed: %v", annotations)
	}
}

// counted counts what is set on it.
type counted struct {
	metav1.ObjectMeta
	sets int
}

func (c *counted) SetManagedFields(f []metav1.ManagedFieldsEntry) {
	c.sets++
	c.ObjectMeta.SetManagedFields(f)
}

func (c *counted) SetAnnotations(a map[string]string) {
	c.sets++
	c.ObjectMeta.SetAnnotations(a)
}

func TestTrimSetsNothingTwice(t *testing.T) {
	obj := &counted{ObjectMeta: fat()}
	for range 3 {
		if _, err := informer.Trim(obj); err != nil {
			t.Fatal(err)
		}
		if obj.sets != 2 {
			t.Errorf("%d fields were set, want 2, once each", obj.sets)
		}
	}
}

// TestTrimOfATrimmedObjectOnlyReads fails under the race detector when Trim
// writes.
func TestTrimOfATrimmedObjectOnlyReads(t *testing.T) {
	typed := &corev1.ConfigMap{ObjectMeta: thin()}
	loose := toUnstructured(t, typed)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				_, _ = informer.Trim(typed)
				_, _ = informer.Trim(loose)
			}
		})
		wg.Go(func() {
			for range 1000 {
				_, _ = typed.DeepCopy(), loose.DeepCopy()
			}
		})
	}
	wg.Wait()
}

func TestTrimInAnInformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		obj := &corev1.ConfigMap{ObjectMeta: fat()}
		factory := informers.NewSharedInformerFactoryWithOptions(fake.NewClientset(obj), 0, informers.WithTransform(informer.Trim))
		inf := factory.Core().V1().ConfigMaps()
		var set informer.Set
		set.Add("configmaps", inf.Informer())
		ctx, stop := context.WithCancel(quiet(t))
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		<-set.HasSyncedChecker().Done()
		got, err := inf.Lister().ConfigMaps("default").Get("a")
		if err != nil {
			t.Fatal(err)
		}
		if got.ManagedFields != nil || len(got.Annotations) != 1 || got.ResourceVersion != "42" {
			t.Errorf("cached object has %d managedFields, annotations %v, resourceVersion %q", len(got.ManagedFields), got.Annotations, got.ResourceVersion)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}
