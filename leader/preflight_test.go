package leader_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
)

// A reviewer allows some verbs.
type reviewer struct {
	allowed string
	err     error
	asked   []authorizationv1.ResourceAttributes
}

func (r *reviewer) Create(_ context.Context, review *authorizationv1.SelfSubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	ask := *review.Spec.ResourceAttributes
	r.asked = append(r.asked, ask)
	review = review.DeepCopy()
	review.Status.Allowed = strings.Contains(r.allowed, ask.Verb)
	return review, r.err
}

func TestPreflight(t *testing.T) {
	const (
		prefix = "leader: rights on Lease ns/controller are missing: allow in a Role of namespace ns: "
		rule   = "{apiGroups: [coordination.k8s.io], resources: [leases]"
	)
	for _, tt := range []struct {
		name    string
		allowed string
		want    string
	}{
		{name: "all", allowed: "get update watch create"},
		{name: "no create", allowed: "get update watch", want: prefix + rule + ", verbs: [create]}"},
		{name: "no watch", allowed: "get update create", want: prefix + rule + ", resourceNames: [controller], verbs: [watch]}"},
		{name: "none", want: prefix + rule + ", verbs: [create]}, " + rule + ", resourceNames: [controller], verbs: [get, update, watch]}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := &leader.Elector{Namespace: "ns", Name: "controller"}
			got := ""
			if err := e.Preflight(t.Context(), &reviewer{allowed: tt.allowed}); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("Preflight() = %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("what it asks", func(t *testing.T) {
		r := &reviewer{}
		_ = (&leader.Elector{Namespace: "ns", Name: "controller"}).Preflight(t.Context(), r)
		for _, ask := range r.asked {
			if named := ask.Name == "controller"; ask.Namespace != "ns" || ask.Group != "coordination.k8s.io" || ask.Resource != "leases" || named == (ask.Verb == "create") {
				t.Errorf("asked for %+v, want the Lease by its name, except for create", ask)
			}
		}
	})
	for _, tt := range []struct {
		name    string
		elector *leader.Elector
		reviews leader.AccessReviewer
		want    string
	}{
		{name: "no client", elector: &leader.Elector{Namespace: "ns", Name: "controller"}, want: "reviews is nil"},
		{name: "nil pointer as client", elector: &leader.Elector{Namespace: "ns", Name: "controller"}, reviews: (*reviewer)(nil), want: "reviews is nil"},
		{name: "no namespace", elector: &leader.Elector{Name: "controller"}, reviews: &reviewer{}, want: `Namespace is ""`},
		{name: "no name", elector: &leader.Elector{Namespace: "ns"}, reviews: &reviewer{}, want: `Name is ""`},
		{name: "no response", elector: &leader.Elector{Namespace: "ns", Name: "controller"}, reviews: &reviewer{err: errors.New("boom")}, want: "review the right to get leases.coordination.k8s.io ns/controller: boom"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.elector.Preflight(t.Context(), tt.reviews); err == nil || !strings.HasPrefix(err.Error(), "leader: "+tt.want) {
				t.Errorf("Preflight() = %v, want an error that says %q", err, tt.want)
			}
		})
	}
}

// TestServerPreflight: Preflight and the election agree about a Role.
func TestServerPreflight(t *testing.T) {
	for _, tt := range []struct {
		name  string
		verbs []string
		want  string
	}{
		{name: "all", verbs: []string{"get", "create", "update", "watch"}},
		{name: "no create", verbs: []string{"get", "update", "watch"}, want: "leases], verbs: [create]}"},
		{name: "nothing", want: "resourceNames: [controller], verbs: [get, update, watch]}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := testserver.Namespace(t)
			as(t, ns, "limited", tt.verbs...)
			cfg := testserver.Config(t)
			cfg.Impersonate.UserName = "limited"
			cfg.Impersonate.Groups = []string{"system:authenticated"} // may ask about itself
			reviews := newClient(t, cfg).AuthorizationV1().SelfSubjectAccessReviews()
			e := &leader.Elector{Namespace: ns, Name: leaseName}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for { // nothing tells when a Role has taken effect
				err := e.Preflight(ctx, reviews)
				if tt.want == "" && err == nil || tt.want != "" && err != nil && strings.HasSuffix(err.Error(), tt.want) {
					return
				}
				select {
				case <-ctx.Done():
					t.Fatalf("Preflight() = %v, want %q", err, tt.want)
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
}
