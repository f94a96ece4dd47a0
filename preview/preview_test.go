package preview_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/preview"
)

// TestStopped: a Run whose context ends before is not a whole preview, also if its loops then find their queues empty.
func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &preview.Preview{}
		q := preview.NewQueue[string](p)
		ctx, cancel := context.WithCancel(t.Context())
		err := p.Run(ctx, func(context.Context) error {
			cancel()
			go q.Get()
			synctest.Wait()
			q.ShutDown()
			return nil
		})
		if err == nil || err.Error() != "preview: it was stopped before each key has run" {
			t.Errorf("got %v", err)
		}
		want := errors.New("no API server")
		if err := new(preview.Preview).Run(t.Context(), func(context.Context) error { return want }); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	})
}

// TestAgain: loops that begin after the end of the preview do not run. It is an error, since the report would lack them.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &preview.Preview{}
		run := func() error {
			q := preview.NewQueue[string](p)
			return p.Run(t.Context(), func(ctx context.Context) error {
				go q.Get()
				<-ctx.Done()
				q.ShutDown()
				return nil
			})
		}
		if err := run(); err != nil {
			t.Fatal(err)
		}
		if err := run(); err == nil || err.Error() != "preview: each key of the Preview has run before: use another Preview for these loops" {
			t.Errorf("a second Run: %v", err)
		}
	})
}

// TestQueue runs two loops, one of them with keys that fail. Proves PV4.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &preview.Preview{}
		quick, slow, empty := preview.NewQueue[string](p), preview.NewQueue[string](p), preview.NewQueue[string](p)
		var mu sync.Mutex
		var got []string
		work := func(q workqueue.TypedRateLimitingInterface[string], workers int) {
			for range workers {
				go func() {
					for {
						key, stop := q.Get()
						if stop {
							return
						}
						mu.Lock()
						got = append(got, fmt.Sprint(key, " ", q.NumRequeues(key)))
						mu.Unlock()
						q.Add(key) // an event while it runs
						if strings.HasPrefix(key, "bad") {
							q.AddRateLimited(key)
						} else {
							q.AddAfter(key, 1)
						}
						q.Done(key)
					}
				}()
			}
		}
		quick.Add("a")
		quick.AddAfter("b", 3600e9)
		quick.Add("a")
		slow.AddRateLimited("bad")
		if quick.Len() != 2 {
			t.Errorf("the queue has %d keys, want 2", quick.Len())
		}
		err := p.Run(t.Context(), func(ctx context.Context) error {
			work(quick, 3)
			work(slow, 1)
			synctest.Wait()
			if ctx.Err() != nil {
				t.Error("the context ends before the last queue has a loop")
			}
			work(empty, 1)
			<-ctx.Done()
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		slices.Sort(got)
		if want := []string{"a 0", "b 0", "bad 0", "bad 1", "bad 2"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		for _, q := range []workqueue.TypedRateLimitingInterface[string]{quick, slow, empty} {
			q.ShutDown()
			q.Add("late")
			if q.Len() != 0 || !q.ShuttingDown() {
				t.Error("a queue takes keys after the stop")
			}
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func answer(code int, body string) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
}

// TestExtension has API servers of extensions with several documents. Proves PV1.
func TestExtension(t *testing.T) {
	for name, tt := range map[string]struct {
		code     int
		document string
		sent     bool
	}{
		"in the operation":   {200, `{"paths":{"/apis/x.example.com/v1/widgets":{"post":{"parameters":[{"name":"dryRun"}]}}}}`, true},
		"by reference":       {200, `{"paths":{"/apis/x.example.com/v1/widgets/{name}":{"parameters":[{"$ref":"#/components/parameters/dryRun-a1"}]}}}`, true},
		"of another":         {200, `{"paths":{"/apis/x.example.com/v1/gadgets":{"post":{"parameters":[{"name":"dryRun"}]}}}}`, false},
		"without dry runs":   {200, `{"paths":{"/apis/x.example.com/v1/widgets":{"post":{"parameters":[{"name":"pretty"}]}}}}`, false},
		"without a document": {404, `{}`, false},
		"not JSON":           {200, `<html>`, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent []string
				p := &preview.Preview{}
				rt := p.Transport(roundTripper(func(req *http.Request) (*http.Response, error) {
					if strings.HasPrefix(req.URL.Path, "/openapi/") {
						return answer(tt.code, tt.document), nil
					}
					sent = append(sent, req.Method+" "+req.URL.String())
					return answer(201, `{"kind":"Widget","metadata":{"name":"one"}}`), nil
				}))
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://server/apis/x.example.com/v1/widgets", strings.NewReader(`{}`))
				for range 2 {
					resp, err := rt.RoundTrip(req)
					if err == nil {
						resp.Body.Close()
					}
					var unsent controllerkit.UnsentError
					if (err == nil) != tt.sent || !tt.sent && !errors.As(err, &unsent) {
						t.Fatalf("got %v, want that it is sent: %v", err, tt.sent)
					}
				}
				want := []string(nil)
				if tt.sent {
					want = []string{"POST http://server/apis/x.example.com/v1/widgets?dryRun=All", "POST http://server/apis/x.example.com/v1/widgets?dryRun=All"}
				}
				if diff := cmp.Diff(want, sent); diff != "" {
					t.Errorf("requests: (-want +got)\n%s", diff)
				}
			})
		})
	}
}

