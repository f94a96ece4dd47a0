package stray_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/operator/internal/stray"
)

type server struct{}

func (server) RoundTrip(*http.Request) (*http.Response, error) { return &http.Response{}, nil }

// A controller makes calls with a Finder.
type controller struct {
	stray.Finder
	held  map[types.UID]bool
	found []string
}

func newController() *controller {
	c := &controller{held: map[types.UID]bool{}}
	c.Holds = func(obj metav1.Object) bool { return c.held[obj.GetUID()] }
	c.Found = func(_ context.Context, _, _, name string) { c.found = append(c.found, name) }
	return c
}

func object(namespace, name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}}
}

func send(ctx context.Context, t *testing.T, client http.RoundTripper, method, path string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "https://server"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.RoundTrip(req); err != nil {
		t.Fatal(err)
	}
}

// TestFinder: a write is found if an informer holds its object, and no request of the call for this
// object passed through the transport.
func TestFinder(t *testing.T) {
	const pods = "/api/v1/namespaces/ns/pods"
	for _, tt := range []struct {
		name         string
		method, path string // of a request through the transport
		written      metav1.Object
		want         string
	}{
		{name: "another client", written: object("ns", "a", "1"), want: "[a]"},
		{name: "the client of Config", method: "PATCH", path: pods + "/a/status", written: object("ns", "a", "1"), want: "[]"},
		{name: "a create without a name", method: "POST", path: pods, written: object("ns", "a", "1"), want: "[]"},
		{name: "a read of the client of Config", method: "GET", path: pods + "/a", written: object("ns", "a", "1"), want: "[a]"},
		{name: "a write of another object", method: "PATCH", path: pods + "/b", written: object("ns", "a", "1"), want: "[a]"},
		{name: "of another namespace", method: "PATCH", path: "/api/v1/namespaces/other/pods/a", written: object("ns", "a", "1"), want: "[a]"},
		{name: "of no resource", method: "POST", path: "/login", written: object("ns", "a", "1"), want: "[a]"},
		{name: "a cluster-scoped object", method: "PATCH", path: "/api/v1/nodes/a", written: object("", "a", "1"), want: "[]"},
		{name: "an object of another cluster", written: object("ns", "a", "2"), want: "[]"},
		{name: "an object without a UID", written: object("ns", "a", ""), want: "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newController()
			c.held[""], c.held["1"] = true, true
			client, ctx := c.Wrap(server{}), c.Begin(t.Context(), nil, types.NamespacedName{})
			if tt.path != "" {
				send(ctx, t, client, tt.method, tt.path)
			}
			calls.NoteWritten(ctx, tt.written)
			if got := fmt.Sprint(c.found); got != tt.want {
				t.Errorf("found %s, want %s", got, tt.want)
			}
			// A request of another call is none of this one.
			send(t.Context(), t, client, "PATCH", pods+"/z")
			calls.NoteWritten(c.Begin(t.Context(), nil, types.NamespacedName{}), object("ns", "z", "1"))
			if want := "[z]"; tt.want == "[]" && fmt.Sprint(c.found) != want {
				t.Errorf("the next call: found %v, want %s", c.found, want)
			}
			if len(c.found) != 1 {
				t.Errorf("found %v, want one write", c.found)
			}
		})
	}
}

// TestFinderLater: a new object is found by a later call, when an informer holds it, within a
// minute, and among the last 16.
func TestFinderLater(t *testing.T) {
	for _, tt := range []struct {
		name   string
		wait   time.Duration
		others int
		want   string
	}{
		{"soon", 59 * time.Second, 15, "[a]"},
		{"late", 61 * time.Second, 0, "[]"},
		{"after many others", 0, 16, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newController()
				calls.NoteWritten(c.Begin(t.Context(), nil, types.NamespacedName{}), object("ns", "a", "1"))
				for n := range tt.others {
					calls.NoteWritten(c.Begin(t.Context(), nil, types.NamespacedName{}), object("ns", "b", types.UID(fmt.Sprint("b", n))))
				}
				if len(c.found) > 0 {
					t.Errorf("found %v before an informer holds it", c.found)
				}
				time.Sleep(tt.wait)
				c.held["1"] = true
				c.Begin(t.Context(), nil, types.NamespacedName{})
				c.Begin(t.Context(), nil, types.NamespacedName{})
				if got := fmt.Sprint(c.found); got != tt.want {
					t.Errorf("found %s, want %s", got, tt.want)
				}
			})
		})
	}
}

