package consistency_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/controllerkit/controllerkit/consistency"
)

// oracle reads the resource version of a whole answer by decoding all of it. It is
// false where that fails, or where the decoders have an opinion of their own.
func oracle(contentType string, body []byte) (rv string, ok bool) {
	var object any
	switch contentType {
	case jsonType:
		if json.Unmarshal(body, &object) != nil {
			return "", false
		}
	case cborType:
		if direct.Unmarshal(body, &object) != nil {
			return "", false
		}
	case pbType:
		raw, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
		var envelope runtime.Unknown
		var object metav1.PartialObjectMetadata
		if !ok || envelope.Unmarshal(raw) != nil || envelope.ContentEncoding != "" || object.Unmarshal(envelope.Raw) != nil {
			return "", false
		}
		if envelope.Kind == "Status" {
			return "", false // has another kind of metadata
		}
		return object.ResourceVersion, true
	default:
		return "", false
	}
	fields, ok := object.(map[string]any)
	if !ok {
		return "", false
	}
	metadata, ok := fields["metadata"].(map[string]any)
	if !ok {
		return "", fields["metadata"] == nil
	}
	for _, name := range []string{"resourceVersion", "uid"} {
		if _, isText := metadata[name].(string); metadata[name] != nil && !isText {
			return "", false
		}
	}
	rv, _ = metadata["resourceVersion"].(string)
	return rv, true
}

