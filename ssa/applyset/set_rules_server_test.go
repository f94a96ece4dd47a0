package applyset_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// TestServerSetAdopt: an object that exists becomes a member only if the Member allows it.
//
// Proves AS6.
func TestServerSetAdopt(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	tests := []struct {
		name         string
		labels       map[string]string
		controlled   bool
		adopt, force bool
		manager      string // of the write
		applied      bool   // the write is an apply
		want         string // the action, or the error
	}{
		{name: "refused", want: "is not a member: set Adopt"},
		{name: "applied-before", manager: s.Manager, applied: true, want: "it lacks the label of members: if another user removed the label, set " + partOf + "=applyset-"},
		{name: "updated-before", manager: s.Manager, want: "is not a member: set Adopt"},
		{name: "applied-by-another", manager: "other", applied: true, want: "is not a member: set Adopt"},
		{name: "adopted", adopt: true, want: "Adopted"},
		{name: "controlled", adopt: true, controlled: true, want: "has a controller"},
		{name: "controlled-forced", force: true, controlled: true, want: "Adopted"},
		{name: "other", adopt: true, labels: map[string]string{partOf: "applyset-other-v1"}, want: "another set"},
		{name: "other-forced", force: true, labels: map[string]string{partOf: "applyset-other-v1"}, want: "Adopted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			maps := g.CoreV1().ConfigMaps(g.two)
			existing := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: tt.name, Labels: tt.labels}, Data: map[string]string{"color": "green", "by": "somebody"}}
			if tt.controlled {
				controller := true
				owner, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: tt.name + "-owner"}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				existing.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: &controller}}
			}
			before, err := maps.Create(t.Context(), existing, metav1.CreateOptions{FieldManager: tt.manager})
			if err == nil && tt.applied {
				config := applycorev1.ConfigMap(tt.name, g.two).WithData(map[string]string{"size": "S"})
				before, err = maps.Apply(t.Context(), config, metav1.ApplyOptions{FieldManager: tt.manager})
			}
			if err != nil {
				t.Fatal(err)
			}
			m := wantConfigMap(g.two, tt.name, "red")
			m.Adopt, m.Force = tt.adopt, tt.force
			s.MaxPrunePercent = 100
			results, err := s.Apply(t.Context(), g.read(t, parent), m)
			after, getErr := maps.Get(t.Context(), tt.name, metav1.GetOptions{})
			if getErr != nil {
				t.Fatal(getErr)
			}
			if err != nil {
				if !strings.Contains(err.Error(), tt.want) || before.ResourceVersion != after.ResourceVersion {
					t.Errorf("error %v, want %q; the object before and after:\n%v\n%v", err, tt.want, before, after)
				}
				return
			}
			if string(results[0].Action) != tt.want || after.Data["color"] != "red" || after.Data["by"] != "somebody" || len(after.OwnerReferences) != len(before.OwnerReferences) {
				t.Errorf("%s, want %s; the object is %v", actions(results), tt.want, after)
			}
		})
	}
}

