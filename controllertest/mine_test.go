package controllertest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

type answer string

func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(iotest.OneByteReader(strings.NewReader(string(a))))}, nil
}

func TestOnlyMine(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	lines := []struct {
		line string
		mine bool
	}{
		{`{"type":"ADDED","object":{"metadata":{"name":"ct-abcde-1"}}}`, true},
		{`{"type":"ADDED","object":{"metadata":{"name":"ct-other-1"}}}`, false},
		{`{"type":"MODIFIED","object":{"metadata":{"namespace":"ct-abcde-2"},"data":{"long":"` + long + `"}}}`, true},
		{`{"type":"MODIFIED","object":{"data":{"long":"` + long + `"}}}`, false},
		{`{"type":"DELETED","object":{}}`, false},
		{`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}`, true},
		{`{"type":"ERROR","object":{"kind":"Status","code":410}}`, true},
		{`{"type":"DELETED","object":{"metadata":{"name":"ct-abcde-1"}}}`, true},
		{`{"type":"ADDED","object":{"me`, false}, // where the connection was cut
	}
	var all, mine bytes.Buffer
	for n, line := range lines {
		text := line.line
		if n < len(lines)-1 {
			text += "\n"
		}
		all.WriteString(text)
		if line.mine {
			mine.WriteString(text)
		}
	}
	tests := []struct {
		name, query string
		want        string
	}{
		{"watch", "?watch=true", mine.String()},
		{"no watch", "", all.String()},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1/api/v1/configmaps"+test.query, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := onlyMine(func(event []byte) bool { return bytes.Contains(event, []byte("ct-abcde")) })(answer(all.String())).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			if diff := cmp.Diff(test.want, string(got)); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestWithoutOthers(t *testing.T) {
	o := newObserver(t.Context(), "ct-abcde")
	through := func(kind, query, text string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1/api/v1/configmaps"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		return withoutOthers(o.mayBeOthers, o.other("ct-abcde-1"))(typed{kind, text}).RoundTrip(req)
	}
	const own, others, everybodys = `{"metadata":{"namespace":"ct-abcde-1","name":"a"}}`, `{"metadata":{"name":"ct-abcde-12-blue"},"note":"ct-abcde-1"}`, `{"metadata":{"namespace":"kube-system","name":"a","annotations":{"ct-abcde-2":""}}}`
	const (
		own1      = `"name":"a","namespace":"ct-abcde-1"`
		others1   = `"name":"a","namespace":"ct-abcde-2"`
		generated = `"name":"a-x","generateName":"a-","namespace":"ct-abcde-1"`
		cluster   = `"name":"ct-abcde-2"`
	)
	builtIns := func(names string) string {
		return `{"type":"MODIFIED","object":{"kind":"ConfigMap","apiVersion":"example.com/v1","metadata":{` + names + `,"uid":"u"},"note":"ct-abcde-3"}}` + "\n"
	}
	event := func(object string) string { return `{"type":"ADDED","object":` + object + "}\n" }
	bookmark := `{"type":"BOOKMARK","object":{"metadata":{"name":"ct-abcde-2"}}}` + "\n"
	list := func(items ...string) string {
		return `{"apiVersion":"v1","items":[` + strings.Join(items, ",") + `],"kind":"ConfigMapList","metadata":{"resourceVersion":"7"}}`
	}
	for _, test := range []struct {
		name, kind, query, text, want string
	}{
		{"watch", "application/json", "?watch=true", event(own) + event(others) + event(everybodys) + bookmark, event(own) + event(everybodys) + bookmark},
		{"watch of a built-in kind", "application/json", "?watch=true", builtIns(own1) + builtIns(others1) + builtIns(generated) + builtIns(cluster), builtIns(own1) + builtIns(generated)},
		{"a watch that is cut within an event", "application/json", "?watch=true", event(own) + strings.TrimSuffix(event(others), "}}\n"), event(own) + strings.TrimSuffix(event(others), "}}\n")},
		{"list", "application/json", "", list(own, others, everybodys), list(own, everybodys)},
		{"list of others", "application/json;charset=utf-8", "", list(others), list()},
		{"list without others", "application/json", "", " " + list(own), " " + list(own)},
		{"an object of another run", "application/json", "", others, others},
		{"an object with items", "application/json", "", `{"kind":"Box","items":[` + others + `]}`, `{"kind":"Box","items":[` + others + `]}`},
		{"a broken list", "application/json", "", list(others)[:80], list(others)[:80]},
		{"another encoding", "application/vnd.kubernetes.protobuf", "", list(others), list(others)},
	} {
		t.Run(test.name, func(t *testing.T) {
			resp, err := through(test.kind, test.query, test.text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			if diff := cmp.Diff(test.want, string(got)); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if n := resp.ContentLength; test.query == "" && n != int64(len(got)) {
				t.Errorf("the length is %d, of %d", n, len(got))
			}
		})
	}
	t.Run("a list that is cut", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1/", nil)
		if err != nil {
			t.Fatal(err)
		}
		cut := roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("{}"))))}, nil
		})
		resp, err := withoutOthers(o.mayBeOthers, o.other("ct-abcde-1"))(cut).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != "{" || !errors.Is(err, iotest.ErrTimeout) {
			t.Errorf("%q, %v", got, err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// typed is a response with a content type.
type typed struct{ kind, text string }

func (a typed) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := answer(a.text).RoundTrip(r)
	resp.Header = http.Header{"Content-Type": {a.kind}}
	resp.ContentLength = int64(len(a.text))
	return resp, err
}
