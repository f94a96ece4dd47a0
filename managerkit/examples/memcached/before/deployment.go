package before

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/controllerkit/controllerkit/managerkit/examples/memcached/api/v1"
)

// deploy creates or changes the Deployment of a Memcached, and reports whether it did.
func (r *Reconciler) deploy(ctx context.Context, m *v1.Memcached) (*appsv1.Deployment, bool, error) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name}}
	result, err := controllerutil.CreateOrUpdate(ctx, r.Client, d, func() error {
		labels := map[string]string{"cache.example.com/name": m.Name}
		d.Spec.Replicas = &m.Spec.Size
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		d.Spec.Template.Labels = labels
		if len(d.Spec.Template.Spec.Containers) == 0 {
			d.Spec.Template.Spec.Containers = make([]corev1.Container, 1)
		}
		c := &d.Spec.Template.Spec.Containers[0]
		c.Name, c.Image = "memcached", "memcached:1.6"
		c.Args = []string{"-p", fmt.Sprint(m.Spec.Port)}
		return controllerutil.SetControllerReference(m, d, r.Scheme())
	})
	return d, result != controllerutil.OperationResultNone, err
}
