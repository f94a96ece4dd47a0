package applyset_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

// TestServerSetStage: objects are applied in the order of Stage, and pruned in the reverse
// order, which a new process reads from the live objects.
func TestServerSetStage(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	var mu sync.Mutex
	var order []string
	set := func() *applyset.Set {
		process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
			mu.Lock()
			defer mu.Unlock()
			if op.IsWrite() && op.Name != "parent" {
				order = append(order, op.Verb+" "+op.Name)
			}
			return fault.Fault{}
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(process.Kill)
		s := newSet(t, process.Config())
		s.Stage = func(_ schema.GroupVersionKind, obj metav1.Object) int {
			return map[string]int{"late": 99, "early": 2, "wrong": 1}[obj.GetAnnotations()["wave"]]
		}
		return s
	}
	waved := func(kind, name, wave string) applyset.Member {
		m := wantKind("v1", kind, g.one, name)
		m.Object.(*unstructured.Unstructured).SetAnnotations(map[string]string{"wave": wave})
		return m
	}
	wanted := []applyset.Member{waved("ServiceAccount", "third", "late"), waved("Secret", "second", ""), waved("ConfigMap", "first", "early")}
	if _, err := set().Apply(t.Context(), parent, wanted...); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ", "); got != "apply first, apply second, apply third" {
		t.Errorf("applied: %s", got)
	}
	order = nil
	if _, err := set().Apply(t.Context(), g.read(t, parent), append(wanted, waved("ConfigMap", "wrong", "wrong"))...); err == nil || !strings.Contains(err.Error(), "the stage is 1: let Stage return 2 to 99") || len(order) > 0 {
		t.Errorf("a wrong stage: error %v, writes %v", err, order)
	}
	// Another user can give a former member a wrong stage: then no other is deleted.
	accounts := g.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).Namespace(g.one)
	patched(t, accounts, "third", `{"metadata":{"annotations":{"wave":"wrong"}}}`)
	if _, err := set().Delete(t.Context(), g.read(t, parent)); err == nil || !strings.Contains(err.Error(), "the stage is 1") || len(order) > 0 {
		t.Errorf("a wrong stage of a former member: error %v, writes %v", err, order)
	}
	patched(t, accounts, "third", `{"metadata":{"annotations":{"wave":"late"}}}`)
	if _, err := set().Delete(t.Context(), g.read(t, parent)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ", "); got != "delete third, delete second, delete first" {
		t.Errorf("deleted: %s", got)
	}
}

// TestServerSetOwn: members go with their parent, without a finalizer.
func TestServerSetOwn(t *testing.T) {
	g := newGallery(t)
	maps := g.CoreV1().ConfigMaps(g.one)
	parent, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "parent"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := newSet(t, testserver.Config(t))
	s.Own, s.Finalizer = true, ""
	one, two := wantConfigMap(g.one, "one", "red"), wantConfigMap(g.one, "two", "red")
	if _, err := s.Apply(t.Context(), parent, one, wantConfigMap(g.two, "far", "red")); err == nil || !strings.Contains(err.Error(), "metadata.ownerReferences") {
		t.Errorf("a member in another namespace: error %v", err)
	}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	two.Adopt = true
	results, err := s.Apply(t.Context(), parent, one, two)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if !metav1.IsControlledBy(r.Object, parent) {
			t.Errorf("%s has the owners %v", r.Name, r.Object.GetOwnerReferences())
		}
	}
	results, err = s.Apply(t.Context(), g.read(t, parent), one)
	if got := actions(results); err != nil || got != "ConfigMap one Unchanged, ConfigMap two Pruned" {
		t.Errorf("%s, error %v", got, err)
	}
	other, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: other.UID, Controller: new(true)},
	}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	theirs := wantConfigMap(g.one, "theirs", "red")
	theirs.Adopt, theirs.Force = true, true
	_, err = s.Apply(t.Context(), g.read(t, parent), one, theirs)
	if err == nil || !strings.Contains(err.Error(), `the object has a controller, ConfigMap "other", beside which Own`) {
		t.Errorf("a member with another controller: error %v", err)
	}
	w, err := maps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=one", ResourceVersion: results[0].Object.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := maps.Delete(t.Context(), "parent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for timeout := time.After(2 * time.Minute); ; {
		select {
		case event := <-w.ResultChan():
			if event.Type == watch.Deleted {
				return
			}
		case <-timeout:
			t.Fatal("the parent is gone, and its member is not")
		}
	}
}