// TestFinderOfRequests: a write by a client that is not of Config is found by its request alone, on
// HTTP/2, if the API server is that of Config, also by the path before /api, and an informer holds objects of the resource.
func TestFinderOfRequests(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	pods := schema.GroupResource{Resource: "pods"}
	const path = "/api/v1/namespaces/ns/pods"
	for _, tt := range []struct {
		name         string
		method, path string
		wrapped      bool // the client is of Config
		elsewhere    bool // Config has another API server
		base         string
		want         string
	}{
		{name: "a create", method: "POST", path: path, want: "[pods ns ]"},
		{name: "an update", method: "PUT", path: path + "/a", want: "[pods ns a]"},
		{name: "a deletion with options", method: "DELETE", path: path + "/a?gracePeriodSeconds=0", want: "[pods ns a]"},
		{name: "a read", method: "GET", path: path + "/a", want: "[]"},
		{name: "a dry run", method: "PATCH", path: path + "/a?dryRun=All", want: "[]"},
		{name: "a resource without an informer", method: "PUT", path: "/apis/apps/v1/namespaces/ns/deployments/a", want: "[]"},
		{name: "no resource", method: "POST", path: "/login", want: "[]"},
		{name: "Config", method: "POST", path: path, wrapped: true, want: "[]"},
		{name: "another server", method: "POST", path: path, elsewhere: true, want: "[]"},
		{name: "a proxy", method: "PUT", base: "/k8s//clusters/a/", path: "/k8s/clusters/a" + path + "/a", want: "[pods ns a]"},
		{name: "another cluster behind the proxy", method: "PUT", base: "/k8s/clusters/a", path: "/k8s/clusters/b" + path + "/a", want: "[]"},
		{name: "a cluster whose path begins alike", method: "PUT", base: "/k8s/clusters/a", path: "/k8s/clusters/ab" + path + "/a", want: "[]"},
		{name: "a cluster behind a proxy on the same host", method: "PUT", path: "/k8s/clusters/b" + path + "/a", want: "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found := []string{}
			f := &stray.Finder{
				Host:    stray.Host(&rest.Config{Host: server.URL + tt.base}),
				Holding: func(resource schema.GroupResource) bool { return resource == pods },
				Holds:   func(metav1.Object) bool { return false },
				Found: func(_ context.Context, of, namespace, name string) {
					found = append(found, of+" "+namespace+" "+name)
				},
			}
			if tt.elsewhere {
				f.Host = stray.Host(&rest.Config{Host: "https://other.example.com"})
			}
			client := server.Client().Transport
			if tt.wrapped {
				client = f.Wrap(client)
			}
			traced := 0 // the trace of the program stays
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteHeaderField: func(string, []string) { traced++ }})
			ctx = f.Begin(ctx, nil, types.NamespacedName{})
			for range 2 { // it is found once
				req, err := http.NewRequestWithContext(ctx, tt.method, server.URL+tt.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.ProtoMajor != 2 {
					t.Fatalf("%s, want HTTP/2", resp.Proto)
				}
			}
			if got := fmt.Sprint(found); got != tt.want || traced == 0 {
				t.Errorf("found %s after %d headers, want %s", got, traced, tt.want)
			}
		})
	}
	if host := stray.Host(&rest.Config{Host: "http://[::1"}); host != "" {
		t.Errorf("Host of no URL is %q", host)
	}
}
