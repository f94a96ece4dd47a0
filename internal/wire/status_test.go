package wire_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/controllerkit/controllerkit/internal/wire"
)

// TestUnstored: only a status of an update or a merge patch that the response lacks is found.
func TestUnstored(t *testing.T) {
	const (
		put   = http.MethodPut
		patch = http.MethodPatch
		json  = "application/json"
		merge = "application/merge-patch+json"
	)
	big := strings.Repeat("x", 64<<10)
	for _, tt := range []struct {
		name          string
		method, media string
		sent, stored  string
		storedMedia   string
		want          bool
	}{
		{name: "update", method: put, media: json, sent: `{"metadata":{"resourceVersion":"1"},"status":{"a":1}}`, stored: `{"status":{"a":2}}`, want: true},
		{name: "update without a status before", method: put, media: json, sent: `{"metadata":{"resourceVersion":"1"},"status":{"a":{"b":[{"c":true}]}}}`, stored: `{}`, want: true},
		{name: "condition", method: put, media: json, sent: `{"metadata":{"resourceVersion":"1"},"status":{"conditions":[{"type":"a"}]}}`, stored: `{"status":{"conditions":[]}}`, want: true},
		{name: "merge patch", method: patch, media: merge, sent: `{"status":{"a":"x"}}`, stored: `{"status":{"a":"y"}}`, want: true},
		{name: "strategic merge patch", method: patch, media: "application/strategic-merge-patch+json", sent: `{"status":{"a":"x"}}`, stored: `{}`, want: true},
		{name: "same", method: put, media: json, sent: `{"metadata":{"resourceVersion":"1"},"status":{"a":[1,{"b":"c"}]}}`, stored: `{"status":{"a":[1,{"b":"c"}],"d":"e"}}`},
		{name: "empty", method: put, media: json, sent: `{"metadata":{"resourceVersion":"1"},"status":{"a":{},"b":[],"c":0,"d":"","e":false,"f":null}}`, stored: `{}`},
		{name: "no status", method: put, media: json, sent: `{"metadata":{"resourceVersion":"1"}}`, stored: `{"status":{"a":2}}`},
		{name: "no version", method: put, media: json, sent: `{"metadata":{},"status":{"a":1}}`, stored: `{"status":{"a":2}}`},
		{name: "create", method: http.MethodPost, media: json, sent: `{"metadata":{"resourceVersion":"1"},"status":{"a":1}}`, stored: `{}`},
		{name: "JSON patch", method: patch, media: "application/json-patch+json", sent: `[]`, stored: `{}`},
		{name: "malformed", method: put, media: json, sent: `{"metadata"`, stored: `{}`},
		{name: "malformed response", method: put, media: json, sent: `{"metadata":{"resourceVersion":"1"},"status":{"a":1}}`, stored: `{"a`},
		{name: "protobuf", method: put, media: json, sent: `{"metadata":{"resourceVersion":"1"},"status":{"a":1}}`, stored: `{}`, storedMedia: "application/vnd.kubernetes.protobuf"},
		{name: "large", method: put, media: json, sent: `{"metadata":{"resourceVersion":"1"},"status":{"a":"` + big + `"}}`, stored: `{}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, "https://server/api/v1/namespaces/a/pods/b", strings.NewReader(tt.sent))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", tt.media)
			resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {json}}, Body: io.NopCloser(strings.NewReader(tt.stored)), ContentLength: int64(len(tt.stored))}
			if tt.storedMedia != "" {
				resp.Header.Set("Content-Type", tt.storedMedia)
			}
			var r wire.Reader
			if _, ok := r.Metadata(resp); ok {
				t.Error("an object without a UID has metadata")
			}
			if got := r.Unstored(req, resp); got != tt.want {
				t.Errorf("Unstored() = %t, want %t", got, tt.want)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || string(body) != tt.stored {
				t.Errorf("the body is %q, %v; want %q", body, err, tt.stored)
			}
			if err := resp.Body.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