// TestServerSetRecreate: a member whose immutable field is to change is deleted and created
// again only if the Member allows it, and nothing else is wrong with it.
func TestServerSetRecreate(t *testing.T) {
	g := newGallery(t)
	const workload = `{"apiVersion":"apps/v1","kind":%q,"metadata":{"name":"one","namespace":%q},"spec":{"replicas":%s,"selector":{"matchLabels":{"a":%q}},%s"template":{"metadata":{"labels":{"a":%q}},"spec":{"containers":[{"name":"a","image":"a"}]}}}}`
	tests := []struct{ kind, before, after, invalid string }{
		{"Secret", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"one","namespace":%q},"type":"example.com/a"}`, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"one","namespace":%q},"type":"example.com/b"}`,
			`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"one","namespace":%q},"type":"example.com/b","data":{"a/b":""}}`},
		{"ConfigMap", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":%q},"immutable":true,"data":{"a":"b"}}`, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":%q},"immutable":true,"data":{"a":"c"}}`,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":%q},"immutable":true,"data":{"a/b":"c"}}`},
		{"Deployment", fmt.Sprintf(workload, "Deployment", "%s", "0", "b", "", "b"), fmt.Sprintf(workload, "Deployment", "%s", "0", "c", "", "c"), fmt.Sprintf(workload, "Deployment", "%s", "-1", "c", "", "c")},
		{"StatefulSet", fmt.Sprintf(workload, "StatefulSet", "%s", "0", "b", `"serviceName":"b",`, "b"), fmt.Sprintf(workload, "StatefulSet", "%s", "0", "b", `"serviceName":"c",`, "b"), fmt.Sprintf(workload, "StatefulSet", "%s", "-1", "b", `"serviceName":"c",`, "b")},
		{"RoleBinding", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"one","namespace":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"a"}}`, `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"one","namespace":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"b"}}`,
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"one","namespace":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":""}}`},
	}
	for _, tt := range tests {
		t.Run(tt.kind, func(t *testing.T) {
			parent := g.parent(t, "parent-"+strings.ToLower(tt.kind))
			s := newSet(t, testserver.Config(t))
			s.Mapper = setMapper(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"}, schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"})
			member := func(text string, recreate bool) applyset.Member {
				return applyset.Member{Object: object(strings.ReplaceAll(text, `"%s"`, "%q"), g.two), Recreate: recreate}
			}
			results, err := s.Apply(t.Context(), parent, member(tt.before, true))
			if err != nil {
				t.Fatal(err)
			}
			uid := results[0].Object.GetUID()
			mapping, err := s.Mapper.RESTMapping(results[0].Kind.GroupKind(), results[0].Kind.Version)
			if err != nil {
				t.Fatal(err)
			}
			objects := g.objects.Resource(mapping.Resource).Namespace(g.two)
			same := func(what string, want bool) {
				t.Helper()
				live, err := objects.Get(t.Context(), "one", metav1.GetOptions{})
				if err != nil || (live.GetUID() == uid) != want {
					t.Fatalf("%s: error %v, the uid is %s and was %s", what, err, live.GetUID(), uid)
				}
			}
			if results, err = s.Apply(t.Context(), g.read(t, parent), member(tt.after, false)); !apierrors.IsInvalid(err) {
				t.Errorf("not allowed: %s, error %v", actions(results), err)
			}
			same("not allowed", true)
			if results, err = s.Apply(t.Context(), g.read(t, parent), member(tt.invalid, true)); !apierrors.IsInvalid(err) {
				t.Errorf("not valid: %s, error %v", actions(results), err)
			}
			same("not valid", true)
			if results, err = s.Plan(t.Context(), g.read(t, parent), member(tt.after, true)); err != nil || results[0].Action != applyset.Recreated {
				t.Errorf("plan: %s, error %v", actions(results), err)
			}
			same("plan", true)
			if results, err = s.Apply(t.Context(), g.read(t, parent), member(tt.after, true)); err != nil || results[0].Action != applyset.Recreated || results[0].Object.GetUID() == uid {
				t.Errorf("allowed: %s, error %v", actions(results), err)
			}
			same("allowed", false)
			if results, err = s.Apply(t.Context(), g.read(t, parent), member(tt.after, true)); err != nil || results[0].Action != applyset.Unchanged {
				t.Errorf("again: %s, error %v", actions(results), err)
			}
		})
	}
}

