package findings

import (
	"context"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// perReplica is the load that a replica can carry.
const perReplica = 10

// autoscaler scales a Deployment up and down with a load that a ConfigMap has.
func autoscaler() controllertest.Scenario {
	load := func(name, value string) controllertest.Step {
		return step(name, func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
			_, err := kube.CoreV1().ConfigMaps(namespace).Patch(ctx, "load", types.MergePatchType, fmt.Appendf(nil, `{"data":{"load":%q}}`, value), metav1.PatchOptions{})
			return err
		})
	}
	return controllertest.Scenario{
		Name: "horizontalpodautoscaler",
		Start: startWith(func(ctx context.Context, p process) ([]func(context.Context), error) {
			mapper, scales, err := scalesOf(p)
			if err != nil {
				return nil, err
			}
			c := podautoscaler.NewHorizontalController(ctx, p.kube.CoreV1(), scales, p.kube.AutoscalingV2(), mapper, loads{kube: p.kube},
				p.shared.Autoscaling().V2().HorizontalPodAutoscalers(), p.shared.Core().V1().Pods(), 500*time.Millisecond, 5*time.Minute, 0.1, 5*time.Minute, 30*time.Second)
			return []func(context.Context){func(ctx context.Context) { c.Run(ctx, 5) }}, nil
		}),
		World: scaleDeployments,
		Script: []controllertest.Step{
			step("create a Deployment", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "load"}, Data: map[string]string{"load": "20"}}, metav1.CreateOptions{})
				if err != nil {
					return err
				}
				return createDeployment(ctx, kube, namespace, 1)
			}),
			step("create an autoscaler", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				_, err := kube.AutoscalingV2().HorizontalPodAutoscalers(namespace).Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
					ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment", Name: "web"},
					MinReplicas:    new(int32(1)), MaxReplicas: 5,
					Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
						Metric: autoscalingv2.MetricIdentifier{Name: "load"},
						Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(perReplica, resource.DecimalSI)},
					}}},
					Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0))}},
				}}, metav1.CreateOptions{})
				return err
			}),
			load("more load", "42"),
			load("less load", "5"),
		},
		Converged: func(s *controllertest.State) error {
			hpa, err := as[autoscalingv2.HorizontalPodAutoscaler](s.Get("horizontalpodautoscalers.autoscaling", "web"))
			if err != nil {
				return err
			}
			deployment, err := as[appsv1.Deployment](s.Get("deployments.apps", "web"))
			if err != nil {
				return err
			}
			cm, err := as[corev1.ConfigMap](s.Get("configmaps", "load"))
			if err != nil || hpa == nil || deployment == nil || cm == nil {
				return err
			}
			have, err := strconv.Atoi(cm.Data["load"])
			if err != nil {
				return err
			}
			want := int32(min(5, (have+perReplica-1)/perReplica))
			if *deployment.Spec.Replicas != want || hpa.Status.DesiredReplicas != want || hpa.Status.CurrentReplicas != want {
				return fmt.Errorf("%d replicas, the status has %d of %d, want %d", *deployment.Spec.Replicas, hpa.Status.CurrentReplicas, hpa.Status.DesiredReplicas, want)
			}
			return nil
		},
	}
}

// loads reads the load from a ConfigMap, by the client of the process, so that its requests get
// faults too.
type loads struct {
	metrics.MetricsClient // no other metric is asked for
	kube                  kubernetes.Interface
}

func (l loads) GetExternalMetric(name, namespace string, _ labels.Selector) ([]int64, time.Time, error) {
	cm, err := l.kube.CoreV1().ConfigMaps(namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil, time.Time{}, err
	}
	load, err := strconv.ParseInt(cm.Data[name], 10, 64)
	return []int64{1000 * load}, time.Now(), err
}

// scaleDeployments is a World in which each Deployment has the replicas that it wants.
func scaleDeployments(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
	deployments := shared.Apps().V1().Deployments()
	work := queue.New(queue.Config[string]{})
	handler, err := deployments.Informer().AddEventHandler(enqueue.Handler(work, func(d *appsv1.Deployment) []string { return []string{d.Name} }))
	if err != nil {
		return err
	}
	loop := &reconcile.Controller[string]{
		Name: "deployments", Queue: work, HasSynced: []cache.DoneChecker{handler.HasSyncedChecker()},
		Reconcile: func(ctx context.Context, name string) (reconcile.Result, error) {
			cached, err := deployments.Lister().Deployments(env.Namespace).Get(name)
			if apierrors.IsNotFound(err) || err == nil && cached.Status.Replicas == *cached.Spec.Replicas {
				return reconcile.Result{}, nil
			}
			if err != nil {
				return reconcile.Result{}, err
			}
			d := cached.DeepCopy()
			d.Status.Replicas = *d.Spec.Replicas
			_, err = kube.AppsV1().Deployments(env.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				err = nil // the event of the change comes back here
			}
			return reconcile.Result{}, err
		},
	}
	defer shared.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared.StartWithContext(ctx)
	return loop.Run(ctx)
}
