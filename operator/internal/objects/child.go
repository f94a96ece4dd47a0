package objects

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/served"
)

// An ID names a child.
type ID struct {
	schema.GroupKind
	types.NamespacedName
}

// String returns the kind and the name.
func (id ID) String() string {
	name := id.Name
	if id.Namespace != "" {
		name = id.Namespace + "/" + name
	}
	return id.Kind + " " + kube.Printable(name, 600)
}

// Child returns a copy of the configuration of a child.
func Child(obj any) (config *unstructured.Unstructured, id ID, err error) {
	_, typed := obj.(metav1.Object)
	_, untyped := obj.(*unstructured.Unstructured)
	switch {
	case kube.IsNil(obj):
		return nil, id, fmt.Errorf("it is nil, of type %T: pass an apply configuration", obj)
	case typed && !untyped:
		return nil, id, fmt.Errorf("it is a %T, whose empty fields would be applied, too: pass an apply configuration or an *unstructured.Unstructured", obj)
	}
	if config, err = Unstructured(obj); err != nil {
		return nil, id, err
	}
	kind := config.GroupVersionKind()
	id = ID{kind.GroupKind(), types.NamespacedName{Namespace: config.GetNamespace(), Name: config.GetName()}}
	switch {
	case kind.Kind == "" || config.GetAPIVersion() == "":
		return nil, id, errors.New("apiVersion or kind is empty: set both")
	case id.Name == "":
		return nil, id, fmt.Errorf("the %s has no metadata.name: set it", kind.Kind)
	}
	return config, id, nil
}

// CheckNamespace returns an error if a child has no namespace and its kind needs one, or has one in vain.
func (id ID) CheckNamespace(kind served.Kind) error {
	switch {
	case kind.Namespaced && id.Namespace == "":
		return fmt.Errorf("%s has no metadata.namespace: set it", id)
	case !kind.Namespaced && id.Namespace != "":
		return fmt.Errorf("%s has a metadata.namespace, and its kind is cluster-scoped: remove it", id)
	}
	return nil
}

// An Owner is the object that children belong to.
type Owner struct {
	metav1.Object
	Kind      schema.GroupVersionKind
	Resource  schema.GroupResource
	Elsewhere bool // labels mark children that cannot have an owner reference
}

// Mark makes the object the owner of a child.
func (o Owner) Mark(config *unstructured.Unstructured, id ID) error {
	if o.GetNamespace() == "" || o.GetNamespace() == id.Namespace {
		refs, _, err := kube.Controller(o.Object, o.Kind, config)
		if err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
		config.SetOwnerReferences(refs)
		return nil
	}
	if !o.Elsewhere {
		return fmt.Errorf("%s is outside of the namespace %q of its owner, so it cannot have an owner reference: set Reconciler.Elsewhere", id, o.GetNamespace())
	}
	config.SetLabels(With(config.GetLabels(), OwnerUID, string(o.GetUID())))
	config.SetAnnotations(With(config.GetAnnotations(), OwnerName, o.Resource.String()+"/"+kube.NameOf(o)))
	return nil
}
