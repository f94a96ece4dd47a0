package finalizer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// collectors are the finalizers of the API server and the garbage collector.
var collectors = []string{metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}

// dryRun makes a dry run of each patch and counts them.
type dryRun struct {
	dynamic.ResourceInterface
	patches int
}

func (d *dryRun) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error) {
	d.patches++
	opts.DryRun = []string{metav1.DryRunAll}
	return d.ResourceInterface.Patch(ctx, name, pt, data, opts, subresources...)
}

// kinds are three ways in which API servers check finalizers: a custom resource, a kind of
// the core group, and a built-in kind of another group.
func kinds(t *testing.T, group string) map[string]dynamic.ResourceInterface {
	t.Helper()
	config := testserver.Config(t)
	config.WarningHandler = rest.NoWarnings{}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := testserver.Namespace(t)
	return map[string]dynamic.ResourceInterface{
		"Widget":    dyn.Resource(widgetDefinition(t, group)).Namespace(namespace),
		"ConfigMap": dyn.Resource(configMapResource).Namespace(namespace),
		"Lease":     dyn.Resource(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}).Namespace(namespace),
	}
}

func newObject(group, kind, name string, finalizers ...string) *unstructured.Unstructured {
	version := map[string]string{"Widget": group + "/v1", "ConfigMap": "v1", "Lease": "coordination.k8s.io/v1"}[kind]
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind}}
	u.SetName(name)
	u.SetFinalizers(finalizers)
	return u
}

