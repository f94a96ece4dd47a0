package operator

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/reconcile"
)

// named is an informer that knows the kind of its objects.
type named struct {
	coreinformers.ConfigMapInformer
}

func (named) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Version: "v1", Kind: "Setting"}
}

func TestKindName(t *testing.T) {
	op, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	c := op.Controller("x", func(context.Context, types.NamespacedName) (reconcile.Result, error) { return reconcile.Result{}, nil })
	factory := func() informers.SharedInformerFactory {
		return informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	}
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	any := metadatainformer.NewSharedInformerFactory(metadatafake.NewSimpleMetadataClient(scheme), 0)
	custom, err := crd.New[*corev1.ConfigMap](op.Config, schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Custom"}, "customs")
	if err != nil {
		t.Fatal(err)
	}
	For(c, corev1.Resource("configmaps"), factory().Core().V1().ConfigMaps())
	Owns(c, corev1.Resource("settings"), named{factory().Core().V1().ConfigMaps()})
	Owns(c, corev1.Resource("pods"), any.ForResource(corev1.SchemeGroupVersion.WithResource("pods")))
	Owns(c, schema.GroupResource{Group: "example.com", Resource: "customs"}, custom.Informer(0, nil))
	for i, want := range []string{"ConfigMap", "Setting", "", "Custom"} {
		if got := op.sources[i].Kind; got != want {
			t.Errorf("the kind of %s is %q, want %q", op.sources[i].GroupResource, got, want)
		}
	}
}
