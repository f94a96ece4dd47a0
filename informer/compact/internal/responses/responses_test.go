package responses_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clientwatch "k8s.io/client-go/rest/watch"

	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"

	"github.com/controllerkit/controllerkit/informer/compact/internal/encoded"
	"github.com/controllerkit/controllerkit/informer/compact/internal/responses"
)

var reader = responses.Reader{Kind: "Pod"}

// info returns client-go's serializers of a media type.
func info(t testing.TB, media string) runtime.SerializerInfo {
	t.Helper()
	i, ok := runtime.SerializerInfoForMediaType(rest.CodecFactoryForGeneratedClient(scheme.Scheme, scheme.Codecs).SupportedMediaTypes(), media)
	if !ok {
		t.Fatalf("no serializer of %s", media)
	}
	return i
}

var media = []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}

func pods(n int) (list []corev1.Pod) {
	for i := range n {
		list = append(list, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), Namespace: "default", UID: "u", ResourceVersion: fmt.Sprint(i + 1), Labels: map[string]string{"text": "\"}\n{\\"}},
			Spec:       corev1.PodSpec{NodeName: strings.Repeat("n", 10*i)},
		})
	}
	return list
}

func encodeList(t testing.TB, media string, list *corev1.PodList) []byte {
	t.Helper()
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	var b bytes.Buffer
	if err := info(t, media).Serializer.Encode(list, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func decoded(t testing.TB, o *encoded.Object) corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := o.Decode(&pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestList(t *testing.T) {
	for _, media := range media {
		t.Run(media, func(t *testing.T) {
			for _, n := range []int{0, 1, 100} {
				list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "12", Continue: "next", RemainingItemCount: new(int64)}, Items: pods(n)}
				data := encodeList(t, media, list)
				for name, body := range map[string]io.Reader{"whole": bytes.NewReader(data), "bytes": iotest.OneByteReader(bytes.NewReader(data))} {
					got, err := reader.List(body)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if !reflect.DeepEqual(got.ListMeta, list.ListMeta) || len(got.Items) != n {
						t.Fatalf("%s: %d objects, %+v", name, len(got.Items), got.ListMeta)
					}
					for i, o := range got.Items {
						if pod := decoded(t, o); !reflect.DeepEqual(pod, list.Items[i]) {
							t.Fatalf("%s: %+v, want %+v", name, pod, list.Items[i])
						}
					}
				}
			}
		})
	}
}

// TestCutList ends a response at each byte: the error is there, and no list.
func TestCutList(t *testing.T) {
	for _, media := range media {
		data := encodeList(t, media, &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "12"}, Items: pods(3)})
		end := len(bytes.TrimRight(data, "\n"))
		for i := range end {
			// In protobuf, two empty fields follow the list.
			if list, err := reader.List(bytes.NewReader(data[:i])); err == nil && (media == runtime.ContentTypeJSON || len(list.Items) != 3) {
				t.Fatalf("%s, cut at %d of %d: %d objects and no error", media, i, len(data), len(list.Items))
			}
			broken := errors.New("broken")
			if _, err := reader.List(io.MultiReader(bytes.NewReader(data[:i]), iotest.ErrReader(broken))); err == nil {
				t.Fatalf("%s, broken at %d of %d: no error", media, i, len(data))
			}
		}
	}
}

func TestListErrors(t *testing.T) {
	services := &corev1.ServiceList{Items: []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Name: "s"}}}}
	services.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceList"))
	var b bytes.Buffer
	if err := info(t, runtime.ContentTypeProtobuf).Serializer.Encode(services, &b); err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{
		b.String():                          "the API server sent a ServiceList where a PodList belongs: check type and resource",
		`{"kind":"ServiceList","items":[]}`: "the API server sent a ServiceList where a PodList belongs: check type and resource",
		"":                                  "an empty response",
		`{"kind":"PodList","items":[{"spec":{}}]}`:     "object 0: an object without metadata.name",
		`{"kind":"PodList","items":[{"metadata":5}]}`:  "object 0: malformed encoding",
		`{"kind":"PodList","items":{}}`:                "items: a json.Delim in place of [",
		`{"kind":"PodList","items":[7]}`:               "object 0: malformed encoding",
		`[]`:                                           "[ in place of {",
		"k8s\x00\x12\xff\xff\xff\xff\x7f":              "unexpected EOF",
		"k8s\x00\x12\x06\x12\xff\xff\xff\xff\x0f":      "unexpected EOF",
		"k8s\x00\x0b":                                  "malformed protobuf",
		`{"kind":"PodList","metadata":{"continue":5}}`: "cannot unmarshal number",
		"<html>": "invalid character '<'",
		`{"kind":"PodList","items":[{"metadata":{}}`:      "without metadata.name",
		`{"kind":"Pod` + strings.Repeat("x", 1000) + `"}`: "check type and resource",
	} {
		_, err := reader.List(strings.NewReader(data))
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300 {
			t.Errorf("%.60q: %v, want %s", data, err, want)
		}
	}
	if list, err := reader.List(strings.NewReader(`{"kind":"PodList","items":null,"other":[1]}`)); err != nil || len(list.Items) != 0 {
		t.Errorf("items null: %v", err)
	}
}

