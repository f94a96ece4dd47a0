// Package controller reconciles Websites.
package controller

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/finalizer"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa"
	"github.com/controllerkit/controllerkit/status"
)

const (
	// Finalizer keeps a Website until its DNS record is gone.
	Finalizer = "web.example.com/dns"

	manager = "web.example.com/website-operator" // of the applied fields
)

var kind = v1.GroupVersion.WithKind("Website")

// Reconciler makes the cluster and the DNS service match a Website.
type Reconciler struct {
	Kube     kubernetes.Interface
	Websites *crd.Client[*v1.Website]
	DNS      dns.Service
	Event    func(obj metav1.Object, eventType, reason, action, note string, args ...any)

	// The caches.
	Cached      crd.Lister[*v1.Website]
	Deployments appslisters.DeploymentLister
	Services    corelisters.ServiceLister
	ConfigMaps  corelisters.ConfigMapLister
}

// New returns the operator of the websites in a namespace, or in all if it is "".
func New(config *rest.Config, o operator.Options, namespace string, records dns.Service) (*operator.Operator, error) {
	op, err := operator.New(config, o)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(op.Config)
	websites, crdErr := crd.New[*v1.Website](op.Config, kind, "websites")
	if err := errors.Join(err, crdErr); err != nil {
		return nil, err
	}
	r := &Reconciler{Kube: kube, Websites: websites, DNS: records}
	c := op.Controller("websites", r.Reconcile)
	r.Event = c.Event

	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	r.Cached = operator.For(c, v1.Resource("websites"), websites.Namespace(namespace).Informer(0, nil))
	r.Deployments = operator.Owns(c, appsv1.Resource("deployments"), factory.Apps().V1().Deployments())
	r.Services = operator.Owns(c, corev1.Resource("services"), factory.Core().V1().Services())
	r.ConfigMaps = operator.Owns(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())

	op.Writes(v1.Resource("websites"), "get", "patch") // ConfirmLive, the finalizer
	op.Writes(v1.Resource("websites/status"), "update")
	op.Writes(appsv1.Resource("deployments"), "create", "patch") // server-side apply
	op.Writes(corev1.Resource("services"), "create", "patch")
	op.Writes(corev1.Resource("configmaps"), "create", "patch")
	return op, nil
}

// Reconcile reconciles one Website. It never modifies the cached objects.
func (r *Reconciler) Reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	w, err := r.Cached.Namespace(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	held, live, err := finalizer.Ensure(ctx, r.Websites.Namespace(w.Namespace), w, Finalizer, r.deleteRecord)
	if err != nil || !live {
		return reconcile.Result{}, err
	}
	// The API server can remove an object whose first finalizer comes in the middle of a deletion.
	// A later record would never be deleted.
	if w, err = consistency.ConfirmLive(ctx, r.Websites.Namespace(w.Namespace), held.Object()); err != nil {
		return reconcile.Result{}, err
	}

	deployment, err := r.children(ctx, w)
	err = errors.Join(err, r.putRecord(ctx, held))
	if ctx.Err() != nil { // the errors of a stop are not about the website
		return reconcile.Result{}, err
	}
	_, statusErr := status.Update(ctx, r.Websites.Namespace(w.Namespace), w, func(w *v1.Website) error {
		w.Status.ObservedGeneration = w.Generation
		ready := status.True("Ready", "Available", "all replicas are ready and the DNS record exists")
		if deployment != nil {
			w.Status.ReadyReplicas = deployment.Status.ReadyReplicas
		}
		switch n := w.Status.ReadyReplicas; {
		case err != nil:
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Failed", err.Error()
		case n < w.Spec.Replicas || deployment.Status.ObservedGeneration < deployment.Generation:
			ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "Progressing", fmt.Sprintf("%d of %d replicas are ready", n, w.Spec.Replicas)
		}
		return status.Set(&w.Status.Conditions, w.Generation, ready)
	})
	return reconcile.Result{}, errors.Join(err, statusErr)
}

// putRecord takes a Held, so it cannot run before the finalizer is stored. It runs in each
// reconcile, because no status can prove what the service has.
func (r *Reconciler) putRecord(ctx context.Context, held finalizer.Held[*v1.Website]) error {
	return r.DNS.Put(ctx, string(held.Object().UID), held.Object().Spec.Host)
}

