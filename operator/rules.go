package operator

import (
	"maps"
	"slices"

	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/operator/internal/rights"
)

// Writes declares that the reconciles of this operator use verbs on a resource or
// subresource, for [Operator.Rules]. Lists and watches of registered resources, Leases and
// Events need no declaration. A live read does: declare "get".
//
//	op.Writes(appsv1.Resource("deployments"), "create", "patch") // server-side apply
//	op.Writes(v1.Resource("widgets"), "patch")                   // finalizers
//	op.Writes(v1.Resource("widgets/status"), "update")
//
// For kinds that are known only at run time, the resource "*" stands for all resources and
// subresources of the group, and with the group "*" of all groups. Run does not check it.
//
// Run returns an error if the API server does not serve it, for example if the status
// subresource of a CustomResourceDefinition is missing. The first request of each kind by clients of
// Config that is not declared is logged. In an exploration of package controllertest it is a
// finding, unless Writes was never called: then the Role is written by hand.
func (op *Operator) Writes(resource schema.GroupResource, verbs ...string) {
	if resource.Resource == "" || len(verbs) == 0 || slices.Contains(verbs, "") {
		op.fail("Writes(%q, %q): name a resource and its verbs, e.g. \"patch\"", resource, verbs)
		return
	}
	for _, verb := range verbs {
		if !slices.Contains(rights.Verbs(), verb) {
			op.fail("Writes(%q, %q): no request has the verb %q: use some of %q", resource, verbs, verb, rights.Verbs())
			return
		}
	}
	op.uses.Add(resource, verbs...)
}

// Rules returns the rights that the operator needs. The rules of objects, and of Events, are
// for a ClusterRole, or a Role in each namespace that the informers watch. With Elsewhere and an
// informer of Inform or InformFrom they are for a ClusterRole: see [Reconciler]. The rules of leases
// are for a Role in LeaseNamespace; without an election there are none. Call it after all
// registrations; a program can print them as its manifest.
//
// If a controller owns objects, it may update the finalizers of its own kind, which the
// admission plugin OwnerReferencesPermissionEnforcement asks for.
func (op *Operator) Rules() (objects, leases []rbacv1.PolicyRule) {
	return append(op.declared(false).Rules(), rights.Single(op.singles)...), op.leaseRules()
}

// declared returns all rights but those of leases. named is whether those for objects of Reading.Names are among them.
func (op *Operator) declared(named bool) rights.Set {
	uses := maps.Clone(op.uses)
	for _, s := range op.sources {
		uses.Add(s.GroupResource, "list", "watch")
	}
	for _, s := range op.settings {
		uses.Add(s.GroupResource, "list", "watch")
	}
	for _, s := range op.singles {
		if named || len(s.Names) == 0 {
			uses.Add(s.GroupResource, "list", "watch")
		}
	}
	for _, c := range op.controllers {
		if c.owns {
			uses.Add(schema.GroupResource{Group: c.owner.Group, Resource: c.owner.Resource + "/finalizers"}, "update")
		}
	}
	if op.Events != nil {
		uses.Add(eventsv1.Resource("events"), "create", "patch")
	}
	return uses
}

func (op *Operator) leaseRules() []rbacv1.PolicyRule { return rights.Leases(op.Elector) }
