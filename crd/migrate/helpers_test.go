package migrate_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/controllerkit/controllerkit/crd/migrate"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

type m = map[string]any

// definitions is the resource of all definitions.
func definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// A kind is a custom resource of one test, with the versions v1alpha1 and v1, and the version
// gate, which shows when the API server uses a changed definition.
type kind struct {
	t         testing.TB
	config    *rest.Config
	client    dynamic.Interface
	resource  schema.GroupResource
	name      string // of the definition
	kind      string
	namespace string
}

// definition returns the definition of a kind. v1alpha1 is the storage version. The fields of more
// are in the schema of v1alpha1 alone.
func definition(group, plural, kind string, more ...string) m {
	text := m{"type": "string"}
	version := func(name string, fields ...string) m {
		properties := m{
			"a": text, "b": text, "c": text, "labels": m{"type": "object", "additionalProperties": text},
			"items": m{
				"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"name"},
				"items": m{"type": "object", "required": []any{"name"}, "properties": m{"name": text, "value": text}},
			},
		}
		for _, field := range fields {
			properties[field] = text
		}
		return m{"name": name, "served": true, "storage": name == "v1alpha1", "subresources": m{"status": m{}}, "schema": m{"openAPIV3Schema": m{
			"type": "object", "properties": m{
				"spec":   m{"type": "object", "properties": properties},
				"status": m{"type": "object", "properties": m{"n": m{"type": "integer"}}},
			},
		}}}
	}
	return m{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": m{"name": plural + "." + group},
		"spec": m{
			"group": group, "scope": "Namespaced", "names": m{"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "listKind": kind + "List"},
			"versions": []any{version("v1alpha1", more...), version("gate"), version("v1")},
		},
	}
}

// install installs a kind.
func install(t testing.TB, more ...string) *kind {
	t.Helper()
	return installAt(t, testserver.Config(t), testserver.Namespace(t), more...)
}

// installAt installs a kind on the server of the configuration.
func installAt(t testing.TB, config *rest.Config, namespace string, more ...string) *kind {
	t.Helper()
	return installAs(t, config, namespace, func(m) {}, more...)
}

// installAs installs a kind whose definition change has changed.
func installAs(t testing.TB, config *rest.Config, namespace string, change func(definition m), more ...string) *kind {
	t.Helper()
	name := strings.ReplaceAll(namespace, "-", "")
	k := &kind{t: t, config: config, kind: "K" + name, name: "k" + name + "s.migrate.example.com", namespace: namespace}
	k.resource = schema.ParseGroupResource(k.name)
	k.client = dynamic.NewForConfigOrDie(k.config)
	d := definition(k.resource.Group, k.resource.Resource, k.kind, more...)
	change(d)
	testserver.InstallCRDAt(t, config, normal(d))
	return k
}

// normal returns the object with the types that a decoder makes.
func normal(obj m) (out m) {
	data, err := json.Marshal(obj)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic(err)
	}
	return out
}

func (k *kind) at(version string) dynamic.ResourceInterface {
	return k.client.Resource(k.resource.WithVersion(version)).Namespace(k.namespace)
}

// get returns the definition.
func (k *kind) get() *unstructured.Unstructured {
	k.t.Helper()
	d, err := k.client.Resource(definitions()).Get(k.t.Context(), k.name, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return d
}

func (k *kind) stored() []string {
	k.t.Helper()
	stored, _, _ := unstructured.NestedStringSlice(k.get().Object, "status", "storedVersions")
	return stored
}

// condition returns the condition of the migration.
func (k *kind) condition() (status, reason, message string) {
	k.t.Helper()
	conditions, _, _ := unstructured.NestedSlice(k.get().Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(m); c["type"] == "StoredVersionsMigrated" {
			return c["status"].(string), c["reason"].(string), c["message"].(string)
		}
	}
	return "", "", ""
}

// edit changes the versions of the definition, and returns once the API server uses the new spec. A
// version for which change returns false is removed.
func (k *kind) edit(change func(name string, version m) bool) {
	k.t.Helper()
	// The gate shows the new definition: it is not served in one of two.
	served := false
	for {
		d := k.get()
		versions, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
		versions = slices.DeleteFunc(versions, func(v any) bool {
			version := v.(m)
			if version["name"] == "gate" {
				served = !version["served"].(bool)
				version["served"] = served
				return false
			}
			return !change(version["name"].(string), version)
		})
		patch, err := json.Marshal(m{"metadata": m{"resourceVersion": d.GetResourceVersion()}, "spec": m{"versions": versions}})
		if err != nil {
			k.t.Fatal(err)
		}
		if _, err = k.client.Resource(definitions()).Patch(k.t.Context(), k.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "person"}); err == nil {
			break
		} else if !strings.Contains(err.Error(), "has been modified") {
			k.t.Fatal(err)
		}
	}
	await := func(version string, serves bool) {
		for limit := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			_, err := k.at(version).List(k.t.Context(), metav1.ListOptions{Limit: 1})
			if (err == nil) == serves {
				return
			}
			if time.Now().After(limit) {
				k.t.Fatalf("the API server does not use the new definition: %v", err)
			}
		}
	}
	await("gate", served)
	list, _, _ := unstructured.NestedSlice(k.get().Object, "spec", "versions")
	for _, v := range list {
		await(v.(m)["name"].(string), v.(m)["served"].(bool)) // the aggregator can be later than the handler
	}
}