// TestExtensionResources has an API server that knows dry runs of one resource and not of another, whose document changes, and
// whose document cannot be read for a while. Proves PV1.
func TestExtensionResources(t *testing.T) {
	const documented = `{"paths":{
		"/apis/x.example.com/v1/namespaces/{namespace}/widgets":{"post":{"parameters":[{"name":"dryRun"}]}},
		"/apis/x.example.com/v1/namespaces/{namespace}/widgets/{name}/restart":{"post":{"parameters":[{"name":"force"}]}},
		"/apis/x.example.com/v1/namespaces/{namespace}/gadgets":{"post":{"parameters":[{"name":"pretty"}]}},
		"/apis/x.example.com/v1/namespaces/{namespace}/gadgets/{name}/widgets":{"post":{"parameters":[{"name":"dryRun"}]}}
	}}`
	synctest.Test(t, func(t *testing.T) {
		var code, reads int
		var during func() // a read of the document
		p := &preview.Preview{}
		rt := p.Transport(roundTripper(func(req *http.Request) (*http.Response, error) {
			if !strings.HasPrefix(req.URL.Path, "/openapi/") {
				return answer(201, `{"kind":"Widget","metadata":{"name":"one"}}`), nil
			}
			if reads++; during != nil {
				during()
			}
			if err := req.Context().Err(); err != nil {
				return nil, err
			}
			return answer(code, documented), nil
		}))
		write := func(ctx context.Context, resource string) error {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://server/apis/x.example.com/v1/namespaces/a/"+resource, strings.NewReader(`{}`))
			resp, err := rt.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
		code = 404
		for n, want := range []int{5, 1} { // it is waited for once
			reads = 0
			if err := write(t.Context(), "widgets"); err == nil || reads != want {
				t.Errorf("write %d without a document: %v after %d reads, want an error after %d", n, err, reads, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		during = cancel
		if err := write(ctx, "widgets"); err == nil {
			t.Error("a write whose context ends is sent")
		}
		during = func() { // a write is refused, while another one learns that it is allowed
			during, code = nil, 200
			if err := write(t.Context(), "widgets"); err != nil {
				t.Errorf("a concurrent write: %v", err)
			}
			code = 503
		}
		if err := write(t.Context(), "widgets"); err == nil {
			t.Error("a write whose document cannot be read is sent")
		}
		for resource, sent := range map[string]bool{"widgets": true, "widgets/one/restart": false, "gadgets": false, "gadgets/one/widgets": true} {
			code, reads = 200, 0
			for range 2 {
				if err := write(t.Context(), resource); (err == nil) != sent {
					t.Errorf("%s: got %v, want that it is sent: %v", resource, err, sent)
				}
			}
			if want := map[bool]int{true: 0, false: 1}[resource == "widgets"]; reads != want {
				t.Errorf("%s: %d reads, want %d", resource, reads, want)
			}
		}
	})
}

// TestGone has the responses to writes of a Pod, after which a read of the call finds it or not.
func TestGone(t *testing.T) {
	const deleting = `"deletionTimestamp":"2026-01-01T00:00:00Z"`
	for name, tt := range map[string]struct {
		method, response string
		want             int
	}{
		"deletion":                {http.MethodDelete, `{"kind":"Pod","metadata":{"name":"one","uid":"u"}}`, 404},
		"deletion with a status":  {http.MethodDelete, `{"kind":"Status","status":"Success"}`, 404},
		"deletion at once":        {http.MethodDelete, `{"kind":"Pod","metadata":{"name":"one","uid":"u",` + deleting + `,"deletionGracePeriodSeconds":0}}`, 404},
		"deletion with grace":     {http.MethodDelete, `{"kind":"Pod","metadata":{"name":"one","uid":"u",` + deleting + `,"deletionGracePeriodSeconds":30}}`, 200},
		"deletion with finalizer": {http.MethodDelete, `{"kind":"Pod","metadata":{"name":"one","uid":"u",` + deleting + `,"finalizers":["example.com/work"]}}`, 200},
		"last finalizer":          {http.MethodPut, `{"kind":"Pod","metadata":{"name":"one","uid":"u",` + deleting + `}}`, 404},
		"update":                  {http.MethodPut, `{"kind":"Pod","metadata":{"name":"one","uid":"u"}}`, 200},
	} {
		t.Run(name, func(t *testing.T) {
			p := &preview.Preview{}
			rt := p.Transport(roundTripper(func(req *http.Request) (*http.Response, error) {
				if req.Method == http.MethodGet {
					return answer(200, `{"kind":"Pod","metadata":{"name":"one","uid":"u"}}`), nil
				}
				return answer(200, tt.response), nil
			}))
			ctx, end := p.Begin(t.Context(), "test", "one")
			defer end(nil)
			var resp *http.Response
			for _, method := range []string{tt.method, http.MethodGet} {
				req, err := http.NewRequestWithContext(ctx, method, "http://server/api/v1/namespaces/a/pods/one", nil)
				if err != nil {
					t.Fatal(err)
				}
				if resp, err = rt.RoundTrip(req); err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			}
			if resp.StatusCode != tt.want {
				t.Errorf("a read gets %d, want %d", resp.StatusCode, tt.want)
			}
		})
	}
}

// TestUnreadable sends requests that cannot be made dry runs.
func TestUnreadable(t *testing.T) {
	p := &preview.Preview{}
	rt := p.Transport(roundTripper(func(req *http.Request) (*http.Response, error) {
		t.Errorf("%s %s is sent", req.Method, req.URL)
		return answer(200, `{}`), nil
	}))
	for _, tt := range []struct {
		method, path string
		body         io.Reader
	}{
		{http.MethodDelete, "/api/v1/namespaces/a/pods/b", strings.NewReader("not a body")},
		{http.MethodPut, "/api/v1/namespaces/a/pods/b", io.MultiReader(strings.NewReader("x"), failing{})},
		{http.MethodPut, "/api/v1/namespaces/a/pods/b", io.LimitReader(zeros{}, 1<<30)},
		{http.MethodPost, "/elsewhere", strings.NewReader("{}")},
		{http.MethodPost, "/api/v1/namespaces/a/pods/b/portforward", nil},
		{http.MethodConnect, "/api/v1/namespaces/a/pods/b", nil},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://server"+tt.path, tt.body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := rt.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
			t.Errorf("%s %s: no error", tt.method, tt.path)
		}
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("cut") }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestOutside has the effects outside of the API server. Proves PV3.
func TestOutside(t *testing.T) {
	if preview.Skip(t.Context(), "nothing") {
		t.Error("Skip outside of a preview")
	}
	p := &preview.Preview{}
	ctx, end := p.Begin(t.Context(), "test", "a\x1bb")
	if !preview.Skip(ctx, "make %s", "the record\n") {
		t.Error("Skip reports no preview")
	}
	end(errors.New("a\x1b[31m"))
	again, end := p.Begin(t.Context(), "test", "many")
	for n := range 1500 {
		preview.Skip(again, "%d", n)
	}
	end(nil)
	again, end = p.Begin(t.Context(), "test", "again")
	preview.Skip(again, "first")
	end(errors.New("stale"))
	_, end = p.Begin(t.Context(), "test", "again")
	end(nil)
	r := p.Report()
	want := []preview.Call{{Controller: "test", Key: `a\x1bb`, Skipped: []string{`make the record\n`}, Error: `a\x1b[31m`}}
	if diff := cmp.Diff(want, r.Calls[:1]); diff != "" || len(r.Calls) != 2 || len(r.Calls[1].Skipped) != 1000 || r.Calls[1].Omitted != 500 {
		t.Errorf("%d calls, (-want +got)\n%s", len(r.Calls), diff)
	}
	if code := r.ExitCode(); code != 1 {
		t.Errorf("the exit code is %d, want 1", code)
	}
	if code := (&preview.Report{Keys: 3}).ExitCode(); code != 0 {
		t.Errorf("the exit code without changes is %d, want 0", code)
	}
}

// TestExternal runs Once, Ensure and Delete of package external. Proves PV3.
func TestExternal(t *testing.T) {
	for _, exists := range []bool{false, true} {
		p := &preview.Preview{}
		ctx, end := p.Begin(t.Context(), "test", "one")
		obj := configMap("one", "red")
		obj.UID, obj.ResourceVersion, obj.Namespace = "u", "1", "ns"
		id, err := external.Once(ctx, patcher{obj}, obj, external.Resource{
			Annotation: "example.com/bucket",
			Find: func(context.Context, string) (string, bool, error) {
				return map[bool]string{true: "i-1"}[exists], exists, nil
			},
			Create: func(context.Context, string) (string, error) {
				t.Error("Create is called")
				return "i-2", nil
			},
		})
		end(err)
		if exists && (id != "i-1" || err != nil) || !exists && (id != "" || kube.Waits(err) <= 0) {
			t.Errorf("exists %v: got %q, %v", exists, id, err)
		}
		report := p.Report()
		if calls := report.Calls; exists != (len(calls) == 0) || !exists && (calls[0].Skipped[0] != "create example.com/bucket" || calls[0].Waits != err.Error()) {
			t.Errorf("exists %v: %v", exists, calls)
		}
		if report.ExitCode() != 0 {
			t.Errorf("exists %v: exit code %d, and a call that waits is no failure", exists, report.ExitCode())
		}
	}
	p := &preview.Preview{}
	ctx, end := p.Begin(t.Context(), "test", "one")
	obj := configMap("one", "red")
	obj.UID, obj.ResourceVersion, obj.Namespace = "u", "1", "ns"
	obj.Annotations = map[string]string{"example.com/bucket": `{"token":"` + external.Token(obj, "example.com/bucket") + `","id":"i-1"}`}
	call := func(context.Context, string) error {
		t.Error("the service is called")
		return nil
	}
	bucket := external.Resource{
		Annotation: "example.com/bucket",
		Find:       func(context.Context, string) (string, bool, error) { return "i-1", true, nil },
		Create:     func(ctx context.Context, _ string) (string, error) { return "", call(ctx, "") },
		Observe:    func(context.Context, string) (external.State, error) { return external.Different, nil },
		Update:     call, Delete: call,
	}
	_, err := external.Ensure(ctx, patcher{obj}, obj, bucket)
	end(errors.Join(err, external.Delete(ctx, patcher{obj}, obj, bucket)))
	if calls := p.Report().Calls; len(calls) != 1 || calls[0].Error != "" || fmt.Sprint(calls[0].Skipped) != "[update example.com/bucket delete example.com/bucket]" {
		t.Errorf("the report is %+v", calls)
	}
}

// TestText has the report for people, and that for programs.
func TestText(t *testing.T) {
	r := &preview.Report{Keys: 3, Calls: []preview.Call{
		{Controller: "websites", Key: "shop/front", Skipped: []string{"make the record"}, Changes: []preview.Change{
			{
				Action: preview.Modify, Resource: "deployments.apps", Namespace: "shop", Name: "front", RestartsPods: true, Omitted: 2,
				Fields: []preview.Field{{Path: ".spec.replicas", Old: "1", New: "2"}, {Path: ".spec.paused", New: "false"}},
			},
			{Action: preview.Modify, Resource: "deployments.apps", Namespace: "shop", Name: "front", Subresource: "status", Note: "Its fields are not known: x"},
			{Action: preview.Create, Resource: "namespaces", Name: "new"},
		}},
		{Controller: "websites", Key: "shop/late", Waits: "the service is busy"},
		{Controller: "websites", Key: "shop/other", Error: "stale"},
		{Omitted: 3, Changes: []preview.Change{{Action: preview.Destroy, Resource: "pods", Namespace: "shop", Name: "gone"}}},
	}}
	const want = `websites shop/front
  change deployments.apps shop/front: restarts Pods
    .spec.replicas: 1 -> 2
    .spec.paused: (absent) -> false
    and 2 more fields
  change deployments.apps/status shop/front
    Its fields are not known: x
  create namespaces new
  skipped: make the record
websites shop/late
  waits: the service is busy
websites shop/other
  failed: stale
outside of a call
  delete pods shop/gone
  and 3 more
3 keys ran. 1 object would be created, 1 changed, 1 deleted. Pods are restarted by 1 change. 1 effect outside of the API server skipped. 1 key failed, and can show less than they would change.
`
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := r.WriteText(broken{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a writer that fails: %v", err)
	}
	data, err := json.Marshal(r)
	var back preview.Report
	if err != nil || json.Unmarshal(data, &back) != nil || !cmp.Equal(*r, back) {
		t.Errorf("JSON %s, %v", data, err)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// patcher answers each patch with the object that it has, and the annotations of the patch.
type patcher struct{ obj *corev1.ConfigMap }

func (p patcher) Patch(_ context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.ConfigMap, error) {
	obj := p.obj.DeepCopy()
	var operations []struct {
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	if err := json.Unmarshal(data, &operations); err != nil {
		return nil, err
	}
	for _, o := range operations {
		if m, ok := o.Value.(map[string]any); ok {
			obj.Annotations = map[string]string{"example.com/bucket": fmt.Sprint(m["example.com/bucket"])}
		}
	}
	return obj, nil
}
