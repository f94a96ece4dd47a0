package ssa_test

import (
	"cmp"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

// Each form needs patch, on the resource or on the status subresource. One that creates
// needs create besides. Nothing needs get: no form reads. Each is asked with
// exactly its verbs, and once without each of them.
//
// Proves CK6.
func TestServerRBAC(t *testing.T) {
	const name = "one"
	spec := func(namespace string) *quota {
		return applycorev1.ResourceQuota(name, namespace).WithSpec(applycorev1.ResourceQuotaSpec().WithHard(corev1.ResourceList{corev1.ResourcePods: resource.MustParse("5")}))
	}
	status := func(namespace string) *quota {
		return applycorev1.ResourceQuota(name, namespace).WithStatus(applycorev1.ResourceQuotaStatus().WithUsed(corev1.ResourceList{"example.com/a": resource.MustParse("1")}))
	}
	content := func(namespace string, fields map[string]any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: fields}
		u.SetAPIVersion("v1")
		u.SetKind("ResourceQuota")
		u.SetName(name)
		u.SetNamespace(namespace)
		return u
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ResourceQuota"}, meta.RESTScopeNamespace)

	type identity struct {
		kubernetes.Interface
		dynamic dynamicClient
	}
	onObject, onStatus := "resourcequotas", "resourcequotas/status"
	forms := []struct {
		name     string
		resource string
		call     func(t *testing.T, c identity, namespace string, live *corev1.ResourceQuota) error
	}{
		{name: "Apply", resource: onObject, call: func(t *testing.T, c identity, namespace string, _ *corev1.ResourceQuota) error {
			_, err := ssa.Apply(t.Context(), manager, c.CoreV1().ResourceQuotas(namespace).Apply, spec(namespace))
			return err
		}},
		{name: "TryApply", resource: onObject, call: func(t *testing.T, c identity, namespace string, _ *corev1.ResourceQuota) error {
			_, err := ssa.TryApply(t.Context(), manager, c.CoreV1().ResourceQuotas(namespace).Apply, spec(namespace), nil)
			return err
		}},
		{name: "ApplyChanged", resource: onObject, call: func(t *testing.T, c identity, namespace string, live *corev1.ResourceQuota) error {
			_, _, err := ssa.ApplyChanged(t.Context(), manager, c.CoreV1().ResourceQuotas(namespace).Apply, spec(namespace), live, applycorev1.ExtractResourceQuota)
			return err
		}},
		{name: "Memory", resource: onObject, call: func(t *testing.T, c identity, namespace string, live *corev1.ResourceQuota) error {
			memory := &ssa.Memory[*corev1.ResourceQuota, *quota]{}
			_, _, err := memory.ApplyChanged(t.Context(), manager, c.CoreV1().ResourceQuotas(namespace).Apply, spec(namespace), live, applycorev1.ExtractResourceQuota)
			return err
		}},
		{name: "Dynamic", resource: onObject, call: func(t *testing.T, c identity, namespace string, _ *corev1.ResourceQuota) error {
			_, err := ssa.Apply(t.Context(), manager, c.dynamic.Apply, content(namespace, map[string]any{"spec": map[string]any{"hard": map[string]any{"pods": "5"}}}))
			return err
		}},
		{name: "ApplyStatus", resource: onStatus, call: func(t *testing.T, c identity, namespace string, _ *corev1.ResourceQuota) error {
			_, err := ssa.Apply(t.Context(), manager, c.CoreV1().ResourceQuotas(namespace).ApplyStatus, status(namespace))
			return err
		}},
		{name: "TryApplyStatus", resource: onStatus, call: func(t *testing.T, c identity, namespace string, _ *corev1.ResourceQuota) error {
			_, err := ssa.TryApply(t.Context(), manager, c.CoreV1().ResourceQuotas(namespace).ApplyStatus, status(namespace), nil)
			return err
		}},
		{name: "Dynamic ApplyStatus", resource: onStatus, call: func(t *testing.T, c identity, namespace string, _ *corev1.ResourceQuota) error {
			_, err := ssa.Apply(t.Context(), manager, c.dynamic.ApplyStatus, content(namespace, map[string]any{"status": map[string]any{"used": map[string]any{"example.com/a": "1"}}}))
			return err
		}},
	}
	tests := []struct {
		name     string
		resource string // the forms that it is about
		missing  bool   // there is no object
		on       string // "" means resource
		verbs    []string
		want     func(error) bool
	}{
		{name: "patch", resource: onObject, verbs: []string{"patch"}, want: isNil},
		{name: "all but patch", resource: onObject, verbs: []string{"get", "list", "watch", "create", "update", "delete"}, want: apierrors.IsForbidden},
		{name: "missing, patch and create", resource: onObject, missing: true, verbs: []string{"patch", "create"}, want: isNil},
		{name: "missing, patch", resource: onObject, missing: true, verbs: []string{"patch"}, want: apierrors.IsForbidden},
		{name: "missing, create", resource: onObject, missing: true, verbs: []string{"create"}, want: apierrors.IsForbidden},
		{name: "patch", resource: onStatus, verbs: []string{"patch"}, want: isNil},
		{name: "all but patch", resource: onStatus, verbs: []string{"get", "update"}, want: apierrors.IsForbidden},
		{name: "patch on the object", resource: onStatus, on: onObject, verbs: []string{"patch", "create"}, want: apierrors.IsForbidden},
		{name: "missing, patch", resource: onStatus, missing: true, verbs: []string{"patch"}, want: apierrors.IsNotFound},
	}
	for _, tt := range tests {
		t.Run(tt.resource+": "+tt.name, func(t *testing.T) {
			s := newServer(t)
			rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{cmp.Or(tt.on, tt.resource)}, Verbs: tt.verbs}
			cfg := testserver.Limited(t, s.namespace, rule)
			who := identity{Interface: kubernetes.NewForConfigOrDie(cfg), dynamic: newDynamicFor(dynamic.NewForConfigOrDie(cfg), mapper)}
			settle(t, who, s.namespace, rule)
			admin := s.CoreV1().ResourceQuotas(s.namespace)
			for _, form := range forms {
				if form.resource != tt.resource {
					continue
				}
				t.Run(form.name, func(t *testing.T) {
					var live *corev1.ResourceQuota
					if !tt.missing {
						var err error
						if live, err = admin.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
							t.Fatal(err)
						}
					}
					if err := form.call(t, who, s.namespace, live); !tt.want(err) {
						t.Errorf("with %q on %q: error = %v", tt.verbs, rule.Resources, err)
					}
					if err := admin.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
						t.Fatal(err)
					}
				})
			}
		})
	}
}

func isNil(err error) bool { return err == nil }

// settle returns when the API server knows the rule: it reads roles from a cache, and
// answers Forbidden until then. There is no event to wait for.
func settle(t *testing.T, who kubernetes.Interface, namespace string, rule rbacv1.PolicyRule) {
	t.Helper()
	resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
	for {
		review, err := who.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: rule.Verbs[0], Resource: resource, Subresource: subresource,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed {
			return
		}
	}
}
