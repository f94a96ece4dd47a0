package testserver

import (
	"context"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Limited returns the configuration of a user whose only rights are the rules, in the
// namespace or, if that is empty, in the cluster.
func Limited(t testing.TB, namespace string, rules ...rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	admin := kubernetes.NewForConfigOrDie(Config(t)).RbacV1()
	cfg := Config(t)
	var err error
	name := "limited"
	if namespace == "" {
		role, createErr := admin.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "limited-"}, Rules: rules}, metav1.CreateOptions{})
		if createErr != nil {
			t.Fatal(createErr)
		}
		name = role.Name
		t.Cleanup(func() {
			_ = admin.ClusterRoles().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
			_ = admin.ClusterRoleBindings().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		})
		_, err = admin.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "user-" + name}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		}, metav1.CreateOptions{})
	} else {
		if _, err := admin.Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		name += "-" + namespace
		_, err = admin.RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "user-" + name}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "limited"},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg.Impersonate.UserName = "user-" + name
	reviews := kubernetes.NewForConfigOrDie(cfg).AuthorizationV1().SelfSubjectAccessReviews()
	for _, rule := range rules {
		object := ""
		if len(rule.ResourceNames) > 0 {
			object = rule.ResourceNames[0]
		}
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: rule.Resources[0], Name: object,
		}}}
		allowed := false
		for range 1000 { // the authorizer reads roles by a watch, so it lags
			answer, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if allowed = answer.Status.Allowed; allowed {
				break
			}
		}
		if !allowed {
			t.Fatalf("%s may not %s", cfg.Impersonate.UserName, rule)
		}
	}
	return cfg
}