// TestServerSetPrune: prune leaves the objects of others, waits for deletions, and is bounded.
//
// Proves AS3, AS4, AS7 and AS9.
func TestServerSetPrune(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	maps := g.CoreV1().ConfigMaps(g.two)
	names := []string{"taken", "bare", "controlled", "kept", "held", "plain"}
	var wanted []applyset.Member
	for _, name := range names {
		wanted = append(wanted, wantConfigMap(g.two, name, "red"))
	}
	wanted = append(wanted, wantKind("v1", "ServiceAccount", g.two, "account"))
	if _, err := s.Apply(t.Context(), g.read(t, parent), wanted...); err != nil {
		t.Fatal(err)
	}
	owner, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, patch := range map[string]string{
		"taken":      `{"metadata":{"labels":{"` + partOf + `":"applyset-other-v1"}}}`,
		"bare":       `{"metadata":{"labels":null}}`,
		"controlled": `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"` + string(owner.UID) + `","controller":true}]}}`,
		"kept":       `{"metadata":{"annotations":{"example.com/keep":""}}}`,
		"held":       `{"metadata":{"finalizers":["example.com/held"]}}`,
	} {
		if _, err := maps.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "other"}); err != nil {
			t.Fatal(err)
		}
	}
	s.Keep = func(kind schema.GroupVersionKind, obj metav1.Object) bool {
		_, ok := obj.GetAnnotations()["example.com/keep"]
		return ok && kind.Kind == "ConfigMap"
	}

	// A mistake: the wanted objects are missing.
	results, err := s.Apply(t.Context(), g.read(t, parent))
	const refused = "ConfigMap bare Kept, ConfigMap controlled Kept, ConfigMap held Pending, ConfigMap kept Kept, ConfigMap plain Pending, ConfigMap taken Kept, ServiceAccount account Pending"
	if err == nil || !strings.Contains(err.Error(), "MaxPrunePercent allows 50") || actions(results) != refused || len(g.found(t, "")) < len(names)+1 {
		t.Fatalf("an empty set: %s, error %v", actions(results), err)
	}
	s.MaxPrunePercent, s.MaxPrune = 100, 2
	if results, err = s.Apply(t.Context(), g.read(t, parent)); err == nil || !strings.Contains(err.Error(), "delete 3 objects: MaxPrune allows 2") {
		t.Fatalf("a bound of 2: %s, error %v", actions(results), err)
	}
	s.MaxPrune = 0

	before := g.versions(t)
	fresh := newSet(t, testserver.Config(t))
	fresh.MaxPrunePercent, fresh.Keep = 100, s.Keep
	m := wantConfigMap(g.two, "plain", "blue")
	results, err = fresh.Plan(t.Context(), g.read(t, parent), m, wantConfigMap(g.one, "new", "red"), wantConfigMap(g.two, "held", "red"))
	const changed = "ConfigMap controlled Kept, ConfigMap held Unchanged, ConfigMap kept Kept, ConfigMap new Created, ConfigMap plain Changed, ServiceAccount account Pruned"
	if got := actions(results); err != nil || got != changed || results[0].Reason != ".data.color" {
		t.Errorf("plan with changes: %s, error %v, reason %q", got, err, results[0].Reason)
	}
	results, err = s.Plan(t.Context(), g.read(t, parent))
	const planned = "ConfigMap controlled Kept, ConfigMap held Pruned, ConfigMap kept Kept, ConfigMap plain Pruned, ServiceAccount account Pruned"
	if got := actions(results); err != nil || got != planned {
		t.Errorf("plan: %s, error %v", got, err)
	}

	if diff := cmp.Diff(before, g.versions(t)); diff != "" {
		t.Errorf("plans changed objects (-before +after):\n%s", diff)
	}

	// The account is of an earlier stage than the waiting objects.
	results, err = s.Apply(t.Context(), g.read(t, parent))
	const pending = "ConfigMap controlled Kept, ConfigMap held Pending, ConfigMap kept Kept, ConfigMap plain Pruned, ServiceAccount account Pending"
	if got := actions(results); err != nil || got != pending {
		t.Errorf("%s, error %v", got, err)
	}
	for _, r := range results {
		if r.Name == "held" && !strings.Contains(r.Reason, "example.com/held") {
			t.Errorf("the reason of %s is %q", r.Name, r.Reason)
		}
	}
	if kinds := g.read(t, parent).Annotations[groupKinds]; kinds != "ConfigMap,ServiceAccount" {
		t.Errorf("while an object waits, the inventory has %q", kinds)
	}
	if _, err := s.Delete(t.Context(), g.read(t, parent)); err == nil || !strings.Contains(err.Error(), "example.com/held") {
		t.Errorf("delete while an object waits: error %v", err)
	}
	if _, err := maps.Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	results, err = s.Apply(t.Context(), g.read(t, parent))
	if got := actions(results); err != nil || !strings.Contains(got, "ServiceAccount account Pruned") || strings.Contains(got, "Pending") {
		t.Errorf("%s, error %v", got, err)
	}
	// What is kept stays in the inventory, so that no list of members is short.
	if live := g.read(t, parent); live.Annotations[groupKinds] != "ConfigMap" || live.Annotations[namespaces] != g.two {
		t.Errorf("the inventory is %v", live.Annotations)
	}
	if _, err := s.Delete(t.Context(), g.read(t, parent)); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"taken", "bare", "controlled", "kept"} {
		if o, err := maps.Get(t.Context(), name, metav1.GetOptions{}); err != nil || o.DeletionTimestamp != nil {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
}

// versions returns the resource version of each object of the gallery.
func (g gallery) versions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, namespace := range []string{g.one, g.two} {
		for _, resource := range []string{"configmaps", "serviceaccounts"} {
			list, err := g.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list.Items {
				versions[namespace+"/"+resource+"/"+o.GetName()] = o.GetResourceVersion()
			}
		}
	}
	return versions
}

