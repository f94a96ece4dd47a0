package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/crd/migrate"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// process returns a client whose requests on sees first, and whose responses done sees, if it is not
// nil.
func (k *kind) process(on func(*fault.Op) fault.Fault, done func(*fault.Op, int, []byte)) dynamic.Interface {
	k.t.Helper()
	life, err := fault.New(k.config, on, done)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(life.Kill)
	config := life.Config()
	config.QPS = -1
	return dynamic.NewForConfigOrDie(config)
}

// The way from v1alpha1 to v1, and the removal of v1alpha1.
//
// Proves VM1, VM6.
func TestServerPath(t *testing.T) {
	t.Parallel()
	k := install(t)
	k.mustApply("one", "v1alpha1", "x", m{"spec": m{"a": "1", "labels": m{"l": "1"}, "items": []any{m{"name": "i", "value": "1"}}}})
	k.mustApply("two", "v1alpha1", "x", m{"spec": m{"b": "1"}})
	if _, err := k.apply("status", "v1alpha1", "x", m{"status": m{"n": 1}}, "status"); err != nil {
		t.Fatal(err)
	}
	before := k.read("v1", "x")

	k.store("v1", true)
	report := k.once()
	equal(t, "the report", migrate.Report{Version: "v1", Objects: 1, Writers: map[string][]string{"v1alpha1": {"one", "status", "two"}}}, report)
	equal(t, "storedVersions", []string{"v1"}, k.stored())
	status, reason, message := k.condition()
	equal(t, "the condition", []string{"True", "Migrated", `All objects are stored in v1. Managers own fields in the served version v1alpha1: ["one" "status" "two"].`}, []string{status, reason, message})
	rewritten := k.read("v1", "x")
	if rewritten.GetResourceVersion() == before.GetResourceVersion() {
		t.Error("the object was not written")
	}
	equal(t, "versions of managedFields that are served", []string{"v1alpha1"}, versions(rewritten))
	if again := k.once(); again.Objects != 0 {
		t.Errorf("a second migration read %d objects", again.Objects)
	}

	k.store("v1", false)
	if report = k.once(); report.Objects != 1 || report.Replaced != 1 || len(report.Writers) != 0 {
		t.Errorf("the report without v1alpha1: %+v", report)
	}
	after := k.read("v1", "x")
	equal(t, "versions of managedFields", []string{"v1"}, versions(after))
	equal(t, "owners", owned(t, before), owned(t, after))
	equal(t, "the spec", before.Object["spec"], after.Object["spec"])
	equal(t, "the status", before.Object["status"], after.Object["status"])

	k.edit(func(name string, _ m) bool { return name != "v1alpha1" })
	k.mustApply("one", "v1", "x", m{"spec": m{"a": "2", "items": []any{m{"name": "i", "value": "1"}}}})
	k.mustApply("two", "v1", "x", m{"spec": m{"b": "2"}})
	equal(t, "the spec after the next applies", any(m{"a": "2", "b": "2", "items": []any{m{"name": "i", "value": "1"}}}), k.read("v1", "x").Object["spec"])
}

// A version that is removed in one step leaves entries that fail each apply. A migration repairs
// them. Here no entry has a field of v1, so one entry stays.
//
// Proves VM6.
func TestServerRemovedAtOnce(t *testing.T) {
	t.Parallel()
	k := install(t, "old")
	k.mustApply("one", "v1alpha1", "x", m{"spec": m{"old": "1"}})
	k.mustApply("one", "v1alpha1", "y", m{"spec": m{"a": "1"}})
	k.store("v1", true)
	if _, err := k.at("v1").Update(t.Context(), k.read("v1", "x"), metav1.UpdateOptions{}); err != nil { // which loses the field
		t.Fatal(err)
	}
	k.once()
	equal(t, "owners before the removal", map[string][]string{"one Apply": {".spec.old"}}, owned(t, k.read("v1", "x")))
	k.edit(func(name string, _ m) bool { return name != "v1alpha1" })
	if _, err := k.apply("one", "v1", "y", m{"spec": m{"a": "2"}}); !apierrors.IsInternalError(err) && err == nil {
		t.Fatal("the apply succeeds before the migration: the test shows nothing")
	}
	k.once()
	for _, name := range []string{"x", "y"} {
		k.mustApply("one", "v1", name, m{"spec": m{"a": "2"}})
		k.mustApply("two", "v1", name, m{"spec": m{"b": "2"}})
		for owner := range owned(t, k.read("v1", name)) {
			if strings.HasPrefix(owner, "before-first-apply") {
				t.Errorf("%s has the owner %s", name, owner)
			}
		}
	}
}

