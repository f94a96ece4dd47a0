package contender

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// GadgetKind returns the kind of a Gadget.
func GadgetKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "compact.example.com", Version: "v1", Kind: "Gadget"}
}

// GadgetResource returns the resource of a Gadget.
func GadgetResource() schema.GroupResource {
	return GadgetKind().GroupVersion().WithResource(Gadgets).GroupResource()
}

// A Gadget is a custom resource with lists and maps.
type Gadget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   GadgetSpec   `json:"spec"`
	Status GadgetStatus `json:"status,omitzero"`
}

// GadgetSpec is the desired state of a Gadget.
type GadgetSpec struct {
	Replicas int32             `json:"replicas"`
	Paused   bool              `json:"paused,omitempty"`
	Timeout  metav1.Duration   `json:"timeout,omitzero"`
	Selector map[string]string `json:"selector,omitempty"`
	Rules    []GadgetRule      `json:"rules,omitempty"`
}

// GadgetRule is a rule of a GadgetSpec.
type GadgetRule struct {
	Name     string          `json:"name"`
	Hosts    []string        `json:"hosts,omitempty"`
	Path     string          `json:"path,omitempty"`
	Headers  []GadgetHeader  `json:"headers,omitempty"`
	Backends []GadgetBackend `json:"backends,omitempty"`
}

// GadgetHeader is a header of a GadgetRule.
type GadgetHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// GadgetBackend is a backend of a GadgetRule.
type GadgetBackend struct {
	Service string `json:"service"`
	Port    int32  `json:"port"`
	Weight  *int32 `json:"weight,omitempty"`
}

// GadgetStatus is the observed state of a Gadget.
type GadgetStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Addresses          []string           `json:"addresses,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (g *Gadget) DeepCopyObject() runtime.Object { return g.DeepCopy() }

// DeepCopy hides the DeepCopy of the embedded ObjectMeta.
func (g *Gadget) DeepCopy() *Gadget {
	c := *g
	g.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Spec.Selector = maps.Clone(g.Spec.Selector)
	c.Spec.Rules = slices.Clone(g.Spec.Rules)
	for i := range c.Spec.Rules {
		r := &c.Spec.Rules[i]
		r.Hosts, r.Headers, r.Backends = slices.Clone(r.Hosts), slices.Clone(r.Headers), slices.Clone(r.Backends)
		for j, b := range r.Backends {
			if b.Weight != nil {
				r.Backends[j].Weight = new(*b.Weight)
			}
		}
	}
	c.Status.Addresses, c.Status.Conditions = slices.Clone(g.Status.Addresses), slices.Clone(g.Status.Conditions)
	return &c
}

// GadgetList is a list of Gadgets.
type GadgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Gadget `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *GadgetList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = slices.Clone(l.Items)
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopy()
	}
	return &c
}

// AddGadgets adds the types to a scheme.
func AddGadgets(s *runtime.Scheme) {
	version := GadgetKind().GroupVersion()
	s.AddKnownTypes(version, &Gadget{}, &GadgetList{})
	metav1.AddToGroupVersion(s, version)
}

// GadgetRESTClient returns the REST client of the group version, as a generated clientset makes it.
func GadgetRESTClient(config *rest.Config) (rest.Interface, error) {
	s := runtime.NewScheme()
	AddGadgets(s)
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", new(GadgetKind().GroupVersion())
	config.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(s, serializer.NewCodecFactory(s)).WithoutConversion()
	return rest.RESTClientFor(config)
}

// GadgetClient returns a typed client, as client-gen makes it.
func GadgetClient(config *rest.Config, namespace string) (*gentype.ClientWithList[*Gadget, *GadgetList], error) {
	client, err := GadgetRESTClient(config)
	if err != nil {
		return nil, err
	}
	s := runtime.NewScheme()
	AddGadgets(s)
	return gentype.NewClientWithList(Gadgets, client, runtime.NewParameterCodec(s), namespace,
		func() *Gadget { return &Gadget{} }, func() *GadgetList { return &GadgetList{} }), nil
}
