package managerkit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

// createSite creates a ClientSite with a host.
func createSite(t testing.TB, sites *managerkit.Client[*clientSite], name string) *clientSite {
	t.Helper()
	created, err := sites.Create(t.Context(), &clientSite{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clientSiteSpec{Host: "first"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// hostPatch is a merge patch of the spec, by which another writer makes copies stale.
func hostPatch(host string) []byte { return fmt.Appendf(nil, `{"spec":{"host":%q}}`, host) }

// naive is the adapter that reads through the client of the manager.
type naive struct {
	client.Client
	namespace string
}

func (n naive) Get(ctx context.Context, name string, _ metav1.GetOptions) (*clientSite, error) {
	site := &clientSite{}
	err := n.Client.Get(ctx, types.NamespacedName{Namespace: n.namespace, Name: name}, site)
	return site, err
}

// TestServerClientConfirmsLive holds the watch of a manager back, and changes, deletes
// and replaces objects. ConfirmLive through a Client finds out. Through an adapter that
// reads with the client of the manager, it confirms each stale object.
//
// Proves MK1.
func TestServerClientConfirmsLive(t *testing.T) {
	installClientSites(t)
	ctx, namespace := t.Context(), testserver.Namespace(t)
	others := liveSites(t, testserver.Config(t), namespace)
	names := []string{"changed", "gone", "replaced", "same"}
	for _, name := range names {
		createSite(t, others, name)
	}
	process, err := fault.New(testserver.Config(t), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	mgr := startClientManager(t, process.Config(), namespace, &clientSite{}) // with the objects, because it has synced
	defer process.Hold("clientsites.client.example.com")()
	sites, err := managerkit.NewClient[*clientSite](mgr.GetClient(), mgr.GetAPIReader())
	if err != nil {
		t.Fatal(err)
	}
	sites = sites.Namespace(namespace)

	if _, err := others.Patch(ctx, "changed", types.MergePatchType, hostPatch("second"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gone", "replaced"} {
		if err := others.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	createSite(t, others, "replaced")

	for _, tt := range []struct {
		name string
		want error
	}{{"changed", consistency.ErrChanged}, {"gone", consistency.ErrGone}, {"replaced", consistency.ErrReplaced}, {"same", nil}} {
		cached := &clientSite{}
		if err := mgr.GetClient().Get(ctx, types.NamespacedName{Namespace: namespace, Name: tt.name}, cached); err != nil {
			t.Fatalf("%s: the cache: %v", tt.name, err)
		}
		if _, err := consistency.ConfirmLive(ctx, sites, cached); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		if _, err := consistency.ConfirmLive(ctx, naive{mgr.GetClient(), namespace}, cached); err != nil {
			t.Errorf("%s: the naive adapter found out: %v; the test shows nothing", tt.name, err)
		}
	}
	stale := &clientSiteList{}
	if err := mgr.GetClient().List(ctx, stale, client.InNamespace(namespace)); err != nil || len(stale.Items) != 4 {
		t.Errorf("the cache has %d objects, %v; want the 4 before the changes", len(stale.Items), err)
	}
	list, err := sites.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 3 {
		t.Errorf("List: %v, %v; want 3 objects", list, err)
	}
}

// adders are ways to add a finalizer to a copy of an object.
func adders(c client.Client, sites *managerkit.Client[*clientSite], name string) map[string]func(context.Context, *clientSite) error {
	return map[string]func(context.Context, *clientSite) error{
		"finalizer.Ensure": func(ctx context.Context, site *clientSite) error {
			_, _, err := finalizer.Ensure(ctx, sites, site, name, func(context.Context, finalizer.Held[*clientSite]) error { return nil })
			return err
		},
		"AddFinalizer, Update": func(ctx context.Context, site *clientSite) error {
			controllerutil.AddFinalizer(site, name)
			return c.Update(ctx, site)
		},
		"AddFinalizer, Patch": func(ctx context.Context, site *clientSite) error {
			before := client.MergeFrom(site.DeepCopy())
			controllerutil.AddFinalizer(site, name)
			return c.Patch(ctx, site, before)
		},
	}
}

// TestServerClientKeepsFinalizers adds a finalizer to copies that another writer made
// stale, in three ways. It counts the conflicts, and the finalizers of the other writer
// that are lost.
//
// Proves MK4.
func TestServerClientKeepsFinalizers(t *testing.T) {
	installClientSites(t)
	const (
		n     = 8
		mine  = "client.example.com/mine"
		other = "other.example.com/f"
	)
	ctx, namespace := t.Context(), testserver.Namespace(t)
	c := newUncached(t, testserver.Config(t))
	sites := newSites(t, c).Namespace(namespace)
	type figures struct{ conflicts, lost int }
	for _, tt := range []struct {
		change string
		make   func(*clientSite) error
		want   map[string]figures
	}{
		{
			change: "the spec",
			make: func(site *clientSite) error {
				_, err := sites.Patch(ctx, site.Name, types.MergePatchType, hostPatch("second"), metav1.PatchOptions{})
				return err
			},
			want: map[string]figures{"finalizer.Ensure": {}, "AddFinalizer, Update": {conflicts: n}, "AddFinalizer, Patch": {}},
		},
		{
			change: "the finalizers",
			make: func(site *clientSite) error {
				_, err := finalizer.Add(ctx, sites, site, other)
				return err
			},
			want: map[string]figures{"finalizer.Ensure": {conflicts: n}, "AddFinalizer, Update": {conflicts: n}, "AddFinalizer, Patch": {lost: n}},
		},
	} {
		for way, add := range adders(c, sites, mine) {
			got := figures{}
			for range n {
				stale, err := sites.Create(ctx, &clientSite{ObjectMeta: metav1.ObjectMeta{GenerateName: "f-"}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if err := tt.make(stale); err != nil {
					t.Fatal(err)
				}
				before, err := sites.Get(ctx, stale.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				err = add(ctx, stale)
				if apierrors.IsConflict(err) {
					got.conflicts++
				} else if err != nil {
					t.Fatalf("%s: %v", way, err)
				}
				after, getErr := sites.Get(ctx, stale.Name, metav1.GetOptions{})
				if getErr != nil {
					t.Fatal(getErr)
				}
				if finalizer.Has(before, other) && !finalizer.Has(after, other) {
					got.lost++
				}
				if err == nil && !finalizer.Has(after, mine) || after.Spec.Host != before.Spec.Host {
					t.Errorf("%s: %+v became %+v", way, before, after)
				}
			}
			t.Logf("another writer changed %s, then %s: %d conflicts, %d finalizers lost, of %d", tt.change, way, got.conflicts, got.lost, n)
			if got != tt.want[way] {
				t.Errorf("another writer changed %s, then %s: got %+v, want %+v", tt.change, way, got, tt.want[way])
			}
		}
	}
}

// TestServerClientKeepsFinalizersAtOnce adds and removes finalizers of one object by
// several writers at once, beside changes of the spec.
//
// Proves MK4.
func TestServerClientKeepsFinalizersAtOnce(t *testing.T) {
	installClientSites(t)
	const writers, rounds = 4, 5
	ctx, namespace := t.Context(), testserver.Namespace(t)
	sites := liveSites(t, testserver.Config(t), namespace)
	created := createSite(t, sites, "a")
	var wg sync.WaitGroup
	for w := range writers {
		name := fmt.Sprintf("client.example.com/writer-%d", w)
		cleanup := func(context.Context, finalizer.Held[*clientSite]) error { return nil }
		// retry repeats call with the newest object, as a reconcile function does.
		retry := func(site *clientSite, call func(*clientSite) (*clientSite, error)) *clientSite {
			for {
				next, err := call(site)
				if err == nil {
					return next
				}
				if !apierrors.IsConflict(err) {
					t.Error(err)
					return site
				}
				if site, err = sites.Get(ctx, "a", metav1.GetOptions{}); err != nil {
					t.Error(err)
					return site
				}
			}
		}
		wg.Go(func() {
			site := created
			for round := range rounds {
				site = retry(site, func(site *clientSite) (*clientSite, error) {
					held, _, err := finalizer.Ensure(ctx, sites, site, name, cleanup)
					if err != nil {
						return nil, err
					}
					return held.Object(), nil
				})
				live, err := sites.Get(ctx, "a", metav1.GetOptions{})
				if err != nil || !finalizer.Has(live, name) {
					t.Errorf("round %d: finalizer %s is lost: %v", round, name, err)
				}
				if _, err := sites.Patch(ctx, "a", types.MergePatchType, hostPatch(fmt.Sprint(w, round)), metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
				if round < rounds-1 {
					site = retry(site, func(site *clientSite) (*clientSite, error) { return finalizer.Remove(ctx, sites, site, name) })
				}
			}
		})
	}
	wg.Wait()
	live, err := sites.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || len(live.Finalizers) != writers {
		t.Errorf("got %v, %v; want a finalizer of each of %d writers", live.Finalizers, err, writers)
	}
}

// methods returns the methods and subresources of requests.
func methods(requests []sentRequest) []string {
	var out []string
	for _, r := range requests {
		sub := ""
		if len(r.Path) > 7 && r.Path[len(r.Path)-7:] == "/status" {
			sub = " status"
		}
		out = append(out, r.Method+sub)
	}
	return out
}

// TestServerClientStatus checks the requests of package status, and that no write of it
// changes the spec.
//
// Proves MK5.
func TestServerClientStatus(t *testing.T) {
	installClientSites(t)
	ctx, namespace := t.Context(), testserver.Namespace(t)
	config, requests := recorder(testserver.Config(t))
	sites := liveSites(t, config, namespace)
	others := liveSites(t, testserver.Config(t), namespace)
	site := createSite(t, sites, "a")
	requests()
	address := func(address string) func(*clientSite) {
		return func(s *clientSite) { s.Status.Address = address }
	}
	ready := func(message string) func(*clientSite) error {
		return func(s *clientSite) error {
			return status.Set(&s.Status.Conditions, s.Generation, status.True("Ready", "Made", message))
		}
	}
	apply := &unstructured.Unstructured{Object: jsonObject{
		"apiVersion": "client.example.com/v1", "kind": "ClientSite", "metadata": jsonObject{"namespace": namespace, "name": "a"},
	}}
	for _, step := range []struct {
		name  string
		write func(*clientSite) (*clientSite, error)
		want  []string
	}{
		{"update", func(s *clientSite) (*clientSite, error) { return status.Update(ctx, sites, s, ready("1")) }, []string{"PUT status"}},
		{"update again", func(s *clientSite) (*clientSite, error) { return status.Update(ctx, sites, s, ready("1")) }, nil},
		{"patch", func(s *clientSite) (*clientSite, error) { return status.Patch(ctx, sites, s, address("10.0.0.1")) }, []string{"PATCH status"}},
		{"patch again", func(s *clientSite) (*clientSite, error) { return status.Patch(ctx, sites, s, address("10.0.0.1")) }, nil},
		{"apply", func(s *clientSite) (*clientSite, error) {
			return status.Apply(ctx, "applier", sites, s, any(apply), status.True("Served", "Made", "m"))
		}, []string{"PATCH status"}},
		{"apply again", func(s *clientSite) (*clientSite, error) {
			return status.Apply(ctx, "applier", sites, s, any(apply), status.True("Served", "Made", "m"))
		}, nil},
		{"update back", func(s *clientSite) (*clientSite, error) { return status.Update(ctx, sites, s, address("")) }, []string{"PUT status"}},
	} {
		before := site.DeepCopy()
		next, err := step.write(site)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := methods(requests()); !slices.Equal(got, step.want) {
			t.Errorf("%s: requests %q, want %q", step.name, got, step.want)
		}
		if step.want == nil && next != site {
			t.Errorf("%s: got another object without a request", step.name)
		}
		if !jsonEqual(t, before, site) {
			t.Errorf("%s changed the object it got", step.name)
		}
		live, err := others.Get(ctx, "a", metav1.GetOptions{})
		if err != nil || !jsonEqual(t, live, next) {
			t.Errorf("%s: got %+v, %v; the API server has %+v", step.name, next, err, live)
		}
		site = next
	}
	if len(site.Status.Conditions) != 2 || site.Spec.Host != "first" {
		t.Errorf("at the end: %+v", site)
	}

	// A stale copy cannot bring the old spec back.
	if _, err := others.Patch(ctx, "a", types.MergePatchType, hostPatch("second"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := status.Update(ctx, sites, site, address("10.0.0.9")); !apierrors.IsConflict(err) {
		t.Errorf("status.Update of a stale copy: %v, want a conflict", err)
	}
	if _, err := status.Apply(ctx, "applier", sites, site, any(apply), status.False("Served", "Lost", "m")); !apierrors.IsConflict(err) {
		t.Errorf("status.Apply of a stale copy: %v, want a conflict", err)
	}
	if _, err := status.Patch(ctx, sites, site, address("10.0.0.9")); err != nil && !apierrors.IsConflict(err) {
		t.Errorf("status.Patch of a stale copy: %v", err)
	}
	if live, err := others.Get(ctx, "a", metav1.GetOptions{}); err != nil || live.Spec.Host != "second" {
		t.Errorf("the change of the spec is lost: %+v, %v", live, err)
	}
}

func jsonEqual(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(ordered(t, x)) == string(ordered(t, y))
}

// applies checks package ssa with a client of T and two configurations, which differ in a
// field that the first owner keeps.
func applies[T client.Object](t *testing.T, c *managerkit.Client[T], requests func() []sentRequest, config, other any) {
	t.Helper()
	ctx := t.Context()
	requests()
	expect := func(what string, want ...string) {
		t.Helper()
		if got := methods(requests()); !slices.Equal(got, want) {
			t.Errorf("%s: requests %q, want %q", what, got, want)
		}
	}
	live, err := ssa.Apply(ctx, "one", c.Apply, config)
	if err != nil {
		t.Fatal(err)
	}
	expect("Apply", http.MethodPatch)
	next, applied, err := ssa.ApplyChanged(ctx, "one", c.Apply, config, live, nil)
	if err != nil || applied || any(next) != any(live) {
		t.Errorf("ApplyChanged of a steady object: applied %t, %v", applied, err)
	}
	if _, err := ssa.TryApply(ctx, "one", c.Apply, config, live); err != nil {
		t.Errorf("TryApply of a steady object: %v", err)
	}
	requests()
	_, err = ssa.TryApply(ctx, "two", c.Apply, other, live)
	conflict, ok := errors.AsType[*ssa.ConflictError](err)
	if !ok || len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Manager != "one" || !apierrors.IsConflict(err) {
		t.Errorf("TryApply of another manager: %v, want a ConflictError with manager one", err)
	}
	requests()
	for range 3 {
		if _, _, err := ssa.ApplyChanged(ctx, "one", c.Apply, config, live, nil); err != nil {
			t.Error(err)
		}
	}
	expect("ApplyChanged, three times")
	live, applied, err = ssa.ApplyChanged(ctx, "one", c.Apply, other, live, nil)
	if err != nil || !applied {
		t.Errorf("ApplyChanged of a change: applied %t, %v", applied, err)
	}
	expect("ApplyChanged of a change", http.MethodPatch)
	if got, err := c.Get(ctx, live.GetName(), metav1.GetOptions{}); err != nil || got.GetResourceVersion() != live.GetResourceVersion() {
		t.Errorf("the response of ApplyChanged: %v, the API server has %v, %v", live, got, err)
	}
}

// TestServerClientApplies runs package ssa with typed and unstructured configurations, of
// built-in and custom resources.
//
// Proves MK5.
func TestServerClientApplies(t *testing.T) {
	installClientSites(t)
	namespace := testserver.Namespace(t)
	config, requests := recorder(testserver.Config(t))
	c := newUncached(t, config)
	plain := func(apiVersion, kind string, fields jsonObject) any {
		o := jsonObject{"apiVersion": apiVersion, "kind": kind, "metadata": jsonObject{"namespace": namespace, "name": "plain"}}
		for name, value := range fields {
			o[name] = value
		}
		return &unstructured.Unstructured{Object: o}
	}
	typed, err := managerkit.NewClient[*corev1.ConfigMap](c, readerOnly{c})
	if err != nil {
		t.Fatal(err)
	}
	configMap := func(value string) any {
		return applycorev1.ConfigMap("typed", namespace).WithData(map[string]string{"k": value})
	}
	applies(t, typed.Namespace(namespace), requests, configMap("1"), configMap("2"))
	applies(t, newSites(t, c).Namespace(namespace), requests,
		plain("client.example.com/v1", "ClientSite", jsonObject{"spec": jsonObject{"host": "1"}}),
		plain("client.example.com/v1", "ClientSite", jsonObject{"spec": jsonObject{"host": "2"}}))
	untyped, err := managerkit.NewClientForKind[*unstructured.Unstructured](c, readerOnly{c}, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	if err != nil {
		t.Fatal(err)
	}
	applies(t, untyped.Namespace(namespace), requests,
		plain("v1", "ConfigMap", jsonObject{"data": jsonObject{"k": "1"}}), plain("v1", "ConfigMap", jsonObject{"data": jsonObject{"k": "2"}}))

	// A manager that changes from updates to applies.
	created, err := typed.Namespace(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "migrated"}, Data: map[string]string{"k": "1"},
	}, metav1.CreateOptions{FieldManager: "one"})
	if err != nil {
		t.Fatal(err)
	}
	migrated, done, err := ssa.Migrate(t.Context(), "one", typed.Namespace(namespace).Patch, created, "one")
	if err != nil || !done || len(migrated.ManagedFields) != 1 || migrated.ManagedFields[0].Operation != metav1.ManagedFieldsOperationApply {
		t.Errorf("Migrate: %v, %t, %v", migrated, done, err)
	}
}

// TestServerClientOwnsAndDeletes runs packages owner, external and finalizer's deletions
// of children.
//
// Proves MK2.
func TestServerClientOwnsAndDeletes(t *testing.T) {
	installClientSites(t)
	ctx, namespace := t.Context(), testserver.Namespace(t)
	c := newUncached(t, testserver.Config(t))
	sites := newSites(t, c).Namespace(namespace)
	all, err := managerkit.NewClient[*corev1.ConfigMap](c, readerOnly{c})
	if err != nil {
		t.Fatal(err)
	}
	configMaps := all.Namespace(namespace)
	parent := createSite(t, sites, "parent")

	var children []*corev1.ConfigMap
	for _, name := range []string{"adopted", "kept", "released"} {
		child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"l": "1"}}}
		if name != "adopted" {
			if err := owner.SetController(parent, clientSiteKind(), child); err != nil {
				t.Fatal(err)
			}
		}
		if name == "released" {
			child.Labels = nil
		}
		if child, err = configMaps.Create(ctx, child, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		children = append(children, child)
	}
	claimed, err := owner.Claim(ctx, sites, parent, clientSiteKind(), configMaps, labels.SelectorFromSet(labels.Set{"l": "1"}), children)
	if err != nil || len(claimed) != 2 || claimed[0].Name != "adopted" || claimed[1].Name != "kept" {
		t.Errorf("Claim: %v, %v", claimed, err)
	}
	if len(children[0].OwnerReferences) != 0 {
		t.Error("Claim changed a child that it got")
	}
	mine := func(obj metav1.Object) bool { return metav1.IsControlledBy(obj, parent) }
	left, err := finalizer.Remaining(ctx, configMaps, metav1.ListOptions{Limit: 1}, mine)
	if err != nil || len(left) != 2 {
		t.Errorf("Remaining: %v, %v; want 2 children", left, err)
	}

	creations := 0
	thing := external.Resource{
		Annotation: "client.example.com/thing",
		Find:       func(context.Context, string) (string, bool, error) { return "id", creations > 0, nil },
		Create:     func(context.Context, string) (string, error) { creations++; return "id", nil },
	}
	for range 2 {
		id, wait, err := external.Once(ctx, sites, parent, thing)
		if err != nil || id != "id" || wait != 0 {
			t.Fatalf("Once: %q, %v, %v", id, wait, err)
		}
		if parent, err = sites.Get(ctx, "parent", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if creations != 1 {
		t.Errorf("Once created %d things", creations)
	}

	plan := finalizer.Plan[*clientSite]{Client: sites, Steps: []finalizer.Step[*clientSite]{{
		Name: "children",
		Run: func(ctx context.Context, _ finalizer.Held[*clientSite]) (finalizer.Progress, error) {
			return finalizer.DeleteAll(ctx, configMaps, metav1.ListOptions{}, mine, metav1.DeletePropagationBackground)
		},
	}}}
	const name = "client.example.com/children"
	held, livePart, err := finalizer.Ensure(ctx, sites, parent, name, plan.Run)
	if err != nil || !livePart {
		t.Fatal(livePart, err)
	}
	if err := finalizer.Delete(ctx, sites, held.Object(), metav1.DeletePropagationBackground); err != nil {
		t.Fatal(err)
	}
	if parent, err = sites.Get(ctx, "parent", metav1.GetOptions{}); err != nil || parent.DeletionTimestamp == nil {
		t.Fatal(parent, err)
	}
	if _, livePart, err = finalizer.Ensure(ctx, sites, parent, name, plan.Run); err != nil || livePart {
		t.Fatalf("Ensure of a deleted object: live %t, %v", livePart, err)
	}
	if _, err := sites.Get(ctx, "parent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the parent after its cleanup: %v", err)
	}
	list, err := configMaps.List(ctx, metav1.ListOptions{})
	if err != nil || !slices.ContainsFunc(list.Items, func(m *corev1.ConfigMap) bool { return m.Name == "released" }) ||
		slices.ContainsFunc(list.Items, func(m *corev1.ConfigMap) bool { return m.Name == "adopted" || m.Name == "kept" }) {
		t.Errorf("the children after the cleanup: %v, %v", list, err)
	}
}

// TestServerClientKinds checks clients of unstructured objects, of metadata, of a
// cluster-scoped kind and of one that is not served.
//
// Proves MK2.
func TestServerClientKinds(t *testing.T) {
	installClientSites(t)
	ctx, namespace := t.Context(), testserver.Namespace(t)
	c := newUncached(t, testserver.Config(t))
	kind := clientSiteKind()
	all, err := managerkit.NewClientForKind[*unstructured.Unstructured](c, readerOnly{c}, kind)
	if err != nil {
		t.Fatal(err)
	}
	untyped := all.Namespace(namespace)
	given := &unstructured.Unstructured{Object: jsonObject{
		"metadata": jsonObject{"name": "a", "labels": jsonObject{"l": "1"}}, "spec": jsonObject{"host": "first"}, "status": jsonObject{"address": "dropped"},
	}}
	created, err := untyped.Create(ctx, given, metav1.CreateOptions{})
	if err != nil || created.GroupVersionKind() != kind || created.GetUID() == "" || created.Object["status"] != nil {
		t.Fatalf("create: %v, %v", created, err)
	}
	if given.GetUID() != "" || given.GetKind() != "" || given.GetNamespace() != "" {
		t.Errorf("create changed the object it got: %v", given)
	}
	next := created.DeepCopy()
	next.Object["status"] = jsonObject{"address": "10.0.0.1"}
	updated, err := untyped.UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil || updated.GroupVersionKind() != kind {
		t.Errorf("update the status: %v, %v", updated, err)
	}
	if _, err := consistency.ConfirmLive(ctx, untyped, created); !errors.Is(err, consistency.ErrChanged) {
		t.Errorf("ConfirmLive: %v", err)
	}
	list, err := untyped.List(ctx, metav1.ListOptions{LabelSelector: "l=1"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GroupVersionKind() != kind || list.ResourceVersion == "" || list.Kind != "ClientSiteList" {
		t.Errorf("list: %+v, %v", list, err)
	}

	metadata, err := managerkit.NewClientForKind[*metav1.PartialObjectMetadata](c, readerOnly{c}, kind)
	if err != nil {
		t.Fatal(err)
	}
	metadata = metadata.Namespace(namespace)
	got, err := metadata.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || got.GroupVersionKind() != kind || got.ResourceVersion != updated.GetResourceVersion() {
		t.Fatalf("metadata: %v, %v", got, err)
	}
	held, _, err := finalizer.Ensure(ctx, metadata, got, "client.example.com/f", func(context.Context, finalizer.Held[*metav1.PartialObjectMetadata]) error { return nil })
	if err != nil || held.Object().GroupVersionKind() != kind {
		t.Fatalf("metadata: Ensure: %v", err)
	}
	if _, err := metadata.Update(ctx, got, metav1.UpdateOptions{}); err == nil {
		t.Error("metadata: update: no error")
	}
	if _, err := finalizer.Remove(ctx, metadata, held.Object(), "client.example.com/f"); err != nil {
		t.Error(err)
	}
	partial, err := metadata.List(ctx, metav1.ListOptions{})
	if err != nil || len(partial.Items) != 1 || partial.Items[0].GroupVersionKind() != kind {
		t.Errorf("metadata: list: %v, %v", partial, err)
	}
	if err := metadata.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "l=1"}); err != nil {
		t.Error(err)
	}
	if _, err := metadata.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("metadata: get after the deletion: %v", err)
	}

	namespaces, err := managerkit.NewClient[*corev1.Namespace](c, readerOnly{c})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := namespaces.Get(ctx, namespace, metav1.GetOptions{}); err != nil || got.Name != namespace {
		t.Errorf("a cluster-scoped object: %v, %v", got, err)
	}

	none, err := managerkit.NewClientForKind[*unstructured.Unstructured](c, readerOnly{c}, schema.GroupVersionKind{Group: "none.example.com", Version: "v1", Kind: "None"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Namespace(namespace).Get(ctx, "a", metav1.GetOptions{}); !meta.IsNoMatchError(err) {
		t.Errorf("a kind that is not served: %v", err)
	}
	if _, err := none.Namespace(namespace).Patch(ctx, "a", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); !meta.IsNoMatchError(err) {
		t.Errorf("a kind that is not served: %v", err)
	}
	scaled, err := newSites(t, c).Namespace(namespace).Patch(ctx, "a", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "scale")
	if scaled != nil || err == nil {
		t.Errorf("a subresource that is not served: %v, %v", scaled, err)
	}
}

// TestServerClientWrappers checks that the wrappers of controller-runtime apply to applies
// and to the status.
//
// Proves MK6.
func TestServerClientWrappers(t *testing.T) {
	installClientSites(t)
	ctx, namespace := t.Context(), testserver.Namespace(t)
	c := newUncached(t, testserver.Config(t))
	owned := newSites(t, client.WithFieldOwner(c, "owner")).Namespace(namespace)
	dry := newSites(t, client.NewDryRunClient(c)).Namespace(namespace)
	config := func(fields jsonObject) *unstructured.Unstructured {
		fields["apiVersion"], fields["kind"], fields["metadata"] = "client.example.com/v1", "ClientSite", jsonObject{"name": "a"}
		return &unstructured.Unstructured{Object: fields}
	}
	applied, err := owned.Apply(ctx, config(jsonObject{"spec": jsonObject{"host": "first"}}), metav1.ApplyOptions{})
	if err != nil || len(applied.ManagedFields) != 1 || applied.ManagedFields[0].Manager != "owner" {
		t.Fatalf("apply: %+v, %v", applied, err)
	}
	next := applied.DeepCopy()
	next.Status.Address = "10.0.0.1"
	for call, err := range map[string]error{
		"update the status": errOf(dry.UpdateStatus(ctx, next, metav1.UpdateOptions{})),
		"patch the status":  errOf(dry.Patch(ctx, "a", types.MergePatchType, []byte(`{"status":{"address":"10.0.0.2"}}`), metav1.PatchOptions{}, "status")),
		"apply":             errOf(dry.Apply(ctx, config(jsonObject{"spec": jsonObject{"host": "second"}}), metav1.ApplyOptions{FieldManager: "m", Force: true})),
		"apply the status":  errOf(dry.ApplyStatus(ctx, config(jsonObject{"status": jsonObject{"address": "10.0.0.3"}}), metav1.ApplyOptions{FieldManager: "m"})),
		"delete":            dry.Delete(ctx, "a", metav1.DeleteOptions{}),
		"delete all":        dry.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
	} {
		if err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
	live, err := owned.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || !jsonEqual(t, live, applied) {
		t.Errorf("dry runs changed %+v to %+v, %v", applied, live, err)
	}
	if _, err := owned.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	live, err = owned.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || !slices.ContainsFunc(live.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == "owner" && f.Subresource == "status" }) {
		t.Errorf("update the status: %+v, %v", live, err)
	}
}

// TestServerClientSubresource checks that the response of a subresource that is another
// kind of object is an error, and not an empty object.
//
// Proves MK3.
func TestServerClientSubresource(t *testing.T) {
	ctx, namespace := t.Context(), testserver.Namespace(t)
	c, err := client.New(testserver.Config(t), client.Options{}) // with all built-in kinds
	if err != nil {
		t.Fatal(err)
	}
	all, err := managerkit.NewClient[*appsv1.Deployment](c, readerOnly{c})
	if err != nil {
		t.Fatal(err)
	}
	deployments := all.Namespace(namespace)
	labels := map[string]string{"l": "1"}
	_, err = deployments.Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/image:1"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := deployments.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{}}`), metav1.PatchOptions{}, "scale")
	if got != nil || err == nil || !strings.Contains(err.Error(), `the response of subresource "scale" is no apps/v1, Kind=Deployment`) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := deployments.Patch(ctx, "a", types.MergePatchType, []byte(`{"status":{"replicas":0}}`), metav1.PatchOptions{}, "status"); err != nil || got.Name != "a" {
		t.Errorf("the status: %v, %v", got, err)
	}
}

// TestServerClientResponse checks that a returned object has nothing of the sent one that
// the API server dropped or changed.
//
// Proves MK3.
func TestServerClientResponse(t *testing.T) {
	installClientSites(t)
	ctx, namespace := t.Context(), testserver.Namespace(t)
	sites := liveSites(t, testserver.Config(t), namespace)
	check := func(call string, got *clientSite, err error) *clientSite {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		live, err := sites.Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !jsonEqual(t, live, got) {
			t.Errorf("%s: got %+v, the API server has %+v", call, got, live)
		}
		return live
	}
	site, err := sites.Create(ctx, &clientSite{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: clientSiteStatus{Address: "dropped"}}, metav1.CreateOptions{FieldManager: "m"})
	site = check("create", site, err)
	next := site.DeepCopy()
	next.Spec.Host, next.Status.Address = "second", "dropped"
	site, err = sites.Update(ctx, next, metav1.UpdateOptions{FieldManager: "a"}) // the first of the managedFields
	site = check("update", site, err)
	next = site.DeepCopy()
	next.Spec.Host, next.Status.Address = "dropped", "stored"
	site, err = sites.UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: "b"})
	site = check("update the status", site, err)
	if site.Spec.Host != "second" || site.Status.Address != "stored" {
		t.Errorf("at the end: %+v", site)
	}
}
