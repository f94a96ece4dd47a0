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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/crd/migrate"
)

// A converted kind has objects of two managers. one applies in v1alpha1, and two in v1.
type converted struct {
	*kind
	names []string
	value string // of all fields
}

func newConverted(k *kind, n int) *converted {
	c := &converted{kind: k, value: "1"}
	for i := range n {
		c.names = append(c.names, fmt.Sprint("x-", i))
	}
	c.apply("v1alpha1")
	return c
}

// apply applies the fields of both managers, without force. version is that of one.
func (c *converted) apply(version string) {
	c.t.Helper()
	for _, name := range c.names {
		fields := m{"a": c.value, renamed(version): c.value}
		if version == "v1alpha1" {
			fields["gone"] = c.value
		}
		c.mustApply("one", version, name, m{"spec": fields})
		c.mustApply("two", "v1", name, m{"spec": m{"b": c.value, "fresh": c.value}})
	}
}

// check checks that all objects can be read in the versions, and have the value in each field.
func (c *converted) check(step string, one []string, versions ...string) {
	c.t.Helper()
	for _, version := range versions {
		list, err := c.at(version).List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		if len(list.Items) != len(c.names) {
			c.t.Errorf("%s: %d objects, want %d", step, len(list.Items), len(c.names))
		}
		for _, name := range c.names {
			obj := c.read(version, name)
			what := step + ": " + name + " in " + version
			equal(c.t, what, any(m{"a": c.value, "b": c.value, renamed(version): c.value, only(version): c.value}), obj.Object["spec"])
			equal(c.t, what+": owners", map[string][]string{"one Apply": one, "two Apply": {".spec.b", ".spec.fresh"}}, owned(c.t, obj))
		}
	}
	(&crowd{kind: c.kind, names: c.names}).checkStored(versions[len(versions)-1])
}

// v1 renames a field of v1alpha1, and each version has a field that the other one lacks. A webhook
// converts the objects.
//
// Proves VM1, VM6.
func TestServerWebhook(t *testing.T) {
	t.Parallel()
	k, _ := installConverted(t)
	c := newConverted(k, 5)
	old := []string{".spec.a", ".spec.gone", ".spec.old"}
	c.check("v1alpha1 stored", old, "v1", "v1alpha1")
	change := func(value string, storage string) {
		t.Helper()
		k.store(storage, true)
		k.once()
		equal(t, "storedVersions", []string{storage}, k.stored())
		c.check(storage+" stored", old, map[string]string{"v1": "v1alpha1", "v1alpha1": "v1"}[storage], storage)
		c.value = value
		c.apply("v1alpha1")
		c.check(storage+" stored, and applied", old, map[string]string{"v1": "v1alpha1", "v1alpha1": "v1"}[storage], storage)
	}
	change("2", "v1")
	change("3", "v1alpha1")
	change("4", "v1")

	k.store("v1", false)
	report := k.once()
	equal(t, "the report", migrate.Report{Version: "v1", Objects: 5, Replaced: 5, Writers: map[string][]string{}}, report)
	// The manager of the renamed field does not own the new one yet.
	c.check("v1alpha1 not served", []string{".spec.a"}, "v1")
	equal(t, "versions of managedFields", []string{"v1"}, versions(k.read("v1", "x-0")))

	k.edit(func(name string, _ m) bool { return name != "v1alpha1" })
	c.check("v1alpha1 removed", []string{".spec.a"}, "v1")
	// An apply that omits the new field leaves it, because its manager does not own it.
	k.mustApply("one", "v1", "x-0", m{"spec": m{"a": c.value}})
	if got := k.read("v1", "x-0").Object["spec"].(m)["new"]; got != c.value {
		t.Errorf("spec.new is %v after an apply that omits it", got)
	}
	c.value = "5"
	c.apply("v1")
	c.check("v1 applied", []string{".spec.a", ".spec.new"}, "v1")
	// Now it owns the new field, and removes it.
	k.mustApply("one", "v1", "x-0", m{"spec": m{"a": c.value}})
	if got, ok := k.read("v1", "x-0").Object["spec"].(m)["new"]; ok {
		t.Errorf("spec.new is %v after an apply that removes it", got)
	}
}

