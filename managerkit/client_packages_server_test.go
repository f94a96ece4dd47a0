package managerkit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/owner"
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

// TestServerClientOwnsAndDeletes runs packages owner, external and finalizer's deletions
// of children.
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
		id, err := external.Once(ctx, sites, parent, thing)
		if err != nil || id != "id" {
			t.Fatalf("Once: %q, %v", id, err)
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
// Proves CK1.
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
// Proves CK1.
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
