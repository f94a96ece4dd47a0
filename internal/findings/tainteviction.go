package findings

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/tainteviction"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// taintEviction taints a Node of two. A Pod there is to go at once, one never, and one after ten
// seconds, but a user moves it to the other Node before. The Pod late is evicted after that time
// has passed, so the last states show whether the moved Pod stays. The user moves the first one
// too.
func taintEviction() controllertest.Scenario {
	create := func(ctx context.Context, kube kubernetes.Interface, namespace, node, name string, tolerations ...corev1.Toleration) error {
		pod := podOn(namespace+"-"+node, name)
		pod.Spec.Tolerations = tolerations
		_, err := kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	}
	tolerates := func(seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: "broken", Operator: corev1.TolerationOpExists, TolerationSeconds: seconds, Effect: corev1.TaintEffectNoExecute}
	}
	return controllertest.Scenario{
		Name: "tainteviction",
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			core := shared.Core().V1()
			if err := controller.AddPodNodeNameIndexer(core.Pods().Informer()); err != nil { // as the node lifecycle controller does
				return nil, err
			}
			c, err := tainteviction.New(ctx, kube, core.Pods(), core.Nodes(), "taint-eviction-controller")
			return []func(context.Context){c.Run}, err
		}),
		World: world.Cluster{Nodes: []string{"x", "y"}}.Run,
		Mask:  withoutAddresses,

		UserObjects: []string{"pods/never", "pods/late"}, // the Pods that move must exist at the end
		Script: []controllertest.Step{
			step("create Pods", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return errors.Join(
					create(ctx, kube, namespace, "x", "now"),
					create(ctx, kube, namespace, "x", "never", tolerates(nil)),
					create(ctx, kube, namespace, "x", "moved", tolerates(new(int64(10)))),
				)
			}),
			step("taint the Node", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.CoreV1().Nodes().Patch(ctx, namespace+"-x", types.StrategicMergePatchType, []byte(`{"spec":{"taints":[{"key":"broken","effect":"NoExecute"}]}}`), metav1.PatchOptions{})
				return err
			}),
			step("move two Pods", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				for _, name := range []string{"moved", "now"} { // the latter is gone, unless the step begins early
					err := kube.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
					if err != nil && (name == "moved" || !apierrors.IsNotFound(err)) {
						return err
					}
					if err := create(ctx, kube, namespace, "y", name); err != nil {
						return err
					}
				}
				return create(ctx, kube, namespace, "x", "late", tolerates(new(int64(11))))
			}),
			step("create another Pod", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return create(ctx, kube, namespace, "y", "last")
			}),
		},
		Converged: func(s *controllertest.State) error {
			node, err := as[corev1.Node](s.Get("nodes", s.Namespace()+"-x"))
			if err != nil || node == nil {
				return err
			}
			if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "broken" }) {
				return nil
			}
			for _, name := range []string{"now", "late"} {
				if pod, err := as[corev1.Pod](s.Get("pods", name)); err != nil || pod != nil && pod.Spec.NodeName == node.Name {
					return fmt.Errorf("the Pod %s is left on the Node", name)
				}
			}
			for _, name := range []string{"now", "moved"} {
				if s.Get("pods", "last") != nil && s.Get("pods", name) == nil {
					return fmt.Errorf("the Pod %s was moved to another Node, and is gone", name)
				}
			}
			return nil
		},
	}
}
