package fault_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// TestOp holds how requests are read, below a server at the root and one behind a
// path, and that reading takes nothing from what the server gets.
func TestOp(t *testing.T) {
	const json = "application/json"
	tests := []struct {
		name        string
		method      string
		path        string
		contentType string
		body        string
		want        fault.Op
		write       bool
		reflector   bool
	}{
		{
			name: "get in the core group", method: "GET", path: "/api/v1/namespaces/ns/pods/a",
			want: fault.Op{Verb: "get", Resource: "pods", Version: "v1", Namespace: "ns", Name: "a"},
		}, {
			name: "list in a group", method: "GET", path: "/apis/apps/v1/namespaces/ns/deployments?limit=10",
			want: fault.Op{Verb: "list", Resource: "deployments.apps", Version: "v1", Namespace: "ns"},
		}, {
			name: "list of a reflector", method: "GET", path: "/apis/apps/v1/deployments?limit=500&resourceVersion=0",
			want: fault.Op{Verb: "list", Resource: "deployments.apps", Version: "v1"}, reflector: true,
		}, {
			name: "next page of a reflector", method: "GET", path: "/api/v1/pods?limit=500&continue=x",
			want: fault.Op{Verb: "list", Resource: "pods", Version: "v1"}, reflector: true,
		}, {
			name: "watch", method: "GET", path: "/api/v1/pods?watch=true",
			want: fault.Op{Verb: "watch", Resource: "pods", Version: "v1"}, reflector: true,
		}, {
			name: "watch=1", method: "GET", path: "/api/v1/pods?watch=1",
			want: fault.Op{Verb: "watch", Resource: "pods", Version: "v1"}, reflector: true,
		}, {
			name: "watch without a value", method: "GET", path: "/api/v1/pods?watch=",
			want: fault.Op{Verb: "watch", Resource: "pods", Version: "v1"}, reflector: true,
		}, {
			name: "watch=False is a list", method: "GET", path: "/api/v1/pods?watch=False",
			want: fault.Op{Verb: "list", Resource: "pods", Version: "v1"},
		}, {
			name: "watch of a name is a get", method: "GET", path: "/api/v1/namespaces/ns/pods/a?watch=true",
			want: fault.Op{Verb: "get", Resource: "pods", Version: "v1", Namespace: "ns", Name: "a"},
		}, {
			name: "create", method: "POST", path: "/api/v1/namespaces/ns/pods", contentType: json, body: `{"metadata":{"name":"a","generateName":"b-"}}`,
			want: fault.Op{Verb: "create", Resource: "pods", Version: "v1", Namespace: "ns", Name: "a"}, write: true,
		}, {
			name: "create with generateName", method: "POST", path: "/api/v1/namespaces/ns/pods", contentType: json, body: `{"metadata":{"generateName":"b-"}}`,
			want: fault.Op{Verb: "create", Resource: "pods", Version: "v1", Namespace: "ns", Name: "b-", Generated: true}, write: true,
		}, {
			name: "create of what is no JSON", method: "POST", path: "/api/v1/namespaces/ns/pods", contentType: "application/vnd.kubernetes.protobuf", body: "k8s\x00{",
			want: fault.Op{Verb: "create", Resource: "pods", Version: "v1", Namespace: "ns"}, write: true,
		}, {
			name: "create of a broken body", method: "POST", path: "/api/v1/namespaces/ns/pods", contentType: json, body: `{"metadata":`,
			want: fault.Op{Verb: "create", Resource: "pods", Version: "v1", Namespace: "ns"}, write: true,
		}, {
			name: "subresource", method: "PUT", path: "/apis/apps/v1/namespaces/ns/deployments/a/status", contentType: json, body: `{}`,
			want: fault.Op{Verb: "update", Resource: "deployments.apps", Version: "v1", Namespace: "ns", Name: "a", Subresource: "status"}, write: true,
		}, {
			name: "create of a subresource", method: "POST", path: "/api/v1/namespaces/ns/pods/a/eviction", contentType: json, body: `{"metadata":{"name":"x"}}`,
			want: fault.Op{Verb: "create", Resource: "pods", Version: "v1", Namespace: "ns", Name: "a", Subresource: "eviction"}, write: true,
		}, {
			name: "subresource of two parts", method: "GET", path: "/api/v1/namespaces/ns/services/a/proxy/metrics",
			want: fault.Op{Verb: "get", Resource: "services", Version: "v1", Namespace: "ns", Name: "a", Subresource: "proxy/metrics"},
		}, {
			name: "namespaces", method: "GET", path: "/api/v1/namespaces",
			want: fault.Op{Verb: "list", Resource: "namespaces", Version: "v1"},
		}, {
			name: "a namespace", method: "DELETE", path: "/api/v1/namespaces/ns",
			want: fault.Op{Verb: "delete", Resource: "namespaces", Version: "v1", Name: "ns"}, write: true,
		}, {
			name: "a namespace's finalizers", method: "PUT", path: "/api/v1/namespaces/ns/finalize", contentType: json, body: `{}`,
			want: fault.Op{Verb: "update", Resource: "namespaces", Version: "v1", Name: "ns", Subresource: "finalize"}, write: true,
		}, {
			name: "a namespace's status", method: "PATCH", path: "/api/v1/namespaces/ns/status", contentType: "application/merge-patch+json", body: `{}`,
			want: fault.Op{Verb: "patch", Resource: "namespaces", Version: "v1", Name: "ns", Subresource: "status"}, write: true,
		}, {
			name: "a cluster-scoped object", method: "PUT", path: "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:x", contentType: json, body: `{}`,
			want: fault.Op{Verb: "update", Resource: "clusterroles.rbac.authorization.k8s.io", Version: "v1", Name: "system:x"}, write: true,
		}, {
			name: "apply", method: "PATCH", path: "/api/v1/namespaces/ns/pods/a?fieldManager=x", contentType: "application/apply-patch+yaml", body: "a: 1",
			want: fault.Op{Verb: "apply", Resource: "pods", Version: "v1", Namespace: "ns", Name: "a"}, write: true,
		}, {
			name: "deletecollection", method: "DELETE", path: "/api/v1/namespaces/ns/pods?labelSelector=a",
			want: fault.Op{Verb: "deletecollection", Resource: "pods", Version: "v1", Namespace: "ns"}, write: true,
		}, {
			name: "dry run", method: "POST", path: "/api/v1/namespaces/ns/pods?dryRun=All", contentType: json, body: `{"metadata":{"name":"a"}}`,
			want: fault.Op{Verb: "create", Resource: "pods", Version: "v1", Namespace: "ns", Name: "a"},
		}, {
			name: "dry run of a deletion", method: "DELETE", path: "/api/v1/namespaces/ns/pods/a", contentType: json, body: `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["All"]}`,
			want: fault.Op{Verb: "delete", Resource: "pods", Version: "v1", Namespace: "ns", Name: "a"},
		}, {
			name: "access review", method: "POST", path: "/apis/authorization.k8s.io/v1/subjectaccessreviews", contentType: json, body: `{}`,
			want: fault.Op{Verb: "create", Resource: "subjectaccessreviews.authorization.k8s.io", Version: "v1"},
		}, {
			name: "token review", method: "POST", path: "/apis/authentication.k8s.io/v1/tokenreviews", contentType: json, body: `{}`,
			want: fault.Op{Verb: "create", Resource: "tokenreviews.authentication.k8s.io", Version: "v1"},
		}, {
			name: "token", method: "POST", path: "/api/v1/namespaces/ns/serviceaccounts/a/token", contentType: json, body: `{}`,
			want: fault.Op{Verb: "create", Resource: "serviceaccounts", Version: "v1", Namespace: "ns", Name: "a", Subresource: "token"},
		}, {
			name: "discovery", method: "GET", path: "/apis/apps/v1", want: fault.Op{Verb: "get", Resource: "/apis/apps/v1"},
		}, {
			name: "core discovery", method: "GET", path: "/api/v1/", want: fault.Op{Verb: "get", Resource: "/api/v1"},
		}, {
			name: "version", method: "GET", path: "/version", want: fault.Op{Verb: "get", Resource: "/version"},
		}, {
			name: "root", method: "GET", path: "/", want: fault.Op{Verb: "get", Resource: "/"},
		}, {
			name: "another method", method: "OPTIONS", path: "/api/v1/pods", want: fault.Op{Verb: "options", Resource: "pods", Version: "v1"},
		},
	}
	for _, prefix := range []string{"", "/clusters/one"} {
		var served string
		cfg := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			served = r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get("Content-Type") + " " + string(body)
		})
		cfg.Host += prefix
		var got *fault.Op
		i := incarnate(t, cfg, func(op *fault.Op) fault.Fault { got = op; return fault.Fault{} }, nil)
		c := client(t, i)
		for _, test := range tests {
			t.Run(prefix+" "+test.name, func(t *testing.T) {
				r := request(t, i, test.method, test.path, test.body)
				r.Header.Del("Content-Type")
				if test.contentType != "" {
					r.Header.Set("Content-Type", test.contentType)
				}
				response, err := c.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				want := test.want
				want.ContentType = test.contentType
				want.Query = r.URL.Query()
				if test.body != "" {
					want.Body = []byte(test.body)
				}
				if diff := cmp.Diff(&want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("the request is read as (-want +got):\n%s", diff)
				}
				if got.Query == nil {
					t.Error("Query is nil")
				}
				if got.IsWrite() != test.write || got.IsReflector() != test.reflector {
					t.Errorf("IsWrite %t, want %t; IsReflector %t, want %t", got.IsWrite(), test.write, got.IsReflector(), test.reflector)
				}
				if want := test.method + " " + prefix + test.path + " " + test.contentType + " " + test.body; served != want {
					t.Errorf("the server got %q, want %q", served, want)
				}
			})
		}
	}
}

// FuzzOp holds that no path and no body of a request is too strange to be read.
func FuzzOp(f *testing.F) {
	f.Add("POST", "/api/v1/namespaces/ns/pods", `{"metadata":{"generateName":"a"}}`)
	f.Add("DELETE", "/apis/a/b/namespaces/x/status/y", `{"dryRun":7}`)
	f.Add("GET", "//api//namespaces///", "")
	answer := fault.Fault{Response: &fault.Response{Code: 404}}
	var got *fault.Op
	i := incarnate(f, serve(f, func(http.ResponseWriter, *http.Request) {}), func(op *fault.Op) fault.Fault { got = op; return answer }, nil)
	f.Fuzz(func(t *testing.T, method, path, body string) {
		r := &http.Request{Method: method, URL: &url.URL{Path: path}, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
		response, err := i.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got.Verb == "" && method != "" || got.Resource == "" && strings.Trim(path, "/") == "" {
			t.Errorf("%s %s is read as %+v", method, path, got)
		}
		_, _ = got.IsWrite(), got.IsReflector()
	})
}
