package rights_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/operator/internal/rights"
)

// TestRules tests that resources share a rule if their group and verbs are the same, and
// that everything in the rules is sorted and occurs once.
func TestRules(t *testing.T) {
	s := rights.Set{}
	s.Add(schema.GroupResource{Group: "b.io", Resource: "ys"}, "watch", "list")
	s.Add(schema.GroupResource{Group: "b.io", Resource: "xs"}, "list")
	s.Add(schema.GroupResource{Group: "b.io", Resource: "xs"}, "watch", "list")
	s.Add(schema.GroupResource{Group: "b.io", Resource: "zs"}, "get")
	s.Add(schema.GroupResource{Group: "a.io", Resource: "ws"}, "watch", "list")
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{"a.io"}, Resources: []string{"ws"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"b.io"}, Resources: []string{"xs", "ys"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"b.io"}, Resources: []string{"zs"}, Verbs: []string{"get"}},
	}
	if diff := cmp.Diff(want, s.Rules()); diff != "" {
		t.Errorf("Rules() (-want +got):\n%s", diff)
	}
	s.Add(schema.GroupResource{Group: "a.io", Resource: "*"}, "list")
	s.Add(schema.GroupResource{Group: "*", Resource: "*"}, "list")
	var named []string
	for _, resource := range s.Named() {
		named = append(named, resource.String())
	}
	if diff := cmp.Diff([]string{"ws.a.io", "xs.b.io", "ys.b.io", "zs.b.io"}, named); diff != "" {
		t.Errorf("Named() (-want +got):\n%s", diff)
	}
	if rules := (rights.Set{}).Rules(); rules != nil {
		t.Errorf("Rules() of nothing = %v", rules)
	}
}
