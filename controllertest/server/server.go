package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/definitions"
	"github.com/controllerkit/controllerkit/internal/localserver"
)

// Options configure a Server. The zero value is a server without custom resources.
type Options struct {
	// CRDs are files and folders with CustomResourceDefinitions in YAML or JSON. A definition
	// that exists in an existing cluster must be equal.
	CRDs []string

	// Args are flags of kube-apiserver, such as --feature-gates=MutatingAdmissionPolicy=true.
	// They are an error with an existing cluster.
	Args []string
}

// A Server is a running API server. [Start] returns one.
type Server struct {
	local *localserver.Server
}

// Start starts an API server and returns when it serves the definitions. ctx bounds the start
// alone, which takes at most five minutes after the binary was found. Call Stop at the end.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	crds, err := definitions.Read(o.CRDs)
	if err != nil {
		return nil, fmt.Errorf("server: Options.CRDs: %w", err)
	}
	var args []string
	if len(o.Args) > 0 {
		args = append([]string{"--"}, o.Args...)
	}
	local, err := localserver.Open(ctx, args...)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, local.Stop())
		}
	}()
	if !local.IsOwn() && len(o.Args) > 0 {
		return nil, errors.New("server: Options.Args is set, and the flags of the existing cluster cannot be changed: unset USE_EXISTING_CLUSTER")
	}
	client, err := dynamic.NewForConfig(local.Config())
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if err := definitions.Install(ctx, client, crds); err != nil {
		return nil, fmt.Errorf("server: Options.CRDs: %w", err)
	}
	return &Server{local}, nil
}

// Config returns a copy of the administrator's configuration, without a limit of requests.
func (s *Server) Config() *rest.Config { return s.local.Config() }

// Kubeconfig returns the path of a kubeconfig file of the administrator, for programs that
// take one. Stop deletes the file, unless it belongs to an existing cluster.
func (s *Server) Kubeconfig() string { return s.local.Kubeconfig }

// Stop stops the server and deletes its files. It kills a server that does not stop within 30s.
// If the server failed or was killed, the error has the end of its log. Later calls return the
// same error. An existing cluster stays.
func (s *Server) Stop() error {
	if err := s.local.Stop(); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}

// User returns the configuration of a new user, who has the rights of the rules and of every
// authenticated user. The rules hold in the namespace, or in the cluster if namespace is
// empty. User returns when they apply, or when ctx is done. A test with it shows that a Role
// is complete. It makes a role and a binding that are named after the user.
func (s *Server) User(ctx context.Context, namespace string, rules ...rbacv1.PolicyRule) (*rest.Config, error) {
	var reviews []authorizationv1.SelfSubjectAccessReviewSpec
	for _, rule := range rules {
		review, err := reviewOf(namespace, rule)
		if err != nil {
			return nil, fmt.Errorf("server: User: %w", err)
		}
		reviews = append(reviews, review)
	}
	config := s.Config()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("server: User: %w", err)
	}
	name, err := bind(ctx, client, namespace, rules)
	if err != nil {
		return nil, fmt.Errorf("server: User: %w", err)
	}
	config.Impersonate.UserName = name
	if client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("server: User: %w", err)
	}
	for _, review := range reviews {
		if err := allowed(ctx, client, review); err != nil {
			return nil, fmt.Errorf("server: User: %w", err)
		}
	}
	return config, nil
}

// bind makes the role and the binding, and returns their name.
func bind(ctx context.Context, client kubernetes.Interface, namespace string, rules []rbacv1.PolicyRule) (name string, err error) {
	rbac := client.RbacV1()
	meta := metav1.ObjectMeta{GenerateName: "test-user-"}
	subjects := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}}
	}
	if namespace == "" {
		role, err := rbac.ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		_, err = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: subjects(role.Name),
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		}, metav1.CreateOptions{})
		return role.Name, err
	}
	role, err := rbac.Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	_, err = rbac.RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: subjects(role.Name),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}, metav1.CreateOptions{})
	return role.Name, err
}

// reviewOf returns the review of a request that the rule allows.
func reviewOf(namespace string, rule rbacv1.PolicyRule) (spec authorizationv1.SelfSubjectAccessReviewSpec, err error) {
	switch {
	case len(rule.Verbs) > 0 && len(rule.NonResourceURLs) > 0:
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: rule.NonResourceURLs[0], Verb: rule.Verbs[0]}
	case len(rule.Verbs) > 0 && len(rule.APIGroups) > 0 && len(rule.Resources) > 0:
		resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource}
		if len(rule.ResourceNames) > 0 {
			spec.ResourceAttributes.Name = rule.ResourceNames[0]
		}
	default:
		return spec, fmt.Errorf("the rule %v allows nothing: set Verbs, and APIGroups with Resources or NonResourceURLs", rule)
	}
	return spec, nil
}

// allowed waits until the user of the client may send the request. The API server's authorizer
// reads the roles by a watch, and no event shows that it has.
func allowed(ctx context.Context, client kubernetes.Interface, spec authorizationv1.SelfSubjectAccessReviewSpec) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if review.Status.Allowed {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the rules do not apply yet: %w", context.Cause(ctx))
		}
	}
}