// TestListKind: the lists of a custom resource have any kind, and its objects their own.
func TestListKind(t *testing.T) {
	custom := responses.Reader{Kind: "Gadget", Custom: true}
	for data, want := range map[string]string{
		`{"kind":"GadgetList","items":[{"metadata":{"name":"a"}}]}`:                                         "",
		`{"items":[{"kind":"Gadget","metadata":{"name":"a"}}],"kind":"Gadgetry"}`:                           "",
		`{"kind":"Gadgetry","items":[]}`:                                                                    "",
		`{"kind":"Gadgetry","items":[{"kind":"Gadget","metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`: "sent a Gadgetry where a GadgetList belongs",
		`{"kind":"Status","status":"Failure"}`:                                                              "sent a Status where a GadgetList belongs",
		`{"kind":"Gadgetry","items":null}`:                                                                  "sent a Gadgetry where a GadgetList belongs",
		`{"kind":"WidgetList","items":[{"kind":"Widget","metadata":{"name":"a"}}]}`:                         "sent a WidgetList where a GadgetList belongs",
		`{"kind":"ServiceList","items":[{"metadata":{"name":"a"}}]}`:                                        "sent a ServiceList where a GadgetList belongs",
		string(encodeList(t, runtime.ContentTypeProtobuf, &corev1.PodList{Items: pods(1)})):                 "sent a PodList where a GadgetList belongs",
	} {
		list, err := custom.List(strings.NewReader(data))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", data, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, %v, want %s", data, list, err, want)
		}
	}
}

// TestBounded reads values without an end, such as a proxy or a faulty server sends.
func TestBounded(t *testing.T) {
	for begin, endless := range map[string]string{
		`{"kind":"PodList","items":[{"metadata":{"name":"`:  "x",
		`{"kind":"PodList","metadata":{"resourceVersion":"`: "x",
		`{"kind":"PodList"`:           " ",
		`{"kind":"PodList","items":[`: " ",
	} {
		read := &endlessReader{rest: begin, with: endless}
		if _, err := reader.List(read); err == nil || !strings.Contains(err.Error(), "more than 16777216 bytes") || read.n > 20<<20 {
			t.Errorf("%s: %v, after %d bytes", begin, err, read.n)
		}
	}
}

type endlessReader struct {
	rest, with string
	n          int
}

func (e *endlessReader) Read(p []byte) (int, error) {
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	for ; n < len(p); n++ {
		p[n] = e.with[0]
	}
	e.n += n
	return n, nil
}

// TestKept: a watch does not keep the memory of a large object.
func TestKept(t *testing.T) {
	large := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large", Annotations: map[string]string{"a": strings.Repeat("x", 3<<20)}}}
	small := pods(2)
	for _, media := range media {
		d := reader.Events(io.NopCloser(bytes.NewReader(encodeEvents(t, media,
			watch.Event{Type: watch.Added, Object: &small[0]}, watch.Event{Type: watch.Added, Object: &large}, watch.Event{Type: watch.Added, Object: &small[1]}))))
		for _, want := range []string{small[0].Name, large.Name, small[1].Name} {
			_, obj, err := d.Decode()
			if err != nil || obj.(*encoded.Object).GetName() != want {
				t.Fatalf("%s: %v, %v, want %s", media, obj, err, want)
			}
			if kept := responses.Kept(d); kept > 1<<20 {
				t.Errorf("%s: %d bytes are kept after %s", media, kept, want)
			}
		}
	}
}

