package migrate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/migrate"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// A release is a definition that an operator installs.
type release struct {
	t      *testing.T
	client dynamic.Interface
	spec   m
	name   schema.GroupResource
}

func newRelease(t *testing.T) *release {
	name := strings.ReplaceAll(testserver.Namespace(t), "-", "")
	r := &release{t: t, client: dynamic.NewForConfigOrDie(testserver.Config(t)), name: schema.GroupResource{Group: "install.example.com", Resource: "k" + name + "s"}}
	r.spec = normal(definition(r.name.Group, r.name.Resource, "K"+name))
	r.versions("v1alpha1")
	t.Cleanup(func() {
		if err := r.client.Resource(definitions()).Delete(context.WithoutCancel(t.Context()), r.name.String(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return r
}

// versions sets the versions of the definition. The last one is stored.
func (r *release) versions(names ...string) {
	spec := r.spec["spec"].(m)
	first := spec["versions"].([]any)[0].(m)
	var versions []any
	for i, name := range names {
		version := normal(first)
		version["name"], version["served"], version["storage"] = name, true, i == len(names)-1
		versions = append(versions, version)
	}
	spec["versions"] = versions
}

func (r *release) install() error {
	r.t.Helper()
	data, err := json.Marshal(r.spec)
	if err != nil {
		r.t.Fatal(err)
	}
	return migrate.Install(r.t.Context(), r.client, "operator.example.com", data)
}

func (r *release) require(version string) error {
	return migrate.Require(r.t.Context(), r.client, r.name.WithVersion(version))
}

func (r *release) get() *unstructured.Unstructured {
	r.t.Helper()
	obj, err := r.client.Resource(definitions()).Get(r.t.Context(), r.name.String(), metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return obj
}

func (r *release) patch(text string) {
	r.t.Helper()
	if _, err := r.client.Resource(definitions()).Patch(r.t.Context(), r.name.String(), types.MergePatchType, []byte(text), metav1.PatchOptions{FieldManager: "person"}); err != nil {
		r.t.Fatal(err)
	}
}

func wants(t *testing.T, err error, notServed bool, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || errors.Is(err, crd.ErrNotServed) != notServed {
		t.Errorf("got  %v\nwant %s, ErrNotServed: %v", err, text, notServed)
	}
}

// An operator installs and upgrades its definition, and a former release does not bring it back.
//
// Proves VM7.
func TestServerInstall(t *testing.T) {
	t.Parallel()
	r := newRelease(t)
	wants(t, r.require("v1"), true, "does not exist: install it")
	for range 2 {
		if err := r.install(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.client.Resource(r.name.WithVersion("v1alpha1")).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if err := r.require("v1alpha1"); err != nil {
		t.Error(err)
	}
	wants(t, r.require("v1"), true, `does not serve the version "v1", but ["v1alpha1"]: install the definition of this release`)

	r.versions("v1alpha1", "v1")
	if err := r.install(); err != nil {
		t.Fatal(err)
	}
	if err := r.require("v1"); err != nil {
		t.Error(err)
	}
	before := r.get()
	r.versions("v1alpha1")
	wants(t, r.install(), false, "the live definition has the version v1, which is newer than v1alpha1: run the release that installed it")
	r.versions("v1alpha1", "v1")
	properties := r.spec["spec"].(m)["versions"].([]any)[1].(m)["schema"].(m)["openAPIV3Schema"].(m)["properties"].(m)["spec"].(m)["properties"].(m)
	delete(properties, "c")
	wants(t, r.install(), false, "the live definition has the field .spec.c in the version v1, which the given one lacks")
	equal(t, "the definition after older ones", before.GetResourceVersion(), r.get().GetResourceVersion())

	// Another manager changes a field, which is a conflict.
	properties["c"] = m{"type": "string"}
	r.patch(`{"spec":{"names":{"shortNames":["other"]}}}`)
	r.spec["spec"].(m)["names"].(m)["shortNames"] = []any{"mine"}
	if err := r.install(); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "person") {
		t.Errorf("a field of another manager: %v", err)
	}

	// The version can be removed after a migration of the stored objects.
	r.spec["spec"].(m)["names"].(m)["shortNames"] = []any{"other"}
	if _, err := (&migrate.Migrator{Client: r.client, Definition: r.name.String(), Settle: 1}).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.versions("v1")
	if err := r.install(); err != nil {
		t.Error(err)
	}
	wants(t, r.require("v1alpha1"), true, `but ["v1"]`)

	// The definition changes between the read and the apply.
	edits := 0
	k, admin := &kind{t: t, config: testserver.Config(t)}, r.client
	r.client = k.process(func(op *fault.Op) fault.Fault {
		if op.Verb != "apply" || edits > 1 {
			return fault.Fault{}
		}
		edits++
		return fault.Fault{Before: func() {
			if _, err := admin.Resource(definitions()).Patch(t.Context(), r.name.String(), types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"edit":"%d"}}}`, edits), metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}}
	}, nil)
	if err := r.install(); err != nil || edits != 2 {
		t.Errorf("%d edits, error %v", edits, err)
	}
	r.client = admin
}

// A definition that Helm or OLM manages is not written.
//
// Proves VM7.
func TestServerForeign(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, metadata, owner string }{
		{"label of Helm", `{"labels":{"app.kubernetes.io/managed-by":"Helm"}}`, "Helm manages it"},
		{"annotation of Helm", `{"annotations":{"meta.helm.sh/release-name":"x"}}`, "Helm manages it"},
		{"label of OLM", `{"labels":{"olm.managed":"true"}}`, "OLM manages it"},
		{"label of an operator", `{"labels":{"operators.coreos.com/x.y":""}}`, "OLM manages it"},
		{"annotation of OLM v1", `{"annotations":{"olm.operatorframework.io/owner":"x"}}`, "OLM manages it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRelease(t)
			if err := r.install(); err != nil {
				t.Fatal(err)
			}
			r.patch(`{"metadata":` + tt.metadata + `}`)
			before := r.get()
			r.spec["spec"].(m)["names"].(m)["shortNames"] = []any{"changed"}
			if err := r.install(); err != nil {
				t.Errorf("with the same versions: %v", err)
			}
			r.versions("v1alpha1", "v1")
			wants(t, r.install(), true, `does not serve the version "v1", but ["v1alpha1"]`)
			wants(t, r.install(), true, tt.owner+": upgrade it there")
			equal(t, "the definition", before.GetResourceVersion(), r.get().GetResourceVersion())
		})
	}
}

// The API server refuses a definition, its names, or the wait ends.
func TestServerInstallFails(t *testing.T) {
	t.Parallel()
	r := newRelease(t)
	if err := r.install(); err != nil {
		t.Fatal(err)
	}
	spec := normal(r.spec)
	spec["metadata"].(m)["name"] = "z" + r.name.String()
	spec["spec"].(m)["names"].(m)["plural"] = "z" + r.name.Resource // with the kind of the other one
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.client.Resource(definitions()).Delete(context.WithoutCancel(t.Context()), "z"+r.name.String(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	wants(t, migrate.Install(t.Context(), r.client, "operator.example.com", data), false, "the API server refuses its names: ")
	// Other names are accepted, although the condition of the former ones is there at first.
	names := spec["spec"].(m)["names"].(m)
	spec["spec"].(m)["names"] = m{"plural": names["plural"], "kind": "Z" + names["kind"].(string)}
	if data, err = json.Marshal(spec); err != nil {
		t.Fatal(err)
	}
	if err := migrate.Install(t.Context(), r.client, "operator.example.com", data); err != nil {
		t.Errorf("after the names were corrected: %v", err)
	}
	r.spec["spec"].(m)["scope"] = "Nowhere"
	if err := r.install(); !apierrors.IsInvalid(err) {
		t.Errorf("an invalid definition: %v", err)
	}
}
