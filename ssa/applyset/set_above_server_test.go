package applyset_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
)

// patched changes an object as another user.
func patched(t *testing.T, client dynamic.ResourceInterface, name, patch string) *unstructured.Unstructured {
	t.Helper()
	o, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "other"})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// deleted deletes an object and waits until it is gone.
func deleted(t *testing.T, client dynamic.ResourceInterface, name string, before func()) {
	t.Helper()
	w, err := client.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	before()
	for timeout := time.After(2 * time.Minute); ; {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				t.Fatalf("the watch of %s has ended", name)
			}
			if event.Type == watch.Deleted {
				return
			}
		case <-timeout:
			t.Fatalf("%s is not gone", name)
		}
	}
}

// The parent, its Namespace, its CustomResourceDefinition and its owners are refused as wanted
// objects. If another tool or an older version made them members, prune leaves them, and
// Delete ends, also while the Namespace is being deleted.
//
// Proves AS9, AS10.
func TestServerSetAbove(t *testing.T) {
	g := newGallery(t)
	a := newArena(t)
	crd := object(paintCRD, a.group, a.group)
	crd.SetLabels(map[string]string{"applyset.kubernetes.io/is-parent-type": "true"})
	testserver.InstallCRD(t, crd.Object)
	paints := g.objects.Resource(schema.GroupVersionResource{Group: a.group, Version: "v1", Resource: "paints"})
	home := a.name // it is deleted
	if _, err := g.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	configMaps := g.objects.Resource(configMapResource).Namespace(home)
	owner, err := configMaps.Create(t.Context(), wantConfigMap(home, "owner", "red").Object.(*unstructured.Unstructured), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	parent := object(`{"apiVersion":%q,"kind":"Paint","metadata":{"name":"parent","finalizers":[%q]}}`, a.group+"/v1", setFinalizer)
	parent.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.GetUID(), BlockOwnerDeletion: new(true)}})
	_, err = paints.Namespace(home).Create(t.Context(), parent, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var requests atomic.Int64
	process, err := fault.New(testserver.Config(t), func(*fault.Op) fault.Fault { requests.Add(1); return fault.Fault{} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	s := newSet(t, process.Config())
	s.ParentKind, s.Mapper = a.kind(), setMapper(a.kind())
	s.MaxPrunePercent, s.PruneNamespaces, s.PruneCRDs = 100, true, true
	read := func() metav1.Object {
		live, err := paints.Namespace(home).Get(t.Context(), "parent", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return live
	}
	space := applyset.Member{Object: object(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, home), Adopt: true}
	definition := applyset.Member{Object: object(paintCRD, a.group, a.group), Adopt: true}
	for name, m := range map[string]applyset.Member{
		"the Namespace of the parent": space, "the CustomResourceDefinition of the parent": definition,
		"an owner of the parent": wantConfigMap(home, "owner", "red"), "the parent": wantKind(a.group+"/v1", "Paint", home, "parent"),
	} {
		m.Adopt = true
		if results, err := s.Apply(t.Context(), read(), m, wantConfigMap(home, "one", "red")); err == nil || !strings.Contains(err.Error(), "the object is "+name) || requests.Load() > 0 {
			t.Errorf("%s: %s, error %v, %d requests", name, actions(results), err, requests.Load())
		}
	}
	if _, err := s.Apply(t.Context(), read(), wantConfigMap(home, "one", "red"), wantConfigMap(g.two, "two", "red")); err != nil {
		t.Fatal(err)
	}
	id := inventory.ID(a.kind().GroupKind(), home, "parent")
	label := `{"metadata":{"labels":{"` + partOf + `":"` + id + `"}}}`
	patched(t, g.objects.Resource(namespaceResource), home, label)
	patched(t, g.objects.Resource(crdResource), crd.GetName(), label)
	patched(t, configMaps, "owner", label)
	patched(t, paints.Namespace(home), "parent", label)
	kinds := "ConfigMap,CustomResourceDefinition.apiextensions.k8s.io,Namespace,Paint." + a.group
	patched(t, paints.Namespace(home), "parent", `{"metadata":{"annotations":{"`+groupKinds+`":"`+kinds+`"}}}`)

	results, err := s.Apply(t.Context(), read(), wantConfigMap(home, "one", "red"))
	want := "ConfigMap one Unchanged, ConfigMap owner Kept, ConfigMap two Pruned, CustomResourceDefinition " + crd.GetName() + " Kept, Namespace " + home + " Kept, Paint parent Kept"
	if got := actions(results); err != nil || got != want {
		t.Errorf("Apply: %s, error %v, want %s", got, err, want)
	}
	// The Namespace is being deleted, and with it the parent.
	if err := g.CoreV1().Namespaces().Delete(t.Context(), home, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	results, err = s.Delete(t.Context(), read())
	if err != nil {
		t.Fatalf("Delete: %s, error %v", actions(results), err)
	}
	for _, r := range results {
		if r.Action != applyset.Pruned && r.Action != applyset.Kept {
			t.Errorf("%s is %s", r.Name, r.Action)
		}
	}
	if o, err := g.objects.Resource(crdResource).Get(t.Context(), crd.GetName(), metav1.GetOptions{}); err != nil || o.GetDeletionTimestamp() != nil {
		t.Errorf("the CustomResourceDefinition is %v, error %v", o, err)
	}
	deleted(t, g.objects.Resource(namespaceResource), home, func() {
		patched(t, paints.Namespace(home), "parent", `{"metadata":{"finalizers":null}}`)
	})
}

// Prune deletes a Namespace or a CustomResourceDefinition only with permission, because all
// objects in it go with it, and never while a wanted or a kept object is in it.
//
// Proves AS3, AS4, AS10.
func TestServerSetPruneNamespace(t *testing.T) {
	g := newGallery(t)
	a := newArena(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	s.Mapper, s.MaxPrunePercent = setMapper(a.kind()), 100
	s.Keep = func(_ schema.GroupVersionKind, obj metav1.Object) bool { return obj.GetAnnotations()["keep"] != "" }
	space := applyset.Member{Object: object(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, a.name)}
	crd := applyset.Member{Object: object(paintCRD, a.group, a.group)}
	one, inside := wantConfigMap(g.one, "one", "red"), wantConfigMap(a.name, "inside", "red")
	paint := wantKind(a.group+"/v1", "Paint", g.one, "paint")
	apply := func(what, want string, wanted ...applyset.Member) {
		t.Helper()
		for _, plans := range []bool{true, false} {
			method := s.Apply
			if plans {
				method = s.Plan
			}
			results, err := method(t.Context(), g.read(t, parent), wanted...)
			got := strings.ReplaceAll(actions(results), a.name, "space")
			if err != nil {
				got = err.Error()
			}
			if got != want && (!strings.HasPrefix(want, "error ") || !strings.Contains(got, want[len("error "):])) {
				t.Errorf("%s, planned %v: %s, want %s", what, plans, got, want)
			}
		}
	}
	exists := func(what string, namespace, definition bool) {
		t.Helper()
		for name, want := range map[string]bool{a.name: namespace, "paints." + a.group: definition} {
			resource := namespaceResource
			if strings.HasPrefix(name, "paints.") {
				resource = crdResource
			}
			o, err := g.objects.Resource(resource).Get(t.Context(), name, metav1.GetOptions{})
			if got := err == nil && o.GetDeletionTimestamp() == nil; got != want {
				t.Errorf("%s: %s is %v, error %v", what, name, o, err)
			}
		}
	}
	if _, err := s.Apply(t.Context(), parent, space, crd, one, inside, paint); err != nil {
		t.Fatal(err)
	}
	users := g.CoreV1().ConfigMaps(a.name)
	if _, err := users.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "of-a-user"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apply("a wanted object of each", "ConfigMap inside Unchanged, ConfigMap one Unchanged, CustomResourceDefinition paints.space.example.com Kept, Namespace space Kept, Paint paint Unchanged", one, inside, paint)
	exists("a wanted object of each", true, true)

	patched(t, g.objects.Resource(configMapResource).Namespace(a.name), "inside", `{"metadata":{"annotations":{"keep":"true"}}}`)
	patched(t, g.objects.Resource(schema.GroupVersionResource{Group: a.group, Version: "v1", Resource: "paints"}).Namespace(g.one), "paint", `{"metadata":{"annotations":{"keep":"true"}}}`)
	s.PruneNamespaces, s.PruneCRDs = true, true
	apply("a kept object of each", "ConfigMap inside Kept, ConfigMap one Unchanged, CustomResourceDefinition paints.space.example.com Kept, Namespace space Kept, Paint paint Kept", one)
	exists("a kept object of each", true, true)
	s.PruneNamespaces, s.PruneCRDs = false, false

	patched(t, g.objects.Resource(configMapResource).Namespace(a.name), "inside", `{"metadata":{"annotations":null}}`)
	patched(t, g.objects.Resource(schema.GroupVersionResource{Group: a.group, Version: "v1", Resource: "paints"}).Namespace(g.one), "paint", `{"metadata":{"annotations":null}}`)
	apply("no permission", "error set PruneNamespaces", one, crd)
	apply("no permission", "error set PruneCRDs", one, space)
	exists("no permission", true, true)
	if _, err := users.Get(t.Context(), "inside", metav1.GetOptions{}); err != nil {
		t.Errorf("without permission nothing is pruned: %v", err)
	}
	s.PruneNamespaces = true
	if results, err := s.Apply(t.Context(), g.read(t, parent), one, crd); err != nil {
		t.Errorf("with permission: %s, error %v", actions(results), err)
	}
	exists("with permission", false, true)
	// Delete needs no permission.
	s.PruneNamespaces = false
	results, err := s.Delete(t.Context(), g.read(t, parent))
	if err != nil && !strings.Contains(err.Error(), "its deletion was accepted") {
		t.Errorf("Delete: %s, error %v", actions(results), err)
	}
	exists("Delete", false, false)
}

// Keep is asked again in each call, so that an object whose annotation is gone is pruned, and
// it counts while prune deletes other objects.
//
// Proves AS3.
func TestServerSetKeep(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	maps := g.objects.Resource(configMapResource).Namespace(g.two)
	a := newArena(t)
	space := applyset.Member{Object: object(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, a.name)}
	var intrude atomic.Bool
	process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
		if op.Verb == "delete" && op.Name == "inside" && intrude.CompareAndSwap(true, false) {
			return fault.Fault{Before: func() {
				patched(t, g.objects.Resource(configMapResource).Namespace(a.name), "inside", `{"metadata":{"annotations":{"keep":"true"}}}`)
			}}
		}
		return fault.Fault{}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	s := newSet(t, process.Config())
	s.MaxPrunePercent, s.PruneNamespaces = 100, true
	s.Keep = func(_ schema.GroupVersionKind, obj metav1.Object) bool { return obj.GetAnnotations()["keep"] != "" }
	one := wantConfigMap(g.one, "one", "red")
	apply := func(what, want string, wanted ...applyset.Member) {
		t.Helper()
		results, err := s.Apply(t.Context(), g.read(t, parent), wanted...)
		if got := strings.ReplaceAll(actions(results), a.name, "space"); err != nil || got != want {
			t.Errorf("%s: %s, error %v, want %s", what, got, err, want)
		}
	}
	apply("created", "ConfigMap one Created, ConfigMap two Created", one, wantConfigMap(g.two, "two", "red"))
	patched(t, maps, "two", `{"metadata":{"annotations":{"keep":"true"}}}`)
	apply("kept", "ConfigMap one Unchanged, ConfigMap two Kept", one)
	apply("still kept", "ConfigMap one Unchanged, ConfigMap two Kept", one)
	patched(t, maps, "two", `{"metadata":{"annotations":null}}`)
	apply("not kept any more", "ConfigMap one Unchanged, ConfigMap two Pruned", one)

	apply("created again", "ConfigMap one Unchanged, ConfigMap two Created", one, wantConfigMap(g.two, "two", "red"))
	patched(t, maps, "two", `{"metadata":{"annotations":{"keep":"true"}}}`)
	apply("kept again", "ConfigMap one Unchanged, ConfigMap two Kept", one)
	if err := maps.Delete(t.Context(), "two", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	apply("its user has deleted it", "ConfigMap one Unchanged", one)
	if got := g.read(t, parent).Annotations[namespaces]; got != "" {
		t.Errorf("the namespaces of the inventory are %s", got)
	}
	apply("in a namespace", "ConfigMap inside Created, ConfigMap one Unchanged, Namespace space Created", one, space, wantConfigMap(a.name, "inside", "red"))
	intrude.Store(true)
	apply("kept at its deletion", "ConfigMap inside Kept, ConfigMap one Unchanged, Namespace space Kept", one)
	if results, err := s.Delete(t.Context(), g.read(t, parent)); err != nil || !strings.Contains(actions(results), "ConfigMap inside Kept") {
		t.Errorf("Delete: %s, error %v", actions(results), err)
	}
	if ns, err := g.CoreV1().Namespaces().Get(t.Context(), a.name, metav1.GetOptions{}); err != nil || ns.DeletionTimestamp != nil {
		t.Errorf("the Namespace of a kept object: %v, error %v", ns, err)
	}
}

// A custom resource with a finalizer goes before the program that works for it, if both and
// the definition are members.
//
// Proves AS7.
func TestServerSetDefined(t *testing.T) {
	g := newGallery(t)
	a := newArena(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	s.Mapper = setMapper(a.kind())
	paints := g.objects.Resource(schema.GroupVersionResource{Group: a.group, Version: "v1", Resource: "paints"}).Namespace(g.one)
	if _, err := s.Apply(t.Context(), parent,
		applyset.Member{Object: object(`{"apiVersion":%q,"kind":"Paint","metadata":{"name":"one","namespace":%q,"finalizers":["example.com/program"]}}`, a.group+"/v1", g.one)},
		applyset.Member{Object: place{"Deployment", g.one, "program"}.object("red")},
		applyset.Member{Object: object(paintCRD, a.group, a.group)}); err != nil {
		t.Fatal(err)
	}
	s = newSet(t, testserver.Config(t)) // after a restart
	s.Mapper = setMapper(a.kind())
	for range 2 {
		results, err := s.Delete(t.Context(), g.read(t, parent))
		if err == nil || !strings.Contains(err.Error(), "example.com/program") {
			t.Errorf("%s, error %v", actions(results), err)
		}
		if d, err := g.AppsV1().Deployments(g.one).Get(t.Context(), "program", metav1.GetOptions{}); err != nil || d.DeletionTimestamp != nil {
			t.Fatalf("the program goes before the object that needs it: %v, error %v", d, err)
		}
	}
	deleted(t, paints, "one", func() { patched(t, paints, "one", `{"metadata":{"finalizers":null}}`) })
	deleted(t, g.objects.Resource(crdResource), "paints."+a.group, func() {
		if results, err := s.Delete(t.Context(), g.read(t, parent)); err != nil && !strings.Contains(err.Error(), "its deletion was accepted") {
			t.Errorf("%s, error %v", actions(results), err)
		}
	})
	if results, err := s.Delete(t.Context(), g.read(t, parent)); err != nil {
		t.Errorf("%s, error %v", actions(results), err)
	}
	if _, err := g.AppsV1().Deployments(g.one).Get(t.Context(), "program", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the program: %v", err)
	}
}
