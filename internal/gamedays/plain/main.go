// Command plain is the operator of the game days without the library: as the book of controller-runtime
// teaches, with CreateOrUpdate, a finalizer by controllerutil, and an election that releases the Lease.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	v1 "github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/internal/gamedays/asleep"
	"github.com/controllerkit/controllerkit/internal/gamedays/managers"
)

func main() {
	f := managers.Parse()
	ctrl.SetLogger(zap.New())
	klog.SetLogger(ctrl.Log)                                // without it, the lines of client-go are text
	slog.SetDefault(slog.New(logr.ToSlogHandler(ctrl.Log))) // without it, the lines of net/http are text
	if err := run(f); err != nil {
		ctrl.Log.Error(err, "The operator ended")
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
	options.LeaderElection, options.LeaderElectionReleaseOnCancel = true, true
	options.LeaderElectionID, options.LeaderElectionNamespace = managers.Name, managers.Namespace
	// As the manager's own, but for the name: the host name of a Pod is the Pod's, and all replicas here have one host.
	options.LeaderElectionResourceLockInterface, err = resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, managers.Namespace, managers.Name,
		resourcelock.ResourceLockConfig{Identity: f.Pod + "_" + string(uuid.NewUUID())}, rest.AddUserAgent(config, "leader-election"), 10e9)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	records, err := dns.NewClient(f.DNS)
	if err != nil {
		return err
	}
	r := &reconciler{Client: mgr.GetClient(), dns: records}
	err = ctrl.NewControllerManagedBy(mgr).For(&v1.Website{}).Owns(&corev1.ConfigMap{}).Owns(&corev1.Service{}).Owns(&appsv1.Deployment{}).Complete(r)
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

type reconciler struct {
	client.Client
	dns dns.Service
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
	if !w.DeletionTimestamp.IsZero() {
		if !controllerutil.ContainsFinalizer(w, controller.Finalizer) {
			return ctrl.Result{}, nil
		}
		if err := r.dns.Delete(ctx, string(w.UID)); err != nil {
			return ctrl.Result{}, err
		}
		controllerutil.RemoveFinalizer(w, controller.Finalizer)
		return ctrl.Result{}, r.Update(ctx, w)
	}
	if controllerutil.AddFinalizer(w, controller.Finalizer) {
		if err := r.Update(ctx, w); err != nil {
			return ctrl.Result{}, err
		}
	}
	callErr := r.make(ctx, w)
	w.Status.ObservedGeneration = w.Generation
	meta.SetStatusCondition(&w.Status.Conditions, managers.Ready(w, callErr))
	return ctrl.Result{}, errors.Join(callErr, r.Status().Update(ctx, w))
}

// make creates or updates the children and the record.
func (r *reconciler) make(ctx context.Context, w *v1.Website) error {
	at := metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name}
	m := &corev1.ConfigMap{ObjectMeta: at}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, m, func() error {
		m.Labels, m.Data = managers.Labels(w), map[string]string{"HOST": w.Spec.Host}
		return controllerutil.SetControllerReference(w, m, r.Scheme())
	}); err != nil {
		return err
	}
	s := &corev1.Service{ObjectMeta: at}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, s, func() error {
		s.Labels, s.Spec.Selector = managers.Labels(w), managers.Labels(w)
		s.Spec.Ports = []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}}
		return controllerutil.SetControllerReference(w, s, r.Scheme())
	}); err != nil {
		return err
	}
	d := &appsv1.Deployment{ObjectMeta: at}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, d, func() error {
		d.Labels, d.Spec.Replicas = managers.Labels(w), &w.Spec.Replicas
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: managers.Labels(w)}
		d.Spec.Template.Labels = managers.Labels(w)
		if len(d.Spec.Template.Spec.Containers) == 0 {
			d.Spec.Template.Spec.Containers = make([]corev1.Container, 1)
		}
		c := &d.Spec.Template.Spec.Containers[0]
		c.Name, c.Image = "website", w.Spec.Image
		if len(c.VolumeMounts) == 0 { // a new Deployment: later, the API server's defaults are in these fields
			c.VolumeMounts = []corev1.VolumeMount{{Name: "settings", MountPath: "/etc/website"}}
			d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "settings", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: w.Name}},
			}}}
		}
		return controllerutil.SetControllerReference(w, d, r.Scheme())
	}); err != nil {
		return err
	}
	w.Status.ReadyReplicas = d.Status.ReadyReplicas
	return r.dns.Put(ctx, string(w.UID), w.Spec.Host)
}
