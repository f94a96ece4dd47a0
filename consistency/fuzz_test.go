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
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/controllerkit/controllerkit/consistency"
)

// oracle is what decoders find in an answer, by decoding all of it.
type oracle struct {
	rv     string
	gone   bool   // the object is no more, if it was to be deleted, or had to
	normal []byte // the same as Kubernetes writes it, nil where that cannot be told
}

// ask returns false where decoding fails, or where decoders have an opinion of their own.
func ask(contentType string, body []byte, deletion bool) (o oracle, ok bool) {
	var object metav1.PartialObjectMetadata
	switch contentType {
	case pbType:
		raw, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
		var envelope runtime.Unknown
		var err error
		if !ok || envelope.Unmarshal(raw) != nil || envelope.ContentEncoding != "" || object.Unmarshal(envelope.Raw) != nil {
			return o, false
		}
		if envelope.Kind == "Status" {
			return o, false // has another kind of metadata
		}
		if envelope.Raw, err = object.Marshal(); err == nil {
			if normal, err := envelope.Marshal(); err == nil {
				o.normal = append([]byte("k8s\x00"), normal...)
			}
		}
	case jsonType, cborType:
		decode, encode := json.Unmarshal, json.Marshal
		if contentType == cborType {
			decode, encode = direct.Unmarshal, direct.Marshal
		}
		var value any
		if decode(body, &value) != nil {
			return o, false
		}
		fields, ok := value.(map[string]any)
		if !ok {
			return o, false
		}
		metadata, ok := fields["metadata"].(map[string]any)
		if !ok && fields["metadata"] != nil {
			return o, false
		}
		uid, isText := metadata["uid"].(string)
		if metadata["uid"] != nil && !isText {
			return o, false
		}
		object.UID = types.UID(uid)
		if object.ResourceVersion, isText = metadata["resourceVersion"].(string); metadata["resourceVersion"] != nil && !isText {
			return o, false
		}
		// Of a name that is there twice a struct has both values, and a map the last one.
		var typed metav1.PartialObjectMetadata
		if utiljson.Unmarshal(body, &typed) == nil && (typed.UID != object.UID || typed.ResourceVersion != object.ResourceVersion) {
			return o, false
		}
		o.normal, _ = encode(value)
		for name, into := range map[string]any{
			"finalizers": &object.Finalizers, "deletionTimestamp": &object.DeletionTimestamp, "deletionGracePeriodSeconds": &object.DeletionGracePeriodSeconds,
		} {
			if raw, err := json.Marshal(metadata[name]); err != nil || string(raw) == "-0" || json.Unmarshal(raw, into) != nil {
				o.normal = nil
			}
		}
		if details, ok := fields["details"].(map[string]any); ok && uid == "" && deletion {
			if uid, isText := details["uid"].(string); isText {
				o.gone = uid != ""
			} else if details["uid"] != nil {
				o.normal = nil
			}
		}
	default:
		return o, false
	}
	grace := object.DeletionGracePeriodSeconds
	if object.UID != "" {
		o.gone = len(object.Finalizers) == 0 && (grace == nil || *grace == 0) && (deletion || object.DeletionTimestamp != nil)
	}
	o.rv = object.ResourceVersion
	return o, true
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
		media, _, _ := strings.Cut(kind, ";")
		method := http.MethodPut
		if deletion {
			method = http.MethodDelete
		}
		// answered returns what is recorded of a write that is answered with the body. The
		// store has a version only: what is gone makes the write ambiguous.
		answered := func(body []byte, framed, broken bool) (recorded string, ambiguous bool) {
			s := consistency.New(consistency.Config{Stores: stores{pods: at("")}})
			rt := s.Wrap(roundTripper(func(*http.Request) (*http.Response, error) {
				answer, length := io.Reader(bytes.NewReader(body)), int64(-1)
				if broken {
					answer = io.MultiReader(answer, &failing{io.ErrUnexpectedEOF})
				}
				if framed {
					length = int64(len(body))
				}
				return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(answer), ContentLength: length}, nil
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
			if !bytes.Equal(got, body) || errors.Is(err, io.ErrUnexpectedEOF) != broken {
				t.Errorf("the caller got %q, %v, want %q and an error: %v", got, err, body, broken)
			}
			return missing(s, owner), len(s.Ambiguous(owner)) > 0
		}
		wantOf := func(o oracle) string {
			if _, err := resourceversion.CompareResourceVersion(o.rv, o.rv); err != nil {
				return ""
			}
			return "pods@" + o.rv
		}

		cut = max(min(cut, len(body)), 0)
		part := body[:len(body)-cut]
		if recorded, ambiguous := answered(part, false, true); !ambiguous || recorded != "" {
			t.Errorf("a broken answer: ambiguous = %v, recorded %q, want it ambiguous", ambiguous, recorded)
		}
		recorded, ambiguous := answered(part, false, false)
		if o, ok := ask(media, part, deletion); ok {
			// What Kubernetes does not write may count as not readable in the other encodings.
			unread := media != jsonType && ambiguous && recorded == ""
			if want := wantOf(o); recorded != want && !unread {
				t.Errorf("recorded %q of %s %q, want %q", recorded, kind, part, want)
			}
		}
		whole, ok := ask(media, body, deletion)
		if !ok {
			return
		}
		switch {
		case ambiguous || strings.TrimSpace(string(body[len(part):])) == "":
		case media != pbType:
			t.Errorf("%s %q is cut off, but not ambiguous (recorded %q)", kind, part, recorded)
		case recorded != "" && recorded != wantOf(whole):
			// The last fields of the envelope may be missed without harm, but no other.
			t.Errorf("recorded %q of %s %q, which is cut off, want nothing or %q", recorded, kind, part, whole.rv)
		}

		// What Kubernetes writes is read, also of an answer known to be whole, of which not
		// all is read.
		if whole.normal == nil {
			return
		}
		for _, framed := range []bool{false, true} {
			recorded, ambiguous := answered(whole.normal, framed, false)
			want := wantOf(whole)
			if unknown := whole.gone || want == ""; recorded != want || ambiguous != unknown {
				t.Errorf("recorded %q, ambiguous = %v of %s %q (framed = %v), want %q, %v", recorded, ambiguous, kind, whole.normal, framed, want, unknown)
			}
		}
		cut = min(cut, len(whole.normal)-1)
		if _, ambiguous := answered(whole.normal[:len(whole.normal)-cut], false, false); cut > 0 && media != pbType && !ambiguous {
			t.Errorf("%s %q without its last %d bytes is not ambiguous", kind, whole.normal, cut)
		}
	})
}
