package wire_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/internal/wire"
)

// TestParse: the verb is that of a rule.
func TestParse(t *testing.T) {
	for request, want := range map[string]string{
		"GET /api/v1/namespaces/ns/pods/n": "get", "HEAD /api/v1/namespaces/ns/pods/n": "get", "GET /api/v1/pods": "list",
		"GET /api/v1/pods?watch=true": "watch", "POST /api/v1/namespaces/ns/pods": "create", "PUT /api/v1/namespaces/ns/pods/n/status": "update",
		"PATCH /api/v1/namespaces/ns/pods/n": "patch", "DELETE /api/v1/namespaces/ns/pods/n": "delete", "DELETE /api/v1/namespaces/ns/pods": "deletecollection",
		"GET /version": "", "POST /api/v1/namespaces/ns/pods/n/exec": "", "OPTIONS /api/v1/pods": "", "PUT /api/v1/namespaces/ns/pods/n?dryRun=All": "update",
	} {
		method, path, _ := strings.Cut(request, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, "https://server"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		target, verb, ok := wire.Parse(req)
		if ok != (want != "") || ok && (verb != want || target.Resource.Resource != "pods") {
			t.Errorf("%s: %q, %v, %t, want %q", request, verb, target, ok, want)
		}
	}
}

func TestParseWrite(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	for _, tt := range []struct {
		method, path string
		want         wire.Target
		ok           bool
	}{
		{"POST", "/api/v1/namespaces/ns/pods", wire.Target{Resource: pods, Namespace: "ns"}, true},
		{"PUT", "/api/v1/namespaces/ns/pods/n", wire.Target{Resource: pods, Namespace: "ns", Name: "n"}, true},
		{"PATCH", "/a/b/apis/example.com/v1/widgets/n/status/", wire.Target{Resource: widgets, Name: "n", Subresource: "status"}, true},
		{"POST", "/api/v1/namespaces/ns/bindings", wire.Target{Resource: pods, Namespace: "ns", Subresource: "binding"}, true},
		{"DELETE", "/api/v1/namespaces/n", wire.Target{Resource: schema.GroupResource{Resource: "namespaces"}, Name: "n"}, true},
		{"PUT", "/api/v1/namespaces/n/finalize", wire.Target{Resource: schema.GroupResource{Resource: "namespaces"}, Name: "n", Subresource: "finalize"}, true},
		{"PUT", "/apis/example.com/v1/namespaces/n/status", wire.Target{Resource: schema.GroupResource{Group: "example.com", Resource: "status"}, Namespace: "n"}, true},
		{"POST", "/api/v1/namespaces/ns/pods/n/exec", wire.Target{}, false},
		{"POST", "/api/v1/namespaces/ns/serviceaccounts/n/token", wire.Target{}, false},
		{"PUT", "/api/v1/namespaces/ns/pods/n?dryRun=All", wire.Target{}, false},
		{"GET", "/api/v1/namespaces/ns/pods/n", wire.Target{}, false},
		{"POST", "/version", wire.Target{}, false},
		{"POST", "/api/v2/pods", wire.Target{}, false},
		{"POST", "/api/v1/", wire.Target{}, false},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "https://server"+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := wire.ParseWrite(req)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s %s: %+v, %v, want %+v, %v", tt.method, tt.path, got, ok, tt.want, tt.ok)
		}
	}
}

func TestEffect(t *testing.T) {
	const podPath = "https://server/api/v1/namespaces/ns/pods/n"
	for _, tt := range []struct {
		name, method, url, body string
		want                    wire.Effect
		known                   bool
	}{
		{"update", "PUT", podPath, `{"metadata":{"uid":"a","resourceVersion":"7"}}`, wire.Effect{UID: "a", Version: "7"}, true},
		{"last finalizer", "PUT", podPath, `{"metadata":{"uid":"a","resourceVersion":"7","deletionTimestamp":"x"}}`, wire.Effect{UID: "a", Version: "7", Gone: "a"}, true},
		{"grace period", "PUT", podPath, `{"metadata":{"uid":"a","resourceVersion":"7","deletionTimestamp":"x","deletionGracePeriodSeconds":3}}`, wire.Effect{UID: "a", Version: "7"}, true},
		{"deletion", "DELETE", podPath, `{"details":{"uid":"a"}}`, wire.Effect{Gone: "a"}, true},
		{"deletion without a UID", "DELETE", podPath, `{}`, wire.Effect{}, false},
		{"collection", "DELETE", "https://server/api/v1/namespaces/ns/pods", `{"metadata":{"resourceVersion":"7"}}`, wire.Effect{}, false},
		{"eviction", "POST", podPath + "/eviction", `{"metadata":{}}`, wire.Effect{}, false},
		{"last finalize", "PUT", "https://server/api/v1/namespaces/n/finalize", `{"metadata":{"uid":"a","resourceVersion":"7","deletionTimestamp":"x"}}`, wire.Effect{}, false},
		{"not a version", "PUT", podPath, `{"metadata":{"uid":"a","resourceVersion":"x"}}`, wire.Effect{}, false},
		{"cut off", "PUT", podPath, `{"metadata":{"resourceVersion":"7"}`, wire.Effect{}, false},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, tt.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		target, ok := wire.ParseWrite(req)
		if !ok {
			t.Fatalf("%s: no target", tt.name)
		}
		resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader([]byte(tt.body))), ContentLength: int64(len(tt.body))}
		got, known := new(wire.Reader).Effect(req, resp, target)
		if got != tt.want && known || known != tt.known {
			t.Errorf("%s: %+v, %v, want %+v, %v", tt.name, got, known, tt.want, tt.known)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != tt.body {
			t.Errorf("%s: the caller reads %q, %v", tt.name, body, err)
		}
	}
}

// A body that cannot be read a second time is not read.
func TestDryRun(t *testing.T) {
	for _, tt := range []struct {
		name  string
		again bool // the body can be read a second time
		body  string
		want  bool
	}{
		{name: "dry run", again: true, body: `{"dryRun":["All"]}`, want: true},
		{name: "none", again: true, body: `{}`},
		{name: "malformed", again: true, body: `{"dryRun":`},
		{name: "read once", body: `{"dryRun":["All"]}`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "https://server/api/v1/namespaces/ns/pods/n", bytes.NewReader([]byte(tt.body)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if !tt.again {
			req.GetBody = nil
		}
		target, _ := wire.ParseWrite(req)
		if got := wire.DryRun(req, target); got != tt.want {
			t.Errorf("%s: DryRun() = %v, want %v", tt.name, got, tt.want)
		}
		if body, err := io.ReadAll(req.Body); err != nil || string(body) != tt.body {
			t.Errorf("%s: the server reads %q, %v", tt.name, body, err)
		}
	}
}
