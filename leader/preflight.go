package leader

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// AccessReviewer reviews the rights of a client's user. The
// SelfSubjectAccessReviewInterface of client-go's authorization/v1 client satisfies it.
type AccessReviewer interface {
	Create(ctx context.Context, review *authorizationv1.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// Preflight reviews the rights that the election needs. If some are missing, it returns
// an error with the rules to copy into a Role. reviews must be a client of the same
// user as Leases. Namespace and Name must be set. Every authenticated user may call it,
// unless the role system:basic-user was changed.
//
// Preflight is optional. Without it Run reports missing rights after StartTimeout,
// except watch, whose absence only makes the election slower.
func (e *Elector) Preflight(ctx context.Context, reviews AccessReviewer) error {
	switch {
	case kube.IsNil(reviews):
		return errors.New("leader: reviews is nil: pass a client such as clientset.AuthorizationV1().SelfSubjectAccessReviews()")
	case checkLease(e.Namespace, e.Name) != nil:
		return checkLease(e.Namespace, e.Name)
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
			return fmt.Errorf("leader: review the right to %s leases.coordination.k8s.io %s/%s: %w", verb, e.Namespace, e.Name, err)
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
		return fmt.Errorf("leader: rights on Lease %s/%s are missing: allow in a Role of namespace %[1]s: %[3]s", e.Namespace, e.Name, strings.Join(rules, ", "))
	}
	return nil
}

// rule returns a rule of a Role that allows the verbs for the named Lease, or for all
// if name is empty.
func rule(name string, verbs ...string) string {
	names := ""
	if name != "" {
		names = ", resourceNames: [" + name + "]"
	}
	return fmt.Sprintf("{apiGroups: [coordination.k8s.io], resources: [leases]%s, verbs: [%s]}", names, strings.Join(verbs, ", "))
}
