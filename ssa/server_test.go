package ssa_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applypolicyv1 "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

type server struct {
	kubernetes.Interface
	namespace string
	requests  *atomic.Int64
}

func newServer(t *testing.T) server {
	t.Helper()
	config, n := testserver.Counted(t)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return server{Interface: client, namespace: testserver.Namespace(t), requests: n}
}

// applier is a client.
type applier[T, C any] interface {
	Apply(ctx context.Context, config C, opts metav1.ApplyOptions) (T, error)
}

// twice applies a configuration until the server has it, and holds ApplyChanged to
// its promise: the second time makes no request, and if it is made to apply all the
// same, the resourceVersion stays.
func twice[T interface {
	comparable
	metav1.Object
}, C any](t *testing.T, s server, c applier[T, C], configuration func() C, extract func(T, string) (C, error)) T {
	t.Helper()
	var none T
	live, applied, err := ssa.ApplyChanged(t.Context(), manager, c.Apply, configuration(), none, extract)
	if err != nil || !applied {
		t.Fatalf("first: applied = %v, error %v", applied, err)
	}
	before := s.requests.Load()
	again, applied, err := ssa.ApplyChanged(t.Context(), manager, c.Apply, configuration(), live, extract)
	if requests := s.requests.Load() - before; err != nil || applied || requests != 0 {
		owned, _ := extract(live, string(manager))
		t.Errorf("second: applied = %v with %d requests, error %v; the configuration and what is owned (-want +got):\n%s",
			applied, requests, err, cmp.Diff(configuration(), owned, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })))
	}
	if again != live {
		t.Error("second: the answer is not live")
	}
	forced, err := ssa.Apply(t.Context(), manager, c.Apply, configuration())
	if err != nil {
		t.Fatal(err)
	}
	if forced.GetResourceVersion() != live.GetResourceVersion() {
		t.Errorf("an apply that changes nothing moved resourceVersion from %s to %s", live.GetResourceVersion(), forced.GetResourceVersion())
	}
	return live
}

// TestServerUnchanged proves A2.
func TestServerUnchanged(t *testing.T) {
	t.Run("ConfigMap", func(t *testing.T) {
		s := newServer(t)
		c := s.CoreV1().ConfigMaps(s.namespace)
		twice(t, s, c, func() *config {
			return applycorev1.ConfigMap("one", s.namespace).WithData(map[string]string{"color": "red"}).
				WithFinalizers().WithAnnotations(map[string]string{"a": "b"})
		}, applycorev1.ExtractConfigMap)
	})
	t.Run("ResourceQuota", func(t *testing.T) {
		s := newServer(t)
		live := twice(t, s, s.CoreV1().ResourceQuotas(s.namespace), func() *quota {
			return applycorev1.ResourceQuota("one", s.namespace).WithSpec(applycorev1.ResourceQuotaSpec().WithHard(corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("1000m"),  // stored as 1
				corev1.ResourceMemory: resource.MustParse("1024Mi"), // stored as 1Gi
				corev1.ResourcePods:   resource.MustParse("0.5e1"),  // stored as 5
			}))
		}, applycorev1.ExtractResourceQuota)
		if cpu := live.Spec.Hard[corev1.ResourceCPU]; cpu.String() != "1" {
			t.Errorf("stored cpu is %s: this test needs one that is written differently", cpu.String())
		}
	})
	t.Run("Deployment", func(t *testing.T) {
		s := newServer(t)
		live := twice(t, s, s.AppsV1().Deployments(s.namespace), func() *applyappsv1.DeploymentApplyConfiguration {
			return deployment("one", s.namespace)
		}, applyappsv1.ExtractDeployment)
		if port := live.Spec.Template.Spec.Containers[0].Ports[0]; port.Protocol != corev1.ProtocolTCP {
			t.Errorf("protocol is %q: this test needs a key with a default", port.Protocol)
		}
	})
	t.Run("Service", func(t *testing.T) {
		s := newServer(t)
		twice(t, s, s.CoreV1().Services(s.namespace), func() *applycorev1.ServiceApplyConfiguration {
			return applycorev1.Service("one", s.namespace).WithSpec(applycorev1.ServiceSpec().
				WithSelector(map[string]string{"a": "b"}).WithPorts(applycorev1.ServicePort().WithPort(80)))
		}, applycorev1.ExtractService)
	})
	t.Run("owner and finalizer", func(t *testing.T) {
		s := newServer(t)
		c := s.CoreV1().ConfigMaps(s.namespace)
		owner, err := ssa.Apply(t.Context(), manager, c.Apply, applycorev1.ConfigMap("owner", s.namespace))
		if err != nil {
			t.Fatal(err)
		}
		twice(t, s, c, func() *config {
			return applycorev1.ConfigMap("one", s.namespace).WithOwnerReferences(applymetav1.OwnerReference().
				WithAPIVersion("v1").WithKind("ConfigMap").WithName(owner.Name).WithUID(owner.UID).WithController(true))
		}, applycorev1.ExtractConfigMap)
	})
	t.Run("Namespace, without a namespace", func(t *testing.T) {
		s := newServer(t)
		twice(t, s, s.CoreV1().Namespaces(), func() *applycorev1.NamespaceApplyConfiguration {
			return applycorev1.Namespace(s.namespace).WithLabels(map[string]string{"a": "b"})
		}, applycorev1.ExtractNamespace)
	})
}

