// Command managed is the operator of the game days inside a manager of controller-runtime, with package
// managerkit: the election, the loop, and writes that the next call sees.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/controllerkit/controllerkit/consistency"
	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	website "github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/internal/gamedays/asleep"
	"github.com/controllerkit/controllerkit/internal/gamedays/managers"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

const fieldManager = "web.example.com/website-operator"

func main() {
	f := managers.Parse()
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil))) // also for net/http
	klog.SetSlogLogger(slog.Default())
	ctrl.SetLogger(klog.Background())
	if err := run(f); err != nil {
		klog.Background().Error(err, "The operator ended")
		os.Exit(1)
	}
}

func run(f managers.Flags) error {
	config, err := f.Config()
	if err != nil {
		return err
	}
	options, err := f.Options()
	if err != nil {
		return err
	}
	stop := 26 * time.Second // before the kubelet's 30s
	options.GracefulShutdownTimeout = &stop
	leases, err := leader.NewClient(config, managers.Namespace)
	if err != nil {
		return err
	}
	measured, err := managerkit.NewMetrics()
	if err != nil {
		return err
	}
	elector := &leader.Elector{Leases: leases, Namespace: managers.Namespace, Name: managers.Name, Identity: f.Pod, Metrics: measured}
	writes := managerkit.NewWrites(consistency.Config{})
	if err := errors.Join(writes.Install(config, &options), managerkit.Elect(&options, elector)); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	r, err := newReconciler(mgr, f.DNS)
	if err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).For(&v1.Website{}).Owns(&corev1.ConfigMap{}).Owns(&corev1.Service{}).Owns(&appsv1.Deployment{})
	loop := &reconcile.Controller[ctrl.Request]{Workers: 4, Timeout: 15 * time.Second, Gate: writes.Gate()}
	if err := managerkit.Complete(b, r, loop, controller.Options{}); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

type reconciler struct {
	client.Client
	dns         dns.Service
	sites       *managerkit.Client[*v1.Website]
	configMaps  *managerkit.Client[*corev1.ConfigMap]
	services    *managerkit.Client[*corev1.Service]
	deployments *managerkit.Client[*appsv1.Deployment]
}

func newReconciler(mgr ctrl.Manager, dnsURL string) (*reconciler, error) {
	r := &reconciler{Client: mgr.GetClient()}
	var errs [5]error
	r.dns, errs[0] = dns.NewClient(dnsURL)
	r.sites, errs[1] = managerkit.NewClient[*v1.Website](r.Client, mgr.GetAPIReader())
	r.configMaps, errs[2] = managerkit.NewClient[*corev1.ConfigMap](r.Client, mgr.GetAPIReader())
	r.services, errs[3] = managerkit.NewClient[*corev1.Service](r.Client, mgr.GetAPIReader())
	r.deployments, errs[4] = managerkit.NewClient[*appsv1.Deployment](r.Client, mgr.GetAPIReader())
	return r, errors.Join(errs[:]...)
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if asleep.Now() {
		return ctrl.Result{}, nil
	}
	w := &v1.Website{}
	if err := r.Get(ctx, req.NamespacedName, w); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	held, live, err := finalizer.Ensure(ctx, r.sites.Namespace(w.Namespace), w, website.Finalizer, r.cleanup)
	if err != nil || !live {
		return ctrl.Result{}, err
	}
	w = held.Object()
	ready, callErr := r.make(ctx, w)
	_, err = status.Update(ctx, r.sites.Namespace(w.Namespace), w, func(w *v1.Website) error {
		w.Status.ObservedGeneration, w.Status.ReadyReplicas = w.Generation, ready
		return status.Set(&w.Status.Conditions, w.Generation, managers.Ready(w, callErr))
	})
	return ctrl.Result{}, errors.Join(callErr, err)
}

// cleanup removes what the garbage collector does not.
func (r *reconciler) cleanup(ctx context.Context, held finalizer.Held[*v1.Website]) error {
	return r.dns.Delete(ctx, string(held.Object().UID))
}

// make applies the children, and makes the record.
func (r *reconciler) make(ctx context.Context, w *v1.Website) (ready int32, err error) {
	ref, err := owner.Controller(w, v1.GroupVersion.WithKind("Website"))
	if err != nil {
		return 0, err
	}
	labels := managers.Labels(w)
	_, mapErr := apply(ctx, r, r.configMaps, &corev1.ConfigMap{}, w,
		applycorev1.ConfigMap(w.Name, w.Namespace).WithOwnerReferences(ref).WithLabels(labels).WithData(map[string]string{"HOST": w.Spec.Host}),
		func(live *corev1.ConfigMap, manager string) (any, error) {
			return applycorev1.ExtractConfigMap(live, manager)
		})
	port := applycorev1.ServicePort().WithProtocol(corev1.ProtocolTCP).WithPort(80).WithTargetPort(intstr.FromInt32(8080))
	_, serviceErr := apply(ctx, r, r.services, &corev1.Service{}, w,
		applycorev1.Service(w.Name, w.Namespace).WithOwnerReferences(ref).WithLabels(labels).WithSpec(applycorev1.ServiceSpec().WithSelector(labels).WithPorts(port)),
		func(live *corev1.Service, manager string) (any, error) {
			return applycorev1.ExtractService(live, manager)
		})
	settings := applycorev1.Volume().WithName("settings").WithConfigMap(applycorev1.ConfigMapVolumeSource().WithName(w.Name))
	container := applycorev1.Container().WithName("website").WithImage(w.Spec.Image).
		WithVolumeMounts(applycorev1.VolumeMount().WithName("settings").WithMountPath("/etc/website"))
	d, deploymentErr := apply(ctx, r, r.deployments, &appsv1.Deployment{}, w,
		applyappsv1.Deployment(w.Name, w.Namespace).WithOwnerReferences(ref).WithLabels(labels).WithSpec(applyappsv1.DeploymentSpec().
			WithReplicas(w.Spec.Replicas).
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).WithSpec(applycorev1.PodSpec().WithVolumes(settings).WithContainers(container)))),
		func(live *appsv1.Deployment, manager string) (any, error) {
			return applyappsv1.ExtractDeployment(live, manager)
		})
	if d != nil {
		ready = d.Status.ReadyReplicas
	}
	err = errors.Join(mapErr, serviceErr, deploymentErr)
	if dnsErr := r.dns.Put(ctx, string(w.UID), w.Spec.Host); dnsErr != nil {
		err = errors.Join(err, fmt.Errorf("put the DNS record: %w", dnsErr))
	}
	return ready, err
}

// apply applies a child of w, unless the cached one, which is read into present, is as configured.
func apply[T client.Object](ctx context.Context, r *reconciler, c *managerkit.Client[T], present T, w *v1.Website, config any, extract func(T, string) (any, error)) (T, error) {
	var none T
	if err := r.Get(ctx, client.ObjectKeyFromObject(w), present); apierrors.IsNotFound(err) {
		present = none
	} else if err != nil {
		return none, err
	} else if !metav1.IsControlledBy(present, w) {
		return none, fmt.Errorf("%T %s belongs to another owner", present, w.Name)
	}
	child, _, err := ssa.ApplyChanged(ctx, fieldManager, c.Namespace(w.Namespace).Apply, config, present, extract)
	return child, err
}
