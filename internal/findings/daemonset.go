package findings

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/kubernetes/pkg/controller/daemon"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
)

// daemonSet gives a DaemonSet on 3 Nodes another image, one Pod at a time.
func daemonSet() controllertest.Scenario {
	return controllertest.Scenario{
		Name:  "daemonset",
		Setup: createNodes("a", "b", "c"),
		Start: start(func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error) {
			apps, core := shared.Apps().V1(), shared.Core().V1()
			c, err := daemon.NewDaemonSetsController(ctx, apps.DaemonSets(), apps.ControllerRevisions(), core.Pods(), core.Nodes(), kube, flowcontrol.NewBackOff(time.Second, 15*time.Minute))
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 2) }}, err
		}),
		World: world.Cluster{}.Run,
		Script: []controllertest.Step{
			step("create", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.AppsV1().DaemonSets(namespace).Create(ctx, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: appsv1.DaemonSetSpec{
					Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}}, Template: template("agent", corev1.RestartPolicyAlways),
				}}, metav1.CreateOptions{})
				return err
			}),
			step("another image", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				api := kube.AppsV1().DaemonSets(namespace)
				d, err := api.Get(ctx, "agent", metav1.GetOptions{})
				if err == nil && d.Status.NumberReady != 3 {
					err = fmt.Errorf("the DaemonSet runs on %d of 3 Nodes", d.Status.NumberReady)
				}
				if err != nil {
					return err
				}
				_, err = api.Patch(ctx, "agent", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"another"}]}}}}`), metav1.PatchOptions{})
				return err
			}),
		},
		Converged: func(s *controllertest.State) error {
			d, err := as[appsv1.DaemonSet](s.Get("daemonsets.apps", "agent"))
			if err != nil || d == nil {
				return err
			}
			if have := d.Status; have.ObservedGeneration != d.Generation || have.UpdatedNumberScheduled != 3 || have.NumberAvailable != 3 || len(s.Objects("pods")) != 3 {
				return fmt.Errorf("%d Pods, of which %d are updated and %d are available, want 3", len(s.Objects("pods")), have.UpdatedNumberScheduled, have.NumberAvailable)
			}
			return nil
		},
		Invariants: []controllertest.Invariant{{Name: "maxUnavailable", Check: func(s *controllertest.State) error {
			d, err := as[appsv1.DaemonSet](s.Get("daemonsets.apps", "agent"))
			if err != nil || d == nil || d.DeletionTimestamp != nil || d.Generation < 2 {
				return err // not updated
			}
			nodes := map[string]bool{}
			for _, u := range s.Objects("pods") {
				pod, err := as[corev1.Pod](u)
				if err == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
					nodes[pod.Spec.NodeName] = true
				}
			}
			if len(nodes) < 2 {
				return fmt.Errorf("%d of 3 Nodes have a ready Pod, maxUnavailable is 1", len(nodes))
			}
			return nil
		}}},
	}
}
