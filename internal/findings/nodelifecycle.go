package findings

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"

	"github.com/controllerkit/controllerkit/controllertest"
)

// nodeLifecycle has a Node of three that is not ready, and then ready again. The user is the
// kubelet of all. No Node becomes silent.
func nodeLifecycle() controllertest.Scenario {
	return controllertest.Scenario{
		Name: "nodelifecycle",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			core := shared.Core().V1()
			c, err := nodelifecycle.NewNodeLifecycleController(ctx, shared.Coordination().V1().Leases(), core.Pods(), core.Nodes(), shared.Apps().V1().DaemonSets(), kube,
				500*time.Millisecond, time.Hour, time.Hour, 10, 10, 50, 0.55)
			return []func(context.Context){c.Run}, err
		}),
		Script: []controllertest.Step{
			step("create Nodes", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				for _, name := range []string{"x", "y", "z"} {
					node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
					if _, err := kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
						return err
					}
					if err := reportNode(ctx, kube, node.Name, corev1.ConditionTrue); err != nil {
						return err
					}
				}
				return nil
			}),
			step("the Node is not ready", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return reportNode(ctx, kube, namespace+"-x", corev1.ConditionFalse)
			}),
			step("the Node is ready", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return reportNode(ctx, kube, namespace+"-x", corev1.ConditionTrue)
			}),
		},
		Converged: func(s *controllertest.State) error {
			for _, u := range s.Objects("nodes") {
				node, err := as[corev1.Node](u)
				if err != nil {
					return err
				}
				if len(node.Status.Conditions) == 0 {
					continue // its kubelet has not begun
				}
				ready := node.Status.Conditions[0].Status == corev1.ConditionTrue
				for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
					tainted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady && t.Effect == effect })
					if tainted == ready {
						return fmt.Errorf("%s is ready: %t, its taint %s exists: %t", node.Name, ready, effect, tainted)
					}
				}
			}
			return nil
		},
	}
}

// reportNode writes the status of a Node, as a kubelet does.
func reportNode(ctx context.Context, kube kubernetes.Interface, name string, ready corev1.ConditionStatus) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now := metav1.Now()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: now, LastTransitionTime: now}}
		_, err = kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}
