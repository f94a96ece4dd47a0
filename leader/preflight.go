package leader

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AccessReviewer asks the API server what its user may do. The
// SelfSubjectAccessReviewInterface of client-go's authorization/v1 client
// satisfies it.
type AccessReviewer interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// Preflight asks the API server whether the election may do what it needs, and
// returns an error with the missing rules if not, ready to be copied into a Role.
// reviews must be of the same user as Leases. Run does without Preflight: it
// reports what it misses after StartTimeout, and for want of watch it is only
// slower; Preflight reports that too. Every authenticated user may ask, unless
// the role system:basic-user was changed. Namespace and Name must be set.
func (e *Elector) Preflight(ctx context.Context, reviews AccessReviewer) error {
	switch {
	case reviews == nil:
		return errors.New("leader: reviews is nil: pass a client such as clientset.AuthorizationV1().SelfSubjectAccessReviews()")
	case e.Namespace == "":
		return errNamespace
	case e.Name == "":
		return errName
	}
	var missing []string // of the Lease by its name
	var rules []string
	for _, verb := range []string{"get", "update", "watch", "create"} {
		ask := &authorizationv1.ResourceAttributes{
			Namespace: e.Namespace, Verb: verb, Group: "coordination.k8s.io", Resource: "leases", Name: e.Name,
		}
		if verb == "create" {
			ask.Name = "" // a request for it has none
		}
		review, err := reviews.Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: ask},
		}, metav1.CreateOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("leader: asking whether %s leases.coordination.k8s.io %s/%s is allowed: %w", verb, e.Namespace, e.Name, err)
		case review.Status.Allowed:
		case verb == "create":
			rules = append(rules, rule("", verb))
		default:
			missing = append(missing, verb)
		}
	}
	if len(missing) > 0 {
		rules = append(rules, rule(e.Name, missing...))
	}
	if len(rules) > 0 {
		return fmt.Errorf("leader: Lease %s/%s cannot be used fully; a Role in namespace %[1]s must allow: %[3]s", e.Namespace, e.Name, strings.Join(rules, ", "))
	}
	return nil
}

// rule is a rule of a Role that allows the verbs, for the Lease of that name or
// for all.
func rule(name string, verbs ...string) string {
	names := ""
	if name != "" {
		names = ", resourceNames: [" + name + "]"
	}
	return fmt.Sprintf("{apiGroups: [coordination.k8s.io], resources: [leases]%s, verbs: [%s]}", names, strings.Join(verbs, ", "))
}
