package status_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/internal/testserver"
)

func refused(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: error %v, want none", what, err)
	case want != "" && (err == nil || !strings.HasPrefix(err.Error(), "status: ") || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: error %v, want one of status with %q", what, err, want)
	}
}

// silent is a client that no request may reach.
type silent[T any] struct{ t *testing.T }

func (s silent[T]) UpdateStatus(_ context.Context, obj T, _ metav1.UpdateOptions) (T, error) {
	s.t.Error("UpdateStatus is called")
	return obj, nil
}

func (s silent[T]) Patch(_ context.Context, _ string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (T, error) {
	s.t.Errorf("Patch is called with %.200s", data)
	return *new(T), nil
}

// recorder keeps the patch that it is sent.
type recorder[T any] struct {
	name, pt, sub string
	data          []byte
}

func (r *recorder[T]) Patch(_ context.Context, name string, pt types.PatchType, data []byte, _ metav1.PatchOptions, sub ...string) (T, error) {
	r.name, r.pt, r.data, r.sub = name, string(pt), data, strings.Join(sub, "/")
	return *new(T), nil
}

// sender counts applies.
type sender struct {
	n    int
	last *policyac.PodDisruptionBudgetApplyConfiguration
}

func (s *sender) ApplyStatus(_ context.Context, config *policyac.PodDisruptionBudgetApplyConfiguration, _ metav1.ApplyOptions) (*policyv1.PodDisruptionBudget, error) {
	s.n, s.last = s.n+1, config
	return budget(), nil
}

// applier is the dynamic client as one for Apply.
type applier struct{ dynamic.ResourceInterface }

func (a applier) ApplyStatus(ctx context.Context, config *unstructured.Unstructured, opts metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	return a.ResourceInterface.ApplyStatus(ctx, config.GetName(), config, opts)
}

func get(t *testing.T, c policyclient.PodDisruptionBudgetInterface) *policyv1.PodDisruptionBudget {
	t.Helper()
	obj, err := c.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// as returns the client of a user that may read budgets and do the verbs to their
// status.
func as(t *testing.T, admin kubernetes.Interface, namespace, user string, verbs ...string) policyclient.PodDisruptionBudgetInterface {
	t.Helper()
	user += "-" + namespace
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets/status"}, Verbs: verbs},
		{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}, Verbs: []string{"get"}},
	}}
	if _, err := admin.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := admin.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := testserver.Config(t)
	config.Impersonate.UserName = user
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.PolicyV1().PodDisruptionBudgets(namespace)
}

// A form is one of the three ways to give "one" its Step condition.
type form struct {
	name string
	verb string // what RBAC calls it
	step func(ctx context.Context, c policyclient.PodDisruptionBudgetInterface, obj *pdb, condition metav1.Condition) (*pdb, error)
}

// granted calls f until it is not Forbidden any more: when a role takes effect,
// nothing tells.
func granted(t *testing.T, f func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := f(ctx)
		if !apierrors.IsForbidden(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func newBudgets(t *testing.T) (policyclient.PodDisruptionBudgetInterface, *atomic.Int64) {
	t.Helper()
	config, n := testserver.Counted(t)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.PolicyV1().PodDisruptionBudgets(testserver.Namespace(t)), n
}

func createBudget(t *testing.T, c policyclient.PodDisruptionBudgetInterface) *policyv1.PodDisruptionBudget {
	t.Helper()
	obj, err := c.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// createServed creates an object of a definition that was just installed. An
// established definition is not served at once, and nothing tells when.
func createServed(t *testing.T, c dynamic.ResourceInterface, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		created, err := c.Create(ctx, obj, metav1.CreateOptions{})
		if err == nil {
			return created
		}
		if !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// widgetDefinition installs a CustomResourceDefinition for the time of the
// test.
func widgetDefinition(t *testing.T, group string) schema.GroupVersionResource {
	t.Helper()
	testserver.InstallCRD(t, widgetObject(group))
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
}

// widgetObject is the CustomResourceDefinition.
func widgetObject(group string) map[string]any {
	text := func() map[string]any { return map[string]any{"type": "string"} }
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"spec": map[string]any{"type": "object", "properties": map[string]any{"size": map[string]any{"type": "integer"}}},
					"status": map[string]any{"type": "object", "properties": map[string]any{
						"phase": text(),
						"conditions": map[string]any{
							"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
							"items": map[string]any{
								"type":     "object",
								"required": []any{"type", "status", "lastTransitionTime", "reason", "message"},
								"properties": map[string]any{
									"type": text(), "message": text(),
									"status":             map[string]any{"type": "string", "enum": []any{"True", "False", "Unknown"}},
									"reason":             map[string]any{"type": "string", "minLength": int64(1), "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
									"lastTransitionTime": map[string]any{"type": "string", "format": "date-time"},
									"observedGeneration": map[string]any{"type": "integer", "format": "int64", "minimum": int64(0)},
								},
							},
						},
					}},
				}}},
			}},
		},
	}
}

func definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// definition is a fit one.
func definition(group string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: widgetObject(group)}
}

// at returns the map at a path of maps and first items.
func at(o map[string]any, path ...string) map[string]any {
	for _, name := range path {
		switch v := o[name].(type) {
		case map[string]any:
			o = v
		case []any:
			o = v[0].(map[string]any)
		}
	}
	return o
}

// shaped is an object whose status has the shape S.
type shaped[S any] struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            S `json:"status,omitempty"`
	copy              func(S) S
}

func (s *shaped[S]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

func (s *shaped[S]) DeepCopyObject() runtime.Object {
	c := *s
	c.Status = s.copy(s.Status)
	return &c
}

func budget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "u", ResourceVersion: "7", Generation: 3, Labels: map[string]string{"a": "b"}},
		Status: policyv1.PodDisruptionBudgetStatus{
			CurrentHealthy: 2,
			Conditions: []metav1.Condition{{
				Type: "Ready", Status: metav1.ConditionTrue, Reason: "Fine", ObservedGeneration: 3, LastTransitionTime: metav1.Unix(1e9, 0),
			}},
		},
	}
}

func updates(client *fake.Clientset) int {
	n := 0
	for _, action := range client.Actions() {
		if u, ok := action.(clienttesting.UpdateAction); ok && u.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

var errBoom = errors.New("boom")

// errAny stands for an error that has no identity.
var errAny = errors.New("any")