// Every difference is applied, and lands.
//
// Proves A2.
func TestServerChanged(t *testing.T) {
	const other ssa.FieldManager = "example.org/fashion"
	s := newServer(t)
	c := s.CoreV1().ConfigMaps(s.namespace)
	configuration := func(data map[string]string) *config {
		return applycorev1.ConfigMap("one", s.namespace).WithData(data)
	}
	live, err := ssa.Apply(t.Context(), manager, c.Apply, configuration(map[string]string{"color": "red", "size": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	changed := func(step string, data map[string]string, want bool, wantData map[string]string) {
		t.Helper()
		answer, applied, err := ssa.ApplyChanged(t.Context(), manager, c.Apply, configuration(data), live, applycorev1.ExtractConfigMap)
		if err != nil || applied != want {
			t.Fatalf("%s: applied = %v, error %v, want %v", step, applied, err, want)
		}
		if diff := cmp.Diff(wantData, answer.Data); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
		live = answer
	}
	red := map[string]string{"color": "red"}
	changed("a field less", red, true, red)
	changed("same", red, false, red)

	// Another manager adds a field of its own: nothing to do.
	if live, err = ssa.Apply(t.Context(), other, c.Apply, configuration(map[string]string{"size": "9"})); err != nil {
		t.Fatal(err)
	}
	changed("a field of another", red, false, map[string]string{"color": "red", "size": "9"})

	// Another manager takes ours by force: it is taken back.
	if live, err = ssa.Apply(t.Context(), other, c.Apply, configuration(map[string]string{"color": "blue"})); err != nil {
		t.Fatal(err)
	}
	changed("taken by another", red, true, red)

	// Somebody updates it without apply.
	live.Data["color"] = "green"
	if live, err = c.Update(t.Context(), live, metav1.UpdateOptions{FieldManager: "kubectl-edit"}); err != nil {
		t.Fatal(err)
	}
	changed("updated by another", red, true, red)
}

// TestServerTryApply proves A1.
func TestServerTryApply(t *testing.T) {
	s := newServer(t)
	c := s.CoreV1().ConfigMaps(s.namespace)
	configuration := func(data map[string]string) *config {
		return applycorev1.ConfigMap("one", s.namespace).WithData(data)
	}
	first, err := ssa.TryApply(t.Context(), manager, c.Apply, configuration(map[string]string{"color": "red", "size": "1"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	first.Data["size"] = "2"
	updated, err := c.Update(t.Context(), first, metav1.UpdateOptions{FieldManager: "kubectl-edit"})
	if err != nil {
		t.Fatal(err)
	}

	_, err = ssa.TryApply(t.Context(), "example.org/fashion", c.Apply, configuration(map[string]string{"color": "blue", "size": "3", "shape": "round"}), nil)
	var conflict *ssa.ConflictError
	if !errors.As(err, &conflict) || !apierrors.IsConflict(err) || errors.Is(err, ssa.ErrUIDMismatch) {
		t.Fatalf("error = %v, want a ConflictError", err)
	}
	want := []ssa.Conflict{{Field: ".data.color", Manager: string(manager)}, {Field: ".data.size", Manager: "kubectl-edit"}}
	if diff := cmp.Diff(want, conflict.Conflicts); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
	live, err := c.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || live.ResourceVersion != updated.ResourceVersion {
		t.Errorf("the refused apply wrote: %v, error %v", live, err)
	}

	// Equal values are shared, not fought over; Apply takes what TryApply would not.
	if _, err := ssa.TryApply(t.Context(), "example.org/fashion", c.Apply, configuration(map[string]string{"color": "red"}), nil); err != nil {
		t.Errorf("the same value: %v", err)
	}
	forced, err := ssa.Apply(t.Context(), "example.org/fashion", c.Apply, configuration(map[string]string{"color": "blue"}))
	if err != nil || forced.Data["color"] != "blue" {
		t.Errorf("by force: %v, error %v", forced, err)
	}
}

// TestServerHandOver: a field that a configuration no longer has gets its default, unless another manager owns it by
// then. docs/mistakes.md shows the steps.
func TestServerHandOver(t *testing.T) {
	s := newServer(t)
	deployments := s.AppsV1().Deployments(s.namespace)
	configuration := func(name string) *applyappsv1.DeploymentApplyConfiguration {
		labels := map[string]string{"app": name}
		return applyappsv1.Deployment(name, s.namespace).WithSpec(applyappsv1.DeploymentSpec().
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).WithSpec(applycorev1.PodSpec().
				WithContainers(applycorev1.Container().WithName("app").WithImage("example.com/app")))))
	}
	apply := func(config *applyappsv1.DeploymentApplyConfiguration, live *appsv1.Deployment, want int32) *appsv1.Deployment {
		t.Helper()
		got, applied, err := ssa.ApplyChanged(t.Context(), manager, deployments.Apply, config, live, applyappsv1.ExtractDeployment)
		if err != nil || !applied || *got.Spec.Replicas != want {
			t.Fatalf("ApplyChanged() = %d replicas, applied %v, error %v; want %d", *got.Spec.Replicas, applied, err, want)
		}
		return got
	}
	for name, want := range map[string]int32{"left-out": 1, "handed-over": 5} {
		config := configuration(name)
		config.Spec.WithReplicas(5)
		live := apply(config, nil, 5)
		if name == "handed-over" {
			scale := applyappsv1.Deployment(name, s.namespace).WithSpec(applyappsv1.DeploymentSpec().WithReplicas(5))
			var err error
			if live, err = ssa.TryApply(t.Context(), "example.com/handover", deployments.Apply, scale, nil); err != nil {
				t.Fatal(err)
			}
		}
		apply(configuration(name), live, want)
	}

	// The next change by an autoscaler takes the field.
	scale, err := deployments.GetScale(t.Context(), "handed-over", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 7
	if _, err := deployments.UpdateScale(t.Context(), "handed-over", scale, metav1.UpdateOptions{FieldManager: "scaler"}); err != nil {
		t.Fatal(err)
	}
	scaled, err := ssa.Apply(t.Context(), manager, deployments.Apply, configuration("handed-over"))
	if err != nil || *scaled.Spec.Replicas != 7 {
		t.Errorf("after the autoscaler: %d replicas, error %v", *scaled.Spec.Replicas, err)
	}
	for _, e := range scaled.ManagedFields {
		if e.Manager == "example.com/handover" {
			t.Errorf("the former owner still has %s", e.FieldsV1)
		}
	}
}

// A resourceVersion in the configuration is the other kind of conflict.
func TestServerResourceVersion(t *testing.T) {
	s := newServer(t)
	c := s.CoreV1().ConfigMaps(s.namespace)
	first, err := ssa.Apply(t.Context(), manager, c.Apply, applycorev1.ConfigMap("one", s.namespace).WithData(map[string]string{"color": "red"}))
	if err != nil {
		t.Fatal(err)
	}
	second, err := ssa.Apply(t.Context(), manager, c.Apply, applycorev1.ConfigMap("one", s.namespace).WithData(map[string]string{"color": "blue"}))
	if err != nil {
		t.Fatal(err)
	}
	stale := applycorev1.ConfigMap("one", s.namespace).WithData(map[string]string{"color": "blue"}).WithResourceVersion(first.ResourceVersion)
	// Nothing differs but the precondition: the server is to judge it.
	_, applied, err := ssa.ApplyChanged(t.Context(), manager, c.Apply, stale, second, applycorev1.ExtractConfigMap)
	var conflict *ssa.ConflictError
	if !apierrors.IsConflict(err) || errors.As(err, &conflict) || errors.Is(err, ssa.ErrUIDMismatch) || applied {
		t.Errorf("applied = %v, error %v, want a Conflict about the resourceVersion", applied, err)
	}
	// One that holds is not a difference.
	before := s.requests.Load()
	_, applied, err = ssa.ApplyChanged(t.Context(), manager, c.Apply, stale.WithResourceVersion(second.ResourceVersion).WithUID(second.UID), second, applycorev1.ExtractConfigMap)
	if requests := s.requests.Load() - before; err != nil || applied || requests != 0 {
		t.Errorf("applied = %v with %d requests, error %v, want none", applied, requests, err)
	}
}

// An apply with a uid never brings a deleted object back, however the object that
// the caller knows looks.
//
// Proves A3.
func TestServerUID(t *testing.T) {
	s := newServer(t)
	c := s.CoreV1().ConfigMaps(s.namespace)
	configuration := func() *config {
		return applycorev1.ConfigMap("one", s.namespace).WithData(map[string]string{"color": "red"})
	}
	first, err := ssa.Apply(t.Context(), manager, c.Apply, configuration())
	if err != nil {
		t.Fatal(err)
	}
	guarded := func() *config { return configuration().WithUID(first.UID).WithLabels(map[string]string{"a": "b"}) }
	if _, err := ssa.Apply(t.Context(), manager, c.Apply, guarded()); err != nil {
		t.Errorf("the object is there: %v", err)
	}
	if err := c.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	mismatch := func(step string) {
		t.Helper()
		_, err := ssa.Apply(t.Context(), manager, c.Apply, guarded())
		_, tryErr := ssa.TryApply(t.Context(), manager, c.Apply, guarded(), nil)
		_, applied, changedErr := ssa.ApplyChanged(t.Context(), manager, c.Apply, guarded(), first, applycorev1.ExtractConfigMap)
		for _, err := range []error{err, tryErr, changedErr} {
			var conflict *ssa.ConflictError
			if !errors.Is(err, ssa.ErrUIDMismatch) || errors.As(err, &conflict) || applied {
				t.Errorf("%s: error = %v, applied = %v, want ErrUIDMismatch", step, err, applied)
			}
		}
	}
	mismatch("gone")
	if _, err := c.Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is back: %v", err)
	}
	second, err := ssa.Apply(t.Context(), manager, c.Apply, configuration())
	if err != nil {
		t.Fatal(err)
	}
	mismatch("replaced")
	if live, err := c.Get(t.Context(), "one", metav1.GetOptions{}); err != nil || live.ResourceVersion != second.ResourceVersion {
		t.Errorf("the new object changed: %v, error %v", live, err)
	}
}

// TestServerApplyStatus proves A1.
func TestServerApplyStatus(t *testing.T) {
	s := newServer(t)
	c := s.PolicyV1().PodDisruptionBudgets(s.namespace)
	type pdb = applypolicyv1.PodDisruptionBudgetApplyConfiguration
	status := func(reason string) *pdb {
		return applypolicyv1.PodDisruptionBudget("one", s.namespace).WithStatus(applypolicyv1.PodDisruptionBudgetStatus().
			WithObservedGeneration(1).WithCurrentHealthy(1).WithDesiredHealthy(1).WithDisruptionsAllowed(0).WithExpectedPods(1).
			WithConditions(applymetav1.Condition().WithType("Ready").WithStatus(metav1.ConditionTrue).WithReason(reason).
				WithMessage("").WithLastTransitionTime(metav1.Unix(1e9, 0))))
	}
	if _, err := ssa.Apply(t.Context(), manager, c.ApplyStatus, status("Fine")); !apierrors.IsNotFound(err) {
		t.Errorf("status of no object: error = %v, want NotFound", err)
	}
	selector := applymetav1.LabelSelector().WithMatchLabels(map[string]string{"a": "b"})
	if _, err := ssa.Apply(t.Context(), manager, c.Apply, applypolicyv1.PodDisruptionBudget("one", s.namespace).
		WithSpec(applypolicyv1.PodDisruptionBudgetSpec().WithSelector(selector))); err != nil {
		t.Fatal(err)
	}

	// The main resource and the status have an ownership each: neither call drops
	// what the other one applied.
	withSpec := status("Fine")
	withSpec.WithSpec(applypolicyv1.PodDisruptionBudgetSpec().WithSelector(applymetav1.LabelSelector().WithMatchLabels(map[string]string{"x": "y"})))
	live, err := ssa.Apply(t.Context(), manager, c.ApplyStatus, withSpec)
	if err != nil {
		t.Fatal(err)
	}
	if !meta.IsStatusConditionTrue(live.Status.Conditions, "Ready") || live.Status.ExpectedPods != 1 || live.Spec.Selector.MatchLabels["a"] != "b" || live.Spec.Selector.MatchLabels["x"] != "" {
		t.Errorf("after ApplyStatus: %+v %+v", live.Spec, live.Status)
	}
	again, err := ssa.Apply(t.Context(), manager, c.ApplyStatus, status("Fine"))
	if err != nil || again.ResourceVersion != live.ResourceVersion {
		t.Errorf("the same status again: resourceVersion %s became %s, error %v", live.ResourceVersion, again.GetResourceVersion(), err)
	}

	// Two controllers and one condition: the second one is told.
	_, err = ssa.TryApply(t.Context(), "example.org/fashion", c.ApplyStatus, status("Other"), nil)
	var conflict *ssa.ConflictError
	if !errors.As(err, &conflict) || conflict.Conflicts[0].Manager != string(manager) {
		t.Errorf("error = %v, want a ConflictError that names %s", err, manager)
	}
	forced, err := ssa.Apply(t.Context(), "example.org/fashion", c.ApplyStatus, status("Other"))
	if err != nil || meta.FindStatusCondition(forced.Status.Conditions, "Ready").Reason != "Other" {
		t.Errorf("by force: error %v", err)
	}
	if !apiequality.Semantic.DeepEqual(forced.Spec, live.Spec) {
		t.Errorf("the spec changed to %+v", forced.Spec)
	}
	var _ *policyv1.PodDisruptionBudget = forced
}

// ApplyChanged with a live object brings nothing back, and does not touch what has
// taken its place.
//
// Proves A3.
func TestServerGone(t *testing.T) {
	s := newServer(t)
	typed, dynamic := s.CoreV1().ConfigMaps(s.namespace), newDynamic(t)
	for _, replaced := range []bool{false, true} {
		live, err := ssa.Apply(t.Context(), manager, typed.Apply, applycorev1.ConfigMap("one", s.namespace).WithData(map[string]string{"color": "red"}))
		if err != nil {
			t.Fatal(err)
		}
		if err := typed.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want := ""
		if replaced {
			other, err := typed.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want = other.ResourceVersion
		}
		blue := applycorev1.ConfigMap("one", s.namespace).WithData(map[string]string{"color": "blue"})
		_, _, err = ssa.ApplyChanged(t.Context(), manager, typed.Apply, blue, live, applycorev1.ExtractConfigMap)
		if !errors.Is(err, ssa.ErrUIDMismatch) || blue.UID != nil {
			t.Errorf("typed, replaced %v: error %v, uid %v", replaced, err, blue.UID)
		}
		untyped := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "one", "namespace": s.namespace}, "data": map[string]any{"color": "blue"},
		}}
		untypedLive := untyped.DeepCopy()
		untypedLive.SetUID(live.UID)
		_, _, err = ssa.ApplyChanged(t.Context(), manager, dynamic.Apply, untyped, untypedLive, nil)
		if !errors.Is(err, ssa.ErrUIDMismatch) || untyped.GetUID() != "" {
			t.Errorf("unstructured, replaced %v: error %v, uid %q", replaced, err, untyped.GetUID())
		}
		got, err := typed.Get(t.Context(), "one", metav1.GetOptions{})
		if replaced != (err == nil) || replaced && got.ResourceVersion != want {
			t.Errorf("replaced %v: %v, error %v", replaced, got, err)
		}
	}
}

// The object of 1 MiB is applied, and the next time skipped.
func TestServerLarge(t *testing.T) {
	s := newServer(t)
	twice(t, s, s.CoreV1().ConfigMaps(s.namespace), func() *config {
		data := map[string]string{}
		for i := range 4096 {
			data[fmt.Sprintf("key-%d", i)] = strings.Repeat("x", 230)
		}
		return applycorev1.ConfigMap("one", s.namespace).WithData(data)
	}, applycorev1.ExtractConfigMap)
}

// stringData is stored as data, and compared with that.
func TestServerStringData(t *testing.T) {
	s := newServer(t)
	c := s.CoreV1().Secrets(s.namespace)
	configuration := func(value string) *applycorev1.SecretApplyConfiguration {
		return applycorev1.Secret("one", s.namespace).WithStringData(map[string]string{"a": value})
	}
	live, err := ssa.Apply(t.Context(), manager, c.Apply, configuration("b"))
	if err != nil {
		t.Fatal(err)
	}
	if _, applied, err := ssa.ApplyChanged(t.Context(), manager, c.Apply, configuration("b"), live, applycorev1.ExtractSecret); err != nil || applied {
		t.Errorf("the same: applied = %v, error %v", applied, err)
	}
	live, applied, err := ssa.ApplyChanged(t.Context(), manager, c.Apply, configuration("c"), live, applycorev1.ExtractSecret)
	if err != nil || !applied || string(live.Data["a"]) != "c" {
		t.Errorf("another: applied = %v, data %q, error %v", applied, live.Data["a"], err)
	}
}