// TestServerSetRecreateHeld: a deletion that waits, a process that dies between the deletion
// and the creation, and objects that the Set may not delete.
//
// Proves AS2 and AS3.
func TestServerSetRecreateHeld(t *testing.T) {
	g := newGallery(t)
	secrets := g.CoreV1().Secrets(g.two)
	secret := func(kind, finalizers string) applyset.Member {
		return applyset.Member{Object: object(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"one","namespace":%q,"finalizers":[%s]},"type":"example.com/`+kind+`"}`, g.two, finalizers), Recreate: true}
	}
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	if _, err := s.Apply(t.Context(), parent, secret("a", `"example.com/held"`)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if results, err := s.Apply(t.Context(), g.read(t, parent), secret("b", "")); err == nil || !strings.Contains(err.Error(), "it is being deleted") {
			t.Errorf("held: %s, error %v", actions(results), err)
		}
	}
	if _, err := secrets.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if results, err := s.Apply(t.Context(), g.read(t, parent), secret("b", "")); err != nil || results[0].Action != applyset.Created {
		t.Errorf("not held: %s, error %v", actions(results), err)
	}

	// The process dies after the deletion.
	var process *fault.Incarnation
	process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
		if op.Verb == "delete" {
			return fault.Fault{After: func() { process.Kill() }, Lose: true}
		}
		return fault.Fault{}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newSet(t, process.Config()).Apply(t.Context(), g.read(t, parent), secret("c", "")); err == nil {
		t.Error("the process did not die")
	}
	if _, err := secrets.Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the crash: error %v, want NotFound", err)
	}
	s = newSet(t, testserver.Config(t))
	results, err := s.Apply(t.Context(), g.read(t, parent), secret("c", ""))
	if err != nil || results[0].Action != applyset.Created {
		t.Errorf("after the restart: %s, error %v", actions(results), err)
	}

	// Another set takes the member before its deletion.
	taking, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
		if op.Verb != "delete" {
			return fault.Fault{}
		}
		return fault.Fault{Before: func() {
			_, err := secrets.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+partOf+`":"applyset-other-v1"}}}`), metav1.PatchOptions{FieldManager: "other"})
			if err != nil {
				t.Error(err)
			}
		}}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(taking.Kill)
	if results, err := newSet(t, taking.Config()).Apply(t.Context(), g.read(t, parent), secret("d", "")); !apierrors.IsConflict(err) {
		t.Errorf("taken before its deletion: %s, error %v", actions(results), err)
	}
	taken := secret("c", "")
	taken.Force = true
	if results, err := s.Apply(t.Context(), g.read(t, parent), taken); err != nil || results[0].Action != applyset.Adopted || results[0].Object.GetUID() == "" {
		t.Fatalf("%s, error %v", actions(results), err)
	}

	// Another controller owns the member, or it is not one yet.
	live, err := secrets.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owner, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, patch string }{
		{"controlled", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"owner","uid":"` + string(owner.UID) + `","controller":true}]}}`},
		{"unlabelled", `{"metadata":{"ownerReferences":null,"labels":null}}`},
	} {
		if _, err := secrets.Patch(t.Context(), "one", types.MergePatchType, []byte(tt.patch), metav1.PatchOptions{FieldManager: "other"}); err != nil {
			t.Fatal(err)
		}
		m := secret("d", "")
		m.Adopt = tt.name == "unlabelled"
		if results, err := s.Apply(t.Context(), g.read(t, parent), m); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %s, error %v", tt.name, actions(results), err)
		}
		if now, err := secrets.Get(t.Context(), "one", metav1.GetOptions{}); err != nil || now.UID != live.UID {
			t.Errorf("%s: the object is %v, error %v", tt.name, now, err)
		}
	}
}

// TestServerSetWait: an object whose kind the API server does not serve yet waits without
// an error, and is created once its definition exists.
func TestServerSetWait(t *testing.T) {
	a, g := newArena(t), newGallery(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	client := discovery.NewDiscoveryClientForConfigOrDie(testserver.Config(t))
	s.Mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))
	paint := wantKind(a.group+"/v1", "Paint", g.one, "one")
	if _, err := s.Apply(t.Context(), g.read(t, parent), paint, wantConfigMap(g.one, "one", "red")); err == nil || !strings.Contains(err.Error(), "find the resource") || g.versions(t)[g.one+"/configmaps/one"] != "" {
		t.Errorf("without Wait: error %v", err)
	}
	paint.Wait = true
	apply := func(what, want, kinds string, wanted ...applyset.Member) {
		t.Helper()
		for _, process := range []*applyset.Set{s} {
			planned, err := process.Plan(t.Context(), g.read(t, parent), wanted...)
			if got := actions(planned); err != nil || got != want {
				t.Errorf("%s, planned: %s, error %v, want %s", what, got, err, want)
			}
			results, err := process.Apply(t.Context(), g.read(t, parent), wanted...)
			if got := actions(results); err != nil || got != want {
				t.Errorf("%s: %s, error %v, want %s", what, got, err, want)
			}
			i := slices.IndexFunc(results, func(r applyset.Result) bool { return r.Kind.Kind == "Paint" })
			if results[i].Action == applyset.Pending && !strings.Contains(results[i].Reason, "does not serve its kind") {
				t.Errorf("%s: the reason is %q", what, results[i].Reason)
			}
		}
		if got := g.read(t, parent).Annotations[groupKinds]; got != kinds {
			t.Errorf("%s: the inventory has %q, want %q", what, got, kinds)
		}
	}
	apply("without the definition", "ConfigMap one Created, ConfigMap two Created, Paint one Pending", "ConfigMap", paint, wantConfigMap(g.one, "one", "red"), wantConfigMap(g.one, "two", "red"))
	apply("others are pruned", "ConfigMap one Unchanged, ConfigMap two Pruned, Paint one Pending", "ConfigMap", paint, wantConfigMap(g.one, "one", "red"))
	testserver.InstallCRD(t, object(paintCRD, a.group, a.group).Object)
	apply("with the definition", "ConfigMap one Unchanged, Paint one Created", "ConfigMap,Paint."+a.group, paint, wantConfigMap(g.one, "one", "red"))
	// The Mapper still knows a kind that the API server has lost.
	s.Mapper = setMapper(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Ghost"})
	ghost := wantKind("example.com/v1", "Ghost", g.one, "one")
	ghost.Wait = true
	results, err := s.Apply(t.Context(), g.read(t, parent), ghost, wantConfigMap(g.one, "one", "red"))
	if got := actions(results); !strings.Contains(got, "Ghost one Pending") || err != nil {
		t.Errorf("a kind that only the Mapper knows: %s, error %v", got, err)
	}
}

// TestServerSetMigrate: after a migration, an adopted object that kubectl applied on the
// client side loses the fields that are not wanted, and its annotation.
//
// Proves AS6.
func TestServerSetMigrate(t *testing.T) {
	g := newGallery(t)
	parent := g.parent(t, "parent")
	s := newSet(t, testserver.Config(t))
	client := g.objects.Resource(configMapResource).Namespace(g.two)
	const kubectl = "kubectl-client-side-apply"
	for _, migrates := range []bool{false, true} {
		name := fmt.Sprint("migrates-", migrates)
		old := object(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}},"data":{"color":"red","old":"1"}}`, name)
		live, err := client.Create(t.Context(), old, metav1.CreateOptions{FieldManager: kubectl})
		if err != nil {
			t.Fatal(err)
		}
		if migrates {
			if live, _, err = ssa.Migrate(t.Context(), ssa.FieldManager(s.Manager), client.Patch, live, kubectl); err != nil {
				t.Fatal(err)
			}
		}
		m := wantConfigMap(g.two, name, "red")
		m.Live = live
		before := live.GetResourceVersion()
		if _, err := s.Apply(t.Context(), g.read(t, parent), m); err == nil || !strings.Contains(err.Error(), "set Adopt") {
			t.Errorf("%s, without Adopt: error %v", name, err)
		}
		if now, err := client.Get(t.Context(), name, metav1.GetOptions{}); err != nil || now.GetResourceVersion() != before {
			t.Errorf("%s, without Adopt: %v, error %v", name, now, err)
		}
		m.Adopt = true
		results, err := s.Apply(t.Context(), g.read(t, parent), m)
		if err != nil {
			t.Fatal(err)
		}
		_, stays, _ := unstructured.NestedString(results[0].Object.Object, "data", "old")
		if results[0].Action != applyset.Adopted || stays == migrates || (len(results[0].Object.GetAnnotations()) > 0) == migrates {
			t.Errorf("%s: %s, the object is %v", name, actions(results), results[0].Object)
		}
		s.MaxPrunePercent = 100
	}
}
