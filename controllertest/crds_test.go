package controllertest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// definitionOf is the YAML of a CustomResourceDefinition of the group.
func definitionOf(group, kind, more string) string {
	plural := strings.ToLower(kind) + "s"
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[2]s.%[1]s
spec:
  group: %[1]s
  scope: Namespaced
  names:
    plural: %[2]s
    kind: %[3]s
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        %[4]s
`, group, plural, kind, more)
}

// folder writes the files and returns their folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// errSetup ends an exploration after its definitions are installed.
var errSetup = errors.New("the end of Setup")

// withCRDs is a scenario whose Setup calls the function and then fails.
func withCRDs(setup func(ctx context.Context, cfg *rest.Config) error, paths ...string) controllertest.Scenario {
	s := (&copier{}).scenario()
	s.CRDs = paths
	s.Setup = func(ctx context.Context, cfg *rest.Config) error { return errors.Join(setup(ctx, cfg), errSetup) }
	return s
}

func nothing(context.Context, *rest.Config) error { return nil }

// TestCRDs: definitions of files, folders and several documents are served before Setup,
// other documents are skipped, and existing definitions with the same spec are left.
func TestCRDs(t *testing.T) {
	t.Parallel()
	const group = "crds.example.com"
	dir := folder(t, map[string]string{
		"two.yaml":           "# a comment\n---\n" + definitionOf(group, "Apple", "") + "\n---\napiVersion: v1\nkind: ConfigMap\n---" + definitionOf(group, "Pear", ""),
		"kustomization.yaml": "resources: [two.yaml]",
		"README.md":          "# not YAML: {",
		"below/other.yaml":   "not: [valid",
	})
	single := filepath.Join(folder(t, map[string]string{"plum": definitionOf(group, "Plum", "")}), "plum")
	dyn := dynamic.NewForConfigOrDie(testserver.Config(t))
	t.Cleanup(func() { deleteDefinitions(t, dyn, "apples."+group, "pears."+group, "plums."+group) })
	versions := map[string]string{}
	for range 2 {
		_, err := controllertest.Run(t.Context(), withCRDs(func(ctx context.Context, cfg *rest.Config) error {
			for _, plural := range []string{"apples", "pears", "plums"} {
				if _, err := dyn.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}).List(ctx, metav1.ListOptions{}); err != nil {
					return fmt.Errorf("list %s: %w", plural, err)
				}
				live, err := definitions(dyn).Get(ctx, plural+"."+group, metav1.GetOptions{})
				if err != nil {
					return err
				}
				spec := fmt.Sprint(live.GetUID(), live.GetGeneration())
				if versions[plural] != "" && versions[plural] != spec {
					return fmt.Errorf("the definition of %s has changed", plural)
				}
				versions[plural] = spec
			}
			return nil
		}, dir, single), quick(t))
		if !errors.Is(err, errSetup) || strings.Count(err.Error(), "\n") != 0 {
			t.Fatalf("the error is %v, want only that of Setup", err)
		}
	}
	if len(versions) != 3 {
		t.Errorf("Setup saw %d definitions, want 3", len(versions))
	}

	other := folder(t, map[string]string{"apple.yaml": definitionOf(group, "Apple", "x-kubernetes-preserve-unknown-fields: true")})
	_, err := controllertest.Run(t.Context(), withCRDs(nothing, other), quick(t))
	wantError(t, err, filepath.Join(other, "apple.yaml"), "CustomResourceDefinition apples."+group, "another definition exists, whose spec differs: delete the existing one")
	scope := strings.Replace(definitionOf(group, "Apple", ""), "Namespaced", "Cluster", 1)
	_, err = controllertest.Run(t.Context(), withCRDs(nothing, folder(t, map[string]string{"apple.yaml": scope})), quick(t))
	wantError(t, err, "apple.yaml", "another definition exists, and the API server rejects the change", "delete the existing one")
	names := strings.Replace(definitionOf(group, "Fruit", ""), "kind: Fruit", "kind: Apple", 1)
	t.Cleanup(func() { deleteDefinitions(t, dyn, "fruits."+group) })
	_, err = controllertest.Run(t.Context(), withCRDs(nothing, folder(t, map[string]string{"fruit.yaml": names})), quick(t))
	wantError(t, err, "fruit.yaml", "CustomResourceDefinition fruits."+group, "the API server refuses its names")
}

func definitions(dyn dynamic.Interface) dynamic.ResourceInterface {
	return dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
}

func deleteDefinitions(t *testing.T, dyn dynamic.Interface, names ...string) {
	for _, name := range names {
		if err := definitions(dyn).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range append([]string{"controllertest: copier: Scenario.CRDs: "}, parts...) {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %v, want %q in it", err, part)
		}
	}
}

// TestCRDDeleting: a definition that is being deleted is an error, because its kind is
// served only until its objects are gone.
func TestCRDDeleting(t *testing.T) {
	t.Parallel()
	const group = "deleting.example.com"
	dir := folder(t, map[string]string{"apple.yaml": definitionOf(group, "Apple", "")})
	dyn := dynamic.NewForConfigOrDie(testserver.Config(t))
	if _, err := controllertest.Run(t.Context(), withCRDs(nothing, dir), quick(t)); !errors.Is(err, errSetup) {
		t.Fatal(err)
	}
	apples := dyn.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "apples"}).Namespace(testserver.Namespace(t))
	apple := &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/v1", "kind": "Apple", "metadata": map[string]any{"name": "a", "finalizers": []any{group + "/hold"}}}}
	if _, err := apples.Create(t.Context(), apple, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deleteDefinitions(t, dyn, "apples."+group)
	_, err := controllertest.Run(t.Context(), withCRDs(nothing, dir), quick(t))
	wantError(t, err, "apple.yaml", "it exists and is being deleted")
	if _, err := apples.Patch(t.Context(), "a", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestBadCRDs: a file that cannot be used is one error, which names the file, before any
// server is used.
//
// Proves X4.
func TestBadCRDs(t *testing.T) {
	t.Parallel()
	good := definitionOf("bad.example.com", "Apple", "")
	for _, tt := range []struct {
		name  string
		files map[string]string
		path  string // in their folder
		want  []string
	}{
		{name: "no such file", path: "absent.yaml", want: []string{"absent.yaml", "no such file"}},
		{name: "an empty folder", want: []string{"it has no CustomResourceDefinition: name a file, or a folder"}},
		{name: "a folder without definitions", files: map[string]string{"a.yaml": "kind: ConfigMap"}, want: []string{"it has no CustomResourceDefinition"}},
		{name: "an empty file", files: map[string]string{"a.yaml": ""}, path: "a.yaml", want: []string{"a.yaml: it has no CustomResourceDefinition"}},
		{name: "a file without definitions", files: map[string]string{"a.yaml": "kind: ConfigMap"}, path: "a.yaml", want: []string{"a.yaml: it has no CustomResourceDefinition"}},
		{name: "not YAML", files: map[string]string{"a.yaml": good + "\n---\nname: [x"}, want: []string{"a.yaml: document 2: "}},
		{name: "a list", files: map[string]string{"a.yaml": "- a\n- b"}, want: []string{"a.yaml: document 1: "}},
		{name: "an old version", files: map[string]string{"a.yaml": strings.Replace(good, "k8s.io/v1", "k8s.io/v1beta1", 1)}, want: []string{`a.yaml: document 1: apiVersion is "apiextensions.k8s.io/v1beta1": use apiextensions.k8s.io/v1`}},
		{name: "no name", files: map[string]string{"a.yaml": strings.Replace(good, "name: apples.bad", "title: apples.bad", 1)}, want: []string{"a.yaml: document 1: metadata.name is empty"}},
		{name: "no spec", files: map[string]string{"a.yaml": strings.Replace(good, "spec:", "specification:", 1)}, want: []string{"a.yaml: document 1: CustomResourceDefinition apples.bad.example.com has no spec"}},
		{name: "too large", files: map[string]string{"a.yaml": "# " + strings.Repeat("x", 16<<20)}, want: []string{"a.yaml: it has more than 16 MiB: split it"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t, tt.files)
			_, err := controllertest.Run(t.Context(), withCRDs(nothing, filepath.Join(dir, tt.path)), controllertest.Options{Config: &rest.Config{Host: "http://127.0.0.1:1"}})
			wantError(t, err, append(tt.want, dir)...)
		})
	}
	many := map[string]string{}
	for n := range 1001 {
		many[fmt.Sprint(n, ".yaml")] = ""
	}
	_, err := controllertest.Run(t.Context(), withCRDs(nothing, folder(t, many)), quick(t))
	wantError(t, err, "it has 1001 files, and 1000 are allowed")

	// The API server rejects it.
	dir := folder(t, map[string]string{"a.yaml": strings.Replace(good, "storage: true", "storage: false", 1)})
	_, err = controllertest.Run(t.Context(), withCRDs(nothing, dir), quick(t))
	wantError(t, err, filepath.Join(dir, "a.yaml"), "CustomResourceDefinition apples.bad.example.com", "storage version")
}
