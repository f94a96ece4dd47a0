package served_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/controllerkit/controllerkit/operator/internal/served"
)

// discovery is an API server that begins to serve each path of its documents at a time.
type discovery struct {
	begin time.Time
	from  map[string]time.Duration // absent means always
	fails map[string]int           // with that status, always
}

var documents = map[string]string{
	"/api":    `{"kind":"APIVersions","versions":["v1"]}`,
	"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["get"]},{"name":"nodes","kind":"Node","verbs":["get"]}]}`,
	"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"g.io",
		"versions":[{"groupVersion":"g.io/v2","version":"v2"},{"groupVersion":"g.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"g.io/v2","version":"v2"}},
		{"name":"odd.io","versions":[{"groupVersion":"odd.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"odd.io/v1","version":"v1"}}]}`,
	// The groupVersion is not valid.
	"/apis/odd.io/v1": `{"kind":"APIResourceList","groupVersion":"a/b/c","resources":[{"name":"odds","kind":"Odd","verbs":["get"]}]}`,
	"/apis/g.io/v1":   `{"kind":"APIResourceList","groupVersion":"g.io/v1","resources":[{"name":"widgets","kind":"OldWidget","verbs":["get"]},{"name":"olds","kind":"Old","verbs":["get"]}]}`,
	"/apis/g.io/v2": `{"kind":"APIResourceList","groupVersion":"g.io/v2","resources":[{"name":"widgets","kind":"Widget","namespaced":true,"verbs":["get"]},
		{"name":"widgets/status","kind":"Widget","namespaced":true,"verbs":["get"]}]}`,
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
		return respond(status, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no backend"}`)
	case time.Since(d.begin) < d.from[path]:
		return respond(http.StatusOK, `{"kind":"APIResourceList","groupVersion":"`+strings.TrimPrefix(path, "/apis/")+`","resources":[]}`)
	}
	return respond(http.StatusOK, documents[path])
}

func TestWait(t *testing.T) {
	pods, nodes, widgets, olds := corev1.Resource("pods"), corev1.Resource("nodes"), schema.GroupResource{Group: "g.io", Resource: "widgets"}, schema.GroupResource{Group: "g.io", Resource: "olds"}
	status := schema.GroupResource{Group: "g.io", Resource: "widgets/status"}
	scale := schema.GroupResource{Group: "g.io", Resource: "widgets/scale"}
	gizmos := schema.GroupResource{Group: "g.io", Resource: "gizmos"}
	const v2 = "/apis/g.io/v2"
	for _, tt := range []struct {
		name   string
		server discovery
		needed []served.Resource
		stop   time.Duration
		want   []string // of the error; nil means no error
		took   time.Duration
	}{
		{name: "all", needed: []served.Resource{
			{GroupResource: pods, Kind: "Pod"}, {GroupResource: nodes}, {GroupResource: widgets, Kind: "Widget"}, {GroupResource: status}, {GroupResource: olds, Kind: "Old"},
		}},
		{name: "nothing is needed"},
		{name: "later", server: discovery{from: map[string]time.Duration{v2: 2500 * time.Millisecond}}, needed: []served.Resource{{GroupResource: status}}, took: 3 * time.Second},
		{
			name: "never", needed: []served.Resource{{GroupResource: pods}, {GroupResource: gizmos}}, took: 10 * time.Second,
			want: []string{"the API server does not serve gizmos.g.io: install its CustomResourceDefinition, or check the name (after 10s)"},
		},
		{
			name: "another reason later", server: discovery{from: map[string]time.Duration{v2: 2500 * time.Millisecond}}, needed: []served.Resource{{GroupResource: status}, {GroupResource: gizmos}}, took: 10 * time.Second,
			want: []string{"the API server does not serve gizmos.g.io"},
		},
		{
			name: "a malformed group", needed: []served.Resource{{GroupResource: corev1.Resource("odds")}}, took: 10 * time.Second,
			want: []string{"the API server does not serve odds"},
		},
		{
			name: "no such subresource", needed: []served.Resource{{GroupResource: scale}}, took: 10 * time.Second,
			want: []string{"widgets.g.io has no subresource scale: add it to the CustomResourceDefinition, under subresources (after 10s)"},
		},
		{
			name: "a subresource of nothing", needed: []served.Resource{{GroupResource: schema.GroupResource{Group: "g.io", Resource: "gizmos/status"}}}, took: 10 * time.Second,
			want: []string{"the API server does not serve gizmos/status.g.io"},
		},
		{
			name: "another kind", needed: []served.Resource{{GroupResource: widgets, Kind: "OldWidget", Controller: "c"}},
			want: []string{`controller "c": the objects of widgets.g.io are of kind Widget, and its informer holds OldWidget: pass the informer of widgets.g.io`},
		},
		{name: "stopped", needed: []served.Resource{{GroupResource: gizmos}}, stop: 2500 * time.Millisecond, took: 2500 * time.Millisecond, want: []string{context.Canceled.Error()}},
		{
			name: "not reached", server: discovery{fails: map[string]int{"/api": -1, "/apis": -1}}, needed: []served.Resource{{GroupResource: pods}}, took: 10 * time.Second,
			want: []string{"the API server http://server cannot tell what it serves: ", "connection refused", "(after 10s)"},
		},
		{name: "a group that fails and is not needed", server: discovery{fails: map[string]int{v2: 503}}, needed: []served.Resource{{GroupResource: pods}, {GroupResource: olds}}},
		{
			name: "a group that fails", server: discovery{fails: map[string]int{v2: 503}}, needed: []served.Resource{{GroupResource: status}}, took: 10 * time.Second,
			want: []string{"widgets.g.io has no subresource status", "unable to retrieve the complete list of server APIs: g.io/v2", "(after 10s)"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out)))))
				defer cancel()
				if tt.stop > 0 {
					time.AfterFunc(tt.stop, cancel)
				}
				server := tt.server
				server.begin = time.Now()
				found, err := served.Wait(ctx, &rest.Config{Host: "http://server", Transport: &server, QPS: -1}, 10*time.Second, tt.needed)
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
					if r := found[pods]; r.Kind != "Pod" || r.Version != "v1" || r.Group != "" || !r.Namespaced {
						t.Errorf("pods: %+v", r)
					}
					if r, ok := found[widgets]; ok && tt.server.fails == nil && (r.Kind != "Widget" || r.Version != "v2" || r.Group != "g.io") {
						t.Errorf("widgets: %+v, want the preferred version", r)
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
