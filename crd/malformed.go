package crd

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/malformed"
)

// ErrMalformed is wrapped by the error of a call whose response has an object that does not fit
// the Go type, such as a metav1.Duration of the text "99999999999999s" in a field that the schema
// calls a string. The call of a write has then written. The error names the object. Package
// reconcile retries it as rejected.
var ErrMalformed = malformed.Err

// malformedError is an ErrMalformed.
type malformedError struct{ text string }

func (e *malformedError) Error() string        { return e.text }
func (e *malformedError) Is(target error) bool { return target == ErrMalformed }

// Rejected reports that a retry has the same result until something else changes.
func (e *malformedError) Rejected() bool { return true }

func (s checked[T]) malformedError(name string, err error) error {
	if name != "" {
		name = " " + kube.Printable(name, 512)
	}
	return &malformedError{fmt.Sprintf("crd: %s%s of the API server does not fit the Go type: correct the object, and let the schema reject such values, or change the type of the field: %s", s.kind.Kind, name, bounded(err))}
}

// page is a List with the malformed objects beside it.
type page[T controllerkit.Object] struct {
	*List[T]
	malformed []*malformed.Object
}

// page decodes a list. If an object does not fit, it decodes one after the other.
func (s checked[T]) page(data []byte, defaults *schema.GroupVersionKind, into *page[T]) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := s.decode(data, defaults, into.List)
	switch {
	case err == nil && obj == runtime.Object(into.List):
		return into, gvk, nil
	case !errors.Is(err, ErrMalformed):
		return obj, gvk, err
	}
	var list struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []stdjson.RawMessage `json:"items"`
	}
	text, jsonErr := s.json(data)
	if jsonErr != nil || json.Unmarshal(text, &list) != nil {
		return nil, gvk, err
	}
	*into = page[T]{List: &List[T]{TypeMeta: list.TypeMeta, ListMeta: list.ListMeta}}
	for _, item := range list.Items {
		if obj, ok := s.fits(item); ok {
			into.Items = append(into.Items, obj)
		} else if o := s.malformed(item); o != nil {
			into.malformed = append(into.malformed, o)
		} else {
			return nil, gvk, err // an object without a name cannot be present by it
		}
	}
	if len(into.malformed) == 0 {
		return nil, gvk, err // the list itself does not fit
	}
	return into, gvk, nil
}

// fits returns the object of a JSON text.
func (s checked[T]) fits(text []byte) (T, bool) {
	obj := s.kind.new()
	if string(text) == "null" || json.Unmarshal(text, obj) != nil {
		return obj, false
	}
	unnamed(obj)
	return obj, true
}

// malformed returns the stand-in for an object that does not fit, or nil if it has no name.
func (s checked[T]) malformed(data []byte) *malformed.Object {
	var o metav1.PartialObjectMetadata
	text, err := s.json(data)
	if err != nil || json.Unmarshal(text, &o) != nil || o.Name == "" {
		return nil
	}
	o.ManagedFields = nil // they are large, and without the rest useless
	err = json.Unmarshal(text, s.kind.new())
	return &malformed.Object{ObjectMeta: o.ObjectMeta, Err: s.malformedError(cache.MetaObjectToName(&o).String(), err)}
}

// json returns the JSON of a response, which can be CBOR.
func (s checked[T]) json(data []byte) ([]byte, error) {
	if len(data) > 0 && data[0] == '{' {
		return data, nil
	}
	var all unstructured.Unstructured
	if _, _, err := s.Serializer.Decode(data, nil, &all); err != nil {
		return nil, err
	}
	return json.Marshal(all.Object)
}

// named returns the name of the object in data, or "" if it is a list or has no name.
func (s checked[T]) named(data []byte) string {
	var o metav1.PartialObjectMetadata
	if text, err := s.json(data); err != nil || json.Unmarshal(text, &o) != nil {
		return ""
	}
	return cache.MetaObjectToName(&o).String()
}

// keeping returns the List and Watch of an informer that goes on without malformed objects. They
// are in it as *malformed.Object.
func (c *Client[T]) keeping(tweak func(*metav1.ListOptions)) *cache.ListWatch {
	return c.listWatch(tweak,
		func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			p, err := c.page(ctx, opts)
			if err != nil {
				return nil, err
			}
			all := &internalversion.List{TypeMeta: p.TypeMeta, ListMeta: p.ListMeta}
			for _, item := range p.Items {
				all.Items = append(all.Items, item)
			}
			for _, item := range p.malformed {
				all.Items = append(all.Items, item)
			}
			return all, nil
		},
		func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return c.watch(ctx, c.kind.keeping, opts)
		})
}

// page is List with the malformed objects.
func (c *Client[T]) page(ctx context.Context, opts metav1.ListOptions) (*page[T], error) {
	p := &page[T]{List: c.kind.newList()}
	err := c.all(c.kind.rest.Get(), &opts).Do(ctx).Into(p)
	return result(c.kind, "list", "", p, err)
}
