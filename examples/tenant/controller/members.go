package controller

import (
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// subjectOf returns the RBAC subject that a member's name denotes. Kubernetes
// reserves names that begin with "system:", so subjectOf rejects them except for
// service accounts: a RoleBinding to system:authenticated would open the namespace
// to every user. The error explains what to write instead.
func subjectOf(member string) (rbacv1.Subject, error) {
	if account, ok := strings.CutPrefix(member, "system:serviceaccount:"); ok {
		namespace, name, _ := strings.Cut(account, ":")
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			return rbacv1.Subject{}, fmt.Errorf("member %q is not a valid service account: write system:serviceaccount:NAMESPACE:NAME", member)
		}
		return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}, nil
	}
	kind := rbacv1.UserKind
	name, isGroup := strings.CutPrefix(member, "group:")
	if isGroup {
		kind = rbacv1.GroupKind
	}
	switch {
	case strings.TrimSpace(name) == "":
		return rbacv1.Subject{}, fmt.Errorf("member %q has no name: write alice, group:devs or system:serviceaccount:NAMESPACE:NAME", member)
	case strings.HasPrefix(name, "system:"):
		return rbacv1.Subject{}, fmt.Errorf("member %q is reserved by Kubernetes: remove it, or write system:serviceaccount:NAMESPACE:NAME for a service account", member)
	}
	return rbacv1.Subject{Kind: kind, APIGroup: rbacv1.GroupName, Name: name}, nil
}
