package managerkit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
)

type jsonObject = map[string]any

// keepCRD is a test whose cleanups are left out: the definition lasts as long as the
// server.
type keepCRD struct{ testing.TB }

func (keepCRD) Cleanup(func()) {}

// installClientSites installs the CustomResourceDefinition that the tests share.
func installClientSites(t testing.TB) {
	t.Helper()
	definitions := dynamic.NewForConfigOrDie(testserver.Config(t)).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := definitions.Get(t.Context(), "clientsites.client.example.com", metav1.GetOptions{})
	if err == nil {
		return
	}
	if !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	text := jsonObject{"type": "string"}
	condition := jsonObject{"type": "object", "required": []any{"type"}, "properties": jsonObject{
		"type": text, "status": text, "reason": text, "message": text, "lastTransitionTime": text, "observedGeneration": jsonObject{"type": "integer"},
	}}
	testserver.InstallCRD(keepCRD{t}, jsonObject{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": jsonObject{"name": "clientsites.client.example.com"},
		"spec": jsonObject{
			"group": "client.example.com", "scope": "Namespaced",
			"names": jsonObject{"kind": "ClientSite", "plural": "clientsites"},
			"versions": []any{jsonObject{
				"name": "v1", "served": true, "storage": true,
				"subresources":     jsonObject{"status": jsonObject{}},
				"selectableFields": []any{jsonObject{"jsonPath": ".spec.host"}},
				"schema": jsonObject{"openAPIV3Schema": jsonObject{"type": "object", "properties": jsonObject{
					"spec": jsonObject{"type": "object", "properties": jsonObject{"host": text, "aliases": jsonObject{"type": "array", "items": text}}},
					"status": jsonObject{"type": "object", "properties": jsonObject{"address": text, "conditions": jsonObject{
						"type": "array", "items": condition, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
					}}},
				}}},
			}},
		},
	})
}

// sentRequest is a request as the transport saw it.
type sentRequest struct {
	Method, Path, Query, ContentType, Body string
}

// recorded keeps the requests of a transport, without those of discovery.
type recorded struct {
	http.RoundTripper
	mu   *sync.Mutex
	sent *[]sentRequest // guarded by mu
}

func (r recorded) RoundTrip(request *http.Request) (*http.Response, error) {
	if segments := strings.Split(strings.Trim(request.URL.Path, "/"), "/"); segments[0] == "apis" && len(segments) > 3 || segments[0] == "api" && len(segments) > 2 {
		var body []byte
		if request.Body != nil {
			var err error
			if body, err = io.ReadAll(request.Body); err != nil {
				return nil, err
			}
			request = request.Clone(request.Context())
			request.Body = io.NopCloser(bytes.NewReader(body))
		}
		r.mu.Lock()
		*r.sent = append(*r.sent, sentRequest{request.Method, request.URL.Path, request.URL.RawQuery, request.Header.Get("Content-Type"), string(body)})
		r.mu.Unlock()
	}
	return r.RoundTripper.RoundTrip(request)
}

// recorder returns a configuration, and a function that returns the requests since its
// last call.
func recorder(config *rest.Config) (*rest.Config, func() []sentRequest) {
	config = rest.CopyConfig(config)
	config.UserAgent = "client-test" // the default field manager
	mu, sent := new(sync.Mutex), new([]sentRequest)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return recorded{rt, mu, sent} })
	return config, func() []sentRequest {
		mu.Lock()
		defer mu.Unlock()
		out := *sent
		*sent = nil
		return out
	}
}

// startClientManager starts a manager of one namespace, with an informer of each kind. The
// manager stops at the end of the test.
func startClientManager(t *testing.T, config *rest.Config, namespace string, kinds ...client.Object) manager.Manager {
	t.Helper()
	ctrl.SetLogger(logr.Discard()) // otherwise controller-runtime prints a warning
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: clientScheme(t), Logger: logr.Discard(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	for _, kind := range kinds {
		if _, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the manager: %v", err)
		}
	})
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the cache did not sync")
	}
	return mgr
}

