package operator_test

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerFleet: the objects of For, and of a Kind that another controller owns, are counted by conditions that
// are not of type metav1.Condition, also by a cache of encoded objects. A Kind whose objects have no status obeys the
// annotation too. Objects without conditions have no counts.
func TestServerFleet(t *testing.T) {
	t.Parallel()
	for name, register := range map[string]func(t *testing.T, op *operator.Operator, namespace string, called chan<- string){
		"For": func(_ *testing.T, op *operator.Operator, namespace string, called chan<- string) {
			factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(op.Config), 0, informers.WithNamespace(namespace))
			c := op.Controller("deployments", func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
				called <- key.Name
				return reconcile.Result{}, nil
			})
			operator.For(c, appsv1.Resource("deployments"), factory.Apps().V1().Deployments())
		},
		"Kind": func(_ *testing.T, op *operator.Operator, _ string, called chan<- string) {
			operator.Kind(op, appsv1.SchemeGroupVersion.WithResource("deployments"), operator.Reconciler[*appsv1.Deployment]{
				Reconcile: func(_ context.Context, d *appsv1.Deployment) (reconcile.Result, error) {
					called <- d.Name
					return reconcile.Result{}, nil
				},
				ReadOnly: true,
			})
			operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
				Reconcile: func(_ context.Context, c *corev1.ConfigMap) (reconcile.Result, error) {
					called <- c.Name
					return reconcile.Result{}, nil
				},
				ReadOnly: true,
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, namespace := testserver.Config(t), testserver.Namespace(t)
			kube := kubernetes.NewForConfigOrDie(config)
			op, err := operator.New(config, operator.Options{Name: "fleet", Namespace: namespace})
			if err != nil {
				t.Fatal(err)
			}
			called := make(chan string, 100)
			register(t, op, namespace, called)
			start(t, op, testlog.New())
			until := func(want string) {
				t.Helper()
				for got := ""; got != want; {
					got = receive(t, called)
				}
			}
			metrics := func(want ...string) {
				t.Helper()
				body := newResponse(t, op.Metrics.Handler(), "/metrics")
				for _, text := range want {
					no := strings.HasPrefix(text, "!")
					if strings.Contains(body, strings.TrimPrefix(text, "!")) == no {
						t.Errorf("/metrics has or lacks %s", text)
					}
				}
			}
			if name == "Kind" {
				for _, c := range []*corev1.ConfigMap{
					{ObjectMeta: metav1.ObjectMeta{Name: "paused", Annotations: map[string]string{pausedAnnotation: "true"}}},
					{ObjectMeta: metav1.ObjectMeta{Name: "running"}},
				} {
					if _, err := kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				until("running") // after the other one in its namespace
				if len(called) > 0 {
					t.Errorf("the call of %s is one too many", <-called)
				}
				metrics(`controller_paused_objects{resource="configmaps"} 1`, `!controller_not_ready_objects{resource="configmaps"}`)
			}
			labels := map[string]string{"app": "web"}
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}}},
			}}
			if d, err = kube.AppsV1().Deployments(namespace).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			until("web")
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: "Available", Status: "False", Reason: "TooFew", LastTransitionTime: metav1.Now()}}
			if _, err := kube.AppsV1().Deployments(namespace).UpdateStatus(t.Context(), d, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			until("web")
			metrics(`controller_object_conditions{condition="Available",reason="TooFew",resource="deployments.apps",status="False"} 1`, `controller_not_ready_objects{resource="deployments.apps"} 0`) // without a condition Ready
		})
	}
}
