package crd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientfeatures "k8s.io/client-go/features"
	featuretest "k8s.io/client-go/features/testing"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/crdtest"
)

// value has the methods of an object on a type that is no pointer.
type value struct{ *Website }

// untagged lacks the tags of JSON.
type untagged struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

func (u *untagged) DeepCopyObject() runtime.Object { out := *u; return &out }

// foreign has the DeepCopyObject of an embedded type.
type foreign struct{ Website }

// copyless has a DeepCopyObject that returns nil.
type copyless struct{ Website }

func (*copyless) DeepCopyObject() runtime.Object { return (*copyless)(nil) }

func creates[T controllerkit.Object](kind schema.GroupVersionKind, resource string) func() error {
	return func() error {
		_, err := crd.New[T](&rest.Config{Host: "http://localhost"}, kind, resource)
		_, fakeErr := crdtest.NewFake[T](kind, resource)
		if fmt.Sprint(err) != fmt.Sprint(fakeErr) {
			return fmt.Errorf("New: %w; NewFake: %w", err, fakeErr)
		}
		return err
	}
}

// Each error names the argument and the cure.
//
// Proves CK2.
func TestBadInput(t *testing.T) {
	gvk := func(group, version, kind string) schema.GroupVersionKind {
		return schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
	}
	for _, tt := range []struct {
		name string
		make func() error
		want string
	}{
		{"good", creates[*Website](websiteKind, "websites"), "<nil>"},
		{"core group", creates[*Website](gvk("", "v1", "Website"), "websites"), "<nil>"},
		{"a kind that ends in List", creates[*Website](gvk("g.io", "v1", "AllowList"), "allowlists"), "<nil>"},
		{"an interface", creates[controllerkit.Object](websiteKind, "websites"), "T is controllerkit.Object: use a pointer to a struct"},
		{"no pointer", creates[value](websiteKind, "websites"), "T is crd_test.value: use a pointer to a struct"},
		{"unstructured", creates[*unstructured.Unstructured](websiteKind, "websites"), "T is *unstructured.Unstructured: use Dynamic"},
		{"metadata", creates[*metav1.PartialObjectMetadata](websiteKind, "websites"), "T is *metav1.PartialObjectMetadata: use k8s.io/client-go/metadata"},
		{"no tags", creates[*untagged](websiteKind, "websites"), "T is *crd_test.untagged, whose JSON lacks apiVersion, kind or metadata.name: embed metav1.TypeMeta"},
		{"DeepCopyObject of another type", creates[*foreign](websiteKind, "websites"), "T is *crd_test.foreign, whose DeepCopyObject returns *site.Website: generate it"},
		{"DeepCopyObject of nil", creates[*copyless](websiteKind, "websites"), "T is *crd_test.copyless, whose DeepCopyObject returns *crd_test.copyless: generate it"},
		{"no kind", creates[*Website](gvk("g.io", "v1", ""), "websites"), `kind has Kind "": use the name in CamelCase`},
		{"a list", creates[*Website](gvk("g.io", "v1", "WebsiteList"), "websites"), `kind has Kind "WebsiteList", the list's: use "Website"`},
		{"a reserved kind", creates[*Website](gvk("g.io", "v1", "DeleteOptions"), "websites"), `kind has Kind "DeleteOptions", which Kubernetes reserves`},
		{"no version", creates[*Website](gvk("g.io", "", "Website"), "websites"), `kind has Version "": use the version alone`},
		{"group in the version", creates[*Website](gvk("", "g.io/v1", "Website"), "websites"), `kind has Version "g.io/v1": use the version alone`},
		{"version in the group", creates[*Website](gvk("g.io/v1", "v1", "Website"), "websites"), `kind has Group "g.io/v1": use the group alone`},
		{"no resource", creates[*Website](websiteKind, ""), `resource is "": use the plural name alone`},
		{"group in the resource", creates[*Website](websiteKind, "websites.example.com"), `resource is "websites.example.com": use the plural name alone`},
		{"no config", func() error { _, err := crd.New[*Website](nil, websiteKind, "websites"); return err }, "config is nil: pass"},
		{"no config beside a client", func() error {
			_, err := crd.NewForConfigAndClient[*Website](nil, &http.Client{}, websiteKind, "websites")
			return err
		}, "config is nil: pass"},
		{"no http client", func() error {
			_, err := crd.NewForConfigAndClient[*Website](&rest.Config{}, nil, websiteKind, "websites")
			return err
		}, "the http.Client is nil: pass"},
		{"bad TLS", func() error {
			_, err := crd.New[*Website](&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: []byte("x")}}, websiteKind, "websites")
			return err
		}, "config: unable to load root certificates"},
		{"bad host", func() error {
			_, err := crd.NewForConfigAndClient[*Website](&rest.Config{Host: "http://a b"}, &http.Client{}, websiteKind, "websites")
			return err
		}, "config: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := fmt.Sprint(tt.make())
			if tt.want == "<nil>" && got != tt.want || !strings.Contains(got, tt.want) || tt.want != "<nil>" && !strings.HasPrefix(got, "crd: ") {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// answers is a transport that responds to every request with one text.
type answers struct {
	text, contentType string
	status            int
	mu                sync.Mutex
	requests          []*http.Request
	bodies            []string
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, r)
	body := ""
	if r.Body != nil {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(data)
	}
	a.bodies = append(a.bodies, body)
	return &http.Response{
		StatusCode: max(a.status, 200), Status: http.StatusText(a.status), Request: r,
		Header: http.Header{"Content-Type": []string{a.contentType}}, Body: io.NopCloser(bytes.NewReader([]byte(a.text))),
	}, nil
}

func answering(t testing.TB, a *answers) *crd.Client[*Website] {
	t.Helper()
	if a.contentType == "" {
		a.contentType = "application/json"
	}
	c, err := crd.New[*Website](&rest.Config{
		Host: "http://localhost", QPS: -1, Transport: a,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf},
	}, websiteKind, "websites")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// methods calls each method of a client that returns an object or a list.
func methods(ctx context.Context, c *crd.Client[*Website]) map[string]func() (any, error) {
	config := &unstructured.Unstructured{Object: m{"apiVersion": "crd.example.com/v1", "kind": "Website", "metadata": m{"name": "a"}}}
	return map[string]func() (any, error){
		"Get":    func() (any, error) { return c.Get(ctx, "a", metav1.GetOptions{}) },
		"List":   func() (any, error) { return c.List(ctx, metav1.ListOptions{}) },
		"Create": func() (any, error) { return c.Create(ctx, website("", "a"), metav1.CreateOptions{}) },
		"Update": func() (any, error) { return c.Update(ctx, website("", "a"), metav1.UpdateOptions{}) },
		"UpdateStatus": func() (any, error) {
			return c.UpdateStatus(ctx, website("", "a"), metav1.UpdateOptions{})
		},
		"Patch": func() (any, error) {
			return c.Patch(ctx, "a", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "status")
		},
		"Apply":       func() (any, error) { return c.Apply(ctx, config, metav1.ApplyOptions{FieldManager: "m"}) },
		"ApplyStatus": func() (any, error) { return c.ApplyStatus(ctx, config, metav1.ApplyOptions{FieldManager: "m"}) },
	}
}

// timed is a type whose schema may accept what it rejects.
type timed struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Every metav1.Duration `json:"every"`
}