// liveSites returns a client without a cache, of the namespace.
func liveSites(t testing.TB, config *rest.Config, namespace string) *managerkit.Client[*clientSite] {
	t.Helper()
	return newSites(t, newUncached(t, config)).Namespace(namespace)
}

func newUncached(t testing.TB, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: clientScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// normal replaces what differs between two equal runs in two namespaces.
var (
	uids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	versions = regexp.MustCompile(`"(resourceVersion|resourceVersion\\)":"[0-9]+"`)
	times    = regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`)
	tokens   = regexp.MustCompile(`(continue"?[=:]"?)[A-Za-z0-9%_-]{20,}`)
	inQuery  = regexp.MustCompile(`resourceVersion=[0-9]+`)
	inText   = regexp.MustCompile(`(?i)resource ?version(: |=)[0-9]+|in record \([0-9]+\)`)
)

func normal(text, namespace string) string {
	text = strings.ReplaceAll(text, namespace, "NAMESPACE")
	text = uids.ReplaceAllString(text, "UID")
	text = versions.ReplaceAllString(text, `"resourceVersion":"VERSION"`)
	text = times.ReplaceAllString(text, "TIME")
	text = tokens.ReplaceAllString(text, "${1}TOKEN")
	text = inQuery.ReplaceAllString(text, "resourceVersion=VERSION")
	return inText.ReplaceAllString(text, "VERSION")
}

// clientOperation is one call of the table of TestServerClientIsACRDClient.
type clientOperation struct {
	name string
	call func(ctx context.Context, c sitesMethods, seen *sight) (any, error)

	// How the requests of the Client may differ from those of a crd.Client.
	defaultsStrict bool // crd.Client adds fieldValidation=Strict
	notServed      bool // crd.Client finds out that the subresource does not exist
	serverTimeout  bool // crd.Client adds timeout=..., which controller-runtime cannot
}

// sight has the latest results of a run.
type sight struct {
	site *clientSite
	list *crd.List[*clientSite]
}

func operations() []clientOperation {
	dry := []string{metav1.DryRunAll}
	site := func(name string, labels map[string]string) *clientSite {
		return &clientSite{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: clientSiteSpec{Host: name + ".example.com"}}
	}
	config := func(name string, fields jsonObject) *unstructured.Unstructured {
		o := jsonObject{"apiVersion": "client.example.com/v1", "kind": "ClientSite", "metadata": jsonObject{"name": name}}
		maps.Copy(o, fields)
		return &unstructured.Unstructured{Object: o}
	}
	write := func(name string, call func(ctx context.Context, c sitesMethods, seen *sight) (*clientSite, error)) clientOperation {
		return clientOperation{name: name, call: func(ctx context.Context, c sitesMethods, seen *sight) (any, error) {
			got, err := call(ctx, c, seen)
			if err == nil {
				seen.site = got
			}
			return got, err
		}}
	}
	strict := func(o clientOperation) clientOperation { o.defaultsStrict = true; return o }
	check := func(name string, call func(ctx context.Context, c sitesMethods, seen *sight) (any, error)) clientOperation {
		return clientOperation{name: name, call: call}
	}
	return []clientOperation{
		strict(write("create", func(ctx context.Context, c sitesMethods, _ *sight) (*clientSite, error) {
			return c.Create(ctx, site("a", map[string]string{"l": "1"}), metav1.CreateOptions{FieldManager: "creator"})
		})),
		check("create, warn", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Create(ctx, site("b", map[string]string{"l": "2"}), metav1.CreateOptions{FieldValidation: "Warn"})
		}),
		strict(check("create again", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Create(ctx, site("a", nil), metav1.CreateOptions{})
		})),
		strict(check("create, dry run", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Create(ctx, site("dry", nil), metav1.CreateOptions{DryRun: dry})
		})),
		strict(check("create, bad dry run", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Create(ctx, site("dry", nil), metav1.CreateOptions{DryRun: []string{"some"}})
		})),
		check("get", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Get(ctx, "a", metav1.GetOptions{})
		}),
		check("get, from a version", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Get(ctx, "a", metav1.GetOptions{ResourceVersion: "0"})
		}),
		check("get none", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Get(ctx, "none", metav1.GetOptions{})
		}),
		check("get no name", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Get(ctx, "", metav1.GetOptions{})
		}),
		strict(write("update", func(ctx context.Context, c sitesMethods, seen *sight) (*clientSite, error) {
			next := seen.site.DeepCopy()
			next.Spec.Aliases = []string{"x", "y"}
			return c.Update(ctx, next, metav1.UpdateOptions{FieldManager: "updater"})
		})),
		strict(check("update, stale", func(ctx context.Context, c sitesMethods, seen *sight) (any, error) {
			next := seen.site.DeepCopy()
			next.ResourceVersion = "1"
			return c.Update(ctx, next, metav1.UpdateOptions{})
		})),
		check("update, dry run", func(ctx context.Context, c sitesMethods, seen *sight) (any, error) {
			next := seen.site.DeepCopy()
			next.Spec.Host = "dry"
			return c.Update(ctx, next, metav1.UpdateOptions{DryRun: dry, FieldValidation: "Ignore"})
		}),
		strict(check("update none", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Update(ctx, site("none", nil), metav1.UpdateOptions{})
		})),
		strict(write("update the status", func(ctx context.Context, c sitesMethods, seen *sight) (*clientSite, error) {
			next := seen.site.DeepCopy()
			next.Status.Address = "10.0.0.1"
			return c.UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: "status"})
		})),
		strict(check("update the status, stale", func(ctx context.Context, c sitesMethods, seen *sight) (any, error) {
			next := seen.site.DeepCopy()
			next.ResourceVersion, next.Status.Address = "1", "10.0.0.2"
			return c.UpdateStatus(ctx, next, metav1.UpdateOptions{})
		})),
		strict(write("patch, merge", func(ctx context.Context, c sitesMethods, _ *sight) (*clientSite, error) {
			return c.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"aliases":null}}`), metav1.PatchOptions{FieldManager: "patcher"})
		})),
		write("patch, json", func(ctx context.Context, c sitesMethods, _ *sight) (*clientSite, error) {
			return c.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/annotations","value":{"k":"v"}}]`), metav1.PatchOptions{FieldValidation: "Strict"})
		}),
		strict(check("patch, failed test", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/uid","value":"u"}]`), metav1.PatchOptions{})
		})),
		strict(check("patch, unsupported", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
		})),
		strict(check("patch, dry run", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"host":"dry"}}`), metav1.PatchOptions{DryRun: dry})
		})),
		strict(write("patch the status", func(ctx context.Context, c sitesMethods, _ *sight) (*clientSite, error) {
			return c.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"host":"ignored"},"status":{"address":"10.0.0.3"}}`), metav1.PatchOptions{}, "status")
		})),
		{name: "patch no subresource", notServed: true, defaultsStrict: true, call: func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Patch(ctx, "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "none")
		}},
		write("apply", func(ctx context.Context, c sitesMethods, _ *sight) (*clientSite, error) {
			return c.Apply(ctx, config("a", jsonObject{"spec": jsonObject{"aliases": []any{"z"}}}), metav1.ApplyOptions{FieldManager: "applier"})
		}),
		check("apply, conflict", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Apply(ctx, config("a", jsonObject{"spec": jsonObject{"host": "mine"}}), metav1.ApplyOptions{FieldManager: "other"})
		}),
		check("apply, forced dry run", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Apply(ctx, config("a", jsonObject{"spec": jsonObject{"host": "mine"}}), metav1.ApplyOptions{FieldManager: "other", Force: true, DryRun: dry})
		}),
		check("apply, unknown field", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Apply(ctx, config("a", jsonObject{"spec": jsonObject{"unknown": "x"}}), metav1.ApplyOptions{FieldManager: "applier"})
		}),
		check("apply, create", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.Apply(ctx, config("c", jsonObject{"spec": jsonObject{"host": "c"}}), metav1.ApplyOptions{FieldManager: "applier", Force: true})
		}),
		write("apply the status", func(ctx context.Context, c sitesMethods, _ *sight) (*clientSite, error) {
			return c.ApplyStatus(ctx, config("a", jsonObject{"status": jsonObject{"address": "10.0.0.4"}}), metav1.ApplyOptions{FieldManager: "applier", Force: true})
		}),
		check("apply the status of none", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.ApplyStatus(ctx, config("none", jsonObject{"status": jsonObject{"address": "10.0.0.4"}}), metav1.ApplyOptions{FieldManager: "applier"})
		}),
		check("list", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.List(ctx, metav1.ListOptions{})
		}),
		check("list, page", func(ctx context.Context, c sitesMethods, seen *sight) (any, error) {
			list, err := c.List(ctx, metav1.ListOptions{Limit: 1})
			seen.list = list
			return list, err
		}),
		check("list, next page", func(ctx context.Context, c sitesMethods, seen *sight) (any, error) {
			return c.List(ctx, metav1.ListOptions{Limit: 1, Continue: seen.list.Continue})
		}),
		check("list, labels", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.List(ctx, metav1.ListOptions{LabelSelector: "l in (1,3)"})
		}),
		check("list, fields", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.List(ctx, metav1.ListOptions{FieldSelector: "spec.host=b.example.com"})
		}),
		check("list, no such field", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.List(ctx, metav1.ListOptions{FieldSelector: "spec.none=b"})
		}),
		check("list, from a version", func(ctx context.Context, c sitesMethods, seen *sight) (any, error) {
			return c.List(ctx, metav1.ListOptions{ResourceVersion: seen.site.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
		}),
		{name: "list, timeout", serverTimeout: true, call: func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.List(ctx, metav1.ListOptions{TimeoutSeconds: new(int64(60))})
		}},
		check("list none", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.List(ctx, metav1.ListOptions{LabelSelector: "l=none"})
		}),
		check("delete, dry run", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return nil, c.Delete(ctx, "a", metav1.DeleteOptions{DryRun: dry})
		}),
		check("delete, another uid", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return nil, c.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(types.UID("u"))}})
		}),
		check("delete, another version", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return nil, c.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: new("1")}})
		}),
		check("delete, bad propagation", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return nil, c.Delete(ctx, "a", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletionPropagation("bad"))})
		}),
		check("delete, foreground", func(ctx context.Context, c sitesMethods, seen *sight) (any, error) {
			return nil, c.Delete(ctx, "a", metav1.DeleteOptions{
				Preconditions:      &metav1.Preconditions{UID: &seen.site.UID, ResourceVersion: &seen.site.ResourceVersion},
				PropagationPolicy:  new(metav1.DeletePropagationBackground),
				GracePeriodSeconds: new(int64(0)),
			})
		}),
		check("delete none", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return nil, c.Delete(ctx, "a", metav1.DeleteOptions{})
		}),
		check("delete the collection, dry run", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return nil, c.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: dry}, metav1.ListOptions{})
		}),
		check("delete the collection", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return nil, c.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}, metav1.ListOptions{LabelSelector: "l=2"})
		}),
		check("list the rest", func(ctx context.Context, c sitesMethods, _ *sight) (any, error) {
			return c.List(ctx, metav1.ListOptions{})
		}),
	}
}

