package findings

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	scaleclient "k8s.io/client-go/scale"
	"k8s.io/kubernetes/pkg/controller/disruption"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// disruptions evicts one of three Pods with a budget, and creates another one in its place. The
// Pods belong to a Deployment without a ReplicaSet between them, so the controller reads its
// subresource scale, as it does for the operator of a kind of its own.
func disruptions() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "disruption",
		Start: startWith(func(ctx context.Context, p process) ([]func(context.Context), error) {
			mapper, scales, err := scalesOf(p)
			if err != nil {
				return nil, err
			}
			apps, core := p.shared.Apps().V1(), p.shared.Core().V1()
			c := disruption.NewDisruptionController(ctx, core.Pods(), p.shared.Policy().V1().PodDisruptionBudgets(), core.ReplicationControllers(),
				apps.ReplicaSets(), apps.Deployments(), apps.StatefulSets(), p.kube, mapper, scales, p.kube.Discovery())
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 5) }}, nil
		}),
		World: world.Cluster{}.Run,
		Mask:  withoutAddresses,
		Script: []controllertest.Step{
			step("create Pods", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				if err := createDeployment(ctx, kube, namespace, 3); err != nil {
					return err
				}
				return createReplicas(ctx, kube, namespace, "a", "b", "c")
			}),
			step("create a budget", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Name: "web"},
					Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
				}, metav1.CreateOptions{})
				return err
			}),
			step("evict a Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return kube.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: namespace}})
			}),
			step("replace the Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return createReplicas(ctx, kube, namespace, "d")
			}),
			step("a larger budget", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.PolicyV1().PodDisruptionBudgets(namespace).Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"maxUnavailable":2}}`), metav1.PatchOptions{})
				return err
			}),
		},
		Converged: func(s *controllertest.State) error {
			budget, err := as[policyv1.PodDisruptionBudget](s.Get("poddisruptionbudgets.policy", "web"))
			if err != nil || budget == nil || s.Get("deployments.apps", "web") == nil {
				return err
			}
			healthy := int32(0)
			for _, u := range s.Objects("pods") {
				if u.GetDeletionTimestamp() != nil {
					return fmt.Errorf("the Pod %s is being deleted", u.GetName())
				}
				healthy++
			}
			if healthy == 0 {
				return nil // then the controller does not know the Deployment
			}
			if c := meta.FindStatusCondition(budget.Status.Conditions, policyv1.DisruptionAllowedCondition); c != nil && c.Reason == policyv1.SyncFailedReason {
				return fmt.Errorf("the last sync of the budget failed, and it allows %d disruptions", budget.Status.DisruptionsAllowed)
			}
			want := max(0, healthy+budget.Spec.MaxUnavailable.IntVal-3)
			if have := budget.Status; have.ObservedGeneration != budget.Generation || have.ExpectedPods != 3 || have.CurrentHealthy != healthy || have.DisruptionsAllowed != want {
				return fmt.Errorf("the budget knows %d of %d healthy Pods and allows %d disruptions, want %d of 3 and %d", have.CurrentHealthy, have.ExpectedPods, have.DisruptionsAllowed, healthy, want)
			}
			return nil
		},
	}
}

// createReplicas creates Pods that a Deployment controls.
func createReplicas(ctx context.Context, kube kubernetes.Interface, namespace string, names ...string) error {
	owner, err := kube.AppsV1().Deployments(namespace).Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, name := range names {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}, OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("Deployment")),
			}},
			Spec: template("web", corev1.RestartPolicyAlways).Spec,
		}
		if _, err := kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// createDeployment creates the Deployment web, for scenarios in which its controller does not run.
func createDeployment(ctx context.Context, kube kubernetes.Interface, namespace string, replicas int32) error {
	_, err := kube.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template("web", corev1.RestartPolicyAlways),
	}}, metav1.CreateOptions{})
	return err
}

// scalesOf returns a mapper that knows Deployments, and a client of the subresource scale.
func scalesOf(p process) (meta.RESTMapper, scaleclient.ScalesGetter, error) {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{appsv1.SchemeGroupVersion})
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("Deployment"), meta.RESTScopeNamespace)
	scales, err := scaleclient.NewForConfig(rest.CopyConfig(p.cfg), mapper, dynamic.LegacyAPIPathResolverFunc, scaleclient.NewDiscoveryScaleKindResolver(p.kube.Discovery()))
	return mapper, scales, err
}
