package applyset

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/controllerkit/controllerkit/internal/apply"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// batchObject is one object of a batchCall, and its outcome.
type batchObject struct {
	manifest *unstructured.Unstructured // a copy of the object that the caller passed
	resource schema.GroupVersionResource
	live     *unstructured.Unstructured // as the API server returned it last; nil if it did not
	err      error
}

// readObject returns a copy of the object as unstructured content.
func readObject(object any, deletion bool) (map[string]any, error) {
	if kube.IsNil(object) {
		return nil, errors.New("the object is nil")
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode the object: %w", err)
	}
	content := map[string]any{}
	if err := utiljson.Unmarshal(encoded, &content); err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	u := &unstructured.Unstructured{Object: content}
	if !deletion {
		config, err := apply.Encode(u)
		if err == nil {
			config.Release()
		}
		return content, err
	}
	for _, field := range []struct{ name, value string }{
		{"apiVersion", u.GetAPIVersion()}, {"kind", u.GetKind()}, {"metadata.name", u.GetName()}, {"metadata.uid", string(u.GetUID())},
	} {
		if field.value == "" {
			return content, fmt.Errorf("%s is empty: pass an object that the API server returned, with its apiVersion and kind", field.name)
		}
	}
	return content, nil
}

// resolve finds the resource of an object, and gives the object its owner.
func (c *batchCall) resolve(o *batchObject) error {
	gvk := o.manifest.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		mapping, err = c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			return fmt.Errorf("apiVersion and kind: find the resource of %s: %w", gvk, err)
		}
		c.mapper.AddSpecific(gvk, mapping.Resource, mapping.Resource, mapping.Scope)
	}
	o.resource = mapping.Resource
	if o.manifest.GetName() == "" {
		return errors.New("metadata.name is not a string: set a string")
	}
	if wrong := content.IsPathSegmentName(o.manifest.GetName()); len(wrong) > 0 {
		return fmt.Errorf("metadata.name is %q: it %s", o.manifest.GetName(), strings.Join(wrong, ", "))
	}
	if ns := o.manifest.GetNamespace(); ns != "" {
		// The inventory of a Set accepts no other name.
		if wrong := content.IsDNS1123Label(ns); len(wrong) > 0 {
			return fmt.Errorf("metadata.namespace is %q: it %s", ns, strings.Join(wrong, ", "))
		}
	}
	if err := apply.CheckScope(mapping, o.manifest); err != nil {
		return err
	}
	if c.deletion || c.Owner == nil {
		return nil
	}
	return c.own(o.manifest)
}

// own makes Owner the controller of an object. It rejects references because of which the
// garbage collector would delete the object, and a second controller. It keeps the
// other references, also malformed ones, so that the API server rejects them.
func (b *Batch) own(object *unstructured.Unstructured) error {
	switch ns := b.Owner.GetNamespace(); {
	case ns == "" || ns == object.GetNamespace():
	case object.GetNamespace() == "":
		return fmt.Errorf("metadata.ownerReferences: the owner is in namespace %q and the object in none: use a cluster-scoped owner", ns)
	default:
		return fmt.Errorf("metadata.ownerReferences: the owner is in namespace %q and the object in another: an owner must be in the object's namespace", ns)
	}
	if object.GroupVersionKind().GroupKind() == b.OwnerKind.GroupKind() && object.GetName() == b.Owner.GetName() && object.GetNamespace() == b.Owner.GetNamespace() {
		return errors.New("metadata.ownerReferences: the object is Owner itself, so a deletion in the foreground would wait for itself: remove the object")
	}
	spec, _ := object.Object["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	if object.GroupVersionKind().GroupKind() == crdKind() && spec["group"] == b.OwnerKind.Group && names["kind"] == b.OwnerKind.Kind {
		return errors.New("metadata.ownerReferences: the object is the CustomResourceDefinition of Owner, so a deletion of Owner in the foreground would wait for itself: remove the object")
	}
	const field = "ownerReferences"
	metadata, _ := object.Object["metadata"].(map[string]any) // it has a name
	given, ok := metadata[field].([]any)
	if !ok && metadata[field] != nil {
		return errors.New("metadata.ownerReferences is not a list")
	}
	var refs []any
	for _, given := range given {
		ref, _ := given.(map[string]any)
		switch {
		case ref["uid"] == string(b.Owner.GetUID()):
			continue
		case ref["controller"] == true:
			return fmt.Errorf("metadata.ownerReferences: %v %q is its controller, and an object has one controller: remove it or Owner", ref["kind"], ref["name"])
		}
		refs = append(refs, given)
	}
	metadata[field] = append(refs, map[string]any{
		"apiVersion": b.OwnerKind.GroupVersion().String(), "kind": b.OwnerKind.Kind, "name": b.Owner.GetName(), "uid": string(b.Owner.GetUID()),
		"controller": true, "blockOwnerDeletion": true,
	})
	return nil
}
