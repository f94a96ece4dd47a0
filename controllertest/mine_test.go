package controllertest

import (
	"bytes"
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