// store makes a version the storage version, and serves both versions or only that one.
func (k *kind) store(version string, both bool) {
	k.t.Helper()
	k.edit(func(name string, v m) bool {
		v["storage"] = name == version
		v["served"] = both || name == version
		return true
	})
}

// migrator returns a migrator that does not wait.
func (k *kind) migrator(client dynamic.Interface) *migrate.Migrator {
	return &migrate.Migrator{Client: client, Definition: k.name, Settle: time.Nanosecond, Rate: 1e6}
}

// once migrates the objects.
func (k *kind) once() migrate.Report {
	k.t.Helper()
	report, err := k.migrator(k.client).Once(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	return report
}

func (k *kind) object(version, name string, fields m) *unstructured.Unstructured {
	obj := m{"apiVersion": k.resource.Group + "/" + version, "kind": k.kind, "metadata": m{"name": name, "namespace": k.namespace}}
	for key, value := range fields {
		obj[key] = value
	}
	return &unstructured.Unstructured{Object: normal(obj)}
}

// apply applies fields in a version as a manager, without force.
func (k *kind) apply(manager, version, name string, fields m, subresources ...string) (*unstructured.Unstructured, error) {
	return k.at(version).Apply(k.t.Context(), name, k.object(version, name, fields), metav1.ApplyOptions{FieldManager: manager}, subresources...)
}

func (k *kind) mustApply(manager, version, name string, fields m) {
	k.t.Helper()
	if _, err := k.apply(manager, version, name, fields); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kind) read(version, name string) *unstructured.Unstructured {
	k.t.Helper()
	obj, err := k.at(version).Get(k.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return obj
}

// owned returns the fields of each manager, operation and subresource, in all versions together.
func owned(t testing.TB, obj *unstructured.Unstructured) map[string][]string {
	t.Helper()
	sets := map[string]*fieldpath.Set{}
	for _, e := range obj.GetManagedFields() {
		set := fieldpath.NewSet()
		if err := set.FromJSON(e.FieldsV1.GetRawReader()); err != nil {
			t.Fatal(err)
		}
		key := strings.TrimSpace(fmt.Sprint(e.Manager, " ", e.Operation, " ", e.Subresource))
		if sets[key] != nil {
			set = set.Union(sets[key])
		}
		sets[key] = set
	}
	all := map[string][]string{}
	for key, set := range sets {
		set.Leaves().Iterate(func(p fieldpath.Path) { all[key] = append(all[key], p.String()) })
		slices.Sort(all[key])
	}
	return all
}

// versions returns the versions in the managedFields of an object.
func versions(obj *unstructured.Unstructured) (names []string) {
	for _, e := range obj.GetManagedFields() {
		_, version, _ := strings.Cut(e.APIVersion, "/")
		if !slices.Contains(names, version) {
			names = append(names, version)
		}
	}
	slices.Sort(names)
	return names
}

// properties returns the schema of spec of a version of a definition.
func properties(definition m, version string) (spec m) {
	for _, v := range definition["spec"].(m)["versions"].([]any) {
		if v := v.(m); v["name"] == version {
			spec = v["schema"].(m)["openAPIV3Schema"].(m)["properties"].(m)["spec"].(m)
		}
	}
	return spec
}

func equal(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// progress records the calls of Metrics.
type progress struct {
	mu    sync.Mutex
	calls []string
}

func (p *progress) MigrationProgress(_ string, objects, failed int, done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprint(objects, failed, done))
}

func (p *progress) MigrationEnded(string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, "ended")
}

func (p *progress) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.calls) == 0 {
		return ""
	}
	return p.calls[len(p.calls)-1]
}
