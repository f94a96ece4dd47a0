package informer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// wrapped has its metadata one level deeper than API types do.
type wrapped struct {
	base
	Data string
}

type base struct{ metav1.ObjectMeta }

// private has a field that reflection may not set.
type private struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Spec   map[string]string
	secret string
}

func mine(o metav1.Object) bool { return o.GetLabels()["app"] == "web" }

func TestKeepMetadata(t *testing.T) {
	kind := metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	own := fat()
	own.Labels = map[string]string{"app": "web"}
	ownThin := thin()
	ownThin.Labels = own.Labels
	data := map[string]string{"k": "v"}
	for _, tc := range []struct {
		name      string
		whole     func(metav1.Object) bool
		obj, want any
	}{
		{"own", mine, &corev1.ConfigMap{TypeMeta: kind, ObjectMeta: own, Data: data}, &corev1.ConfigMap{TypeMeta: kind, ObjectMeta: ownThin, Data: data}},
		{"foreign", mine, &corev1.ConfigMap{TypeMeta: kind, ObjectMeta: fat(), Data: data, Immutable: new(true)}, &corev1.ConfigMap{TypeMeta: kind, ObjectMeta: thin()}},
		{"nil keeps none", nil, &corev1.ConfigMap{ObjectMeta: own, Data: data}, &corev1.ConfigMap{ObjectMeta: ownThin}},
		{"struct fields", mine, &corev1.Pod{ObjectMeta: fat(), Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: "Running"}}, &corev1.Pod{ObjectMeta: thin()}},
		{"own, unstructured", mine, toUnstructured(t, &corev1.ConfigMap{TypeMeta: kind, ObjectMeta: own, Data: data}), toUnstructured(t, &corev1.ConfigMap{TypeMeta: kind, ObjectMeta: ownThin, Data: data})},
		{"foreign, unstructured", mine, toUnstructured(t, &corev1.ConfigMap{TypeMeta: kind, ObjectMeta: fat(), Data: data}), toUnstructured(t, &corev1.ConfigMap{TypeMeta: kind, ObjectMeta: thin()})},
		{"unstructured without a kind", mine, &unstructured.Unstructured{Object: map[string]any{"data": "x"}}, &unstructured.Unstructured{Object: map[string]any{}}},
		{"metadata only", mine, &metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: fat()}, &metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: thin()}},
		{"metadata elsewhere", mine, &wrapped{base{fat()}, "kept"}, &wrapped{base{thin()}, "kept"}},
		{"private field", mine, &private{kind, fat(), data, "kept"}, &private{kind, thin(), nil, "kept"}},
		{"tombstone", mine, cache.DeletedFinalStateUnknown{Key: "a", Obj: &corev1.ConfigMap{Data: data}}, cache.DeletedFinalStateUnknown{Key: "a", Obj: &corev1.ConfigMap{Data: data}}},
		{"string", mine, "x", "x"},
		{"nil", mine, nil, nil},
		{"nil, typed", mine, (*corev1.ConfigMap)(nil), (*corev1.ConfigMap)(nil)},
		{"nil, unstructured", mine, (*unstructured.Unstructured)(nil), (*unstructured.Unstructured)(nil)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range 2 { // the second time must change nothing
				got, err := informer.KeepMetadata(tc.whole)(tc.obj)
				if err != nil {
					t.Fatalf("KeepMetadata() = %v", err)
				}
				if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(private{}, wrapped{}, base{})); diff != "" {
					t.Errorf("KeepMetadata() (-want +got):\n%s", diff)
				}
				tc.obj = got
			}
		})
	}
}

// TestKeepMetadataOfAStrippedObjectOnlyReads fails under the race detector when the
// function writes.
func TestKeepMetadataOfAStrippedObjectOnlyReads(t *testing.T) {
	typed := &corev1.ConfigMap{ObjectMeta: thin()}
	loose := toUnstructured(t, &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: thin()})
	transform := informer.KeepMetadata(nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				_, _ = transform(typed)
				_, _ = transform(loose)
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

func TestServerKeepMetadata(t *testing.T) {
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	secrets := typedClient(t, config).CoreV1().Secrets(namespace)
	create := func(name string, labels map[string]string) {
		t.Helper()
		obj := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: map[string][]byte{"k": []byte("v")}}
		if _, err := secrets.Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("own", map[string]string{"app": "web"})
	create("foreign", nil)

	factory := informers.NewSharedInformerFactoryWithOptions(typedClient(t, config), 0, informers.WithNamespace(namespace), informers.WithTransform(informer.KeepMetadata(mine)))
	inf := factory.Core().V1().Secrets()
	seen := make(chan *corev1.Secret, 10)
	_, err := inf.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen <- o.(*corev1.Secret) },
		UpdateFunc: func(_, o any) { seen <- o.(*corev1.Secret) },
	})
	if err != nil {
		t.Fatal(err)
	}
	set := informer.Set{Timeout: time.Minute, StopTimeout: time.Minute}
	set.Add("secrets", inf.Informer())
	ctx, cancel := context.WithCancel(quiet(t))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	next := func() *corev1.Secret {
		t.Helper()
		select {
		case s := <-seen:
			if s.ManagedFields != nil || s.ResourceVersion == "" || s.UID == "" {
				t.Errorf("%s has %d managedFields, resourceVersion %q, UID %q", s.Name, len(s.ManagedFields), s.ResourceVersion, s.UID)
			}
			return s
		case err := <-done:
			t.Fatalf("Run() = %v", err)
		case <-time.After(time.Minute):
			t.Fatal("no event")
		}
		return nil
	}
	for range 2 {
		if s := next(); (s.Name == "own") != (string(s.Data["k"]) == "v") || (s.Name == "own") != (s.Type != "") {
			t.Errorf("the cache has %s with data %v and type %q, want both for own only", s.Name, s.Data, s.Type)
		}
	}
	// An object that becomes one's own arrives whole, by its event.
	live, err := secrets.Get(t.Context(), "foreign", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	live.Labels = map[string]string{"app": "web"}
	if _, err := secrets.Update(t.Context(), live, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if s := next(); s.Name != "foreign" || string(s.Data["k"]) != "v" {
		t.Errorf("the event has %s with data %v, want the whole foreign", s.Name, s.Data)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
