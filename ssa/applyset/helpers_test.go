package applyset_test

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	metadatafake "k8s.io/client-go/metadata/fake"
)

const manager = "example.com/colors"

var errBoom = errors.New("boom")

type config = applycorev1.ConfigMapApplyConfiguration

// fakeClient answers what a test says, at the same time where it is asked so:
// client-go's fake holds a lock while it reacts.
type fakeClient struct {
	dynamic.NamespaceableResourceInterface

	patch  func(name string) (*unstructured.Unstructured, error)
	get    func(ctx context.Context, name string) (*unstructured.Unstructured, error)
	delete func(name string) error
	watch  func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func (f fakeClient) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return f
}

func (f fakeClient) Namespace(string) dynamic.ResourceInterface { return f }

func (f fakeClient) Patch(_ context.Context, name string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	return f.patch(name)
}

func (f fakeClient) Get(ctx context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	return f.get(ctx, name)
}

func (f fakeClient) Delete(_ context.Context, name string, _ metav1.DeleteOptions, _ ...string) error {
	return f.delete(name)
}

func (f fakeClient) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return f.watch(ctx, opts)
}

// metadataClient is a fake with the objects.
func metadataClient(objects ...runtime.Object) *metadatafake.FakeMetadataClient {
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		panic(err)
	}
	return metadatafake.NewSimpleMetadataClient(scheme, objects...)
}
