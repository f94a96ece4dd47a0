package crd_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clientfeatures "k8s.io/client-go/features"
	featuretest "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/internal/conform"
	"github.com/controllerkit/controllerkit/crd/internal/site"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/watcher"
)

// Pages, selectors of both kinds, and all namespaces.
func TestServerLists(t *testing.T) {
	c := conform.Client(t)
	ns, other := testserver.Namespace(t), testserver.Namespace(t)
	for i := range 5 {
		w := website("", fmt.Sprint("w", i))
		w.Labels = map[string]string{"odd": fmt.Sprint(i%2 == 1), "run": ns}
		if _, err := c.Namespace(ns).Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	last := website("", "w9")
	last.Labels = map[string]string{"run": ns}
	if _, err := c.Namespace(other).Create(t.Context(), last, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	names := func(list *crd.List[*Website], err error) (names []string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		return names
	}
	for _, tt := range []struct {
		namespace string
		opts      metav1.ListOptions
		want      []string
	}{
		{"", metav1.ListOptions{LabelSelector: "run=" + ns}, []string{"w0", "w1", "w2", "w3", "w4", "w9"}},
		{ns, metav1.ListOptions{LabelSelector: "odd=true"}, []string{"w1", "w3"}},
		{"", metav1.ListOptions{FieldSelector: "spec.host=w9.example.com", LabelSelector: "run=" + ns}, []string{"w9"}},
	} {
		got := names(c.Namespace(tt.namespace).List(t.Context(), tt.opts))
		if slices.Sort(got); !slices.Equal(got, tt.want) {
			t.Errorf("%q %+v: %q, want %q", tt.namespace, tt.opts, got, tt.want)
		}
	}
	var got []string
	opts, pages := metav1.ListOptions{Limit: 2}, 0
	for {
		list, err := c.Namespace(ns).List(t.Context(), opts)
		got = append(got, names(list, err)...)
		pages++
		if opts.Continue = list.Continue; opts.Continue == "" {
			break
		}
	}
	if pages != 3 || !slices.Equal(got, []string{"w0", "w1", "w2", "w3", "w4"}) {
		t.Errorf("%d pages: %q", pages, got)
	}
}

// A resource that the server lacks, a scope and a version that are wrong.
func TestServerNotServed(t *testing.T) {
	served := conform.Client(t)
	ns := testserver.Namespace(t)
	other := func(version, resource string) *crd.Client[*Website] {
		kind := websiteKind
		kind.Version = version
		c, err := crd.New[*Website](testserver.Config(t), kind, resource)
		if err != nil {
			t.Fatal(err)
		}
		return c.Namespace(ns)
	}
	for name, c := range map[string]*crd.Client[*Website]{"resource": other("v1", "website"), "version": other("v2", "websites"), "namespace": served} {
		_, getErr := c.Get(t.Context(), "a", metav1.GetOptions{})
		if !errors.Is(getErr, crd.ErrNotServed) {
			t.Errorf("%s: %v, want ErrNotServed", name, getErr)
		}
		if name == "namespace" {
			_, err := c.Create(t.Context(), website("", "a"), metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), "Namespace") {
				t.Errorf("create without a namespace: %v", err)
			}
			continue
		}
		_, listErr := c.List(t.Context(), metav1.ListOptions{})
		_, watchErr := c.Watch(t.Context(), metav1.ListOptions{})
		if !errors.Is(listErr, crd.ErrNotServed) || !errors.Is(watchErr, crd.ErrNotServed) {
			t.Errorf("%s: %v; %v, want ErrNotServed", name, listErr, watchErr)
		}
	}
	if _, err := served.Namespace(ns).Get(t.Context(), "a", metav1.GetOptions{}); errors.Is(err, crd.ErrNotServed) || !apierrors.IsNotFound(err) {
		t.Errorf("an absent object: %v", err)
	}

	// The Set of package informer recognizes the wrapped error.
	set := &informer.Set{Timeout: 1e9}
	set.Add("website.crd.example.com", other("v1", "website").Informer(0, nil).Informer())
	if err := set.Run(t.Context()); !errors.Is(err, informer.ErrNotSynced) || !strings.Contains(err.Error(), "install its CustomResourceDefinition") {
		t.Errorf("Set.Run: %v", err)
	}
}

// A resource without the status subresource: the server answers as it does for a deleted
// object. Where the subresource is served, the same answer is a NotFound.
func TestServerNoStatus(t *testing.T) {
	plain := site.Definition("Bare", "bares", "Namespaced")
	delete(plain["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any), "subresources")
	testserver.InstallCRD(t, plain)
	kind := websiteKind
	kind.Kind = "Bare"
	bare, err := crd.New[*Website](testserver.Config(t), kind, "bares")
	if err != nil {
		t.Fatal(err)
	}
	served, ns := conform.Client(t), testserver.Namespace(t)
	for name, c := range map[string]*crd.Client[*Website]{"without": bare.Namespace(ns), "with": served.Namespace(ns)} {
		config := map[string]any{"apiVersion": "crd.example.com/v1", "kind": "Website", "metadata": map[string]any{"name": "a"}, "status": map[string]any{"phase": "x"}}
		if name == "without" {
			config["kind"] = "Bare"
			if _, err := c.Create(t.Context(), website("", "a"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		errs := map[string]error{}
		_, errs["UpdateStatus"] = c.UpdateStatus(t.Context(), website("", "a"), metav1.UpdateOptions{})
		_, errs["Patch"] = c.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{}}`), metav1.PatchOptions{}, "status")
		_, errs["ApplyStatus"] = c.ApplyStatus(t.Context(), config, metav1.ApplyOptions{FieldManager: "test"})
		for method, err := range errs {
			if missing := name == "without"; errors.Is(err, crd.ErrNotServed) != missing || apierrors.IsNotFound(err) == missing {
				t.Errorf("%s %s the subresource: %v", method, name, err)
			}
		}
	}
}

// A user without rights.
func TestServerForbidden(t *testing.T) {
	conform.Client(t)
	ns := testserver.Namespace(t)
	config := testserver.Limited(t, ns, rbacv1.PolicyRule{APIGroups: []string{"crd.example.com"}, Resources: []string{"websites"}, Verbs: []string{"get"}})
	limited, err := crd.New[*Website](config, websiteKind, "websites")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limited.Namespace(ns).Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get: %v", err)
	}
	_, err = limited.Namespace(ns).List(t.Context(), metav1.ListOptions{})
	if want := `crd: a Role or ClusterRole must allow verbs ["list"] on resources ["websites"] in apiGroups ["crd.example.com"]: `; !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("list: %v", err)
	}
	_, err = limited.Namespace(ns).Patch(t.Context(), "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status")
	if want := `crd: a Role or ClusterRole must allow verbs ["patch"] on resources ["websites/status"]`; !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("patch: %v", err)
	}
}

// An object of a cluster-scoped resource.
func TestServerClusterScope(t *testing.T) {
	testserver.InstallCRD(t, site.Definition("Site", "sites", "Cluster"))
	kind := websiteKind
	kind.Kind = "Site"
	c, err := crd.New[*Website](testserver.Config(t), kind, "sites")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), website("", "a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	source := c.Informer(0, nil)
	run(t, source.Informer())
	if w, err := source.Lister().Get("a"); err != nil || w.Spec.Host != "a.example.com" {
		t.Errorf("%v, %v", w, err)
	}
	if _, err := c.Namespace("default").Get(t.Context(), "a", metav1.GetOptions{}); !errors.Is(err, crd.ErrNotServed) {
		t.Errorf("with a namespace: %v", err)
	}
	if err := c.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// run runs the informer until the test ends, and returns once it is synced.
func run(t *testing.T, inf cache.SharedIndexInformer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { inf.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
		t.Fatal("the informer is not synced")
	}
}

// informs checks the informers of a client whose namespaces one and two are empty.
func informs(t *testing.T, c *crd.Client[*Website], one, two string) {
	for _, w := range []*Website{website(one, "a"), website(one, "b"), website(two, "a")} {
		w.Labels = map[string]string{"name": w.Name}
		if _, err := c.Namespace(w.Namespace).Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	events := make(chan *Website, 10)
	all, scoped := c.Informer(0, nil), c.Namespace(one).Informer(0, func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=b" })
	if _, err := all.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, obj any) { events <- obj.(*Website) }}); err != nil {
		t.Fatal(err)
	}
	run(t, all.Informer())
	run(t, scoped.Informer())
	listed := func(l crd.Lister[*Website], selector string) (names []string) {
		t.Helper()
		parsed, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		items, err := l.List(parsed)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range items {
			if w.Namespace == one || w.Namespace == two {
				names = append(names, w.Namespace+"/"+w.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	sorted := func(names ...string) []string { slices.Sort(names); return names }
	for _, tt := range []struct {
		lister   crd.Lister[*Website]
		selector string
		want     []string
	}{
		{all.Lister(), "", sorted(one+"/a", one+"/b", two+"/a")},
		{all.Lister(), "name=a", sorted(one+"/a", two+"/a")},
		{all.Lister().Namespace(one), "", sorted(one+"/a", one+"/b")},
		{all.Lister().Namespace(one).Namespace(two), "", []string{two + "/a"}},
		{scoped.Lister(), "", []string{one + "/b"}},
	} {
		if got := listed(tt.lister, tt.selector); !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q, want %q", tt.selector, got, tt.want)
		}
	}
	w, err := all.Lister().Namespace(two).Get("a")
	if err != nil || w.Namespace != two {
		t.Errorf("Get: %v, %v", w, err)
	}
	if _, err := all.Lister().Namespace(two).Get("b"); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "websites.crd.example.com") {
		t.Errorf("Get of an absent object: %v", err)
	}
	if all.Informer() != all.Informer() {
		t.Error("Informer returns different informers")
	}
	if got, err := all.Informer().GetIndexer().ByIndex(cache.NamespaceIndex, two); err != nil || len(got) != 1 {
		t.Errorf("by namespace: %v, %v", got, err)
	}
	changed := w.DeepCopy()
	changed.Spec.Replicas = 4
	if _, err := c.Namespace(two).Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for event := range events {
		if event.Namespace == two && event.Spec.Replicas == 4 {
			break
		}
	}
}

func TestInformer(t *testing.T) { informs(t, newFake(t).Client, "one", "two") }

func TestServerInformer(t *testing.T) {
	informs(t, conform.Client(t), testserver.Namespace(t), testserver.Namespace(t))
}

// A watch of package watcher, which lists by pages and resumes.
func TestServerWatcher(t *testing.T) {
	c := conform.Client(t).Namespace(testserver.Namespace(t))
	if _, err := c.Create(t.Context(), website("", "a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := &watcher.RetryWatcher[*Website]{Source: watcher.Client[*Website](c)}
	for event, err := range w.Events(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Type == watcher.Synced {
			break
		}
		if event.Object.Name != "a" || event.Object.Spec.Host != "a.example.com" {
			t.Errorf("event %v", event)
		}
	}
}

// A field that the schema lacks is not lost in silence, and Update drops a field that the
// Go type lacks, where Patch and Apply keep it.
//
// Proves CR2.
func TestServerUnknownFields(t *testing.T) {
	lines := &logged{}
	ctx := lines.into(t.Context())
	c := conform.Client(t)
	ns := testserver.Namespace(t)
	newer, err := crd.New[*newWebsite](testserver.Config(t), websiteKind, "websites")
	if err != nil {
		t.Fatal(err)
	}
	w := &newWebsite{}
	w.Name, w.Spec.Newest = "a", "x"
	if _, err := newer.Namespace(ns).Create(ctx, w, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), `unknown field "spec.newest"`) {
		t.Errorf("a field that the schema lacks: %v", err)
	}
	w.Spec.Newest, w.Spec.Later = "", "kept"
	if _, err := newer.Namespace(ns).Create(ctx, w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := site.NewConfig("a")
	config.Spec = &site.SpecConfig{Host: new("h")}
	if _, err := c.Namespace(ns).Apply(ctx, config, metav1.ApplyOptions{FieldManager: "m"}); err != nil {
		t.Fatal(err)
	}
	for patch, field := range map[string]string{`{"spec":{"newest":"x"}}`: "spec.newest", `{"metadata":{"label":{}}}`: "metadata.label"} {
		if _, err := c.Namespace(ns).Patch(ctx, "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err == nil || !strings.Contains(err.Error(), `unknown field "`+field) {
			t.Errorf("a patch of a field that the schema lacks: %v", err)
		}
	}
	old, err := c.Namespace(ns).Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	later := func() string {
		t.Helper()
		w, err := newer.Namespace(ns).Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return w.Spec.Later
	}
	if got := later(); got != "kept" {
		t.Errorf("after Apply and Patch spec.later is %q", got)
	}
	if len(lines.all()) > 0 {
		t.Errorf("logged before an update: %q", lines.all())
	}
	if _, err := c.Namespace(ns).Update(ctx, old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := later(); got != "" {
		t.Errorf("after Update spec.later is %q: the caveat is out of date", got)
	}
	if all := lines.all(); len(all) != 1 || !strings.Contains(all[0], `spec.later`) {
		t.Errorf("logged %q", all)
	}
}

// The headers of all requests, for a config that prefers protobuf.
func TestServerContentTypes(t *testing.T) {
	conform.Install(t)
	contentTypes(t, testserver.Config(t), testserver.Namespace(t), testserver.Namespace(t),
		"Accept application/json", "Content-Type application/json", "response application/json")
}

// The same with the feature gates of CBOR, of client-go and of a server.
func TestServerCBOR(t *testing.T) {
	featuretest.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	featuretest.SetFeatureDuringTest(t, clientfeatures.ClientsPreferCBOR, true)
	server := testserver.Own(t, "--", "--feature-gates=CBORServingAndStorage=true")
	for _, name := range []string{"one", "two"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}} // it goes with its server
		if _, err := kubernetes.NewForConfigOrDie(server.Config()).CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	testserver.InstallCRDAt(t, server.Config(), site.Definition("Website", "websites", "Namespaced"))
	contentTypes(t, server.Config(), "one", "two",
		"Accept application/cbor;q=1", "Content-Type application/cbor", "response application/cbor", "response application/cbor-seq")
}

func contentTypes(t *testing.T, config *rest.Config, one, two string, want ...string) {
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	seen := map[string]bool{}
	var mu sync.Mutex
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := rt.RoundTrip(r)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				for _, header := range []string{"Accept", "Content-Type"} {
					for value := range strings.SplitSeq(r.Header.Get(header), ",") {
						seen[header+" "+value] = true
					}
				}
				seen["response "+response.Header.Get("Content-Type")] = true
			}
			return response, err
		})
	})
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := crd.NewForConfigAndClient[*Website](config, h, websiteKind, "websites")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("requests", func(t *testing.T) { conform.Requests(t, c.Namespace(one), one) })
	t.Run("watch", func(t *testing.T) { conform.Watches(t, c.Namespace(two)) })
	mu.Lock()
	defer mu.Unlock()
	for value := range seen {
		if strings.Contains(value, "protobuf") {
			t.Errorf("protobuf: %s", value)
		}
	}
	for _, value := range want {
		if !seen[value] {
			t.Errorf("no %s in %v", value, seen)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The packages with a dynamic client.
func TestServerDynamic(t *testing.T) {
	conform.Install(t)
	ns := testserver.Namespace(t)
	plain, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	c := crd.Dynamic(plain.Resource(websiteResource).Namespace(ns))
	ctx := t.Context()
	u := &unstructured.Unstructured{Object: m{"apiVersion": "crd.example.com/v1", "kind": "Website", "metadata": m{"name": "a"}, "spec": m{"host": "h"}}}

	applied, changed, err := ssa.ApplyChanged(ctx, "manager", c.Apply, u, nil, nil)
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	if _, changed, err = ssa.ApplyChanged(ctx, "manager", c.Apply, u, applied, nil); err != nil || changed {
		t.Errorf("ApplyChanged without a change: %t, %v", changed, err)
	}
	if live, err := consistency.ConfirmLive(ctx, c, applied); err != nil || live.GetUID() != applied.GetUID() {
		t.Errorf("ConfirmLive: %v, %v", live, err)
	}
	updated, err := status.Update(ctx, c, applied, func(u *unstructured.Unstructured) error {
		return status.Set(u, u.GetGeneration(), status.True("Ready", "Fine", "it is"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := status.Update(ctx, c, updated, func(u *unstructured.Unstructured) error {
		return status.Set(u, u.GetGeneration(), status.True("Ready", "Fine", "it is"))
	}); err != nil || again != updated {
		t.Errorf("a second update of the same conditions: %v, %v", again, err)
	}
	name := &unstructured.Unstructured{Object: m{"apiVersion": "crd.example.com/v1", "kind": "Website", "metadata": m{"name": "a", "namespace": ns}}}
	if updated, err = status.Apply(ctx, "reporter", c, updated, name, status.False("Synced", "Failed", "it is not")); err != nil {
		t.Fatal(err)
	}
	conditions, _, _ := unstructured.NestedSlice(updated.Object, "status", "conditions")
	if len(conditions) != 2 {
		t.Errorf("conditions: %v", conditions)
	}
	if _, _, err := finalizer.Ensure(ctx, c, updated, "example.com/f", func(context.Context, finalizer.Held[*unstructured.Unstructured]) error { return nil }); err != nil {
		t.Error(err)
	}
	latest, err := c.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || len(latest.GetFinalizers()) != 1 {
		t.Fatal(latest, err)
	}
	if err := unstructured.SetNestedField(latest.Object, "i", "spec", "host"); err != nil {
		t.Fatal(err)
	}
	latest.SetFinalizers(nil)
	if latest, err = c.Update(ctx, latest, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := finalizer.Delete(ctx, c, latest, metav1.DeletePropagationBackground); err != nil {
		t.Error(err)
	}
	second := name.DeepCopy()
	second.SetName("b")
	if _, err := c.Create(ctx, second, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mine := func(metav1.Object) bool { return true }
	if p, err := finalizer.DeleteAll(ctx, c, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground); err != nil {
		t.Errorf("DeleteAll: %+v, %v", p, err)
	}
	if left, err := finalizer.Remaining(ctx, c, metav1.ListOptions{}, mine); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := c.Apply(ctx, nil, metav1.ApplyOptions{}); err == nil || !strings.HasPrefix(err.Error(), "crd: apply: the configuration is nil") {
		t.Error(err)
	}
	if _, err := c.ApplyStatus(ctx, nil, metav1.ApplyOptions{}); err == nil || !strings.HasPrefix(err.Error(), "crd: apply: the configuration is nil") {
		t.Error(err)
	}
	if crd.Dynamic(nil) != nil {
		t.Error("Dynamic(nil) is not nil")
	}
	if _, err := consistency.ConfirmLive(ctx, crd.Dynamic(nil), applied); err == nil || !strings.Contains(err.Error(), "the client is nil") {
		t.Errorf("ConfirmLive with the client of nil: %v", err)
	}
}

// The same with a typed client.
func TestServerPackages(t *testing.T) {
	c := conform.Client(t).Namespace(testserver.Namespace(t))
	ctx := t.Context()
	config := site.NewConfig("a")
	config.Spec = &site.SpecConfig{Host: new("h")}
	w, changed, err := ssa.ApplyChanged(ctx, "manager", c.Apply, any(config), (*Website)(nil), nil)
	if err != nil || !changed {
		t.Fatal(changed, err)
	}
	if _, changed, err = ssa.ApplyChanged(ctx, "manager", c.Apply, any(config), w, nil); err != nil || changed {
		t.Errorf("ApplyChanged without a change: %t, %v", changed, err)
	}
	config.Spec.Host = new("i")
	if w, changed, err = ssa.ApplyChanged(ctx, "manager", c.Apply, any(config), w, nil); err != nil || !changed {
		t.Fatal(changed, err)
	}
	config.WithNamespace(w.Namespace)
	config.Spec = nil
	name := &unstructured.Unstructured{Object: m{"apiVersion": "crd.example.com/v1", "kind": "Website", "metadata": m{"name": "a", "namespace": w.Namespace}}}
	if w, err = status.Apply(ctx, "reporter", c, w, any(name), status.False("Synced", "Failed", "it is not")); err != nil {
		t.Fatal(err)
	}
	if w, err = status.Update(ctx, c, w, func(w *Website) error {
		return status.Set(&w.Status.Conditions, w.Generation, status.True("Ready", "Fine", "it is"))
	}); err != nil || len(w.Status.Conditions) != 2 {
		t.Fatal(w, err)
	}
	held, live, err := finalizer.Ensure(ctx, c, w, "example.com/f", func(context.Context, finalizer.Held[*Website]) error { return nil })
	if err != nil || !live {
		t.Fatal(live, err)
	}
	if _, err := consistency.ConfirmLive(ctx, c, held.Object()); err != nil {
		t.Error(err)
	}
	if _, err := finalizer.Remove(ctx, c, held.Object(), "example.com/f"); err != nil {
		t.Error(err)
	}
	if p, err := finalizer.DeleteAll(ctx, c, metav1.ListOptions{}, func(metav1.Object) bool { return true }, metav1.DeletePropagationBackground); err != nil {
		t.Errorf("DeleteAll: %+v, %v", p, err)
	}
}

// TestServerProtobufFailure: an informer of package compact requests a built-in kind in protobuf, so a failure
// is in protobuf, too. Its text is the API server's.
func TestServerProtobufFailure(t *testing.T) {
	ns := testserver.Namespace(t)
	client, err := crd.New[*corev1.Service](testserver.Limited(t, ns), corev1.SchemeGroupVersion.WithKind("Service"), "services")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"services", "services?watch=true"} {
		_, err := client.RESTClient().Get().RequestURI("/api/v1/namespaces/"+ns+"/"+path).SetHeader("Accept", "application/vnd.kubernetes.protobuf,application/json").Stream(t.Context())
		if want := `services is forbidden: User "`; !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %s", path, err, want)
		}
	}
	if _, err := client.Namespace(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "services is forbidden") {
		t.Errorf("list: %v", err)
	}
}
