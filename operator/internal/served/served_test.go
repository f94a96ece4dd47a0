package served_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator/internal/served"
)

// discovery is an API server that begins to serve each path of its documents at a time.
type discovery struct {
	begin time.Time
	from  map[string]time.Duration // absent means always
	fails map[string]int           // with that status, always; -1 is a refused connection

	mu    sync.Mutex // guards asked
	asked []string   // the paths of documents
}

var documents = map[string]string{
	"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["get"]},{"name":"nodes","kind":"Node","verbs":["get"]}]}`,
	"/apis/g.io": `{"kind":"APIGroup","apiVersion":"v1","name":"g.io",
		"versions":[{"groupVersion":"g.io/v3","version":"v3"},{"groupVersion":"g.io/v2","version":"v2"},{"groupVersion":"g.io/v1","version":"v1"}],
		"preferredVersion":{"groupVersion":"g.io/v2","version":"v2"}}`,
	"/apis/g.io/v1": `{"kind":"APIResourceList","groupVersion":"g.io/v1","resources":[{"name":"widgets","kind":"OldWidget","verbs":["get"]},{"name":"olds","kind":"Old","verbs":["get"]}]}`,
	"/apis/g.io/v2": `{"kind":"APIResourceList","groupVersion":"g.io/v2","resources":[{"name":"widgets","kind":"Widget","namespaced":true,"verbs":["get"]},
		{"name":"widgets/status","kind":"Widget","namespaced":true,"verbs":["get"]}]}`,
	"/apis/g.io/v3": `{"kind":"APIResourceList","groupVersion":"g.io/v3","resources":[{"name":"widgets","kind":"NewWidget","verbs":["get"]}]}`,
}