// TestServerSetHandOver: a member moves to another set while it always has an owner.
//
// Proves AS3.
func TestServerSetHandOver(t *testing.T) {
	g := newGallery(t)
	first, second := g.parent(t, "first"), g.parent(t, "second")
	s := newSet(t, testserver.Config(t))
	m, rest := wantConfigMap(g.one, "one", "red"), wantConfigMap(g.one, "rest", "red")
	created, err := s.Apply(t.Context(), g.read(t, first), m, rest)
	if err != nil {
		t.Fatal(err)
	}
	m.Force = true
	if _, err := s.Apply(t.Context(), g.read(t, second), m); err != nil {
		t.Fatal(err)
	}
	m.Force = false
	if _, err := s.Apply(t.Context(), g.read(t, first), m, rest); err == nil || !strings.Contains(err.Error(), "another set") {
		t.Errorf("the first set still wants it: error %v", err)
	}
	results, err := s.Apply(t.Context(), g.read(t, first), rest)
	if got := actions(results); err != nil || got != "ConfigMap one Kept, ConfigMap rest Unchanged" {
		t.Errorf("the first set: %s, error %v", got, err)
	}
	live, err := g.CoreV1().ConfigMaps(g.one).Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || live.UID != created[0].Object.GetUID() || live.Labels[partOf] != g.read(t, second).Labels[idLabel] {
		t.Errorf("after the hand-over: %v, %v", live, err)
	}
}

// TestServerSetRaces: between the decision of a Set and its request, another user writes.
//
// Proves AS3, AS6.
func TestServerSetRaces(t *testing.T) {
	g := newGallery(t)
	maps := g.CoreV1().ConfigMaps(g.one)
	var before func(*fault.Op)
	process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault { before(op); return fault.Fault{} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	once := func(verb, name string, f func() error) {
		var done atomic.Bool
		before = func(op *fault.Op) {
			if op.Verb == verb && op.Name == name && done.CompareAndSwap(false, true) {
				if err := f(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	s := newSet(t, process.Config())
	s.MaxPrunePercent = 100
	parent := g.parent(t, "parent")
	for name, color := range map[string]string{"same": "red", "different": "blue"} {
		var created *corev1.ConfigMap
		once("apply", name, func() (err error) {
			created, err = maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"color": color}}, metav1.CreateOptions{FieldManager: "other"})
			return err
		})
		_, err := s.Apply(t.Context(), g.read(t, parent), wantConfigMap(g.one, name, "red"))
		live, getErr := maps.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil || getErr != nil || live.ResourceVersion != created.ResourceVersion {
			t.Errorf("%s: error %v; the object of the other user is %v, %v", name, err, live, getErr)
		}
	}
	// An API server that rejects a version for an absent object.
	strict := g.parent(t, "strict")
	for name, color := range map[string]string{"late-same": "red", "late-different": "blue"} {
		var applies atomic.Int64
		intrudes := true
		rejecting, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
			switch {
			case op.Verb != "apply" || op.Name != name:
			case applies.Add(1) == 1:
				return fault.Fault{Response: &fault.Response{Code: 409, Reason: metav1.StatusReasonConflict}}
			case applies.Load() == 2 && intrudes:
				return fault.Fault{Before: func() {
					_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"color": color}}, metav1.CreateOptions{FieldManager: "other"})
					if err != nil {
						t.Error(err)
					}
				}}
			}
			return fault.Fault{}
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(rejecting.Kill)
		s := newSet(t, rejecting.Config())
		_, err = s.Apply(t.Context(), g.read(t, strict), wantConfigMap(g.one, name, "red"))
		live, getErr := maps.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil || getErr != nil || live.Labels[partOf] != "" || live.Data["color"] != color || len(live.ManagedFields) != 1 {
			t.Errorf("%s: error %v; the object of the other user is %v, %v", name, err, live, getErr)
		}
		if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		intrudes = false
		applies.Store(0)
		if results, err := s.Apply(t.Context(), g.read(t, strict), wantConfigMap(g.one, name, "red")); err != nil || results[0].Action != applyset.Created || applies.Load() != 2 {
			t.Errorf("%s is absent: %s, error %v after %d applies", name, actions(results), err, applies.Load())
		}
	}

	if _, err := s.Apply(t.Context(), g.read(t, parent), wantConfigMap(g.one, "one", "red"), wantConfigMap(g.one, "two", "red")); err != nil {
		t.Fatal(err)
	}
	once("delete", "one", func() error {
		_, err := maps.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+partOf+`":"applyset-other-v1"}}}`), metav1.PatchOptions{})
		return err
	})
	results, err := s.Apply(t.Context(), g.read(t, parent), wantConfigMap(g.one, "two", "red"))
	if got := actions(results); err != nil || got != "ConfigMap one Kept, ConfigMap two Unchanged" {
		t.Errorf("taken before its deletion: %s, error %v", got, err)
	}
	// The object that the Set has read was replaced.
	two := wantConfigMap(g.one, "two", "blue")
	two.Live = g.live(t, two)
	once("apply", "two", func() error {
		if err := maps.Delete(t.Context(), "two", metav1.DeleteOptions{}); err != nil {
			return err
		}
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, metav1.CreateOptions{})
		return err
	})
	if _, err := s.Apply(t.Context(), g.read(t, parent), two); err == nil || !strings.Contains(err.Error(), "set Adopt") {
		t.Errorf("replaced: error %v", err)
	}
	// Another writer of the parent delays no inventory.
	once("apply", "parent", func() error {
		_, err := maps.Patch(t.Context(), "parent", types.MergePatchType, []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{})
		return err
	})
	if _, err := s.Apply(t.Context(), g.read(t, parent), wantKind("v1", "Secret", g.one, "three")); err != nil {
		t.Error(err)
	}
}