// The webhook is down during a pass. The first object after that is stored in v1 already, so that only its
// managedFields need the webhook. It keeps its managers, also on an API server that would remove them at a
// patch. The migration waits, and the condition has the error.
//
// Proves VM1, VM8.
func TestServerWebhookOutage(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		down    func(*webhook)
		want    string // in the message of the condition
		methods []string
	}{
		"503":     {(*webhook).unavailable, "failed: the server is currently unable to handle the request", []string{"Once", "Run", "canceled"}},
		"500":     {func(w *webhook) { w.respondWith(http.StatusInternalServerError) }, "failed: an error on the server", []string{"Once"}},
		"404":     {func(w *webhook) { w.respondWith(http.StatusNotFound) }, "failed: the server could not find the requested resource", []string{"Once"}},
		"refused": {(*webhook).refuse, "connect: connection refused", []string{"Once", "Run", "canceled"}},
	} {
		for _, method := range tt.methods {
			t.Run(name+" "+method, func(t *testing.T) {
				t.Parallel()
				k, w := installConverted(t)
				c := newConverted(k, 6)
				k.store("v1", true)
				if _, err := k.at("v1").Patch(t.Context(), "x-2", types.MergePatchType, []byte(`{"metadata":{"labels":{"stored":"v1"}}}`), metav1.PatchOptions{FieldManager: "person"}); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				attempts := 0 // to write x-2 and x-3
				var up time.Time
				client := k.process(func(op *fault.Op) fault.Fault {
					switch {
					case op.Resource == k.name && op.Verb == "patch":
						t.Errorf("%s is patched: an API server before 1.37 removes its managedFields", op.Name)
						return fault.Fault{}
					case op.Resource != k.name || op.Verb != "apply":
						return fault.Fault{}
					case op.Name == "x-4":
						return fault.Fault{Before: func() {
							if _, reason, _ := k.condition(); reason != "Running" {
								t.Errorf("the reason of the condition is %s after the outage", reason)
							}
						}}
					case op.Name != "x-2" && op.Name != "x-3":
						return fault.Fault{}
					}
					return fault.Fault{Before: func() {
						switch attempts++; attempts {
						case 1:
							tt.down(w)
						case 4:
							status, reason, message := k.condition()
							if status != "False" || reason != "Waiting" || !strings.Contains(message, tt.want) || !strings.Contains(message, "the conversion webhook https://"+w.address+"/convert fails: repair it") {
								t.Errorf("the condition is %s %s %s", status, reason, message)
							}
							equal(t, "storedVersions", []string{"v1alpha1", "v1"}, k.stored())
							if method == "canceled" {
								cancel()
							}
						case 6:
							w.up()
							up = time.Now()
						}
					}}
				}, nil)
				migrator := k.migrator(client)
				switch method {
				case "Once":
					if _, err := migrator.Once(ctx); err != nil {
						t.Fatal(err)
					}
				case "Run":
					done := make(chan error, 1)
					ended := &ending{ended: make(chan struct{}, 1)}
					migrator.Metrics = ended
					go func() { done <- migrator.Run(ctx) }()
					<-ended.ended
					cancel()
					if err := <-done; err != nil {
						t.Fatal(err)
					}
				case "canceled":
					_, err := migrator.Once(ctx)
					if want := "the conversion webhook https://" + w.address + "/convert fails: repair it, or spec.conversion of the definition: "; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "migrate: "+k.namespace+"/x-") {
						t.Errorf("got  %v\nwant %s", err, want)
					}
					if _, reason, _ := k.condition(); reason != "Waiting" {
						t.Errorf("the reason of the condition is %s", reason)
					}
					w.up()
					k.once()
				}
				if attempts < 4 {
					t.Errorf("%d attempts: no write waited for the webhook", attempts)
				}
				if took := time.Since(up); !up.IsZero() && took > time.Minute {
					t.Errorf("the migration ended %v after the outage", took)
				}
				equal(t, "storedVersions", []string{"v1"}, k.stored())
				if status, reason, _ := k.condition(); status != "True" || reason != "Migrated" {
					t.Errorf("the condition is %s %s", status, reason)
				}
				if got := owned(t, k.read("v1", "x-2"))["person Update"]; len(got) != 1 {
					t.Errorf("x-2: the person owns %q", got)
				}
				if _, err := k.at("v1").Patch(t.Context(), "x-2", types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{FieldManager: "person"}); err != nil {
					t.Fatal(err)
				}
				c.check("after the outage", []string{".spec.a", ".spec.gone", ".spec.old"}, "v1alpha1", "v1")
				c.value = "2"
				c.apply("v1alpha1")
			})
		}
	}
}

// ending reports the end of a migration.
type ending struct{ ended chan struct{} }

func (e *ending) MigrationProgress(_ string, _, _ int, done bool) {
	if done {
		e.ended <- struct{}{}
	}
}

func (e *ending) MigrationEnded(string) {}

