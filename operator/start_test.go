package operator_test

import (
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// slowDiscovery is an API server whose discovery takes time. It has a Pod that the ConfigMap a controls, and
// serves ConfigMaps from a time on.
type slowDiscovery struct {
	takes, from time.Duration
	begin       time.Time

	mu    sync.Mutex
	lists map[string][]time.Duration // the times of the lists and initial watches of a resource
}

const (
	initialEnd = `{"type":"BOOKMARK","object":{"kind":"%s","apiVersion":"v1","metadata":{"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"true"}}}}`
	controlled = `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"default","name":"child","uid":"u2","resourceVersion":"2",
		"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"u1","controller":true}]}}}`
)

// stream is the body of a watch, which ends with its request.
type stream struct {
	io.Reader
	ctx context.Context //nolint:containedctx // of the request
}

func (s stream) Read(p []byte) (int, error) {
	if n, err := s.Reader.Read(p); n > 0 || !errors.Is(err, io.EOF) {
		return n, err
	}
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

func (stream) Close() error { return nil }

func (s *slowDiscovery) RoundTrip(r *http.Request) (*http.Response, error) {
	respond := func(status int, body string) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: stream{strings.NewReader(body), r.Context()}, Request: r}, nil
	}
	whole := func(status int, text string) (*http.Response, error) {
		resp, err := respond(status, "")
		resp.Body = io.NopCloser(strings.NewReader(text))
		return resp, err
	}
	served := time.Since(s.begin) >= s.from
	if r.URL.Path == "/api/v1" {
		select {
		case <-time.After(s.takes):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		list := `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["list","watch"]}`
		if served {
			list += `,{"name":"configmaps","kind":"ConfigMap","namespaced":true,"verbs":["list","watch"]}`
		}
		return whole(http.StatusOK, list+`]}`)
	}
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	if query := r.URL.Query(); query.Get("watch") == "" || query.Get("sendInitialEvents") == "true" {
		s.mu.Lock()
		s.lists[resource] = append(s.lists[resource], time.Since(s.begin))
		s.mu.Unlock()
	}
	switch {
	case resource == "pods":
		return respond(http.StatusOK, controlled+strings.Replace(initialEnd, "%s", "Pod", 1))
	case resource == "configmaps" && served:
		return respond(http.StatusOK, strings.Replace(initialEnd, "%s", "ConfigMap", 1))
	}
	return whole(http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","code":404}`)
}

// TestStart: the informers send their first lists before the response of discovery, and no call begins
// before it. If a resource is not served, its informer sends one list at most, logs nothing, and lists again
// when the resource is served.
func TestStart(t *testing.T) {
	const takes = 2 * time.Second // a discovery
	usual := []string{
		"Waiting for the API server", "Waiting for the caches", "Informers synced", "Starting controller",
		"Stopping controller", "Stopped before the caches were synced", "Stopped controller",
	}
	for _, tc := range []struct {
		name     string
		from     time.Duration // when ConfigMaps are served
		foreign  bool          // the informers' client is not of Config
		want     string        // the error; "" means that the key runs
		within   time.Duration // after the beginning
		requests int           // lists of ConfigMaps before they are served
	}{
		{name: "served", within: takes},
		{name: "served, another client", foreign: true, within: takes},
		{name: "served later", from: 3 * time.Second, within: 3*takes + time.Second, requests: 1},
		{name: "served later, another client", from: 3 * time.Second, foreign: true, within: 3*takes + 4*time.Second, requests: 2},
		{name: "not served", from: time.Hour, want: "operator: the API server does not serve configmaps: install its CustomResourceDefinition, or check the name (after 20s)", within: 20 * time.Second, requests: 1},
		{name: "not served, another client", from: time.Hour, foreign: true, want: "operator: the API server does not serve configmaps: install its CustomResourceDefinition, or check the name (after 20s)", within: 20 * time.Second, requests: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &slowDiscovery{takes: takes, from: tc.from, begin: time.Now(), lists: map[string][]time.Duration{}}
				config := &rest.Config{Host: "http://server", Transport: server}
				op, err := operator.New(config, operator.Options{Name: "x"})
				if err != nil {
					t.Fatal(err)
				}
				if !tc.foreign {
					config = op.Config
				}
				f := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
				calls := make(chan types.NamespacedName, 1)
				c := op.Controller("c", func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
					calls <- key
					return reconcile.Result{}, nil
				})
				operator.For(c, corev1.Resource("configmaps"), f.Core().V1().ConfigMaps())
				operator.Owns(c, corev1.Resource("pods"), f.Core().V1().Pods())
				logs := testlog.New()
				ctx, stop := context.WithCancel(logs.Context(t.Context()))
				defer stop()
				ended := make(chan error, 1)
				go func() { ended <- op.Run(ctx) }()
				select {
				case key := <-calls:
					if want := (types.NamespacedName{Namespace: "default", Name: "a"}); key != want || tc.want != "" {
						t.Errorf("called with %v, want %v", key, want)
					}
					defer func() {
						stop()
						if err := <-ended; err != nil {
							t.Errorf("Run() = %v", err)
						}
					}()
				case err := <-ended:
					if tc.want == "" || err == nil || !strings.HasSuffix(err.Error(), tc.want) {
						t.Errorf("Run() = %v, want %s", err, tc.want)
					}
				case <-time.After(time.Minute):
					t.Fatal("no call and no error after a minute")
				}
				if took := time.Since(server.begin); took < takes || took > tc.within {
					t.Errorf("took %v, want from %v to %v", took, takes, tc.within)
				}
				server.mu.Lock()
				defer server.mu.Unlock()
				early := slices.DeleteFunc(slices.Clone(server.lists["configmaps"]), func(at time.Duration) bool { return at > 0 && at >= tc.from })
				if len(early) != max(tc.requests, 1) || early[0] != 0 || server.lists["pods"][0] != 0 || len(server.lists["pods"]) != 1 {
					t.Errorf("lists at %v, want %d of configmaps and 1 of pods, at once", server.lists, max(tc.requests, 1))
				}
				for _, line := range logs.All() {
					if line.Err != nil || line.Level == 0 && !slices.Contains(usual, line.Message) {
						t.Errorf("logged: %s %v %v", line.Message, line.Values, line.Err)
					}
				}
			})
		})
	}
}