// deleteRecord is the cleanup. The garbage collector removes the children.
func (r *Reconciler) deleteRecord(ctx context.Context, held finalizer.Held[*v1.Website]) error {
	w := held.Object()
	if err := r.DNS.Delete(ctx, string(w.UID)); err != nil {
		r.Event(w, corev1.EventTypeWarning, "CleanupFailed", "DeleteRecord", "%v", err)
		return err
	}
	r.Event(w, corev1.EventTypeNormal, "CleanedUp", "DeleteRecord", "the DNS record of %s is gone", w.Spec.Host)
	return nil
}

// children applies the objects of w, which have its name. It returns the Deployment.
func (r *Reconciler) children(ctx context.Context, w *v1.Website) (*appsv1.Deployment, error) {
	owner := applymetav1.OwnerReference().WithAPIVersion(v1.GroupVersion.String()).WithKind(kind.Kind).
		WithName(w.Name).WithUID(w.UID).WithController(true).WithBlockOwnerDeletion(true)
	labels := map[string]string{"app.kubernetes.io/name": "website", "app.kubernetes.io/instance": w.Name}

	configMap, err := r.ConfigMaps.ConfigMaps(w.Namespace).Get(w.Name)
	_, configMapErr := apply(ctx, r, w, "ConfigMap", r.Kube.CoreV1().ConfigMaps(w.Namespace).Apply, configMap, err, applycorev1.ExtractConfigMap,
		applycorev1.ConfigMap(w.Name, w.Namespace).WithLabels(labels).WithOwnerReferences(owner).
			WithData(map[string]string{"HOST": w.Spec.Host}))

	service, err := r.Services.Services(w.Namespace).Get(w.Name)
	_, serviceErr := apply(ctx, r, w, "Service", r.Kube.CoreV1().Services(w.Namespace).Apply, service, err, applycorev1.ExtractService,
		applycorev1.Service(w.Name, w.Namespace).WithLabels(labels).WithOwnerReferences(owner).
			WithSpec(applycorev1.ServiceSpec().WithSelector(labels).WithPorts(applycorev1.ServicePort().
				WithProtocol(corev1.ProtocolTCP).WithPort(80).WithTargetPort(intstr.FromInt32(8080)))))

	deployment, err := r.Deployments.Deployments(w.Namespace).Get(w.Name)
	deployment, err = apply(ctx, r, w, "Deployment", r.Kube.AppsV1().Deployments(w.Namespace).Apply, deployment, err, applyappsv1.ExtractDeployment,
		applyappsv1.Deployment(w.Name, w.Namespace).WithLabels(labels).WithOwnerReferences(owner).
			WithSpec(applyappsv1.DeploymentSpec().WithReplicas(w.Spec.Replicas).
				WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)).
				WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).WithSpec(applycorev1.PodSpec().
					WithContainers(applycorev1.Container().WithName("website").WithImage(w.Spec.Image).
						WithEnvFrom(applycorev1.EnvFromSource().WithConfigMapRef(applycorev1.ConfigMapEnvSource().WithName(w.Name))))))))
	return deployment, errors.Join(configMapErr, serviceErr, err)
}

// apply applies one child, and records an Event if that changed it. The lister returned
// live and liveErr.
func apply[T metav1.Object, C any](ctx context.Context, r *Reconciler, w *v1.Website, childKind string, request func(context.Context, C, metav1.ApplyOptions) (T, error), live T, liveErr error, extract func(T, string) (C, error), config C) (T, error) {
	switch {
	case liveErr != nil && !apierrors.IsNotFound(liveErr):
		return live, liveErr
	case liveErr == nil && !metav1.IsControlledBy(live, w):
		var none T
		return none, fmt.Errorf("%s %q exists and does not belong to this website: delete one of them: %w", childKind, w.Name, reconcile.ErrRejected)
	}
	child, applied, err := ssa.ApplyChanged(ctx, manager, request, config, live, extract)
	if applied {
		r.Event(w, corev1.EventTypeNormal, "Applied", "Apply", "applied the %s", childKind)
	}
	return child, err
}
