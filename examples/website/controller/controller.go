// Package controller reconciles Websites.
package controller

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Finalizer keeps a Website until its DNS record is gone.
const Finalizer = "web.example.com/dns"

// Reconciler makes the cluster and the DNS service match a Website.
type Reconciler struct {
	DNS   dns.Service
	Apply func(ctx context.Context, children ...any) ([]operator.Child, error)
}

// Run runs the operator until ctx is done. kubeconfig is a file, or "" for the cluster of the Pod.
func Run(ctx context.Context, o operator.Options, kubeconfig, dnsURL string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	records, err := dns.NewClient(dnsURL)
	if err != nil {
		return fmt.Errorf("website operator: %w", err)
	}
	op, err := New(config, o, records)
	if err != nil {
		return err
	}
	return op.Run(ctx)
}

// New returns the operator of the websites.
func New(config *rest.Config, o operator.Options, records dns.Service) (*operator.Operator, error) {
	op, err := operator.New(config, o)
	if err != nil {
		return nil, fmt.Errorf("website operator: %w", err)
	}
	r := &Reconciler{DNS: records}
	c := operator.Kind(op, v1.GroupVersion.WithResource("websites"), operator.Reconciler[*v1.Website]{
		Reconcile: r.Reconcile, Finalizer: Finalizer, Cleanup: r.Cleanup, Manager: "web.example.com/website-operator",
	})
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	operator.Children(c, corev1.SchemeGroupVersion.WithResource("services"), applycorev1.ExtractService)
	operator.Children(c, appsv1.SchemeGroupVersion.WithResource("deployments"), applyappsv1.ExtractDeployment)
	r.Apply = c.Apply
	return op, nil
}

// Reconcile reconciles one Website. The condition Ready follows from the children and the error.
func (r *Reconciler) Reconcile(ctx context.Context, w *v1.Website) (reconcile.Result, error) {
	children, err := r.Apply(ctx, configMap(w), service(w), deployment(w))
	for _, child := range children {
		if d, ok := child.Object.(*appsv1.Deployment); ok {
			w.Status.ReadyReplicas = d.Status.ReadyReplicas
		}
	}
	// No status can prove which record the service has, so it is put in each reconcile.
	if dnsErr := r.DNS.Put(ctx, string(w.UID), w.Spec.Host); dnsErr != nil {
		err = errors.Join(err, fmt.Errorf("put the DNS record: %w", dnsErr))
	}
	return reconcile.Result{}, err
}

// Cleanup deletes the DNS record. The garbage collector removes the children.
func (r *Reconciler) Cleanup(ctx context.Context, w *v1.Website) error {
	if err := r.DNS.Delete(ctx, string(w.UID)); err != nil {
		return fmt.Errorf("delete the DNS record: %w", err)
	}
	return nil
}

// labels are on all children, and select the Pods.
func labels(w *v1.Website) map[string]string {
	return map[string]string{"app.kubernetes.io/name": "website", "app.kubernetes.io/instance": w.Name}
}

func configMap(w *v1.Website) *applycorev1.ConfigMapApplyConfiguration {
	return applycorev1.ConfigMap(w.Name, w.Namespace).WithLabels(labels(w)).WithData(map[string]string{"HOST": w.Spec.Host})
}

func service(w *v1.Website) *applycorev1.ServiceApplyConfiguration {
	port := applycorev1.ServicePort().WithProtocol(corev1.ProtocolTCP).WithPort(80).WithTargetPort(intstr.FromInt32(8080))
	return applycorev1.Service(w.Name, w.Namespace).WithLabels(labels(w)).
		WithSpec(applycorev1.ServiceSpec().WithSelector(labels(w)).WithPorts(port))
}

func deployment(w *v1.Website) *applyappsv1.DeploymentApplyConfiguration {
	// A running Pod sees a changed host in the file /etc/website/HOST. Its environment would keep the old one.
	settings := applycorev1.Volume().WithName("settings").WithConfigMap(applycorev1.ConfigMapVolumeSource().WithName(w.Name))
	container := applycorev1.Container().WithName("website").WithImage(w.Spec.Image).
		WithVolumeMounts(applycorev1.VolumeMount().WithName("settings").WithMountPath("/etc/website"))
	return applyappsv1.Deployment(w.Name, w.Namespace).WithLabels(labels(w)).
		WithSpec(applyappsv1.DeploymentSpec().WithReplicas(w.Spec.Replicas).
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels(w))).
			WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels(w)).
				WithSpec(applycorev1.PodSpec().WithVolumes(settings).WithContainers(container))))
}
