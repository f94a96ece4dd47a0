package managerkit_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

// methods returns the methods and subresources of requests.
func methods(requests []sentRequest) []string {
	var out []string
	for _, r := range requests {
		sub := ""
		if len(r.Path) > 7 && r.Path[len(r.Path)-7:] == "/status" {
			sub = " status"
		}
		out = append(out, r.Method+sub)
	}
	return out
}

// TestServerClientStatus checks the requests of package status, and that no write of it
// changes the spec.
func TestServerClientStatus(t *testing.T) {
	installClientSites(t)
	ctx, namespace := t.Context(), testserver.Namespace(t)
	config, requests := recorder(testserver.Config(t))
	sites := liveSites(t, config, namespace)
	others := liveSites(t, testserver.Config(t), namespace)
	site := createSite(t, sites, "a")
	requests()
	address := func(address string) func(*clientSite) {
		return func(s *clientSite) { s.Status.Address = address }
	}
	ready := func(message string) func(*clientSite) error {
		return func(s *clientSite) error {
			return status.Set(&s.Status.Conditions, s.Generation, status.True("Ready", "Made", message))
		}
	}
	apply := &unstructured.Unstructured{Object: jsonObject{
		"apiVersion": "client.example.com/v1", "kind": "ClientSite", "metadata": jsonObject{"namespace": namespace, "name": "a"},
	}}
	for _, step := range []struct {
		name  string
		write func(*clientSite) (*clientSite, error)
		want  []string
	}{
		{"update", func(s *clientSite) (*clientSite, error) { return status.Update(ctx, sites, s, ready("1")) }, []string{"PUT status"}},
		{"update again", func(s *clientSite) (*clientSite, error) { return status.Update(ctx, sites, s, ready("1")) }, nil},
		{"patch", func(s *clientSite) (*clientSite, error) { return status.Patch(ctx, sites, s, address("10.0.0.1")) }, []string{"PATCH status"}},
		{"patch again", func(s *clientSite) (*clientSite, error) { return status.Patch(ctx, sites, s, address("10.0.0.1")) }, nil},
		{"apply", func(s *clientSite) (*clientSite, error) {
			return status.Apply(ctx, "applier", sites, s, any(apply), status.True("Served", "Made", "m"))
		}, []string{"PATCH status"}},
		{"apply again", func(s *clientSite) (*clientSite, error) {
			return status.Apply(ctx, "applier", sites, s, any(apply), status.True("Served", "Made", "m"))
		}, nil},
		{"update back", func(s *clientSite) (*clientSite, error) { return status.Update(ctx, sites, s, address("")) }, []string{"PUT status"}},
	} {
		before := site.DeepCopy()
		next, err := step.write(site)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := methods(requests()); !slices.Equal(got, step.want) {
			t.Errorf("%s: requests %q, want %q", step.name, got, step.want)
		}
		if step.want == nil && next != site {
			t.Errorf("%s: got another object without a request", step.name)
		}
		if !jsonEqual(t, before, site) {
			t.Errorf("%s changed the object it got", step.name)
		}
		live, err := others.Get(ctx, "a", metav1.GetOptions{})
		if err != nil || !jsonEqual(t, live, next) {
			t.Errorf("%s: got %+v, %v; the API server has %+v", step.name, next, err, live)
		}
		site = next
	}
	if len(site.Status.Conditions) != 2 || site.Spec.Host != "first" {
		t.Errorf("at the end: %+v", site)
	}

	// A stale copy cannot bring the old spec back.
	if _, err := others.Patch(ctx, "a", types.MergePatchType, hostPatch("second"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := status.Update(ctx, sites, site, address("10.0.0.9")); !apierrors.IsConflict(err) {
		t.Errorf("status.Update of a stale copy: %v, want a conflict", err)
	}
	if _, err := status.Apply(ctx, "applier", sites, site, any(apply), status.False("Served", "Lost", "m")); !apierrors.IsConflict(err) {
		t.Errorf("status.Apply of a stale copy: %v, want a conflict", err)
	}
	if _, err := status.Patch(ctx, sites, site, address("10.0.0.9")); err != nil && !apierrors.IsConflict(err) {
		t.Errorf("status.Patch of a stale copy: %v", err)
	}
	if live, err := others.Get(ctx, "a", metav1.GetOptions{}); err != nil || live.Spec.Host != "second" {
		t.Errorf("the change of the spec is lost: %+v, %v", live, err)
	}
}

func jsonEqual(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(ordered(t, x)) == string(ordered(t, y))
}

// applies checks package ssa with a client of T and two configurations, which differ in a
// field that the first owner keeps.
func applies[T client.Object](t *testing.T, c *managerkit.Client[T], requests func() []sentRequest, config, other any) {
	t.Helper()
	ctx := t.Context()
	requests()
	expect := func(what string, want ...string) {
		t.Helper()
		if got := methods(requests()); !slices.Equal(got, want) {
			t.Errorf("%s: requests %q, want %q", what, got, want)
		}
	}
	live, err := ssa.Apply(ctx, "one", c.Apply, config)
	if err != nil {
		t.Fatal(err)
	}
	expect("Apply", http.MethodPatch)
	next, applied, err := ssa.ApplyChanged(ctx, "one", c.Apply, config, live, nil)
	if err != nil || applied || any(next) != any(live) {
		t.Errorf("ApplyChanged of a steady object: applied %t, %v", applied, err)
	}
	if _, err := ssa.TryApply(ctx, "one", c.Apply, config, live); err != nil {
		t.Errorf("TryApply of a steady object: %v", err)
	}
	requests()
	_, err = ssa.TryApply(ctx, "two", c.Apply, other, live)
	conflict, ok := errors.AsType[*ssa.ConflictError](err)
	if !ok || len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Manager != "one" || !apierrors.IsConflict(err) {
		t.Errorf("TryApply of another manager: %v, want a ConflictError with manager one", err)
	}
	requests()
	for range 3 {
		if _, _, err := ssa.ApplyChanged(ctx, "one", c.Apply, config, live, nil); err != nil {
			t.Error(err)
		}
	}
	expect("ApplyChanged, three times")
	live, applied, err = ssa.ApplyChanged(ctx, "one", c.Apply, other, live, nil)
	if err != nil || !applied {
		t.Errorf("ApplyChanged of a change: applied %t, %v", applied, err)
	}
	expect("ApplyChanged of a change", http.MethodPatch)
	if got, err := c.Get(ctx, live.GetName(), metav1.GetOptions{}); err != nil || got.GetResourceVersion() != live.GetResourceVersion() {
		t.Errorf("the response of ApplyChanged: %v, the API server has %v, %v", live, got, err)
	}
}

// TestServerClientApplies runs package ssa with typed and unstructured configurations, of
// built-in and custom resources.
func TestServerClientApplies(t *testing.T) {
	installClientSites(t)
	namespace := testserver.Namespace(t)
	config, requests := recorder(testserver.Config(t))
	c := newUncached(t, config)
	plain := func(apiVersion, kind string, fields jsonObject) any {
		o := jsonObject{"apiVersion": apiVersion, "kind": kind, "metadata": jsonObject{"namespace": namespace, "name": "plain"}}
		for name, value := range fields {
			o[name] = value
		}
		return &unstructured.Unstructured{Object: o}
	}
	typed, err := managerkit.NewClient[*corev1.ConfigMap](c, readerOnly{c})
	if err != nil {
		t.Fatal(err)
	}
	configMap := func(value string) any {
		return applycorev1.ConfigMap("typed", namespace).WithData(map[string]string{"k": value})
	}
	applies(t, typed.Namespace(namespace), requests, configMap("1"), configMap("2"))
	applies(t, newSites(t, c).Namespace(namespace), requests,
		plain("client.example.com/v1", "ClientSite", jsonObject{"spec": jsonObject{"host": "1"}}),
		plain("client.example.com/v1", "ClientSite", jsonObject{"spec": jsonObject{"host": "2"}}))
	untyped, err := managerkit.NewClientForKind[*unstructured.Unstructured](c, readerOnly{c}, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	if err != nil {
		t.Fatal(err)
	}
	applies(t, untyped.Namespace(namespace), requests,
		plain("v1", "ConfigMap", jsonObject{"data": jsonObject{"k": "1"}}), plain("v1", "ConfigMap", jsonObject{"data": jsonObject{"k": "2"}}))

	// A manager that changes from updates to applies.
	created, err := typed.Namespace(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "migrated"}, Data: map[string]string{"k": "1"},
	}, metav1.CreateOptions{FieldManager: "one"})
	if err != nil {
		t.Fatal(err)
	}
	migrated, done, err := ssa.Migrate(t.Context(), "one", typed.Namespace(namespace).Patch, created, "one")
	if err != nil || !done || len(migrated.ManagedFields) != 1 || migrated.ManagedFields[0].Operation != metav1.ManagedFieldsOperationApply {
		t.Errorf("Migrate: %v, %t, %v", migrated, done, err)
	}
}