// TestLarge has a response with an object that is larger than client-go accepts.
func TestLarge(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large", Annotations: map[string]string{"a": strings.Repeat("x", 17<<20)}}}
	for _, media := range media {
		if _, err := reader.List(bytes.NewReader(encodeList(t, media, &corev1.PodList{Items: []corev1.Pod{pod}}))); err == nil || !strings.Contains(err.Error(), "more than 16777216 bytes") {
			t.Errorf("%s: %v", media, err)
		}
		w := encodeEvents(t, media, watch.Event{Type: watch.Added, Object: &pod})
		if _, _, err := reader.Events(io.NopCloser(bytes.NewReader(w))).Decode(); err == nil || !strings.Contains(err.Error(), "more than 16777216 bytes") {
			t.Errorf("a watch in %s: %v", media, err)
		}
	}
}

func encodeEvents(t testing.TB, media string, events ...watch.Event) []byte {
	t.Helper()
	i := info(t, media)
	var b bytes.Buffer
	e := clientwatch.NewEncoder(streaming.NewEncoder(i.StreamSerializer.Framer.NewFrameWriter(&b), i.StreamSerializer.Serializer), i.Serializer)
	for n := range events {
		obj := events[n].Object.DeepCopyObject()
		switch obj.(type) {
		case *corev1.Pod:
			obj.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		case *corev1.Service:
			obj.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
		case *metav1.Status:
			obj.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("Status"))
		}
		if err := e.Encode(&watch.Event{Type: events[n].Type, Object: obj}); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func someEvents() []watch.Event {
	var events []watch.Event
	for i, pod := range pods(40) {
		events = append(events, watch.Event{Type: []watch.EventType{watch.Added, watch.Modified, watch.Deleted}[i%3], Object: &pod})
	}
	return append(events,
		watch.Event{Type: watch.Bookmark, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "99", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}},
		watch.Event{Type: watch.Error, Object: &metav1.Status{Status: "Failure", Code: 410, Reason: metav1.StatusReasonExpired, Message: "too old"}})
}

func TestEvents(t *testing.T) {
	events := someEvents()
	for _, media := range media {
		t.Run(media, func(t *testing.T) {
			data := encodeEvents(t, media, events...)
			for name, body := range map[string]io.Reader{"whole": bytes.NewReader(data), "bytes": iotest.OneByteReader(bytes.NewReader(data))} {
				d := reader.Events(io.NopCloser(body))
				for i, want := range events {
					action, obj, err := d.Decode()
					if err != nil {
						t.Fatalf("%s, event %d: %v", name, i, err)
					}
					if o, ok := obj.(*encoded.Object); ok {
						pod := decoded(t, o)
						obj = &pod
					}
					if s, ok := obj.(*metav1.Status); ok {
						s.TypeMeta = metav1.TypeMeta{}
					}
					if action != want.Type || !reflect.DeepEqual(obj, want.Object) {
						t.Fatalf("%s, event %d: %s %+v, want %s %+v", name, i, action, obj, want.Type, want.Object)
					}
				}
				if _, _, err := d.Decode(); !errors.Is(err, io.EOF) {
					t.Fatalf("%s, at the end: %v", name, err)
				}
			}
		})
	}
}

// TestBookmark: a bookmark keeps the annotation that ends an initial list, whatever is dropped of objects.
func TestBookmark(t *testing.T) {
	drop, err := encoded.NewDrop(reflect.TypeFor[corev1.Pod](), "metadata.annotations")
	if err != nil {
		t.Fatal(err)
	}
	annotated := metav1.ObjectMeta{Name: "a", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	for _, media := range media {
		d := responses.Reader{Kind: "Pod", Drop: drop}.Events(io.NopCloser(bytes.NewReader(encodeEvents(t, media,
			watch.Event{Type: watch.Added, Object: &corev1.Pod{ObjectMeta: annotated}}, watch.Event{Type: watch.Bookmark, Object: &corev1.Pod{ObjectMeta: annotated}}))))
		for _, want := range []map[string]string{nil, annotated.Annotations} {
			event, obj, err := d.Decode()
			if err != nil {
				t.Fatal(err)
			}
			if got := obj.(*encoded.Object).GetAnnotations(); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: the annotations of an event %s are %v, want %v", media, event, got, want)
			}
		}
	}
}