// The webhook is down when the pass begins, so that the API server cannot list the objects.
//
// Proves VM8.
func TestServerWebhookOutageAtList(t *testing.T) {
	t.Parallel()
	k, w := installConverted(t)
	c := newConverted(k, 3)
	k.store("v1", true)
	w.refuse()
	// Each change of the definition makes the API server list the stored objects again.
	if _, err := k.client.Resource(definitions()).Patch(t.Context(), k.name, types.MergePatchType, []byte(`{"spec":{"names":{"shortNames":["`+k.namespace+`"]}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	lists, waiting := 0, &progress{}
	client := k.process(func(op *fault.Op) fault.Fault {
		if op.Resource == k.name && op.Verb == "list" {
			if lists++; lists == 4 {
				return fault.Fault{Before: func() {
					if _, reason, message := k.condition(); reason != "Waiting" || !strings.Contains(message, "the conversion webhook https://"+w.address+"/convert fails: repair it") {
						t.Errorf("the condition is %s %s", reason, message)
					}
					equal(t, "progress while the list waits", "0 0 false", waiting.last())
					equal(t, "storedVersions", []string{"v1alpha1", "v1"}, k.stored())
					w.up()
				}}
			}
		}
		return fault.Fault{}
	}, nil)
	migrator := k.migrator(client)
	migrator.Metrics = waiting
	if _, err := migrator.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lists < 4 {
		t.Errorf("%d lists: the API server did not need the webhook", lists)
	}
	equal(t, "storedVersions", []string{"v1"}, k.stored())
	c.check("after the outage", []string{".spec.a", ".spec.gone", ".spec.old"}, "v1alpha1", "v1")
}

// The webhook cannot convert some objects. The others are migrated, also if the API server cannot fill
// its cache because of those objects, which is so after a change of the storage version.
//
// Proves VM5.
func TestServerWebhookRejects(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rejected []string
		filled   bool // the cache of the API server was, before the webhook rejects them
	}{
		"one, in the cache":      {[]string{"x-1"}, true},
		"one of the first page":  {[]string{"x-1"}, false},
		"one of the last page":   {[]string{"x-9"}, false},
		"one of each page":       {[]string{"x-1", "x-4", "x-9"}, false},
		"all of the second page": {[]string{"x-2", "x-3", "x-4", "x-5"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, w := installConverted(t)
			c := newConverted(k, 12) // x-0, x-1, x-10, x-11, x-2 and so on
			if tt.filled {
				k.store("v1", true)
				if _, err := k.at("v1").List(t.Context(), metav1.ListOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			w.set(func(desired string, objects []any) (int, []any, string) {
				var all []any
				for _, object := range objects {
					if slices.Contains(tt.rejected, object.(m)["metadata"].(m)["name"].(string)) {
						return http.StatusOK, nil, "spec.old is not a color"
					}
					all = append(all, convert(desired, object))
				}
				return http.StatusOK, all, ""
			})
			if !tt.filled {
				k.store("v1", true)
			}
			migrator := k.migrator(k.client)
			migrator.SetPage(4)
			_, err := migrator.Once(t.Context())
			var blocked *migrate.BlockedError
			if !errors.As(err, &blocked) || blocked.Objects != len(tt.rejected) {
				t.Fatalf("got  %v\nwant a BlockedError of %q", err, tt.rejected)
			}
			_, reason, message := k.condition()
			for _, name := range tt.rejected {
				want := k.namespace + "/" + name + ": the conversion webhook https://" + w.address + "/convert cannot convert the object: correct the webhook or the object: "
				if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "spec.old is not a color") {
					t.Errorf("got  %v\nwant %s", err, want)
				}
				if reason != "Blocked" || !strings.Contains(message, want) {
					t.Errorf("the condition is %s %s", reason, message)
				}
			}
			equal(t, "storedVersions", []string{"v1alpha1", "v1"}, k.stored())
			w.up()
			(&crowd{kind: k, names: slices.DeleteFunc(slices.Clone(c.names), func(name string) bool { return slices.Contains(tt.rejected, name) })}).checkStored("v1")
			k.once()
			equal(t, "storedVersions after the repair", []string{"v1"}, k.stored())
			c.check("after the repair", []string{".spec.a", ".spec.gone", ".spec.old"}, "v1alpha1", "v1")
		})
	}
}

// The caveat of the package: a webhook that drops a field loses its value when the object is
// written, and no migrator can know.
func TestServerWebhookDrops(t *testing.T) {
	t.Parallel()
	k, w := installConverted(t)
	c := newConverted(k, 1)
	w.set(func(desired string, objects []any) (int, []any, string) {
		var all []any
		for _, object := range objects {
			obj := convert(desired, object).(m)
			if annotations, ok := obj["metadata"].(m)["annotations"].(map[string]any); ok {
				delete(annotations, "migrate.example.com/gone")
			}
			all = append(all, obj)
		}
		return http.StatusOK, all, ""
	})
	k.store("v1", true)
	equal(t, "the field before the pass", any(c.value), k.read("v1alpha1", "x-0").Object["spec"].(m)["gone"])
	k.once()
	w.up()
	if value, ok := k.read("v1alpha1", "x-0").Object["spec"].(m)["gone"]; ok {
		t.Errorf("the field is %v: the caveat is not true", value)
	}
}
