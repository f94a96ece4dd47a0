package preview_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/preview/internal/diff"
	"github.com/controllerkit/controllerkit/reconcile"
)

var upgrades = flag.Int("upgrades", 5, "`number` of random upgrades")

// A Site has a Deployment and ConfigMaps.
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SiteSpec   `json:"spec"`
	Status            SiteStatus `json:"status,omitzero"`
}

type SiteSpec struct {
	Pages int `json:"pages"`
}

type SiteStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	URL                string             `json:"url,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

func (s *Site) DeepCopy() *Site {
	c := *s
	s.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Status.Conditions = slices.Clone(s.Status.Conditions)
	return &c
}

func (s *Site) DeepCopyObject() runtime.Object { return s.DeepCopy() }

var sites = schema.GroupVersionResource{Group: "upgrade.example.com", Version: "v1", Resource: "sites"}

// A version is an operator of sites.
type version struct {
	Image, URL, Label, Rename string
	Pages                     int // more than the spec has
	Finalizer, Fails          bool
}

// random returns a version that differs from v in some points.
func (v version) random(r *rand.Rand) version {
	pick := func(field *string, values ...string) {
		if r.IntN(3) == 0 {
			*field = values[r.IntN(len(values))]
		}
	}
	pick(&v.Image, "nginx:1", "nginx:2", "nginx:3")
	pick(&v.URL, "http://", "https://")
	pick(&v.Label, "", "blue", "green")
	pick(&v.Rename, "", "-page")
	if r.IntN(3) == 0 {
		v.Pages = r.IntN(3)
	}
	v.Finalizer = v.Finalizer || r.IntN(3) == 0
	v.Fails = r.IntN(5) == 0
	return v
}

// run lets the version run each key once.
func (v version) run(t *testing.T, ns string, p *preview.Preview) {
	t.Helper()
	logs := testlog.New()
	once := &preview.Preview{} // of the queue alone
	op, err := operator.New(testserver.Config(t), operator.Options{Name: "upgrade", Namespace: ns, Preview: p})
	if err != nil {
		t.Fatal(err)
	}
	op.Events = nil // the preview has none
	var c *operator.Controller
	r := operator.Reconciler[*Site]{Prune: true, Reconcile: func(ctx context.Context, s *Site) (reconcile.Result, error) {
		s.Status.URL = v.URL + s.Name
		labels := map[string]string{"site": s.Name}
		if v.Label != "" {
			labels["color"] = v.Label
		}
		children := []any{applyappsv1.Deployment(s.Name, ns).WithLabels(labels).WithSpec(applyappsv1.DeploymentSpec().
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(map[string]string{"site": s.Name})).
			WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).WithSpec(applycorev1.PodSpec().
				WithContainers(applycorev1.Container().WithName("web").WithImage(v.Image)))))}
		for n := range s.Spec.Pages + v.Pages {
			children = append(children, applycorev1.ConfigMap(fmt.Sprint(s.Name, v.Rename, "-", n), ns).WithLabels(labels))
		}
		if _, err := c.Apply(ctx, children...); err != nil {
			return reconcile.Result{}, err
		}
		if v.Fails && s.Name == "site-0" {
			return reconcile.Result{}, errors.New("the service is away")
		}
		return reconcile.Result{}, nil
	}}
	if v.Finalizer {
		r.Finalizer = "upgrade.example.com/site"
		r.Cleanup = func(context.Context, *Site) error { return nil }
	}
	c = operator.Kind(op, sites, r)
	operator.Children(c, appsv1.SchemeGroupVersion.WithResource("deployments"), applyappsv1.ExtractDeployment)
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	ctx, cancel := context.WithTimeout(logs.Context(t.Context()), time.Minute)
	defer cancel()
	if p == nil {
		c.Loop.Queue = preview.NewQueue[types.NamespacedName](once)
		err = once.Run(ctx, op.Run)
	} else {
		err = op.Run(ctx)
	}
	if err != nil {
		t.Fatal(err, logs.All())
	}
}

// TestServerUpgrades compares the preview of random upgrades with the first calls of the new version: they write what the
// preview showed, and the preview writes nothing. Proves PV1, PV2 and PV3.
func TestServerUpgrades(t *testing.T) {
	t.Parallel()
	text := map[string]any{"type": "string"}
	testserver.InstallCRD(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "sites." + sites.Group},
		"spec": map[string]any{
			"group": sites.Group, "scope": "Namespaced", "names": map[string]any{"plural": "sites", "kind": "Site"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"spec": map[string]any{"type": "object", "properties": map[string]any{"pages": map[string]any{"type": "integer"}}},
					"status": map[string]any{"type": "object", "properties": map[string]any{
						"observedGeneration": map[string]any{"type": "integer"}, "url": text,
						"conditions": map[string]any{
							"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
							"items": map[string]any{"type": "object", "required": []any{"type"}, "properties": map[string]any{"type": text}, "x-kubernetes-preserve-unknown-fields": true},
						},
					}},
				}}},
			}},
		},
	})
	total := 0
	for seed := range uint64(*upgrades) {
		if total += upgrade(t, seed); t.Failed() {
			return
		}
	}
	if t.Logf("%d upgrades would change %d objects", *upgrades, total); total < *upgrades {
		t.Error("the upgrades change too little to prove something")
	}
}

// upgrade returns the number of objects that an upgrade would change.
func upgrade(t *testing.T, seed uint64) int {
	t.Helper()
	w := newWorld(t)
	r := rand.New(rand.NewPCG(seed, 0))
	client, err := crd.New[*Site](testserver.Config(t), sites.GroupVersion().WithKind("Site"), sites.Resource)
	if err != nil {
		t.Fatal(err)
	}
	old := version{Image: "nginx:1", URL: "http://"}.random(r)
	now := old.random(r)
	t.Logf("seed %d: from %+v to %+v", seed, old, now)
	all := client.Namespace(w.ns)
	for n := range 5 {
		must(all.Create(t.Context(), &Site{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("site-", n)}, Spec: SiteSpec{Pages: r.IntN(3)}}, metav1.CreateOptions{}))
	}
	t.Cleanup(func() { // a namespace with a finalizer would never end
		for n := range 6 {
			_, _ = all.Patch(context.WithoutCancel(t.Context()), fmt.Sprint("site-", n), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
	})
	old.run(t, w.ns, nil)
	old.run(t, w.ns, nil) // the status follows from the children
	if r.IntN(2) == 0 {   // the user is busy, too
		must(all.Patch(t.Context(), "site-1", types.MergePatchType, []byte(`{"spec":{"pages":1}}`), metav1.PatchOptions{}))
		must(all.Create(t.Context(), &Site{ObjectMeta: metav1.ObjectMeta{Name: "site-5"}, Spec: SiteSpec{Pages: 1}}, metav1.CreateOptions{}))
		must(0, all.Delete(t.Context(), "site-2", metav1.DeleteOptions{}))
	}

	before := w.stored(t)
	p := &preview.Preview{}
	now.run(t, w.ns, p)
	if diff := cmp.Diff(living(before), living(w.stored(t))); diff != "" {
		t.Errorf("the preview has changed objects: (-before +after)\n%s", diff)
	}
	var predicted []string
	report := p.Report()
	for _, call := range report.Calls {
		for _, c := range call.Changes {
			object, _, _ := strings.Cut(c.Resource, ".")
			object += "/" + c.Name
			if c.Action != preview.Modify {
				predicted = append(predicted, fmt.Sprint(object, " ", c.Action))
			}
			for _, f := range c.Fields {
				if !strings.HasSuffix(f.Path, ".lastTransitionTime") {
					predicted = append(predicted, fmt.Sprint(object, " ", f.Path, " ", untimed(f.Old), " ", untimed(f.New)))
				}
			}
		}
		for _, text := range call.Skipped {
			name := strings.TrimPrefix(call.Key, w.ns+"/")
			if text != "run the cleanup of the finalizer upgrade.example.com/site, and remove it" {
				t.Errorf("%s skipped %q", call.Key, text)
			}
			predicted = append(predicted, "sites/"+name+" delete") // what the cleanup ends with
		}
		if failed := call.Error != ""; failed != (now.Fails && call.Key == w.ns+"/site-0") {
			t.Errorf("%s: the call has the error %q", call.Key, call.Error)
		}
	}

	now.run(t, w.ns, nil)
	after := w.stored(t)
	var changed []string
	for name := range maps.Keys(after) {
		if _, both := before[name]; !both {
			changed = append(changed, name+" create")
		}
	}
	for name, text := range before {
		if _, left := after[name]; !left {
			if _, lives := after["sites/site-2"]; lives || !strings.Contains(name, "s/site-2") || name == "sites/site-2" { // otherwise of the garbage collector
				changed = append(changed, name+" delete")
			}
			continue
		}
		if text == after[name] {
			continue
		}
		fields, omitted := diff.Fields(decoded(t, text), decoded(t, after[name]), false)
		if omitted > 0 {
			t.Errorf("%s: %d fields omitted", name, omitted)
		}
		for _, f := range fields {
			if !strings.HasSuffix(f.Path, ".lastTransitionTime") {
				changed = append(changed, fmt.Sprint(name, " ", f.Path, " ", untimed(f.Old), " ", untimed(f.New)))
			}
		}
	}
	slices.Sort(predicted)
	slices.Sort(changed)
	if diff := cmp.Diff(predicted, changed); diff != "" {
		t.Errorf("seed %d, from %+v to %+v: (-predicted +changed)\n%s", seed, old, now, diff)
	}
	return len(predicted)
}

// living leaves out the children of site-2 if the user has deleted it, because the garbage collector deletes them.
func living(objects map[string]string) map[string]string {
	if _, lives := objects["sites/site-2"]; lives {
		return objects
	}
	objects = maps.Clone(objects)
	maps.DeleteFunc(objects, func(name, _ string) bool { return strings.Contains(name, "s/site-2") })
	return objects
}

func decoded(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	if err := d.Decode(&object); err != nil {
		t.Fatal(err)
	}
	return object
}

// untimed returns a value without the times of conditions that are new.
func untimed(value string) string {
	var conditions any
	if !strings.Contains(value, "lastTransitionTime") || json.Unmarshal([]byte(value), &conditions) != nil {
		return value
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			delete(v, "lastTransitionTime")
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(conditions)
	return string(must(json.Marshal(conditions)))
}