// TestCutEvents ends a watch at each byte: the whole events are there, and then an error, which is
// io.EOF between two events only.
func TestCutEvents(t *testing.T) {
	pods := pods(4)
	for _, media := range media {
		var ends []int
		var all []byte
		for i := range pods {
			all = append(all, encodeEvents(t, media, watch.Event{Type: watch.Added, Object: &pods[i]})...)
			ends = append(ends, len(all))
		}
		for cut := range all {
			whole := 0
			for _, end := range ends {
				if end <= cut {
					whole++
				}
			}
			d := reader.Events(io.NopCloser(bytes.NewReader(all[:cut])))
			n := 0
			var err error
			for ; err == nil; n++ {
				_, _, err = d.Decode()
			}
			// The newline at the end of an event in JSON is not needed.
			if n-1 != whole && (media == runtime.ContentTypeProtobuf || n-1 != whole+1) {
				t.Fatalf("%s, cut at %d: %d events, want %d: %v", media, cut, n-1, whole, err)
			}
			if between := cut == 0 || n-1 > 0 && cut >= ends[n-2]-1 && cut <= ends[n-2]; between != errors.Is(err, io.EOF) {
				t.Fatalf("%s, cut at %d: %v", media, cut, err)
			}
		}
	}
}

func TestEventErrors(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	for _, media := range media {
		w := encodeEvents(t, media, watch.Event{Type: watch.Added, Object: service})
		if _, _, err := reader.Events(io.NopCloser(bytes.NewReader(w))).Decode(); err == nil || !strings.Contains(err.Error(), "sent a Service where a Pod belongs") {
			t.Errorf("%s: %v", media, err)
		}
		w = encodeEvents(t, media, watch.Event{Type: watch.Added, Object: &corev1.Pod{}})
		if _, _, err := reader.Events(io.NopCloser(bytes.NewReader(w))).Decode(); err == nil || !strings.Contains(err.Error(), "without metadata.name") {
			t.Errorf("%s: %v", media, err)
		}
	}
	for data, want := range map[string]string{
		"\xd9\xd9\xf7\xa2":                   "CBOR",
		"\x00\x00\x00\x02ab":                 "malformed encoding",
		"\x00\x00\x00\x06\x12\x04\x0a\x02ab": `does not begin with "k8s\x00"`,
		"<html>\n":                           `begins with '<'`,
		`{"type":"ADDED"}` + "\n":            "malformed encoding",
		`{"type":"ADDED","object":[]}`:       "malformed encoding",
		`{"type":5,"object":{}}`:             "cannot unmarshal",
		`{"type":"ADDED","object":{}}`:       "without metadata.name",
		`{"type":"ERROR","object":5}`:        "cannot unmarshal",
		`{"type":"ADDED","object":{"a"}}`:    "malformed encoding",
		"{\"type\":\"ADDED\",\n\n\"object":   "unexpected EOF",
	} {
		if _, _, err := reader.Events(io.NopCloser(strings.NewReader(data))).Decode(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", data, err, want)
		}
	}
}

// TestForms has JSON that an API server may send, but does not.
func TestForms(t *testing.T) {
	const text = "\n\n {\"type\" :\n \"ADDED\", \"object\":\n{\"metadata\":{\"name\":\"a\"}}} {\"object\":{\"metadata\":{\"name\":\"b\"}},\"type\":\"DELETED\"}\n{\"type\":\"MODIFIED\",\"object\":{\"kind\":\"Pod\",\"metadata\":{\"name\":\"c\"}}}"
	d := reader.Events(io.NopCloser(strings.NewReader(text)))
	var got []string
	for {
		action, obj, err := d.Decode()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(action)+" "+obj.(*encoded.Object).GetName())
	}
	if want := []string{"ADDED a", "DELETED b", "MODIFIED c"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzHostile reads any bytes as a list and as a watch.
func FuzzHostile(f *testing.F) {
	for _, media := range media {
		f.Add(encodeList(f, media, &corev1.PodList{Items: pods(2)}))
		f.Add(encodeEvents(f, media, someEvents()[38:]...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if list, err := reader.List(bytes.NewReader(data)); err == nil {
			for _, o := range list.Items {
				if o.GetName() == "" {
					t.Fatal("an object without a name")
				}
			}
		}
		d := reader.Events(io.NopCloser(bytes.NewReader(data)))
		for range len(data) + 2 {
			if _, _, err := d.Decode(); err != nil {
				return
			}
		}
		t.Fatal("a watch of more events than bytes")
	})
}

func BenchmarkEvents(b *testing.B) {
	for _, media := range media {
		b.Run(media, func(b *testing.B) {
			data := encodeEvents(b, media, someEvents()[:40]...)
			for range b.N {
				d := reader.Events(io.NopCloser(bytes.NewReader(data)))
				for {
					if _, _, err := d.Decode(); err != nil {
						break
					}
				}
			}
		})
	}
}
