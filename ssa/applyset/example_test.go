package applyset_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/ssa/applyset"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// exampleBatch stands for a dynamic client, which is a fake that answers an apply with
// what is applied, and a mapper of a discovery client.
func exampleBatch(objects ...runtime.Object) *applyset.Batch {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), objects...)
	client.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o, err := runtime.Decode(unstructured.UnstructuredJSONScheme, a.(clienttesting.PatchAction).GetPatch())
		return true, o, err
	})
	return &applyset.Batch{Client: client, Mapper: mapper, Manager: "example.com/colors"}
}

func ExampleBatch_Apply() {
	answers, err := exampleBatch().Apply(context.Background(),
		applycorev1.ConfigMap("paint", "studio").WithData(map[string]string{"color": "red"}),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "studio"},
		}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, a := range answers {
		fmt.Println(a.GetKind(), a.GetName())
	}
	// Output:
	// ConfigMap paint
	// Namespace studio
}

func ExampleBatch_TryApply() {
	_, err := exampleBatch().TryApply(context.Background(),
		applycorev1.ConfigMap("paint", "studio"), applycorev1.ConfigMap("brush", ""), applycorev1.ConfigMap("easel", ""))
	// All errors, and not the first one alone:
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range all.Unwrap() {
			var o *applyset.ObjectError
			if errors.As(err, &o) {
				fmt.Println(o.Kind.Kind, o.Name, "at", o.Index, "not tried:", errors.Is(err, applyset.ErrNotTried))
			}
		}
	}
	// Output:
	// ConfigMap paint at 0 not tried: true
	// ConfigMap brush at 1 not tried: false
	// ConfigMap easel at 2 not tried: false
}

func ExampleBatch_Delete() {
	// An answer of Apply, or an object of a lister with its apiVersion and kind set.
	paint := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "paint", "namespace": "studio", "uid": "1234"},
	}}
	batch := exampleBatch(paint)
	// The second time it is gone.
	for range 2 {
		fmt.Println(batch.Delete(context.Background(), metav1.DeletePropagationBackground, paint))
	}
	// Output:
	// <nil>
	// <nil>
}

// exampleSet stands for a Set of clients of an API server, and its parent, which was the
// parent of the ConfigMap easel before.
func exampleSet() (*applyset.Set, *metav1.PartialObjectMetadata) {
	kind := metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	id := inventory.ID(schema.GroupKind{Kind: "ConfigMap"}, "studio", "parent")
	parent := &metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{
		Name: "parent", Namespace: "studio", UID: "1", ResourceVersion: "1", Finalizers: []string{"example.com/colors"},
		Labels: map[string]string{idLabel: id}, Annotations: map[string]string{tooling: "example.com/colors/v1", groupKinds: "ConfigMap"},
	}}
	easel := &metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{
		Name: "easel", Namespace: "studio", UID: "2", ResourceVersion: "2", Labels: map[string]string{partOf: id},
	}}
	batch := exampleBatch()
	return &applyset.Set{
		Client: batch.Client, Metadata: metadataClient(parent, easel), Mapper: setMapper(),
		Manager: "example.com/colors", ParentKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Finalizer: "example.com/colors",
	}, parent
}

func ExampleSet_Apply() {
	set, parent := exampleSet()
	results, err := set.Apply(context.Background(), parent, applyset.Member{
		Object: applycorev1.ConfigMap("paint", "studio").WithData(map[string]string{"color": "red"}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range results {
		fmt.Println(r.Kind.Kind, r.Name, r.Action)
	}
	// Output:
	// ConfigMap paint Created
	// ConfigMap easel Pruned
}

func ExampleSet_Apply_mistake() {
	set, parent := exampleSet()
	_, err := set.Apply(context.Background(), parent) // without objects
	fmt.Println(err)
	// Output:
	// applyset: prune would delete 1 of 1 objects: MaxPrunePercent allows 50
}

// A parent is deleted. As long as a member waits, its finalizer stays.
func ExampleSet_Delete() {
	ctx := context.Background()
	set, parent := exampleSet()
	parents := set.Metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("studio")
	release := hold(set, "easel")

	reconcile := func(parent *metav1.PartialObjectMetadata) error {
		_, live, err := finalizer.Ensure(ctx, parents, parent, set.Finalizer, func(ctx context.Context, held finalizer.Held[*metav1.PartialObjectMetadata]) error {
			results, err := set.Delete(ctx, held.Object())
			for _, r := range results {
				fmt.Println(r.Kind.Kind, r.Name, r.Action)
			}
			return err // while a member is Pending: wait for the event of its end
		})
		if err != nil || !live {
			return err
		}
		_, err = set.Apply(ctx, parent) // with the wanted objects
		return err
	}
	parent.DeletionTimestamp = &metav1.Time{Time: time.Unix(0, 0)}
	fmt.Println("finished:", reconcile(parent) == nil)
	release()
	fmt.Println("finished:", reconcile(parent) == nil)
	// Output:
	// ConfigMap easel Pending
	// finished: false
	// ConfigMap easel Pruned
	// finished: true
}

// hold makes the deletion of an object wait, as a finalizer does.
func hold(set *applyset.Set, name string) (release func()) {
	held := true
	set.Metadata.(*metadatafake.FakeMetadataClient).PrependReactor("delete", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return held && a.(clienttesting.DeleteAction).GetName() == name, nil, nil
	})
	return func() { held = false }
}

func ExampleSet_TakeOver() {
	set, parent := exampleSet()
	// The parent belongs to the Set already.
	fmt.Println(set.TakeOver(context.Background(), parent, "kubectl"))

	set.Manager = "example.com/brushes"
	fmt.Println(set.TakeOver(context.Background(), parent, "kubectl"))
	// Output:
	// <nil>
	// applyset: metadata.annotations["applyset.kubernetes.io/tooling"] of the parent is "example.com/colors/v1": the set belongs to another tool than "kubectl", so use another parent or TakeOver
}
