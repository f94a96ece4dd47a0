package after

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/controllerkit/controllerkit/managerkit/examples/memcached/api/v1"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/ssa"
)

// deploy applies the Deployment of a Memcached, and reports whether that changed it.
func (r *Reconciler) deploy(ctx context.Context, m *v1.Memcached) (*appsv1.Deployment, bool, error) {
	present := &appsv1.Deployment{}
	if err := r.Get(ctx, client.ObjectKeyFromObject(m), present); apierrors.IsNotFound(err) {
		present = nil
	} else if err != nil {
		return nil, false, err
	}
	ref, err := owner.Controller(m, v1.GroupVersion.WithKind("Memcached"))
	if err != nil {
		return nil, false, err
	}
	labels := map[string]string{"cache.example.com/name": m.Name}
	config := applyappsv1.Deployment(m.Name, m.Namespace).
		WithOwnerReferences(ref).
		WithSpec(applyappsv1.DeploymentSpec().
			WithReplicas(m.Spec.Size).
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).WithSpec(applycorev1.PodSpec().WithContainers(
				applycorev1.Container().WithName("memcached").WithImage("memcached:1.6").WithArgs("-p", fmt.Sprint(m.Spec.Port))))))
	return ssa.ApplyChanged(ctx, "cache.example.com/memcached", r.deployments.Namespace(m.Namespace).Apply, any(config), present,
		func(live *appsv1.Deployment, manager string) (any, error) {
			return applyappsv1.ExtractDeployment(live, manager)
		})
}
