package controller_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/controllerkit/controllerkit/examples/website/api/v1"
	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/operator"
)

// records is a dns.Service.
type records struct {
	hosts map[string]string
	err   error // of all calls
}

func (r *records) Put(_ context.Context, owner, host string) error {
	if r.err == nil {
		r.hosts[owner] = host
	}
	return r.err
}

func (r *records) Delete(_ context.Context, owner string) error {
	if r.err == nil {
		delete(r.hosts, owner)
	}
	return r.err
}

// children is an Apply whose Deployments have a ready replica.
type children struct {
	applied []any
	err     error
}

func (c *children) apply(_ context.Context, objects ...any) ([]operator.Child, error) {
	c.applied = objects
	result := make([]operator.Child, len(objects))
	for i, obj := range objects {
		if _, ok := obj.(*applyappsv1.DeploymentApplyConfiguration); ok && c.err == nil {
			result[i].Object = &appsv1.Deployment{Status: appsv1.DeploymentStatus{ReadyReplicas: 1}}
		}
	}
	return result, c.err
}

func newSite() *v1.Website {
	return &v1.Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blog", UID: "blog-uid"},
		Spec:       v1.WebsiteSpec{Image: "blog:1", Host: "blog.example.com", Replicas: 2},
	}
}

// TestReconcile calls the functions of the controller alone. The other tests of the website run them in the
// operator on an API server.
func TestReconcile(t *testing.T) {
	dns, c, w := &records{hosts: map[string]string{}}, &children{}, newSite()
	r := &controller.Reconciler{DNS: dns, Apply: c.apply}
	if _, err := r.Reconcile(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"blog-uid": "blog.example.com"}, dns.hosts); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if w.Status.ReadyReplicas != 1 {
		t.Errorf("status = %+v, want one replica", w.Status)
	}
	if len(c.applied) != 3 {
		t.Fatalf("applied %d objects, want 3", len(c.applied))
	}
	configMap, deployment := c.applied[0].(*applycorev1.ConfigMapApplyConfiguration), c.applied[2].(*applyappsv1.DeploymentApplyConfiguration)
	if configMap.Data["HOST"] != "blog.example.com" || *deployment.Spec.Replicas != 2 {
		t.Errorf("config map %v and deployment of %d replicas, want those of the spec", configMap.Data, *deployment.Spec.Replicas)
	}
	// The host can change while Pods run, and only a mounted ConfigMap reaches them.
	pod := deployment.Spec.Template.Spec
	volume, container := pod.Volumes[0], pod.Containers[0]
	if *volume.ConfigMap.Name != *configMap.Name || *container.VolumeMounts[0].Name != *volume.Name || len(container.Env)+len(container.EnvFrom) > 0 {
		t.Errorf("Pods = %+v, want the config map mounted, and not in the environment", pod)
	}
	if err := r.Cleanup(t.Context(), w); err != nil || len(dns.hosts) > 0 {
		t.Errorf("Cleanup() = %v, records of %v are left", err, dns.hosts)
	}
}

// TestReconcileFailures: a failure of one part stops no other one.
func TestReconcileFailures(t *testing.T) {
	dns, c, w := &records{hosts: map[string]string{}, err: errors.New("service is down")}, &children{}, newSite()
	r := &controller.Reconciler{DNS: dns, Apply: c.apply}
	if _, err := r.Reconcile(t.Context(), w); !errors.Is(err, dns.err) || len(c.applied) != 3 || w.Status.ReadyReplicas != 1 {
		t.Errorf("Reconcile() = %v with %d children, want the error of the service and 3", err, len(c.applied))
	}
	if err := r.Cleanup(t.Context(), w); !errors.Is(err, dns.err) {
		t.Errorf("Cleanup() = %v, want the error of the service", err)
	}
	c.err = errors.New("another owner")
	if _, err := r.Reconcile(t.Context(), w); !errors.Is(err, c.err) || !strings.Contains(err.Error(), "service is down") {
		t.Errorf("Reconcile() = %v, want both errors", err)
	}
}