// Objects of which the storage version would lose a field, and objects that admission rejects, are
// named, and the others are migrated.
//
// Proves VM5.
func TestServerBlocked(t *testing.T) {
	t.Parallel()
	k := install(t, "old")
	for i := range 15 {
		k.mustApply("one", "v1alpha1", fmt.Sprintf("good-%02d", i), m{"spec": m{"a": "1"}})
	}
	for i := range 12 {
		k.mustApply("one", "v1alpha1", fmt.Sprintf("lossy-%02d", i), m{"spec": m{"old": "1"}})
	}
	k.store("v1", true)
	reject := func(op *fault.Op) fault.Fault {
		if op.IsWrite() && op.Name == "good-00" {
			return fault.Fault{Response: &fault.Response{Code: 422, Reason: metav1.StatusReasonInvalid, Message: "spec.a: Invalid value"}}
		}
		return fault.Fault{}
	}
	before := k.read("v1", "good-01").GetResourceVersion()
	p := &progress{}
	migrator := k.migrator(k.process(reject, nil))
	migrator.Metrics = p
	_, err := migrator.Once(t.Context())
	var blocked *migrate.BlockedError
	if !errors.As(err, &blocked) || blocked.Objects != 13 || len(blocked.Errs) != 10 {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{
		"migrate: 13 objects cannot be migrated: ", k.namespace + "/good-00: spec.a: Invalid value",
		k.namespace + "/lossy-00: the field .spec.old of v1alpha1 is absent from v1: ", "; and 3 more",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	equal(t, "storedVersions", []string{"v1alpha1", "v1"}, k.stored())
	if status, reason, message := k.condition(); status != "False" || reason != "Blocked" || !strings.Contains(message, "good-00") {
		t.Errorf("the condition is %s %s %s", status, reason, message)
	}
	equal(t, "progress", "27 13 false", p.last())
	if k.read("v1", "good-01").GetResourceVersion() == before {
		t.Error("good-01 was not migrated")
	}
	for i := range 12 {
		name := fmt.Sprintf("lossy-%02d", i)
		equal(t, name, any(m{"old": "1"}), k.read("v1alpha1", name).Object["spec"])
		if _, err := k.at("v1alpha1").Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"old":null,"a":"1"}}`), metav1.PatchOptions{FieldManager: "one"}); err != nil {
			t.Fatal(err)
		}
	}
	k.once()
	equal(t, "storedVersions after the repair", []string{"v1"}, k.stored())
}

// If the lost field cannot be checked, nothing is written.
//
// Proves VM5.
func TestServerUnservedLoss(t *testing.T) {
	t.Parallel()
	k := install(t, "old")
	k.mustApply("one", "v1alpha1", "x", m{"spec": m{"old": "1"}})
	k.store("v1", false)
	_, err := k.migrator(k.client).Once(t.Context())
	if want := "the schema of v1alpha1 has the field .spec.old, which that of the storage version v1 lacks, so objects stored in v1alpha1 can lose it: add the field to v1, or remove it from v1alpha1, or serve v1alpha1"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	k.store("v1", true)
	equal(t, "the object", any(m{"old": "1"}), k.read("v1alpha1", "x").Object["spec"])
}

// An object that is deleted before its patch stays deleted, one that is created again is another
// one, and objects of a namespace in deletion are migrated.
//
// Proves VM2.
func TestServerDeleted(t *testing.T) {
	t.Parallel()
	k := install(t)
	for _, name := range []string{"deleted", "again", "changed"} {
		k.mustApply("one", "v1alpha1", name, m{"spec": m{"a": "1"}})
	}
	core := kubernetes.NewForConfigOrDie(k.config).CoreV1().Namespaces()
	ns, err := core.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ending-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ending := k.client.Resource(k.resource.WithVersion("v1alpha1")).Namespace(ns.Name)
	held := k.object("v1alpha1", "held", m{"metadata": m{"name": "held", "finalizers": []any{"example.com/hold"}}})
	if _, err := ending.Create(t.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := core.Delete(t.Context(), ns.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	k.store("v1", true)
	admin := k.at("v1")
	remove := func(name string) {
		if err := admin.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	var created types.UID
	client := k.process(func(op *fault.Op) fault.Fault {
		if !op.IsWrite() || op.Resource != k.name {
			return fault.Fault{}
		}
		return fault.Fault{Before: func() {
			switch op.Name {
			case "deleted":
				remove("deleted")
			case "again":
				if created == "" {
					remove("again")
					obj, err := k.apply("two", "v1alpha1", "again", m{"spec": m{"b": "2"}})
					if err != nil {
						t.Error(err)
						return
					}
					created = obj.GetUID()
				}
			case "changed":
				if _, err := k.apply("two", "v1alpha1", "changed", m{"spec": m{"b": "2"}}); err != nil {
					t.Error(err)
				}
			}
		}}
	}, nil)
	if _, err := k.migrator(client).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Get(t.Context(), "deleted", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deleted object: %v", err)
	}
	again := k.read("v1", "again")
	equal(t, "the object that was created again", any(m{"b": "2"}), again.Object["spec"])
	if again.GetUID() != created {
		t.Error("it was created once more")
	}
	equal(t, "storedVersions", []string{"v1"}, k.stored())
	k.store("v1", false)
	k.once()
	k.edit(func(name string, _ m) bool { return name != "v1alpha1" })
	equal(t, "the changed object", any(m{"a": "1", "b": "2"}), k.read("v1", "changed").Object["spec"])
	if _, err := k.client.Resource(k.resource.WithVersion("v1")).Namespace(ns.Name).Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("the object in the namespace in deletion: %v", err)
	}
}

// A person changes the definition in the middle of a pass, at its end, and back: the pass begins
// again.
//
// Proves VM3.
func TestServerEdited(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"object", "status"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			k := install(t)
			for i := range 5 {
				k.mustApply("one", "v1alpha1", fmt.Sprint("x-", i), m{"spec": m{"a": "1"}})
			}
			k.store("v1", true)
			edited := false
			var patched, narrowed []string
			client := k.process(func(op *fault.Op) fault.Fault {
				isNarrow := op.Subresource == "status" && strings.Contains(string(op.Body), "storedVersions")
				switch {
				case op.Resource == k.name && op.IsWrite() && edited:
					patched = append(patched, op.Name)
				}
				if !edited && (op.Name == "x-2" && at == "object" || isNarrow && at == "status") {
					return fault.Fault{Before: func() {
						edited = true
						k.store("v1alpha1", true) // objects can be stored in v1alpha1 now
						k.mustApply("two", "v1", "x-0", m{"spec": m{"b": "1"}})
						k.store("v1", true)
					}}
				}
				return fault.Fault{}
			}, func(op *fault.Op, status int, _ []byte) {
				if status == http.StatusOK && op.Subresource == "status" && strings.Contains(string(op.Body), "storedVersions") {
					narrowed = append(narrowed, strings.Join(patched, " "))
				}
			})
			if _, err := k.migrator(client).Once(t.Context()); err != nil {
				t.Fatal(err)
			}
			if want := "x-0 x-1 x-2 x-3 x-4"; len(narrowed) != 1 || !strings.HasSuffix(narrowed[0], want) {
				t.Errorf("storedVersions was narrowed after the patches %q, want one that ends in %q", narrowed, want)
			}
			equal(t, "storedVersions", []string{"v1"}, k.stored())
		})
	}
}

// Run migrates again after each change of the definition, also if that is created later.
func TestServerRun(t *testing.T) {
	t.Parallel()
	k := install(t)
	k.mustApply("one", "v1alpha1", "x", m{"spec": m{"a": "1"}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	p := &progress{}
	migrator := k.migrator(k.client)
	migrator.Metrics = p
	go func() { done <- migrator.Run(ctx) }()
	await := func(what string, reached func() bool) {
		t.Helper()
		for limit := time.Now().Add(time.Minute); !reached(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatal("not reached: " + what)
			}
		}
	}
	k.store("v1", true)
	await("v1 is stored alone", func() bool { return slices.Equal(k.stored(), []string{"v1"}) && p.last() == "1 0 true" })
	k.store("v1", false)
	await("entries of v1", func() bool {
		return slices.Equal(versions(k.read("v1", "x")), []string{"v1"}) && p.last() == "1 0 true"
	})
	k.store("v1alpha1", true)
	await("v1alpha1 is stored alone", func() bool { return slices.Equal(k.stored(), []string{"v1alpha1"}) && p.last() == "1 0 true" })
	cancel()
	if err := <-done; err != nil || p.last() != "ended" {
		t.Errorf("Run = %v, and the last call of Metrics is %q, want ended", err, p.last())
	}
}

// The documented rights suffice, also if an object is deleted before the apply that would create it.
//
// Proves CK6.
func TestServerRights(t *testing.T) {
	t.Parallel()
	k := install(t, "old")
	for _, name := range []string{"deleted", "x"} {
		k.mustApply("one", "v1alpha1", name, m{"spec": m{"a": "1"}})
	}
	config := testserver.Limited(t, "",
		rbacv1.PolicyRule{APIGroups: []string{definitions().Group}, Resources: []string{definitions().Resource}, Verbs: []string{"get", "list", "watch", "patch"}, ResourceNames: []string{k.name}},
		rbacv1.PolicyRule{APIGroups: []string{definitions().Group}, Resources: []string{definitions().Resource + "/status"}, Verbs: []string{"patch"}, ResourceNames: []string{k.name}},
		rbacv1.PolicyRule{APIGroups: []string{k.resource.Group}, Resources: []string{k.resource.Resource}, Verbs: []string{"get", "list", "patch"}},
	)
	deleted := false
	limited := (&kind{t: t, config: config}).process(func(op *fault.Op) fault.Fault {
		if !op.IsWrite() || op.Name != "deleted" || deleted {
			return fault.Fault{}
		}
		deleted = true
		return fault.Fault{Before: func() {
			if err := k.at("v1").Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}}
	}, nil)
	k.store("v1", true)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.migrator(limited).Run(ctx) }()
	for limit := time.Now().Add(time.Minute); !slices.Equal(k.stored(), []string{"v1"}); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			_, reason, message := k.condition()
			t.Fatal("not migrated: ", reason, message)
		}
	}
	k.store("v1", false)
	for limit := time.Now().Add(time.Minute); !slices.Equal(versions(k.read("v1", "x")), []string{"v1"}); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("managedFields are not changed: the watch is forbidden")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := k.at("v1").Get(t.Context(), "deleted", metav1.GetOptions{}); !deleted || !apierrors.IsNotFound(err) {
		t.Errorf("deleted before the apply: %v; then %v", deleted, err)
	}
}

// Kubernetes' own migrator runs at the same time: it patches the same objects, and narrows
// storedVersions first.
func TestServerBeside(t *testing.T) {
	t.Parallel()
	k := install(t)
	for i := range 3 {
		k.mustApply("one", "v1alpha1", fmt.Sprint("x-", i), m{"spec": m{"a": "1"}})
	}
	k.store("v1", true)
	client := k.process(func(op *fault.Op) fault.Fault {
		switch {
		case op.Resource == k.name && op.IsWrite():
			return fault.Fault{Before: func() {
				if _, err := k.at("v1").Patch(t.Context(), op.Name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
			}}
		case op.Subresource == "status" && strings.Contains(string(op.Body), "storedVersions"):
			return fault.Fault{Before: func() {
				if _, err := k.client.Resource(definitions()).Patch(t.Context(), k.name, types.MergePatchType, []byte(`{"status":{"storedVersions":["v1"]}}`), metav1.PatchOptions{}, "status"); err != nil {
					t.Error(err)
				}
			}}
		}
		return fault.Fault{}
	}, nil)
	if _, err := k.migrator(client).Once(t.Context()); err != nil {
		t.Error(err)
	}
	if status, _, _ := k.condition(); status != "True" {
		t.Errorf("the condition is %s", status)
	}
	equal(t, "storedVersions", []string{"v1"}, k.stored())
}

// A person adds a version to storedVersions during and after a pass that only replaces versions in
// managedFields: the objects are written before it is removed again.
//
// Proves VM3.
func TestServerStoredVersionsEdited(t *testing.T) {
	t.Parallel()
	k := install(t)
	for _, name := range []string{"x", "y"} {
		k.mustApply("one", "v1alpha1", name, m{"spec": m{"a": "1"}})
	}
	k.store("v1", true)
	k.once()
	edit := func() {
		if _, err := k.client.Resource(definitions()).Patch(t.Context(), k.name, types.MergePatchType, []byte(`{"status":{"storedVersions":["v1alpha1","v1"]}}`), metav1.PatchOptions{}, "status"); err != nil {
			t.Error(err)
		}
	}
	written := map[string]int{}
	edited := false
	client := k.process(func(op *fault.Op) fault.Fault {
		if op.Resource == k.name && op.IsWrite() {
			if written[op.Name]++; op.Name == "y" && !edited {
				edited = true
				return fault.Fault{Before: edit}
			}
		}
		return fault.Fault{}
	}, nil)
	k.store("v1", false)
	if _, err := k.migrator(client).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "writes", map[string]int{"x": 2, "y": 2}, written)
	equal(t, "storedVersions", []string{"v1"}, k.stored())
	edit()
	if _, err := k.migrator(client).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "writes after the second edit", map[string]int{"x": 3, "y": 3}, written)
	equal(t, "storedVersions", []string{"v1"}, k.stored())
}
