package ssa_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applyautoscalingv1 "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applypolicyv1 "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/controllerkit/controllerkit/ssa"
)

// owners returns who has what of a conflict. It holds each time to be the one in the
// live object, and Update to what the server says: it has the version with these alone.
func owners(t *testing.T, err error, live metav1.Object) []ssa.Owner {
	t.Helper()
	var conflict *ssa.ConflictError
	var status apierrors.APIStatus
	if !errors.As(err, &conflict) || !errors.As(err, &status) {
		t.Fatalf("error = %v, want a ConflictError", err)
	}
	list := conflict.Owners(manager, live)
	for i, o := range list {
		written := slices.ContainsFunc(live.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
			return e.Manager == o.Manager && e.Operation == o.Operation && e.Subresource == o.Subresource && e.Time.Time.Equal(o.Time)
		})
		if age := time.Since(o.Time); age < -2*time.Second || age > 5*time.Minute || !written {
			t.Errorf("%s was written at %v; managedFields %v", o.Field, o.Time, live.GetManagedFields())
		}
		for _, cause := range status.Status().Details.Causes {
			if cause.Field == o.Field && (o.Operation == metav1.ManagedFieldsOperationUpdate) != strings.Contains(cause.Message, " using ") {
				t.Errorf("%s was written by %s, the server says %q", o.Field, o.Operation, cause.Message)
			}
		}
		list[i].Time = time.Time{}
	}
	return list
}

// Each conflict has the operation, the subresource and the time of the manager that
// the API server means.
func TestServerOwners(t *testing.T) {
	s := newServer(t)
	ctx := t.Context()
	services := s.CoreV1().Services(s.namespace)
	port := func(target int) *applycorev1.ServicePortApplyConfiguration {
		return applycorev1.ServicePort().WithName("http").WithPort(80).WithProtocol(corev1.ProtocolTCP).WithTargetPort(intstr.FromInt(target))
	}
	service := func(color string, target int) *applycorev1.ServiceApplyConfiguration {
		return applycorev1.Service("one", s.namespace).WithLabels(map[string]string{"example.com/color": color, "size": color}).
			WithSpec(applycorev1.ServiceSpec().WithPorts(port(target)))
	}
	created, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"example.com/color": "red"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt(8080)}}},
	}, metav1.CreateOptions{FieldManager: "painter"})
	if err != nil {
		t.Fatal(err)
	}
	live, err := ssa.Apply(ctx, "example.org/fashion", services.Apply, applycorev1.Service("one", s.namespace).WithLabels(map[string]string{"size": "L"}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = ssa.TryApply(ctx, manager, services.Apply, service("blue", 9090), nil)
	want := []ssa.Owner{
		{Field: ".metadata.labels.example.com/color", Manager: "painter", Operation: "Update"},
		{Field: ".metadata.labels.size", Manager: "example.org/fashion", Operation: "Apply"},
		{Field: `.spec.ports[port=80,protocol="TCP"].targetPort`, Manager: "painter", Operation: "Update"},
	}
	if diff := cmp.Diff(want, owners(t, err, live)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	// What live does not show has no more than the server said.
	var conflict *ssa.ConflictError
	errors.As(err, &conflict)
	unknown := []ssa.Owner{
		{Field: ".metadata.labels.example.com/color", Manager: "painter"},
		{Field: ".metadata.labels.size", Manager: "example.org/fashion"},
		{Field: `.spec.ports[port=80,protocol="TCP"].targetPort`, Manager: "painter"},
	}
	var none *corev1.Service
	for _, live := range []metav1.Object{nil, none, &corev1.Service{}} {
		if diff := cmp.Diff(unknown, conflict.Owners(manager, live)); diff != "" {
			t.Errorf("live %T, -want +got:\n%s", live, diff)
		}
	}
	if diff := cmp.Diff(unknown[1:2], conflict.Owners(manager, created)[1:2]); diff != "" {
		t.Errorf("from before the second writer, -want +got:\n%s", diff)
	}

	// An earlier self without server-side apply is another manager, and what was
	// applied as the same one is not.
	if _, err := ssa.Apply(ctx, manager, services.Apply, service("blue", 9090)); err != nil {
		t.Fatal(err)
	}
	mine, err := services.Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mine.Labels["size"] = "S"
	if _, err := services.Update(ctx, mine, metav1.UpdateOptions{FieldManager: string(manager)}); err != nil {
		t.Fatal(err)
	}
	if live, err = ssa.TryApply(ctx, manager, services.Apply, service("S", 9090).WithLabels(map[string]string{"example.com/color": "blue"}), nil); err != nil {
		t.Fatal(err) // the same value: both have it now
	}
	_, err = ssa.TryApply(ctx, manager, services.Apply, service("M", 9090).WithLabels(map[string]string{"example.com/color": "blue"}), nil)
	want = []ssa.Owner{{Field: ".metadata.labels.size", Manager: string(manager), Operation: "Update"}}
	if diff := cmp.Diff(want, owners(t, err, live)); diff != "" {
		t.Errorf("earlier self: -want +got:\n%s", diff)
	}
}

// What the same manager has applied through the subresource scale is another's.
func TestServerOwnersScale(t *testing.T) {
	s := newServer(t)
	c := s.AppsV1().Deployments(s.namespace)
	labels := map[string]string{"a": "b"}
	if _, err := c.Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale := applyautoscalingv1.Scale().WithName("one").WithNamespace(s.namespace).WithSpec(applyautoscalingv1.ScaleSpec().WithReplicas(3))
	if _, err := c.ApplyScale(t.Context(), "one", scale, metav1.ApplyOptions{FieldManager: string(manager), Force: true}); err != nil {
		t.Fatal(err)
	}
	live, err := c.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ssa.TryApply(t.Context(), manager, c.Apply, applyappsv1.Deployment("one", s.namespace).WithSpec(applyappsv1.DeploymentSpec().WithReplicas(5)), nil)
	var conflict *ssa.ConflictError
	if !errors.As(err, &conflict) {
		t.Fatalf("error = %v, want a ConflictError", err)
	}
	// The API server keeps no time for it.
	want := []ssa.Owner{{Field: ".spec.replicas", Manager: string(manager), Operation: "Apply", Subresource: "scale"}}
	if diff := cmp.Diff(want, conflict.Owners(manager, live)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestServerOwnersStatus(t *testing.T) {
	s := newServer(t)
	c := s.PolicyV1().PodDisruptionBudgets(s.namespace)
	live, err := c.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}, metav1.CreateOptions{FieldManager: "painter"})
	if err != nil {
		t.Fatal(err)
	}
	live.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Fine", LastTransitionTime: metav1.Unix(1e9, 0)}}
	if live, err = c.UpdateStatus(t.Context(), live, metav1.UpdateOptions{FieldManager: "painter"}); err != nil {
		t.Fatal(err)
	}
	_, err = ssa.TryApply(t.Context(), manager, c.ApplyStatus, applypolicyv1.PodDisruptionBudget("one", s.namespace).WithStatus(
		applypolicyv1.PodDisruptionBudgetStatus().WithConditions(applymetav1.Condition().WithType("Ready").WithReason("Other"))), nil)
	want := []ssa.Owner{{Field: `.status.conditions[type="Ready"].reason`, Manager: "painter", Operation: "Update", Subresource: "status"}}
	if diff := cmp.Diff(want, owners(t, err, live)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