func (d *discovery) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	respond := func(status int, body string) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
	path := r.URL.Path
	switch status := d.fails[path]; {
	case status == -1:
		return nil, errors.New("connection refused")
	case status != 0:
		return respond(status, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no\u001b[2K\nbackend"}`)
	case time.Since(d.begin) < d.from[path]:
		return respond(http.StatusOK, `{"kind":"APIResourceList","groupVersion":"`+strings.TrimPrefix(path, "/apis/")+`","resources":[]}`)
	}
	if documents[path] == "" {
		return respond(http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, path)
	return respond(http.StatusOK, documents[path])
}

func TestWait(t *testing.T) {
	pods, nodes, widgets, olds := corev1.Resource("pods"), corev1.Resource("nodes"), schema.GroupResource{Group: "g.io", Resource: "widgets"}, schema.GroupResource{Group: "g.io", Resource: "olds"}
	status := schema.GroupResource{Group: "g.io", Resource: "widgets/status"}
	scale := schema.GroupResource{Group: "g.io", Resource: "widgets/scale"}
	const all = "/api/v1 /apis/g.io /apis/g.io/v1 /apis/g.io/v2 /apis/g.io/v3"
	gizmos := schema.GroupResource{Group: "g.io", Resource: "gizmos"}
	const v2 = "/apis/g.io/v2"
	for _, tt := range []struct {
		name   string
		from   map[string]time.Duration
		fails  map[string]int
		needed []served.Resource
		asks   string // "" is not checked
		stop   time.Duration
		want   []string // of the error; nil means no error
		took   time.Duration
	}{
		{name: "all", asks: all, needed: []served.Resource{
			{GroupResource: pods, Kind: "Pod"}, {GroupResource: nodes}, {GroupResource: widgets, Kind: "Widget"}, {GroupResource: status}, {GroupResource: olds, Kind: "Old"},
		}},
		{name: "all of the preferred version", asks: "/api/v1 /apis/g.io /apis/g.io/v2", needed: []served.Resource{
			{GroupResource: pods}, {GroupResource: widgets}, {GroupResource: schema.GroupResource{Group: "g.io", Resource: "widgets/finalizers"}},
		}},
		{name: "nothing is needed"},
		{name: "later", from: map[string]time.Duration{v2: 2500 * time.Millisecond}, needed: []served.Resource{{GroupResource: status}}, took: 3 * time.Second},
		{
			name: "never", needed: []served.Resource{{GroupResource: pods}, {GroupResource: gizmos}}, took: 10 * time.Second,
			want: []string{"the API server does not serve gizmos.g.io: install its CustomResourceDefinition, or check the name (after 10s)"},
		},
		{
			name: "another reason later", from: map[string]time.Duration{v2: 2500 * time.Millisecond}, needed: []served.Resource{{GroupResource: status}, {GroupResource: gizmos}}, took: 10 * time.Second,
			want: []string{"the API server does not serve gizmos.g.io"},
		},
		{
			name: "no such group", needed: []served.Resource{{GroupResource: schema.GroupResource{Group: "h.io", Resource: "xs"}}}, took: 10 * time.Second,
			want: []string{"the API server does not serve xs.h.io: install its CustomResourceDefinition"},
		},
		{
			name: "no such subresource", needed: []served.Resource{{GroupResource: scale}}, took: 10 * time.Second,
			want: []string{"widgets.g.io has no subresource scale: use one that it has, or add it to the CustomResourceDefinition, under subresources (after 10s)"},
		},
		{
			name: "a subresource of nothing", needed: []served.Resource{{GroupResource: schema.GroupResource{Group: "g.io", Resource: "gizmos/status"}}}, took: 10 * time.Second,
			want: []string{"the API server does not serve gizmos/status.g.io"},
		},
		{
			name: "another kind", needed: []served.Resource{{GroupResource: widgets, Kind: "OldWidget", Controller: "c"}},
			want: []string{`controller "c": the objects of widgets.g.io are of kind Widget, and its informer holds OldWidget: pass the informer of widgets.g.io`},
		},
		{
			name: "cluster-scoped in a namespace", needed: []served.Resource{{GroupResource: nodes, Kind: "Node", Namespace: "shop", Controller: "c"}},
			want: []string{`controller "c": nodes is cluster-scoped, and Options.Namespace is shop: leave it empty, or call Inform with an informer of nodes`},
		},
		{name: "namespaced in a namespace", needed: []served.Resource{{GroupResource: pods, Kind: "Pod", Namespace: "shop"}}},
		{name: "stopped", needed: []served.Resource{{GroupResource: gizmos}}, stop: 2500 * time.Millisecond, took: 2500 * time.Millisecond, want: []string{context.Canceled.Error()}},
		{
			name: "not reached", fails: map[string]int{"/api/v1": -1}, needed: []served.Resource{{GroupResource: pods}}, took: 10 * time.Second,
			want: []string{"the API server http://server cannot tell what it serves: ", "connection refused", "(after 10s)"},
		},
		{name: "a group that fails and is not needed", fails: map[string]int{"/apis/g.io": 503}, needed: []served.Resource{{GroupResource: pods}}},
		{
			name: "a group that fails", fails: map[string]int{"/apis/g.io": 503}, needed: []served.Resource{{GroupResource: pods}, {GroupResource: olds}}, took: 10 * time.Second,
			want: []string{"the API server http://server cannot tell what it serves: ", "no\x1b[2K\nbackend", "(after 10s)"},
		},
		{
			name: "a version that fails", fails: map[string]int{v2: 503}, needed: []served.Resource{{GroupResource: schema.GroupResource{Group: olds.Group, Resource: "absent"}}}, took: 10 * time.Second,
			want: []string{"the API server http://server cannot tell what it serves: g.io/v2: ", "(after 10s)"},
		},
		{
			name: "a version that is not needed fails", fails: map[string]int{v2: 503}, needed: []served.Resource{{GroupResource: olds}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), testlog.Text(&out, 0)))
				defer cancel()
				if tt.stop > 0 {
					time.AfterFunc(tt.stop, cancel)
				}
				server := &discovery{begin: time.Now(), from: tt.from, fails: tt.fails}
				found, err := served.Wait(ctx, &rest.Config{Host: "http://server", Transport: server, QPS: -1}, 10*time.Second, tt.needed)
				if took := time.Since(server.begin); took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				lines := 0
				if tt.took > 0 {
					lines = 1
				}
				if got := strings.Count(out.String(), "Waiting for the API server"); got != lines {
					t.Errorf("%d lines of log, want %d:\n%s", got, lines, &out)
				}
				if tt.want == nil {
					if err != nil {
						t.Fatal(err)
					}
					for resource, want := range map[schema.GroupResource]served.Kind{
						pods:    {GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Namespaced: true},
						widgets: {GroupVersionKind: schema.GroupVersionKind{Group: "g.io", Version: "v2", Kind: "Widget"}, Namespaced: true},
						olds:    {GroupVersionKind: schema.GroupVersionKind{Group: "g.io", Version: "v1", Kind: "Old"}},
					} {
						if got, ok := found[resource]; ok && got != want && tt.fails["/apis/"+want.GroupVersion().String()] == 0 {
							t.Errorf("%s: %+v, want %+v", resource, got, want)
						}
					}
					for _, r := range tt.needed {
						if _, ok := found[r.GroupResource]; !ok && !strings.HasSuffix(r.Resource, "/finalizers") {
							t.Errorf("%s is missing", r.GroupResource)
						}
					}
					slices.Sort(server.asked)
					if asked := strings.Join(server.asked, " "); tt.asks != "" && asked != tt.asks {
						t.Errorf("asked for %s, want %s", asked, tt.asks)
					}
					return
				}
				for _, want := range tt.want {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("error = %v, want %q", err, want)
					}
				}
			})
		})
	}
	if _, err := served.Wait(t.Context(), &rest.Config{Host: "http://a b"}, time.Hour, nil); err == nil {
		t.Error("no error for a configuration that is wrong")
	}
}

// knowing is an informer that knows the kind of its objects.
type knowing struct{}

func (knowing) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "g.io", Version: "v1", Kind: "Known"}
}

func TestKindOf(t *testing.T) {
	for _, tt := range []struct{ name, got, want string }{
		{"typed", served.KindOf[*corev1.Pod](nil), "Pod"},
		{"unstructured", served.KindOf[*unstructured.Unstructured](nil), ""},
		{"metadata", served.KindOf[*metav1.PartialObjectMetadata](nil), ""},
		{"an interface", served.KindOf[metav1.Object](nil), ""},
		{"an informer that knows it", served.KindOf[*unstructured.Unstructured](knowing{}), "Known"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: KindOf = %q, want %q", tt.name, tt.got, tt.want)
		}
	}
}
