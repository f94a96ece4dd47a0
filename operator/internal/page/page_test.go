package page

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/operator/internal/source"
)

// TestMutation: the page has the last mutation of the informer that it concerns.
func TestMutation(t *testing.T) {
	var sources source.Set
	core := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1()
	if _, err := sources.Of(served.Resource{GroupResource: corev1.Resource("configmaps")}, core.ConfigMaps().Informer()); err != nil {
		t.Fatal(err)
	}
	if _, err := sources.Of(served.Resource{GroupResource: corev1.Resource("secrets")}, core.Secrets().Informer()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, i := range list(sources, nil, map[string]informer.Mutation{"secrets": {Name: "secrets", Key: "default/blue", Path: ".data"}}) {
		got[i.Name] = i.Mutated
	}
	if diff := cmp.Diff(map[string]string{"configmaps": "", "secrets": "default/blue .data"}, got); diff != "" {
		t.Errorf("mutations on the page (-want +got):\n%s", diff)
	}
}
