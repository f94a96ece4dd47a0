package managerkit_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/controllerkit/controllerkit/managerkit"
)

// clientSite is the custom resource of the tests of Client.
type clientSite struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   clientSiteSpec   `json:"spec,omitzero"`
	Status clientSiteStatus `json:"status,omitzero"`
}

type clientSiteSpec struct {
	Host    string   `json:"host,omitempty"`
	Aliases []string `json:"aliases,omitempty"`
}

type clientSiteStatus struct {
	Address    string             `json:"address,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

type clientSiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []clientSite `json:"items"`
}

// DeepCopy hides the DeepCopy of the embedded ObjectMeta.
func (s *clientSite) DeepCopy() *clientSite {
	out := *s
	s.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Aliases = append([]string(nil), s.Spec.Aliases...)
	out.Status.Conditions = nil
	for i := range s.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, *s.Status.Conditions[i].DeepCopy())
	}
	return &out
}

func (s *clientSite) DeepCopyObject() runtime.Object { return s.DeepCopy() }

func (l *clientSiteList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return &out
}

func clientSiteKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "client.example.com", Version: "v1", Kind: "ClientSite"}
}

// clientScheme has the kinds of the tests of Client.
func clientScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	kind := clientSiteKind()
	scheme.AddKnownTypeWithName(kind, &clientSite{})
	scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &clientSiteList{})
	metav1.AddToGroupVersion(scheme, kind.GroupVersion())
	return scheme
}

// fakeFor returns a fake with the scope of each kind.
func fakeFor(t testing.TB, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := clientScheme(t)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(clientSiteKind(), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	return fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithStatusSubresource(&clientSite{}).WithObjects(objects...).Build()
}

// readerOnly is a client without a cache as a reader.
type readerOnly struct{ client.Reader }

// newSites returns a client of c, which reads from c.
func newSites(t testing.TB, c client.Client) *managerkit.Client[*clientSite] {
	t.Helper()
	sites, err := managerkit.NewClient[*clientSite](c, readerOnly{c})
	if err != nil {
		t.Fatal(err)
	}
	return sites
}