// Add accepts each name that the API server accepts in an object of the kind, and Ensure
// and Remove work with it. The names of the garbage collector are an exception of Ensure
// and Add, which TestServerCollectors explains.
func TestServerNames(t *testing.T) {
	const group = "names.test.controllerkit.dev"
	names := testnames.All(t)
	for kind, client := range kinds(t, group) {
		t.Run(kind, func(t *testing.T) {
			created, err := client.Create(t.Context(), newObject(group, kind, "one"), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			d := &dryRun{ResourceInterface: client}
			ours := func(name string) bool { return slices.Contains(collectors, name) }
			testnames.Compare(t, names, func(name string) error {
				_, err := client.Create(t.Context(), newObject(group, kind, "two", "example.com/other", name), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				data, jsonErr := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": []string{"example.com/other", name}}})
				if jsonErr != nil {
					t.Fatal(jsonErr)
				}
				carrier, updateErr := d.Patch(t.Context(), "one", types.MergePatchType, data, metav1.PatchOptions{})
				if (err == nil) != (updateErr == nil) {
					t.Errorf("%.80q: creation: %v, update: %v", name, err, updateErr)
				}
				if updateErr != nil {
					return err
				}
				if !ours(name) {
					deleting := carrier.DeepCopy()
					deleting.SetDeletionTimestamp(new(metav1.Now()))
					if _, _, err := finalizer.Ensure(t.Context(), d, deleting, name, func(context.Context, finalizer.Held[*unstructured.Unstructured]) error { return errBoom }); !errors.Is(err, errBoom) {
						t.Errorf("%.80q: Ensure of a deleted object that carries it: %v, want the cleanup's error", name, err)
					}
				}
				if removed, err := finalizer.Remove(t.Context(), &stores{carrier}, carrier, name); err != nil || finalizer.Has(removed, name) || !finalizer.Has(removed, "example.com/other") {
					t.Errorf("%.80q: Remove: %v", name, err)
				}
				return nil
			}, func(name string) error {
				d.patches = 0
				h, err := finalizer.Add(t.Context(), d, created, name)
				switch {
				case err == nil && !finalizer.Has(h.Object(), name):
					t.Errorf("%.80q: Add returned an object without it", name)
				case err != nil && d.patches > 0 && !apierrors.IsInvalid(err):
					t.Errorf("%.80q: Add: %v, want Invalid", name, err)
				}
				return err
			}, ours)
		})
	}
}

// stores applies the JSON patch of Remove to an object that only a dry run made.
type stores struct{ carrier *unstructured.Unstructured }

func (s *stores) Patch(_ context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*unstructured.Unstructured, error) {
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		return nil, err
	}
	before, err := s.carrier.MarshalJSON()
	if err != nil {
		return nil, err
	}
	after, err := patch.Apply(before)
	if err != nil {
		return nil, err
	}
	u := new(unstructured.Unstructured)
	return u, u.UnmarshalJSON(after)
}

// Names without a slash, as programs use them, have the whole life of a finalizer on a
// custom resource.
//
// Proves F1, F5.
func TestServerNameWithoutSlash(t *testing.T) {
	const group = "slash.test.controllerkit.dev"
	client := kinds(t, group)["Widget"]
	for i, name := range []string{"cluster.cluster.x-k8s.io", "finalizers.fluxcd.io", "deletion.finalizers.queues.rabbitmq.com", "resources-finalizer.argocd.argoproj.io", "widgets"} {
		obj, err := client.Create(t.Context(), newObject(group, "Widget", fmt.Sprintf("w%d", i)), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cleanups := 0
		ensure := func(obj *unstructured.Unstructured) (*unstructured.Unstructured, bool, error) {
			h, live, err := finalizer.Ensure(t.Context(), client, obj, name, func(context.Context, finalizer.Held[*unstructured.Unstructured]) error {
				cleanups++
				return nil
			})
			return h.Object(), live, err
		}
		obj, live, err := ensure(obj)
		if err != nil || !live || !finalizer.Has(obj, name) {
			t.Fatalf("%s: add: live %t, error %v", name, live, err)
		}
		if err := client.Delete(t.Context(), obj.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		obj, err = client.Get(t.Context(), obj.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s: the finalizer did not keep the object: %v", name, err)
		}
		if _, live, err = ensure(obj); err != nil || live || cleanups != 1 {
			t.Errorf("%s: cleanup: live %t, error %v, %d cleanups", name, live, err, cleanups)
		}
		if _, err := client.Get(t.Context(), obj.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: after the cleanup: %v, want NotFound", name, err)
		}
	}
}

// Ensure and Add refuse the names of the garbage collector, because the API server removes
// them before any cleanup: a deletion with a propagation policy deletes the object at once.
// Remove accepts them.
//
// Proves F5.
func TestServerCollectors(t *testing.T) {
	s := newServer(t)
	for i, name := range collectors {
		obj := s.create(t, fmt.Sprintf("c%d", i), name)
		requests := s.requests.Load()
		_, added := finalizer.Add(t.Context(), s, obj, name)
		_, _, ensured := finalizer.Ensure(t.Context(), s, obj, name, func(context.Context, held) error { return nil })
		for _, err := range []error{added, ensured} {
			if err == nil || !strings.Contains(err.Error(), name+": the API server and the garbage collector") {
				t.Errorf("%s: error %v", name, err)
			}
		}
		if n := s.requests.Load() - requests; n > 0 {
			t.Errorf("%s: %d requests", name, n)
		}
		// Without this the refusal had no reason.
		if err := s.Delete(t.Context(), obj.Name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), obj.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: the object after its deletion: %v, want NotFound", name, err)
		}
		obj = s.create(t, fmt.Sprintf("r%d", i), name)
		if removed, err := finalizer.Remove(t.Context(), s, obj, name); err != nil || finalizer.Has(removed, name) {
			t.Errorf("%s: Remove: %v", name, err)
		}
	}
}

// warnings counts the warnings of responses.
type warnings struct{ names atomic.Int64 }

func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, code int, _ string, text string) {
	if code == 299 && strings.Contains(text, "domain-qualified finalizer name") {
		w.names.Add(1)
	}
}

// The API server warns of a name without a slash when it is added to a custom resource,
// and not when an object carries it. Therefore the package logs no line of its own.
func TestServerNameWarning(t *testing.T) {
	const group = "warning.test.controllerkit.dev"
	config := testserver.Config(t)
	got := new(warnings)
	config.WarningHandlerWithContext = got
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	client := dyn.Resource(widgetDefinition(t, group)).Namespace(testserver.Namespace(t))
	for _, tt := range []struct {
		name string
		want int64
	}{{"example.com/bucket", 0}, {"finalizers.example.com", 1}, {"bucket", 1}} {
		got.names.Store(0)
		obj, err := client.Create(t.Context(), newObject(group, "Widget", "warned"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			h, err := finalizer.Add(t.Context(), client, obj, tt.name)
			if err != nil {
				t.Fatal(err)
			}
			obj = h.Object()
		}
		if _, err := finalizer.Remove(t.Context(), client, obj, tt.name); err != nil {
			t.Fatal(err)
		}
		if n := got.names.Load(); n != tt.want {
			t.Errorf("%s: %d warnings, want %d", tt.name, n, tt.want)
		}
		if err := client.Delete(t.Context(), "warned", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
