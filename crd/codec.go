package crd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// List is a list of objects, as [Client.List] returns it.
type List[T controllerkit.Object] struct {
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
type codecs[T controllerkit.Object] struct {
	runtime.NegotiatedSerializer
	kind *kind[T]
	keep bool // of checked
}

func newCodecs[T controllerkit.Object](k *kind[T], keep bool) runtime.NegotiatedSerializer {
	factory := rest.CodecFactoryForGeneratedClient(k.scheme, serializer.NewCodecFactory(k.scheme))
	return codecs[T]{factory.WithoutConversion(), k, keep}
}

func (c codecs[T]) SupportedMediaTypes() []runtime.SerializerInfo {
	var fit []runtime.SerializerInfo
	for _, info := range c.NegotiatedSerializer.SupportedMediaTypes() {
		switch info.MediaType {
		case runtime.ContentTypeJSON, runtime.ContentTypeCBOR:
			info.Serializer = checked[T]{info.Serializer, info.StrictSerializer, c.kind, c.keep}
		case runtime.ContentTypeProtobuf: // the informer of a kind with this encoding reads lists itself, and failures by these codecs
			info.Serializer, info.StreamSerializer = failures{info.Serializer}, nil
		default:
			continue
		}
		fit = append(fit, info)
	}
	return fit
}

// failures is a serializer for responses that are a Status.
type failures struct{ runtime.Serializer }

func (f failures) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := f.Serializer.Decode(data, defaults, into)
	if _, ok := obj.(*metav1.Status); err == nil && !ok {
		return nil, gvk, errors.New("crd: the API server's response is protobuf, which custom resources do not have")
	}
	return obj, gvk, err
}

// checked is a serializer that returns an error for an object other than the expected
// one. client-go ignores such an object and returns an empty one.
type checked[T controllerkit.Object] struct {
	runtime.Serializer
	strict runtime.Serializer
	kind   *kind[T]
	keep   bool // an event of a malformed object has a *malformed.Object
}

func (s checked[T]) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if p, ok := into.(*page[T]); ok {
		return s.page(data, defaults, p)
	}
	obj, gvk, err := s.decode(data, defaults, into)
	if s.keep && into == nil && errors.Is(err, ErrMalformed) {
		if o := s.malformed(data); o != nil {
			return o, gvk, nil
		}
	}
	return obj, gvk, err
}

func (s checked[T]) decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
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
			if ok = ok && !kube.IsNil(item); ok {
				unnamed(item)
			}
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
		return nil, gvk, s.malformedError(s.named(data), err)
	}
	return nil, gvk, fmt.Errorf("crd: the API server's response is a %s where a %s belongs: check kind and resource", kube.Printable(gvk.String(), 256), s.kind)
}

// unnamed removes apiVersion and kind from an object of a list, as the codec does with one that comes alone.
func unnamed(obj controllerkit.Object) {
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
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
