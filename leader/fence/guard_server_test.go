package fence_test

import (
	"context"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/leader/internal/shop"
)

// TestServerGuardAsGroups: a user that is no ServiceAccount keeps the rights of
// the groups that GuardAs is given.
func TestServerGuardAsGroups(t *testing.T) {
	t.Parallel()
	s := newShop(t, fenceConfigMaps, held(3))
	s.user = "jane-" + s.ns
	group := "shop-" + s.ns
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: group},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "work"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}
	rbac := shop.Clients(t, testserver.Config(t)).RbacV1()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Rules: []rbacv1.PolicyRule{anything}}
	if _, err := rbac.Roles(s.ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := rbac.RoleBindings(s.ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	write := func(wrap func(http.RoundTripper) http.RoundTripper) error {
		config := rest.CopyConfig(testserver.Config(t))
		config.Wrap(wrap)
		client := shop.Clients(t, config).CoreV1().ConfigMaps(s.ns)
		return shop.Elector(s.leases, s.ns, "a").Run(t.Context(), func(ctx context.Context) error {
			_, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
			return err
		})
	}
	if err := write(leader.GuardAs(s.user)); !apierrors.IsForbidden(err) {
		t.Errorf("without its group: error = %v, want Forbidden", err)
	}
	if err := write(leader.GuardAs(s.user, group)); err != nil {
		t.Errorf("with its group: %v", err)
	}
}
