package crd

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// List is a list of objects, as [Client.List] returns it.
type List[T Object] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the objects, which are never nil.
	Items []T `json:"items"`
}

// DeepCopyObject returns a copy of the list and its objects.
func (l *List[T]) DeepCopyObject() runtime.Object {
	if l == nil {
		return nil
	}
	out := &List[T]{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	if l.Items != nil {
		out.Items = make([]T, len(l.Items))
		for i, item := range l.Items {
			if !kube.IsNil(item) {
				out.Items[i] = item.DeepCopyObject().(T)
			}
		}
	}
	return out
}

// register makes the scheme with T, its list and the options of requests.
func (k *kind[T]) register() error {
	k.scheme = runtime.NewScheme()
	metav1.AddToGroupVersion(k.scheme, k.GroupVersion())
	list := k.GroupVersion().WithKind(k.Kind + "List")
	if k.scheme.Recognizes(k.GroupVersionKind) || k.scheme.Recognizes(list) {
		return fmt.Errorf("crd: kind has Kind %q, which Kubernetes reserves: use another name", k.Kind)
	}
	k.scheme.AddKnownTypeWithName(k.GroupVersionKind, k.new())
	k.scheme.AddKnownTypeWithName(list, k.newList())
	return nil
}

// codecs are the encodings that every API server has for custom resources.
type codecs[T Object] struct {
	runtime.NegotiatedSerializer
	kind *kind[T]
}

func newCodecs[T Object](k *kind[T]) runtime.NegotiatedSerializer {
	factory := rest.CodecFactoryForGeneratedClient(k.scheme, serializer.NewCodecFactory(k.scheme))
	return codecs[T]{factory.WithoutConversion(), k}
}

func (c codecs[T]) SupportedMediaTypes() []runtime.SerializerInfo {
	var fit []runtime.SerializerInfo
	for _, info := range c.NegotiatedSerializer.SupportedMediaTypes() {
		if info.MediaType == runtime.ContentTypeJSON || info.MediaType == runtime.ContentTypeCBOR {
			info.Serializer = checked[T]{info.Serializer, info.StrictSerializer, c.kind}
			fit = append(fit, info)
		}
	}
	return fit
}

// checked is a serializer that returns an error for an object other than the expected
// one. client-go ignores such an object and returns an empty one.
type checked[T Object] struct {
	runtime.Serializer
	strict runtime.Serializer
	kind   *kind[T]
}

func (s checked[T]) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	decoder := s.Serializer
	if _, single := into.(T); single {
		decoder = s.strict // lists and watches are large, and report no unknown fields
	}
	obj, gvk, err := decoder.Decode(data, defaults, into)
	if obj != nil && runtime.IsStrictDecodingError(err) {
		s.kind.unknown.seen(err)
		err = nil
	}
	ok := err == nil
	switch obj := obj.(type) {
	case *metav1.Status: // client-go makes an error of a failure
		ok = ok && (into == nil || obj.Status != metav1.StatusSuccess)
	case T:
		ok = ok && (into == nil || into == runtime.Object(obj))
	case *List[T]:
		ok = ok && into == runtime.Object(obj)
		for _, item := range obj.Items {
			ok = ok && !kube.IsNil(item)
		}
	default:
		ok = false
	}
	switch {
	case ok:
		return obj, gvk, nil
	case defaults != nil && into == nil: // client-go tries to read a failure as a Status
		return nil, gvk, err
	case gvk == nil || gvk.Kind == "":
		return nil, gvk, fmt.Errorf("crd: the API server's response is no object: %s", bounded(err))
	case err != nil && s.kind.scheme.Recognizes(*gvk):
		return nil, gvk, fmt.Errorf("crd: %s%s of the API server does not fit the Go type: correct the object, and let the schema reject such values, or change the type of the field: %s", s.kind.Kind, s.misfit(data), bounded(err))
	}
	return nil, gvk, fmt.Errorf("crd: the API server's response is a %s where a %s belongs: check kind and resource", kube.Printable(gvk.String(), 256), s.kind)
}

// maxSearched bounds the memory that the search for an object that does not fit takes.
const maxSearched = 4 << 20

// misfit returns the name of the first object in data that does not fit T, with a space
// before it, or "" if it has no name or data is large.
func (s checked[T]) misfit(data []byte) string {
	var all unstructured.Unstructured
	if len(data) > maxSearched {
		return ""
	}
	if _, _, err := s.Serializer.Decode(data, nil, &all); err != nil {
		return ""
	}
	objects := []any{all.Object}
	if items, ok := all.Object["items"].([]any); ok {
		objects = items
	}
	for _, o := range objects {
		content, ok := o.(map[string]any)
		text, err := json.Marshal(content)
		if !ok || err != nil || json.Unmarshal(text, s.kind.new()) == nil {
			continue
		}
		found := unstructured.Unstructured{Object: content}
		if name := cache.MetaObjectToName(&found).String(); name != "" {
			return " " + kube.Printable(name, 512)
		}
	}
	return ""
}

// bounded returns the text of an error about a response.
func bounded(err error) string { return kube.Printable(fmt.Sprint(err), 512) }

// unknownFields remembers that a response had fields that the Go type lacks.
type unknownFields struct {
	mu    sync.Mutex // guards the fields below
	names string     // "" before the first
	done  bool       // the line is logged
}

func (u *unknownFields) seen(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names == "" {
		u.names = bounded(err)
	}
}

func (u *unknownFields) log(ctx context.Context, resource schema.GroupVersionResource, obj metav1.Object) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names == "" || u.done {
		return
	}
	u.done = true
	klog.FromContext(ctx).Info("Updates remove fields that the Go type lacks: add them to the type, or use Patch or Apply",
		"resource", resource.GroupResource().String(), "namespace", obj.GetNamespace(), "name", obj.GetName(), "fields", u.names)
}