func (o *timed) DeepCopyObject() runtime.Object {
	out := *o
	o.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// TestMisfit: the error of a list names the object that does not fit the Go type.
func TestMisfit(t *testing.T) {
	featuretest.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	object := func(name, every string) m {
		return m{"apiVersion": "crd.example.com/v1", "kind": "Website", "metadata": m{"namespace": "shop", "name": name}, "every": every}
	}
	list := func(objects ...any) m {
		return m{"apiVersion": "crd.example.com/v1", "kind": "WebsiteList", "items": objects}
	}
	const text = "of the API server does not fit the Go type: correct the object, and let the schema reject such values, or change the type of the field: "
	for name, tc := range map[string]struct {
		response m
		single   bool
		want     string
	}{
		"a list":       {response: list(object("good", "1m"), object("bad", "abc"), object("worse", "x")), want: "crd: Website shop/bad " + text},
		"an object":    {response: object("bad", "abc"), single: true, want: "crd: Website shop/bad " + text},
		"a long name":  {response: list(object(strings.Repeat("\n", 1000), "abc")), want: "crd: Website shop/\\n"},
		"a large list": {response: list(object("bad", "abc"), object(strings.Repeat("x", 4<<20), "1m")), want: "crd: Website shop/bad " + text},
		"no name":      {response: list(m{"every": "abc"}), want: "crd: Website " + text},
		"no objects":   {response: list("bad", 7), want: "crd: Website " + text},
	} {
		for media, encode := range map[string]func(any) ([]byte, error){"application/json": json.Marshal, "application/cbor": cbor.Marshal} {
			t.Run(name+" in "+media, func(t *testing.T) {
				body, err := encode(tc.response)
				if err != nil {
					t.Fatal(err)
				}
				c, err := crd.New[*timed](&rest.Config{Host: "http://localhost", QPS: -1, Transport: &answers{text: string(body), contentType: media}}, websiteKind, "websites")
				if err != nil {
					t.Fatal(err)
				}
				if tc.single {
					_, err = c.Get(t.Context(), "bad", metav1.GetOptions{})
				} else {
					_, err = c.List(t.Context(), metav1.ListOptions{})
				}
				if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 2048 {
					t.Errorf("error %.2100v, want %s", err, tc.want)
				}
			})
		}
	}
}

// A response that is no answer to the request is an error of each method, and no empty
// object.
//
// Proves CR1.
func TestForeignAnswers(t *testing.T) {
	single := `{"apiVersion":"crd.example.com/v1","kind":"Website","metadata":{"name":"a"}}`
	list := `{"apiVersion":"crd.example.com/v1","kind":"WebsiteList","items":[` + single + `]}`
	for name, text := range map[string]string{
		"another kind":        `{"apiVersion":"crd.example.com/v1","kind":"Gizmo","metadata":{"name":"a"}}`,
		"another version":     `{"apiVersion":"crd.example.com/v2","kind":"Website","metadata":{"name":"a"}}`,
		"another group":       `{"apiVersion":"g.io/v1","kind":"Website","metadata":{"name":"a"}}`,
		"success":             `{"apiVersion":"v1","kind":"Status","status":"Success"}`,
		"options":             `{"apiVersion":"crd.example.com/v1","kind":"DeleteOptions"}`,
		"null in the list":    `{"apiVersion":"crd.example.com/v1","kind":"WebsiteList","items":[null]}`,
		"no JSON":             `<html>login</html>`,
		"nothing":             ``,
		"another type":        `{"apiVersion":"crd.example.com/v1","kind":"Website","metadata":{"name":"a"},"spec":{"host":` + strings.Repeat(`[`, 1<<10) + strings.Repeat(`]`, 1<<10) + `}}`,
		"hostile kind":        `{"apiVersion":"crd.example.com/v1","kind":"` + strings.Repeat("\\n", 1<<16) + `"}`,
		"a list or an object": "",
	} {
		t.Run(name, func(t *testing.T) {
			for method, call := range methods(t.Context(), answering(t, &answers{text: text})) {
				if name == "a list or an object" {
					text := list
					if method == "List" {
						text = single
					}
					call = methods(t.Context(), answering(t, &answers{text: text}))[method]
				}
				got, err := call()
				if err == nil {
					t.Errorf("%s returned %v and no error", method, got)
					continue
				}
				if text := err.Error(); len(text) > 4096 {
					t.Errorf("%s: the error has %d bytes", method, len(text))
				}
				for of, want := range map[string]string{
					"another kind": "crd: the API server's response is a crd.example.com/v1, Kind=Gizmo where a crd.example.com/v1, Kind=Website belongs: check kind and resource",
					"success":      "crd: the API server's response is a /v1, Kind=Status where a crd.example.com/v1, Kind=Website belongs",
					"another type": "crd: Website a of the API server does not fit the Go type: correct the object, and let the schema reject such values, or change the type of the field: ",
					"no JSON":      "crd: the API server's response is no object: couldn't get version/kind",
				} {
					if name == of && !strings.Contains(err.Error(), want) && (method != "List" || of != "another type") {
						t.Errorf("%s: %v, want %s", method, err, want)
					}
				}
				if w, ok := got.(*Website); ok && w != nil {
					t.Errorf("%s returned an object with the error", method)
				}
			}
		})
	}
	t.Run("good", func(t *testing.T) {
		for method, call := range methods(t.Context(), answering(t, &answers{text: single})) {
			if method == "List" {
				call = methods(t.Context(), answering(t, &answers{text: list}))[method]
			}
			got, err := call()
			if err != nil {
				t.Errorf("%s: %v", method, err)
			}
			if w, ok := got.(*Website); ok && w.Name != "a" {
				t.Errorf("%s returned %v", method, w)
			}
			if l, ok := got.(*crd.List[*Website]); ok && (len(l.Items) != 1 || l.Items[0].Name != "a") {
				t.Errorf("%s returned %v", method, l)
			}
		}
	})
	t.Run("failure", func(t *testing.T) {
		text := `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Conflict","message":"no","code":409}`
		for _, status := range []int{409, 200} { // proxies change it
			for method, call := range methods(t.Context(), answering(t, &answers{text: text, status: status})) {
				if _, err := call(); !apierrors.IsConflict(err) {
					t.Errorf("%s with status %d: %v, want a Conflict", method, status, err)
				}
			}
		}
	})
}

// An event with another object is an error event.
//
// Proves CR1.
func TestForeignEvents(t *testing.T) {
	for object, want := range map[string]watch.EventType{
		`{"apiVersion":"crd.example.com/v1","kind":"Website","metadata":{"name":"a"}}`:      watch.Added,
		`{"apiVersion":"crd.example.com/v1","kind":"Gizmo","metadata":{"name":"a"}}`:        watch.Error,
		`{"apiVersion":"crd.example.com/v1","kind":"WebsiteList","metadata":{}}`:            watch.Error,
		`{"apiVersion":"crd.example.com/v1","kind":"WebsiteList","metadata":{},"items":[]}`: watch.Error,
		`{"apiVersion":"crd.example.com/v1","kind":"GetOptions"}`:                           watch.Error,
	} {
		c := answering(t, &answers{text: `{"type":"ADDED","object":` + object + `}`})
		w, err := c.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		event := <-w.ResultChan()
		if event.Type != want {
			t.Errorf("%s: got %v, want type %s", object, event, want)
		}
		w.Stop()
	}
}

// The content types of the config, here protobuf, do not reach the API server. Writes are
// strict, unless the caller asks for something else.
//
// Proves CR2.
func TestRequests(t *testing.T) {
	single := `{"apiVersion":"crd.example.com/v1","kind":"Website","metadata":{"name":"a"}}`
	a := &answers{text: single}
	c := answering(t, a)
	got := map[string]string{}
	for method, call := range methods(t.Context(), c) {
		a.requests, a.bodies = nil, nil
		if _, err := call(); err != nil && method != "List" {
			t.Fatal(method, err)
		}
		r := a.requests[0]
		if accept := r.Header.Get("Accept"); accept != "application/json" {
			t.Errorf("%s accepts %q", method, accept)
		}
		if a.bodies[0] != "" && a.bodies[0] != "{}" && !strings.HasPrefix(a.bodies[0], `{"apiVersion":"crd.example.com/v1","kind":"Website","metadata":{"name":"a"}`) &&
			!strings.HasPrefix(a.bodies[0], `{"kind":"Website","apiVersion":"crd.example.com/v1","metadata":{"name":"a"}`) {
			t.Errorf("%s has the body %s", method, a.bodies[0])
		}
		got[method] = r.Method + " " + r.URL.Path + "?" + r.URL.RawQuery + " " + r.Header.Get("Content-Type")
	}
	want := map[string]string{
		"Get":          "GET /apis/crd.example.com/v1/websites/a? ",
		"List":         "GET /apis/crd.example.com/v1/websites? ",
		"Create":       "POST /apis/crd.example.com/v1/websites?fieldValidation=Strict application/json",
		"Update":       "PUT /apis/crd.example.com/v1/websites/a?fieldValidation=Strict application/json",
		"UpdateStatus": "PUT /apis/crd.example.com/v1/websites/a/status?fieldValidation=Strict application/json",
		"Patch":        "PATCH /apis/crd.example.com/v1/websites/a/status?fieldValidation=Strict application/merge-patch+json",
		"Apply":        "PATCH /apis/crd.example.com/v1/websites/a?fieldManager=m&fieldValidation=Strict&force=false application/apply-patch+yaml",
		"ApplyStatus":  "PATCH /apis/crd.example.com/v1/websites/a/status?fieldManager=m&fieldValidation=Strict&force=false application/apply-patch+yaml",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}

	a.requests = nil
	_, err1 := c.Create(t.Context(), website("", "a"), metav1.CreateOptions{FieldValidation: "Warn"})
	_, err2 := c.Namespace("n").Update(t.Context(), website("", "a"), metav1.UpdateOptions{FieldValidation: "Ignore"})
	_, err3 := c.Namespace("n").UpdateStatus(t.Context(), website("n", "a"), metav1.UpdateOptions{FieldValidation: "Ignore"})
	_, err4 := c.Patch(t.Context(), "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{FieldValidation: "Ignore"})
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		t.Fatal(err1, err2, err3, err4)
	}
	for i, want := range []string{"/apis/crd.example.com/v1/websites?fieldValidation=Warn", "/apis/crd.example.com/v1/namespaces/n/websites/a?fieldValidation=Ignore", "/apis/crd.example.com/v1/namespaces/n/websites/a/status?fieldValidation=Ignore", "/apis/crd.example.com/v1/websites/a?fieldValidation=Ignore"} {
		if got := a.requests[i].URL.RequestURI(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}

	core, err := crd.New[*Website](&rest.Config{Host: "http://localhost", Transport: a}, schema.GroupVersionKind{Version: "v1", Kind: "Website"}, "websites")
	if err != nil {
		t.Fatal(err)
	}
	a.requests = nil
	_, _ = core.Get(t.Context(), "a", metav1.GetOptions{})
	if got := a.requests[0].URL.Path; got != "/api/v1/websites/a" {
		t.Errorf("the path in the core group is %s", got)
	}
}

// New leaves the config of the caller as it is.
func TestConfigStays(t *testing.T) {
	config := &rest.Config{Host: "http://localhost"}
	if _, err := crd.New[*Website](config, websiteKind, "websites"); err != nil {
		t.Fatal(err)
	}
	if config.GroupVersion != nil || config.APIPath != "" || config.NegotiatedSerializer != nil || config.ContentType != "" || config.UserAgent != "" {
		t.Errorf("the config changed: %v", config)
	}
}

// What belongs elsewhere, or is nil, is not sent.
//
// Proves CK2.
func TestNotSent(t *testing.T) {
	a := &answers{text: `{"apiVersion":"crd.example.com/v1","kind":"Website","metadata":{"name":"a"}}`}
	c := answering(t, a).Namespace("b")
	config := func(apiVersion, kind, name, namespace string) any {
		return &unstructured.Unstructured{Object: m{"apiVersion": apiVersion, "kind": kind, "metadata": m{"name": name, "namespace": namespace}}}
	}
	ctx, opts := t.Context(), metav1.ApplyOptions{FieldManager: "m"}
	for _, tt := range []struct {
		name string
		call func() (*Website, error)
		want string
	}{
		{"create in another namespace", func() (*Website, error) { return c.Create(ctx, website("a", "x"), metav1.CreateOptions{}) }, `crd: create: metadata.namespace of "x" is "a", and the client has "b": use Client.Namespace("a")`},
		{"update without a namespace", func() (*Website, error) {
			return c.Namespace("").Update(ctx, website("a", "x"), metav1.UpdateOptions{})
		}, `crd: update: metadata.namespace of "x" is "a", and the client has ""`},
		{"status in another namespace", func() (*Website, error) { return c.UpdateStatus(ctx, website("a", "x"), metav1.UpdateOptions{}) }, `crd: update: metadata.namespace`},
		{"create nil", func() (*Website, error) { return c.Create(ctx, nil, metav1.CreateOptions{}) }, "crd: create: the object is nil: pass a *site.Website"},
		{"update nil", func() (*Website, error) { return c.Update(ctx, nil, metav1.UpdateOptions{}) }, "crd: update: the object is nil"},
		{"status nil", func() (*Website, error) { return c.UpdateStatus(ctx, nil, metav1.UpdateOptions{}) }, "crd: update: the object is nil"},
		{"apply nil", func() (*Website, error) { return c.Apply(ctx, nil, opts) }, "crd: apply: the configuration is nil"},
		{"apply typed nil", func() (*Website, error) { return c.ApplyStatus(ctx, (*Website)(nil), opts) }, "crd: apply: the configuration is nil"},
		{"apply a text", func() (*Website, error) { return c.Apply(ctx, "x", opts) }, "crd: apply: "},
		{"apply without a manager", func() (*Website, error) {
			return c.Apply(ctx, config("crd.example.com/v1", "Website", "x", ""), metav1.ApplyOptions{})
		}, "crd: apply: the field manager is empty"},
		{"apply in another namespace", func() (*Website, error) {
			return c.Apply(ctx, config("crd.example.com/v1", "Website", "x", "a"), opts)
		}, `crd: apply: metadata.namespace of "x" is "a"`},
		{"apply another kind", func() (*Website, error) { return c.Apply(ctx, config("crd.example.com/v1", "Gizmo", "x", "b"), opts) }, `apiVersion and kind of the configuration of "x" are those of crd.example.com/v1, Kind=Gizmo: use those of crd.example.com/v1, Kind=Website`},
		{"apply an apiVersion that is none", func() (*Website, error) { return c.Apply(ctx, config("a/b/c", "Website", "x", "b"), opts) }, `are those of /a/b/c, Kind=Website`},
		{"apply without a kind", func() (*Website, error) { return c.Apply(ctx, website("b", "x"), opts) }, `crd: apply: apiVersion of the configuration of "x" is empty`},
	} {
		got, err := tt.call()
		if err == nil || !strings.Contains(err.Error(), tt.want) || got != nil {
			t.Errorf("%s: %v, %v, want %s", tt.name, got, err, tt.want)
		}
	}
	if len(a.requests) > 0 {
		t.Errorf("%d requests were sent", len(a.requests))
	}
	if _, err := c.Update(ctx, website("", "x"), metav1.UpdateOptions{}); err != nil || len(a.requests) != 1 {
		t.Errorf("an object without a namespace: %v, %d requests", err, len(a.requests))
	}
}

// Many goroutines may send one object: client-go sets its kind while it encodes it, which
// the race detector would see.
//
// Proves CK1.
func TestObjectsStay(t *testing.T) {
	c := answering(t, &answers{text: `{"apiVersion":"crd.example.com/v1","kind":"Website","metadata":{"name":"a"}}`})
	w, want := website("", "a"), website("", "a")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			_, err1 := c.Create(t.Context(), w, metav1.CreateOptions{})
			_, err2 := c.Update(t.Context(), w, metav1.UpdateOptions{})
			_, err3 := c.UpdateStatus(t.Context(), w, metav1.UpdateOptions{})
			if err1 != nil || err2 != nil || err3 != nil {
				t.Error(err1, err2, err3)
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(want, w); diff != "" {
		t.Error(diff)
	}
}

// TestUnknownFields tests that if a response for one object had a field that the Go type
// lacks, the next Update logs its name, once for each client.
func TestUnknownFields(t *testing.T) {
	const text = `{"apiVersion":"crd.example.com/v1","kind":"Website","metadata":{"name":"a"},"spec":{"host":"h","later":"x"}}`
	for _, tt := range []struct {
		name, text string
		list       bool
		statusLast bool // UpdateStatus comes after Update
		want       int
	}{
		{name: "unknown", text: text, want: 1},
		{name: "unknown in Update", text: text, statusLast: true, want: 1},
		{name: "unknown in a list", text: `{"apiVersion":"crd.example.com/v1","kind":"WebsiteList","items":[` + text + `]}`, list: true},
		{name: "known", text: strings.Replace(text, `,"later":"x"`, "", 1)},
		{name: "hostile", text: strings.Replace(text, `"later"`, `"`+strings.Repeat(`\n`, 1<<16)+`"`, 1), want: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
			a := &answers{text: tt.text}
			c := answering(t, a)
			if tt.list {
				if _, err := c.List(ctx, metav1.ListOptions{}); err != nil {
					t.Fatal(err)
				}
				a.text = strings.Replace(text, `,"later":"x"`, "", 1)
			} else if w, err := c.Get(ctx, "a", metav1.GetOptions{}); err != nil || w.Spec.Host != "h" {
				t.Fatal(w, err)
			}
			for range 3 {
				updates := []func(context.Context, *Website, metav1.UpdateOptions) (*Website, error){c.UpdateStatus, c.Namespace("n").Update}
				if tt.statusLast {
					slices.Reverse(updates)
				}
				for i, update := range updates {
					if w, err := update(ctx, website("", "a"), metav1.UpdateOptions{}); err != nil || w.Name != "a" {
						t.Fatal(w, err)
					}
					if len(lines) != tt.want {
						t.Fatalf("%d lines after %d kinds of updates, want %d: %q", len(lines), i+1, tt.want, lines)
					}
				}
			}
			if tt.want > 0 && (len(lines[0]) > 1200 || strings.HasPrefix(tt.name, "unknown") && !strings.Contains(lines[0], `unknown field \"spec.later\"`)) {
				t.Errorf("%.2000s", lines[0])
			}
		})
	}
}

func TestNotServed(t *testing.T) {
	c := answering(t, &answers{text: "404 page not found\n", contentType: "text/plain", status: 404})
	calls := methods(t.Context(), c)
	calls["Delete"] = func() (any, error) { return nil, c.Delete(t.Context(), "a", metav1.DeleteOptions{}) }
	calls["DeleteCollection"] = func() (any, error) {
		return nil, c.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
	}
	calls["Watch"] = func() (any, error) { return c.Watch(t.Context(), metav1.ListOptions{}) }
	for method, call := range calls {
		_, err := call()
		if err == nil || !strings.Contains(err.Error(), "crd: the API server does not serve the resource: ") || !strings.Contains(err.Error(), `websites.crd.example.com`) ||
			!strings.Contains(err.Error(), `in version "v1": install the CustomResourceDefinition`) {
			t.Errorf("%s: %v", method, err)
		}
		if reads := method == "List" || method == "Watch"; apierrors.IsNotFound(err) != reads {
			t.Errorf("%s: IsNotFound is %t, want %t, since nothing is known to be deleted: %v", method, !reads, reads, err)
		}
	}
	denied := answering(t, &answers{text: "no", contentType: "text/plain", status: 405})
	if _, err := denied.Create(t.Context(), website("", "a"), metav1.CreateOptions{}); !apierrors.IsMethodNotSupported(err) || !strings.HasPrefix(err.Error(), "crd: create websites.crd.example.com: if the resource is namespaced, use Client.Namespace: ") {
		t.Errorf("a method that is not allowed: %v", err)
	}
	for name, text := range map[string]string{
		"absent object": `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","message":"websites \"a\" not found","details":{"name":"a","kind":"websites"},"code":404}`,
	} {
		if _, err := answering(t, &answers{text: text, status: 404}).Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) || strings.Contains(err.Error(), "crd:") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The verbs and resources of errors are those of a Role.
func TestForbidden(t *testing.T) {
	for verb, resource := range map[string]string{"get": "websites", "list": "websites", "watch": "websites", "create": "websites", "update": "websites", "patch": "websites/status", "delete": "websites", "deletecollection": "websites", "UPDATE": "websites/status"} {
		text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","message":"User cannot %s resource \"websites\"","code":403}`, strings.ToLower(verb))
		c := answering(t, &answers{text: text, status: 403})
		var err error
		switch verb {
		case "get":
			_, err = c.Get(t.Context(), "a", metav1.GetOptions{})
		case "list":
			_, err = c.List(t.Context(), metav1.ListOptions{})
		case "watch":
			_, err = c.Watch(t.Context(), metav1.ListOptions{})
		case "create":
			_, err = c.Create(t.Context(), website("", "a"), metav1.CreateOptions{})
		case "update":
			_, err = c.Update(t.Context(), website("", "a"), metav1.UpdateOptions{})
		case "UPDATE":
			_, err = c.UpdateStatus(t.Context(), website("", "a"), metav1.UpdateOptions{})
		case "patch":
			_, err = c.Patch(t.Context(), "a", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "status")
		case "delete":
			err = c.Delete(t.Context(), "a", metav1.DeleteOptions{})
		case "deletecollection":
			err = c.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		}
		want := fmt.Sprintf(`crd: a Role or ClusterRole must allow verbs [%q] on resources [%q] in apiGroups ["crd.example.com"]: `, strings.ToLower(verb), resource)
		if !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", verb, err, want)
		}
	}
	admission := answering(t, &answers{text: `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","message":"exceeded quota","code":403}`, status: 403})
	if _, err := admission.Create(t.Context(), website("", "a"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "Role") {
		t.Errorf("a rejection by admission: %v", err)
	}
}

func TestListCopies(t *testing.T) {
	list := &crd.List[*Website]{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []*Website{website("a", "b"), nil}}
	copied := list.DeepCopyObject().(*crd.List[*Website])
	if diff := cmp.Diff(list, copied); diff != "" {
		t.Error(diff)
	}
	copied.Items[0].Labels = map[string]string{"changed": "yes"}
	if list.Items[0].Labels != nil {
		t.Error("the copy shares its objects")
	}
	if empty := (&crd.List[*Website]{}).DeepCopyObject().(*crd.List[*Website]); empty.Items != nil {
		t.Error("the copy of nil items is not nil")
	}
	if (*crd.List[*Website])(nil).DeepCopyObject() != nil {
		t.Error("the copy of nil is not nil")
	}
	data, err := json.Marshal(crd.List[*Website]{TypeMeta: metav1.TypeMeta{Kind: "WebsiteList"}, Items: []*Website{}})
	if err != nil || !strings.HasPrefix(string(data), `{"kind":"WebsiteList","metadata":{},"items":[]`) {
		t.Errorf("%s, %v", data, err)
	}
}

func TestListerNil(t *testing.T) {
	lister := newFake(t).Informer(0, nil).Lister()
	if _, err := lister.List(nil); err == nil || !strings.HasPrefix(err.Error(), "crd: selector is nil: use labels.Everything()") {
		t.Error(err)
	}
	if all, err := lister.List(labels.Everything()); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
}
