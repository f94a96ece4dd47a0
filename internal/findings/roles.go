package findings

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"

	"github.com/controllerkit/controllerkit/controllertest"
)

// partOf is the label that selects the parts of an aggregated ClusterRole. Its value is the
// namespace of the run, with which the names of all ClusterRoles begin.
const partOf = "part-of"

// roles creates and changes a part of an aggregated ClusterRole, and then replaces the aggregated
// one by a plain one. The controller has all rights, as in a kube-controller-manager with an
// administrator's credential.
func roles() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "clusterroleaggregation",
		Start: start(func(_ context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			c := clusterroleaggregation.NewClusterRoleAggregation(shared.Rbac().V1().ClusterRoles(), kube.RbacV1())
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 5) }}, nil
		}),
		Script: []controllertest.Step{
			step("create an aggregated role", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
					ObjectMeta: metav1.ObjectMeta{Name: namespace + "-all"},
					AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
						{MatchLabels: map[string]string{partOf: namespace}},
					}},
				}, metav1.CreateOptions{})
				return err
			}),
			step("create a part", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
					ObjectMeta: metav1.ObjectMeta{Name: namespace + "-part", Labels: map[string]string{partOf: namespace}},
					Rules:      rights("secrets"),
				}, metav1.CreateOptions{})
				return err
			}),
			step("change the part", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.RbacV1().ClusterRoles().Patch(ctx, namespace+"-part", types.MergePatchType,
					[]byte(`{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`), metav1.PatchOptions{})
				return err
			}),
			step("replace the aggregated role", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				if err := kube.RbacV1().ClusterRoles().Delete(ctx, namespace+"-all", metav1.DeleteOptions{}); err != nil {
					return err
				}
				_, err := kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
					ObjectMeta: metav1.ObjectMeta{Name: namespace + "-all", Labels: map[string]string{replacement: ""}},
					Rules:      rights("configmaps"),
				}, metav1.CreateOptions{})
				return err
			}),
		},
		Converged: func(s *controllertest.State) error {
			const resource = "clusterroles.rbac.authorization.k8s.io"
			all, err := as[rbacv1.ClusterRole](s.Get(resource, s.Namespace()+"-all"))
			if err != nil || all == nil {
				return err
			}
			part, err := as[rbacv1.ClusterRole](s.Get(resource, s.Namespace()+"-part"))
			if err != nil {
				return err
			}
			if _, replaces := all.Labels[replacement]; replaces {
				if want := rights("configmaps"); !equality.Semantic.DeepEqual(all.Rules, want) {
					return fmt.Errorf("a replaced role has the rights %v, want %v", all.Rules, want)
				}
				return nil
			}
			if all.AggregationRule == nil {
				return fmt.Errorf("a deleted role is back with the rights %v", all.Rules)
			}
			var want []rbacv1.PolicyRule
			if part != nil {
				want = part.Rules
			}
			if !equality.Semantic.DeepEqual(all.Rules, want) {
				return fmt.Errorf("the aggregated role has the rights %v, want %v", all.Rules, want)
			}
			return nil
		},
	}
}

// rights returns the rules of a role that may read a resource.
func rights(resource string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{"get"}}}
}

// limited returns the scenario of roles in which the controller has the rights that Kubernetes
// gives it by default. It may not create a ClusterRole.
func limited(s controllertest.Scenario) controllertest.Scenario {
	run := s.Start
	s.Start = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		cfg = rest.CopyConfig(cfg)
		cfg.Impersonate.UserName = "system:serviceaccount:kube-system:clusterrole-aggregation-controller"
		return run(ctx, cfg, env)
	}
	return s
}
