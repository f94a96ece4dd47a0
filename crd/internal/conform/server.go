package conform

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/internal/site"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// keep is a test whose cleanups are left out: the definition lasts as long as the server.
type keep struct{ testing.TB }

func (keep) Cleanup(func()) {}

// Install installs the CustomResourceDefinition that the tests share.
func Install(t testing.TB) {
	t.Helper()
	definitions := dynamic.NewForConfigOrDie(testserver.Config(t)).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := definitions.Get(t.Context(), "websites.crd.example.com", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		testserver.InstallCRD(keep{t}, site.Definition("Website", "websites", "Namespaced"))
	} else if err != nil {
		t.Fatal(err)
	}
}

// Client installs the CustomResourceDefinition and returns a client of it.
func Client(t testing.TB) *crd.Client[*site.Website] {
	t.Helper()
	Install(t)
	client, err := crd.New[*site.Website](testserver.Config(t), site.Kind(), "websites")
	if err != nil {
		t.Fatal(err)
	}
	return client
}