// play runs the operations. It returns the results and the requests, each as texts that do
// not depend on the run.
func play(t *testing.T, c sitesMethods, namespace string, requests func() []sentRequest) (results []string, sent [][]sentRequest) {
	t.Helper()
	seen := &sight{}
	for _, o := range operations() {
		result, err := o.call(t.Context(), c, seen)
		if err != nil && result != nil {
			if site, ok := result.(*clientSite); !ok || site != nil {
				if list, ok := result.(*crd.List[*clientSite]); !ok || list != nil {
					t.Errorf("%s: a result next to the error %v", o.name, err)
				}
			}
		}
		text, jsonErr := json.Marshal(result)
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		text = ordered(t, text)
		status := ""
		if s := apierrors.APIStatus(nil); errors.As(err, &s) {
			b, jsonErr := json.Marshal(s.Status())
			if jsonErr != nil {
				t.Fatal(jsonErr)
			}
			status = string(b)
		} else if err != nil {
			status = err.Error()
		}
		results = append(results, normal(fmt.Sprintf("%s: %s %s", o.name, text, status), namespace))
		var these []sentRequest
		for _, r := range requests() {
			query, err := url.ParseQuery(r.Query)
			if err != nil {
				t.Fatal(err)
			}
			r.Path, r.Query, r.Body = normal(r.Path, namespace), normal(query.Encode(), namespace), normal(r.Body, namespace)
			these = append(these, r)
		}
		sent = append(sent, these)
	}
	return results, sent
}

