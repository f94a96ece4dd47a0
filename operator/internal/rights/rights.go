// Package rights collects the verbs that a program uses as the rules of a Role.
package rights

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/leader"
)

// Set has the verbs for each resource and subresource.
type Set map[schema.GroupResource][]string

// Add adds verbs.
func (s Set) Add(resource schema.GroupResource, verbs ...string) {
	s[resource] = append(slices.Clip(s[resource]), verbs...)
}

// Resources returns the resources, sorted.
func (s Set) Resources() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(s), func(a, b schema.GroupResource) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
	})
}

// all stands for all resources of a group, and for all groups, as in a rule of RBAC.
const all = "*"

// Named returns the resources that have names, sorted.
func (s Set) Named() []schema.GroupResource {
	return slices.DeleteFunc(s.Resources(), func(r schema.GroupResource) bool { return r.Group == all || r.Resource == all })
}

// allows reports whether the Set has a verb on a resource.
func (s Set) allows(resource schema.GroupResource, verb string) bool {
	return slices.Contains(s[resource], verb) || slices.Contains(s[schema.GroupResource{Group: resource.Group, Resource: all}], verb) ||
		slices.Contains(s[schema.GroupResource{Group: all, Resource: all}], verb)
}

// Rules returns a rule for all resources of a group with the same verbs. The rules and
// their lists are sorted.
func (s Set) Rules() (rules []rbacv1.PolicyRule) {
	at := map[string]int{} // the index of a rule, by group and verbs
	for _, resource := range s.Resources() {
		verbs := slices.Compact(slices.Sorted(slices.Values(s[resource])))
		key := resource.Group + " " + strings.Join(verbs, " ")
		i, ok := at[key]
		if !ok {
			i = len(rules)
			at[key], rules = i, append(rules, rbacv1.PolicyRule{APIGroups: []string{resource.Group}, Verbs: verbs})
		}
		rules[i].Resources = append(rules[i].Resources, resource.Resource)
	}
	return rules
}

// Leases returns the rules of an election. nil means none.
func Leases(e *leader.Elector) []rbacv1.PolicyRule {
	if e == nil {
		return nil
	}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"get", "update", "watch"}, ResourceNames: []string{e.Name}},
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"create"}}, // cannot have resourceNames
	}
}

// Names are objects of a resource that are watched one by one. No names mean any.
type Names struct {
	schema.GroupResource
	Names []string
}

// Single returns the rules of those that have names.
func Single(singles []Names) (rules []rbacv1.PolicyRule) {
	for _, s := range singles {
		if len(s.Names) > 0 {
			names := slices.Compact(slices.Sorted(slices.Values(s.Names)))
			rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{s.Group}, Resources: []string{s.Resource}, Verbs: []string{"list", "watch"}, ResourceNames: names})
		}
	}
	return rules
}
