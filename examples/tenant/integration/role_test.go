package integration_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/examples/tenant/config"
	"github.com/controllerkit/controllerkit/examples/tenant/internal/observer"
	"github.com/controllerkit/controllerkit/internal/lab"
)

// TestRoleIsMinimal checks that the controller uses each right to write in
// config/rbac.yaml and config/shards.yaml. Every test of this package checks that the rights
// suffice, because a 403 fails the test.
func TestRoleIsMinimal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.replica("-leader-elect", "-leader-election-namespace", observer.SystemNamespace,
		"-lease-duration", "60s", "-renew-deadline", "40s", "-retry-period", "1s")
	w.start(r)
	blue := w.create(tenant("blue"))
	w.awaitState(blue, created())

	// An empty spec: the controller deletes all children.
	blue, err := w.Tenants.TenancyV1alpha1().Tenants().Patch(t.Context(), "blue", types.MergePatchType,
		[]byte(`{"spec":{"members":null,"quota":null,"networkIsolation":false}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bare := created()
	bare.Quota, bare.Subjects, bare.Role, bare.Policies = nil, nil, "", 0
	w.awaitState(blue, bare)

	// The namespace loses its label.
	if _, err := w.Kube.CoreV1().Namespaces().Patch(t.Context(), "blue", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"tenancy.example.com/tenant":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(func() error {
		ns, err := w.Namespaces.Get("blue")
		if err == nil && ns.Labels["tenancy.example.com/tenant"] != "blue" {
			err = errors.New("the label is not restored")
		}
		return err
	})
	w.delete("blue")
	if err := r.Stop(); err != nil { // which also releases the Lease by an update
		t.Error(err)
	}

	// The Leases of shards.
	if err := lab.Install(t.Context(), w.admin, config.Files, "shards.yaml"); err != nil {
		t.Fatal(err)
	}
	r = w.replica("-shards", "2", "-leader-election-namespace", observer.SystemNamespace)
	w.start(r)
	w.awaitState(w.create(tenant("green")), created())
	if err := r.Stop(); err != nil { // which deletes its Lease
		t.Error(err)
	}

	ops := w.Ops()
	for _, rule := range shippedRules(t) {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				method := map[string]string{
					"create": http.MethodPost, "update": http.MethodPut, "patch": http.MethodPatch, "delete": http.MethodDelete,
				}[verb]
				switch {
				case method == "":
					continue // reads, and bind, which is not a request
				case verb == "create" && resource != "namespaces" && resource != "leases":
					method = http.MethodPatch // an apply that creates
				}
				used := slices.ContainsFunc(ops, func(op lab.Op) bool {
					_, used := lab.Resource(op.Path)
					return op.Method == method && used == resource
				})
				if !used {
					t.Errorf("the manifests allow %s on %s, but the controller did not use it", verb, resource)
				}
			}
		}
	}
}

// shippedRules returns the rules of config/rbac.yaml and config/shards.yaml.
func shippedRules(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	var documents []string
	for _, file := range []string{"rbac.yaml", "shards.yaml"} {
		data, err := config.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, strings.Split(string(data), "\n---\n")...)
	}
	var rules []rbacv1.PolicyRule
	for _, document := range documents {
		var role rbacv1.ClusterRole // a Role has the same fields
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind == "ClusterRole" || role.Kind == "Role" {
			rules = append(rules, role.Rules...)
		}
	}
	if len(rules) == 0 {
		t.Fatal("no rules found: this test checks nothing")
	}
	return rules
}