// TestServerClientIsACRDClient runs a table of operations with a crd.Client and with a
// Client. The results, the errors and the requests are equal, but for the differences
// that the table lists, and two of the body: controller-runtime finds the namespace in the
// object, so it is in the body too, and its bodies of deletions are of meta.k8s.io. The objects of a
// Client also have their kind.
func TestServerClientIsACRDClient(t *testing.T) {
	installClientSites(t)
	theirs, theirSent := recorder(testserver.Config(t))
	crdClient, err := crd.New[*clientSite](theirs, clientSiteKind(), "clientsites")
	if err != nil {
		t.Fatal(err)
	}
	config, ourSent := recorder(testserver.Config(t))
	theirNamespace, ourNamespace := testserver.Namespace(t), testserver.Namespace(t)
	wantResults, wantSent := play(t, crdClient.Namespace(theirNamespace), theirNamespace, theirSent)
	gotResults, gotSent := play(t, liveSites(t, config, ourNamespace), ourNamespace, ourSent)
	requests := 0
	for i, o := range operations() {
		kinds := strings.NewReplacer(`"apiVersion":"client.example.com/v1","kind":"ClientSite",`, "")
		if o.notServed {
			if !strings.Contains(wantResults[i], crd.ErrNotServed.Error()) || !strings.Contains(gotResults[i], `"reason":"NotFound"`) {
				t.Errorf("%s: crd.Client %s, Client %s, want ErrNotServed and the server's response", o.name, wantResults[i], gotResults[i])
			}
			wantSent[i] = wantSent[i][:1] // the other one asks which subresources are served
		} else if diff := cmp.Diff(kinds.Replace(wantResults[i]), kinds.Replace(gotResults[i])); diff != "" {
			t.Errorf("%s: result (-crd.Client +Client):\n%s", o.name, diff)
		}
		for j := range wantSent[i] {
			query, err := url.ParseQuery(wantSent[i][j].Query)
			if err != nil {
				t.Fatal(err)
			}
			if o.defaultsStrict {
				query.Del("fieldValidation")
			}
			if o.serverTimeout {
				query.Del("timeout")
			}
			wantSent[i][j].Query = query.Encode()
			wantSent[i][j].Body = bodyOf(t, wantSent[i][j])
		}
		for j := range gotSent[i] {
			gotSent[i][j].Body = bodyOf(t, gotSent[i][j])
		}
		if diff := cmp.Diff(wantSent[i], gotSent[i]); diff != "" {
			t.Errorf("%s: requests (-crd.Client +Client):\n%s", o.name, diff)
		}
		requests += len(gotSent[i])
	}
	t.Logf("%d operations, %d requests", len(operations()), requests)
}

// bodyOf returns the body of a request without the listed differences.
func bodyOf(t *testing.T, r sentRequest) string {
	t.Helper()
	var body map[string]any
	if json.Unmarshal([]byte(r.Body), &body) != nil {
		return r.Body
	}
	if metadata, ok := body["metadata"].(map[string]any); ok && r.Method != http.MethodPatch && metadata["namespace"] == "NAMESPACE" {
		delete(metadata, "namespace")
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(ordered(t, text))
}

// ordered sorts all managedFields, which the API server orders by their second.
func ordered(t *testing.T, text []byte) []byte {
	t.Helper()
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	var sort func(any)
	sort = func(value any) {
		switch value := value.(type) {
		case []any:
			for _, v := range value {
				sort(v)
			}
		case map[string]any:
			for _, v := range value {
				sort(v)
			}
			if entries, ok := value["managedFields"].([]any); ok {
				slices.SortFunc(entries, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
		}
	}
	sort(value)
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