// FuzzAnswer proves C3 and C4 for any answer, whole or cut off: the caller gets the
// bytes and the error of the server; what is recorded is what a decoder of the whole
// answer finds; and what has no end is ambiguous.
func FuzzAnswer(f *testing.F) {
	contentTypes := []string{jsonType, pbType, cborType, "application/yaml", "application/json;charset=utf-8", ""}
	add := func(contentType int, body []byte) {
		for _, cut := range []int{0, 1, 7, len(body) / 2, len(body) - 1} {
			for _, method := range []bool{false, true} {
				f.Add(contentType, body, cut, method)
			}
		}
	}
	terminating := podWithContainers(2)
	terminating.DeletionTimestamp, terminating.DeletionGracePeriodSeconds = &metav1.Time{}, new(int64)
	for _, obj := range []runtime.Object{
		podWithContainers(2), podWith("n", "a", "42"), podWith("", "", ""), terminating,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9", Finalizers: []string{"a/b"}}, BinaryData: map[string][]byte{"a": {0, 1, '"', '\\'}}},
		&metav1.Status{Details: &metav1.StatusDetails{UID: "a"}},
	} {
		for i, e := range encodings {
			switch o := obj.(type) {
			case *corev1.ConfigMap:
				o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
			case *metav1.Status:
				o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			}
			add(i, e.encode(f, obj))
		}
	}
	for _, text := range []string{
		``, `null`, `[]`, `{}`, `""`, ` { "metadata" : { } } `, `{"metadata":null}`, `{"metadata":[]}`, `{"metadata":{"resourceVersion":42}}`,
		`{"metadata":{"resourceVersion":"\u0034\u0032"}}`, `{"met\u0061data":{"resourceVersion":"42"}}`, `{"a":"\\","b":"\\\"","metadata":{"resourceVersion":"1"}}`,
		`{"metadata":{"resourceVersion":"1"},"metadata":{"resourceVersion":"2"}}`, `{"metadata":{"resourceVersion":"1"},"metadata":{}}`,
		`{"metadata":{"resourceVersion":"1"},"metadata":null}`, `{"metadata":{"resourceVersion":null,"uid":null}}`,
		`{"details":{"uid":"x"},"metadata":{"finalizers":[ ],"deletionTimestamp":null}}`, `{"details":7,"metadata":{"resourceVersion":"5"}}`,
		`{"metadata":{"resourceVersion":"1"}}{`, `{"metadata":{"resourceVersion":"1"}} x`, `{"metadata":{"resourceVersion":"1"},}`,
	} {
		add(0, []byte(text))
		add(4, []byte(text))
	}
	for _, text := range []string{
		"\xa0", "\xf6", "\xd9\xd9\xf7\xa0", "\xa1\x68metadata\xa1\x6fresourceVersion\x6242", "\xbf\x48metadata\xbf\x4fresourceVersion\x4142\xff\xff",
		"\xa1\x68metadata\xa1\x6fresourceVersion\x7f\x6142\xff", "\xa1\x68metadata\xa1\x6fresourceVersion\x18\x2a", "\xa1\x61a\xfb\x00\x00\x00\x00\x00\x00\x00\x00",
		"\xa1\x61a\x9f\x01\xff", "\xa1\x61a\x5f\x41a\xff", "\xbb\xff\xff\xff\xff\xff\xff\xff\xff", "\x5b\xff\xff\xff\xff\xff\xff\xff\xff", "\xa1\x61a\xff", "\xa1\x68metadata\xf6",
	} {
		add(2, []byte(text))
	}
	small := protobufOf(f, podWith("n", "a", "123456"))
	for cut := range small {
		f.Add(1, small, cut, false)
	}
	add(1, []byte("k8s\x00"))
	add(1, []byte("k8s\x00\x12\x04\x0a\x02\x32\x00"))

	f.Fuzz(func(t *testing.T, contentType int, body []byte, cut int, deletion bool) {
		kind := contentTypes[uint(contentType)%uint(len(contentTypes))]
		cut = max(min(cut, len(body)), 0)
		part := body[:len(body)-cut]
		method := http.MethodPut
		if deletion {
			method = http.MethodDelete
		}
		for _, broken := range []bool{false, true} {
			s := consistency.New(consistency.Config{Stores: stores{pods: at("")}})
			rt := s.Wrap(roundTripper(func(*http.Request) (*http.Response, error) {
				answer := io.Reader(bytes.NewReader(part))
				if broken {
					answer = io.MultiReader(answer, &failing{io.ErrUnexpectedEOF})
				}
				return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(answer), ContentLength: -1}, nil
			}))
			req, err := http.NewRequestWithContext(s.Begin(t.Context(), owner), method, "https://server/api/v1/namespaces/ns/pods/n", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := rt.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			if !bytes.Equal(got, part) || errors.Is(err, io.ErrUnexpectedEOF) != broken {
				t.Errorf("the caller got %q, %v, want %q and an error: %v", got, err, part, broken)
			}
			ambiguous, recorded := len(s.Ambiguous(owner)) > 0, missing(s, owner)
			if broken {
				if !ambiguous || recorded != "" {
					t.Errorf("a broken answer: ambiguous = %v, recorded %q, want it ambiguous", ambiguous, recorded)
				}
				continue
			}
			media, _, _ := strings.Cut(kind, ";")
			rv, ok := oracle(media, part)
			if ok {
				want := ""
				if _, err := resourceversion.CompareResourceVersion(rv, rv); err == nil {
					want = "pods@" + rv
				}
				// Encodings that Kubernetes does not write may count as not readable. What
				// is written for a deletion may be that an object is gone.
				readable := !ambiguous || media == jsonType && !deletion
				if readable && recorded != want {
					t.Errorf("recorded %q of %s %q, want %q", recorded, kind, part, want)
				}
				if readable && ambiguous && media == jsonType {
					t.Errorf("ambiguous, although %s %q is whole", kind, part)
				}
			}
			rv, whole := oracle(media, body)
			switch {
			case !whole || ambiguous || strings.TrimSpace(string(body[len(part):])) == "":
			case media != pbType:
				t.Errorf("%s %q is cut off, but not ambiguous (recorded %q)", kind, part, recorded)
			case recorded != "" && recorded != "pods@"+rv:
				// The last fields of the envelope may be missed without harm, but no other.
				t.Errorf("recorded %q of %s %q, which is cut off, want nothing or %q", recorded, kind, part, rv)
			}
		}
	})
}
