package crdtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// transport responds to the requests of a crd.Client from a fake: it makes an action of
// each request, and a response of the reaction.
type transport struct {
	fake       *clienttesting.Fake
	kind       schema.GroupVersionKind
	resource   schema.GroupVersionResource
	scheme     *runtime.Scheme              // knows the kind and its list
	parameters runtime.ParameterCodec       // of addresses
	codecs     runtime.NegotiatedSerializer // of bodies
}

func newTransport(fake *clienttesting.Fake, kind schema.GroupVersionKind, resource schema.GroupVersionResource, scheme *runtime.Scheme) *transport {
	factory := rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)) // as crd has it
	return &transport{fake, kind, resource, scheme, runtime.NewParameterCodec(scheme), factory.WithoutConversion()}
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return nil, err
		}
	}
	if r.Method == http.MethodGet && r.URL.Path == strings.TrimSuffix(t.prefix(), "/") {
		return t.discovery(r)
	}
	action, err := t.action(r, body)
	if err != nil {
		return t.failure(r, err)
	}
	if action, ok := action.(clienttesting.WatchAction); ok {
		w, err := t.fake.InvokesWatch(action)
		if err != nil {
			return t.failure(r, err)
		}
		return response(r, http.StatusOK, t.stream(r.Context(), w)), nil
	}
	obj, err := t.fake.Invokes(action, nil)
	if err != nil {
		return t.failure(r, err)
	}
	if kube.IsNil(obj) {
		obj = &metav1.Status{Status: metav1.StatusSuccess}
	}
	data, err := t.encode(obj)
	if err != nil {
		return nil, err
	}
	return response(r, http.StatusOK, io.NopCloser(bytes.NewReader(data))), nil
}

// action returns the request as client-go's fakes record it.
func (t *transport) action(r *http.Request, body []byte) (clienttesting.Action, error) {
	namespace, name, subresource := t.target(r.URL.Path)
	switch r.Method {
	case http.MethodGet:
		if name != "" {
			var opts metav1.GetOptions
			err := t.options(r, &opts)
			return clienttesting.NewGetSubresourceActionWithOptions(t.resource, namespace, subresource, name, opts), err
		}
		var opts metav1.ListOptions
		err := t.options(r, &opts)
		if opts.Watch {
			return clienttesting.NewWatchActionWithOptions(t.resource, namespace, opts), err
		}
		return clienttesting.NewListActionWithOptions(t.resource, t.kind, namespace, opts), err
	case http.MethodPost:
		var opts metav1.CreateOptions
		obj, err := t.decode(r, body, nil)
		err = errors.Join(err, t.options(r, &opts))
		return clienttesting.NewCreateActionWithOptions(t.resource, namespace, obj, opts), err
	case http.MethodPut:
		var opts metav1.UpdateOptions
		obj, err := t.decode(r, body, nil)
		err = errors.Join(err, t.options(r, &opts))
		return clienttesting.NewUpdateSubresourceActionWithOptions(t.resource, subresource, namespace, obj, opts), err
	case http.MethodPatch:
		var opts metav1.PatchOptions
		err := t.options(r, &opts)
		kind := types.PatchType(r.Header.Get("Content-Type"))
		return clienttesting.NewPatchSubresourceActionWithOptions(t.resource, namespace, name, kind, body, opts, subresource), err
	case http.MethodDelete:
		var opts metav1.DeleteOptions
		_, err := t.decode(r, body, &opts)
		if name != "" {
			return clienttesting.NewDeleteSubresourceActionWithOptions(t.resource, subresource, namespace, name, opts), err
		}
		var list metav1.ListOptions
		err = errors.Join(err, t.options(r, &list))
		return clienttesting.NewDeleteCollectionActionWithOptions(t.resource, namespace, opts, list), err
	}
	return nil, apierrors.NewMethodNotSupported(t.resource.GroupResource(), r.Method)
}

// target reads the path of a request: what follows the version is
// [namespaces/namespace/]resource[/name[/subresource]].
func (t *transport) target(path string) (namespace, name, subresource string) {
	path = strings.TrimPrefix(path, t.prefix())
	if rest, ok := strings.CutPrefix(path, "namespaces/"); ok {
		if ns, rest, ok := strings.Cut(rest, "/"+t.resource.Resource); ok {
			namespace, path = ns, t.resource.Resource+rest
		}
	}
	_, path, _ = strings.Cut(path, "/")
	name, subresource, _ = strings.Cut(path, "/")
	return namespace, name, subresource
}