// TestServerSetParent: the parent of another tool or with another inventory is an error, and
// so is one that the members could outlive.
//
// Proves AS8.
func TestServerSetParent(t *testing.T) {
	g := newGallery(t)
	s := newSet(t, testserver.Config(t))
	maps := g.CoreV1().ConfigMaps(g.one)
	for name, tt := range map[string]struct{ patch, want string }{
		"tool":      {`{"metadata":{"annotations":{"` + tooling + `":"kubectl/v1.37"}}}`, "another tool"},
		"no-tool":   {`{"metadata":{"annotations":{"` + tooling + `":null}}}`, "restore the annotation"},
		"id":        {`{"metadata":{"labels":{"` + idLabel + `":"applyset-another-v1"}}}`, "set it to"},
		"kinds":     {`{"metadata":{"annotations":{"` + groupKinds + `":"ConfigMap,,x"}}}`, "use entries such as"},
		"no-kinds":  {`{"metadata":{"annotations":{"` + groupKinds + `":null}}}`, "restore the annotation"},
		"spaces":    {`{"metadata":{"annotations":{"` + namespaces + `":"a/b"}}}`, "metadata.annotations"},
		"finalizer": {`{"metadata":{"finalizers":null}}`, "lacks the finalizer"},
	} {
		parent := g.parent(t, name)
		if _, err := s.Apply(t.Context(), parent, wantConfigMap(g.one, name+"-1", "red")); err != nil {
			t.Fatal(err)
		}
		edited, err := maps.Patch(t.Context(), name, types.MergePatchType, []byte(tt.patch), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, process := range []*applyset.Set{s, newSet(t, testserver.Config(t))} {
			_, err := process.Apply(t.Context(), edited, wantConfigMap(g.one, name+"-2", "red"))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Count(err.Error(), "applyset: ") != 1 {
				t.Errorf("%s: error %v, want %q", name, err, tt.want)
			}
			if _, err := maps.Get(t.Context(), name+"-2", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("%s: an object was created: %v", name, err)
			}
		}
	}
	// Somebody removes a kind from the inventory: the process that knows of it adds it again.
	parent := g.parent(t, "less")
	if _, err := s.Apply(t.Context(), parent, wantConfigMap(g.one, "less-1", "red"), wantKind("v1", "Secret", g.one, "less-2")); err != nil {
		t.Fatal(err)
	}
	edited, err := maps.Patch(t.Context(), "less", types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+groupKinds+`":"ConfigMap"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	results, err := s.Apply(t.Context(), edited, wantConfigMap(g.one, "less-1", "red"))
	if got := actions(results); err != nil || got != "ConfigMap less-1 Unchanged, Secret less-2 Pruned" {
		t.Errorf("an inventory that lost a kind: %s, error %v", got, err)
	}
	if err := maps.Delete(t.Context(), "less", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(t.Context(), g.read(t, parent), wantConfigMap(g.one, "less-1", "red")); err == nil || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("a deleted parent: error %v", err)
	}
	if _, err := s.Delete(t.Context(), g.read(t, parent)); err != nil {
		t.Error(err)
	}
}

// TestServerSetKinds: a set defines the kind of a member, and both go; and two kinds can show
// one object.
//
// Proves AS2, AS7.
func TestServerSetKinds(t *testing.T) {
	a := newArena(t)
	g := newGallery(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t)) // its Mapper does not know the kind
	s.MaxPrunePercent = 100
	crd := applyset.Member{Object: object(paintCRD, a.group, a.group)}
	paint := wantKind(a.group+"/v1", "Paint", g.one, "one")
	results, err := s.Plan(t.Context(), g.read(t, parent), paint, crd)
	if got := actions(results); err != nil || got != "CustomResourceDefinition paints."+a.group+" Created, Paint one Created" {
		t.Errorf("plan: %s, error %v", got, err)
	}
	for range 2 {
		if _, err := s.Apply(t.Context(), g.read(t, parent), paint, crd); err != nil {
			t.Fatal(err)
		}
	}
	// An Event of the group events.k8s.io is one of the core group.
	event := func(apiVersion, namespace string) applyset.Member {
		return applyset.Member{Object: object(`{"apiVersion":%q,"kind":"Event","metadata":{"name":"event","namespace":%q},%s}`, apiVersion, namespace, map[bool]string{
			true: `"involvedObject":{"namespace":"` + namespace + `"}`, false: `"regarding":{"namespace":"` + namespace + `"},"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"example.com/a","reportingInstance":"a","action":"a","reason":"a","type":"Normal"`,
		}[apiVersion == "v1"])}
	}
	if _, err := s.Apply(t.Context(), g.read(t, parent), paint, crd, event("events.k8s.io/v1", g.one)); err != nil {
		t.Fatal(err)
	}
	watcher, err := a.Resource(crdResource).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=paints." + a.group})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	s = newSet(t, testserver.Config(t)) // after a restart
	s.Mapper, s.MaxPrunePercent, s.PruneCRDs = setMapper(a.kind()), 100, true
	core := event("v1", g.one)
	results, err = s.Apply(t.Context(), g.read(t, parent), core)
	if got := "CustomResourceDefinition paints." + a.group + " Pruned, Event event Changed, Paint one Pruned"; err != nil || strings.ReplaceAll(actions(results), "Pending", "Pruned") != got {
		t.Fatalf("%s, error %v", actions(results), err)
	}
	for timeout := time.After(time.Minute); strings.Contains(actions(results), "Pending"); {
		if kinds := g.read(t, parent).Annotations[groupKinds]; strings.Contains(kinds, "Paint") {
			t.Errorf("the definition goes before the inventory: %q", kinds)
		}
		select {
		case event := <-watcher.ResultChan():
			if event.Type == watch.Deleted {
				if results, err = s.Apply(t.Context(), g.read(t, parent), core); err != nil {
					t.Fatal(err)
				}
			}
		case <-timeout:
			t.Fatalf("the definition is there: %s", actions(results))
		}
	}
	if live := g.read(t, parent); live.Annotations[groupKinds] != "Event" {
		t.Errorf("the inventory is %v", live.Annotations)
	}
	if _, err := g.CoreV1().Events(g.one).Get(t.Context(), "event", metav1.GetOptions{}); err != nil {
		t.Errorf("the event of two kinds: %v", err)
	}
}