// prefix returns the path of the API version.
func (t *transport) prefix() string {
	if t.kind.Group == "" {
		return "/api/" + t.kind.Version + "/"
	}
	return "/apis/" + t.kind.Group + "/" + t.kind.Version + "/"
}

// discovery responds with the names of the resource and its subresource, by which a client
// tells a missing subresource from a missing object. It is no action.
func (t *transport) discovery(r *http.Request) (*http.Response, error) {
	name := t.resource.Resource
	data, err := json.Marshal(metav1.APIResourceList{GroupVersion: t.kind.GroupVersion().String(), APIResources: []metav1.APIResource{{Name: name}, {Name: name + "/status"}}})
	if err != nil {
		return nil, err
	}
	return response(r, http.StatusOK, io.NopCloser(bytes.NewReader(data))), nil
}

// options reads the options in the address of a request.
func (t *transport) options(r *http.Request, into runtime.Object) error {
	if err := t.parameters.DecodeParameters(r.URL.Query(), t.kind.GroupVersion(), into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// decode reads the body of a request. If into is nil, it is an object of the resource.
func (t *transport) decode(r *http.Request, body []byte, into runtime.Object) (runtime.Object, error) {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	info, ok := runtime.SerializerInfoForMediaType(t.codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, r.Method, t.resource.GroupResource(), "", "", 0, false)
	}
	obj, _, err := t.codecs.DecoderToVersion(info.Serializer, t.kind.GroupVersion()).Decode(body, &t.kind, into)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return obj, nil
}

// encode returns the JSON of an object, with its kind.
func (t *transport) encode(obj runtime.Object) ([]byte, error) {
	if _, _, err := t.scheme.ObjectKinds(obj); err != nil {
		return nil, fmt.Errorf("crdtest: a reactor returned a %T: return a %s: %w", obj, t.kind.Kind, err)
	}
	info, _ := runtime.SerializerInfoForMediaType(t.codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return runtime.Encode(t.codecs.EncoderForVersion(info.Serializer, t.kind.GroupVersion()), obj.DeepCopyObject())
}

// failure returns the response of an API server to a request that failed. An error that
// is none of an API server stays an error.
func (t *transport) failure(r *http.Request, err error) (*http.Response, error) {
	var of apierrors.APIStatus
	if !errors.As(err, &of) {
		return nil, err
	}
	status := of.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	data, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	resp := response(r, int(status.Code), io.NopCloser(bytes.NewReader(data)))
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		resp.Header.Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	return resp, nil
}

func response(r *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: code, Status: strconv.Itoa(code) + " " + http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}}, Body: body, ContentLength: -1, Request: r,
	}
}

// stream returns the body of a watch: an event a line. It ends with w, with ctx, and when it
// is closed.
func (t *transport) stream(ctx context.Context, w watch.Interface) io.ReadCloser {
	ctx, cancel := context.WithCancel(ctx)
	lines, into := io.Pipe()
	go func() {
		defer w.Stop()
		defer cancel()
		for {
			select {
			case event, ok := <-w.ResultChan():
				if !ok {
					_ = into.Close() // never fails
					return
				}
				line, err := t.line(event)
				if err != nil {
					_ = into.CloseWithError(err)
					return
				}
				if _, err := into.Write(line); err != nil {
					return // the reader has closed it
				}
			case <-ctx.Done():
				_ = into.CloseWithError(ctx.Err())
				return
			}
		}
	}()
	return body{lines, cancel}
}

// body is the body of a watch.
type body struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Read ends without an error after Close, so that a stopped watch sends no event of one.
func (b body) Read(p []byte) (int, error) {
	n, err := b.PipeReader.Read(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = io.EOF
	}
	return n, err
}

func (b body) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// line encodes an event.
func (t *transport) line(event watch.Event) ([]byte, error) {
	obj, err := t.encode(event.Object)
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal(metav1.WatchEvent{Type: string(event.Type), Object: runtime.RawExtension{Raw: obj}})
	return append(line, '\n'), err
}
