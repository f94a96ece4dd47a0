package ssa_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applyautoscalingv1 "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	applyautoscalingv2 "k8s.io/client-go/applyconfigurations/autoscaling/v2"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applypolicyv1 "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa"
)

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// After the migration an apply that leaves a field out removes it; without, it stays.
// Fields of others stay either way, and so do finalizers. The identity can patch and
// nothing else.
func TestServerMigrate(t *testing.T) {
	s := newServer(t)
	admin := s.CoreV1().ConfigMaps(s.namespace)
	cfg := testserver.Limited(t, s.namespace, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"patch"}})
	c := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps(s.namespace)
	tests := []struct {
		name     string
		managers []string // none means no migration
		applied  bool     // before the migration, as well as after it
		want     map[string]string
		anno     bool // the annotation of kubectl is there at the end
	}{
		{name: "none", want: map[string]string{"color": "red", "size": "S", "old": "1", "edited": "1"}, anno: true},
		{name: "none and applied twice", applied: true, want: map[string]string{"color": "red", "size": "S", "old": "1", "edited": "1"}, anno: true},
		{name: "one", managers: []string{"kubectl-client-side-apply"}, want: map[string]string{"color": "red", "size": "S", "edited": "1"}},
		{name: "two", managers: []string{"kubectl-client-side-apply", "kubectl-edit"}, want: map[string]string{"color": "red", "size": "S"}},
		{name: "two, applied before", applied: true, managers: []string{"kubectl-edit", "kubectl-client-side-apply"}, want: map[string]string{"color": "red", "size": "S"}},
		{name: "somebody else", managers: []string{"nobody"}, want: map[string]string{"color": "red", "size": "S", "old": "1", "edited": "1"}, anno: true},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name := fmt.Sprint("object-", i)
			configuration := func() *config {
				return applycorev1.ConfigMap(name, s.namespace).WithData(map[string]string{"color": "red"})
			}
			live, err := admin.Create(t.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{lastApplied: "{}"}, Finalizers: []string{"example.com/keep"}},
				Data:       map[string]string{"color": "blue", "old": "1"},
			}, metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_, _ = admin.Patch(context.WithoutCancel(t.Context()), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			})
			live.Data["edited"] = "1"
			if live, err = admin.Update(t.Context(), live, metav1.UpdateOptions{FieldManager: "kubectl-edit"}); err != nil {
				t.Fatal(err)
			}
			live.Data["size"] = "S"
			if live, err = admin.Update(t.Context(), live, metav1.UpdateOptions{FieldManager: "tailor"}); err != nil {
				t.Fatal(err)
			}
			if tt.applied {
				if live, err = ssa.Apply(t.Context(), manager, c.Apply, configuration()); err != nil {
					t.Fatal(err)
				}
			}
			if tt.managers != nil {
				before := live.DeepCopy()
				answer, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, live, tt.managers...)
				if err != nil || migrated != (tt.managers[0] != "nobody") {
					t.Fatalf("migrated = %v, error %v", migrated, err)
				}
				if diff := cmp.Diff(before, live); diff != "" {
					t.Errorf("live changed: -before +after:\n%s", diff)
				}
				// Nothing has changed but managedFields.
				same := answer.DeepCopy()
				same.ManagedFields, same.ResourceVersion = live.ManagedFields, live.ResourceVersion
				if diff := cmp.Diff(live, same); diff != "" {
					t.Errorf("the migration changed: -before +after:\n%s", diff)
				}
				if slices.ContainsFunc(answer.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
					return e.Operation == metav1.ManagedFieldsOperationUpdate && e.Manager == string(manager)
				}) {
					t.Errorf("the patch itself owns something: %v", answer.ManagedFields)
				}
				s.requests.Store(0)
				again, migrated, err := ssa.Migrate(t.Context(), manager, admin.Patch, answer, tt.managers...)
				if err != nil || migrated || again != answer || s.requests.Load() != 0 {
					t.Errorf("again: migrated = %v with %d requests, error %v", migrated, s.requests.Load(), err)
				}
			}
			got, err := ssa.Apply(t.Context(), manager, c.Apply, configuration())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.Data); diff != "" {
				t.Errorf("data: -want +got:\n%s", diff)
			}
			if _, ok := got.Annotations[lastApplied]; ok != tt.anno {
				t.Errorf("annotations = %v, want kubectl's there: %v", got.Annotations, tt.anno)
			}
			if len(got.Finalizers) != 1 {
				t.Errorf("finalizers = %v, want the one that the object had", got.Finalizers)
			}
		})
	}
}

// TestServerMigrateApplied: fields that a former name of the manager applied can be migrated, those of the status by
// themselves. Its finalizer stays, and so do the fields of others.
func TestServerMigrateApplied(t *testing.T) {
	s := newServer(t)
	c := s.PolicyV1().PodDisruptionBudgets(s.namespace)
	labels := func(names ...string) *applypolicyv1.PodDisruptionBudgetApplyConfiguration {
		config := applypolicyv1.PodDisruptionBudget("one", s.namespace)
		for _, name := range names {
			config.WithLabels(map[string]string{name: "yes"})
		}
		return config
	}
	conditions := func(kinds ...string) *applypolicyv1.PodDisruptionBudgetApplyConfiguration {
		status := applypolicyv1.PodDisruptionBudgetStatus()
		for _, kind := range kinds {
			status.WithConditions(applymetav1.Condition().WithType(kind).WithStatus("True").WithReason("Fine").WithMessage("").WithLastTransitionTime(metav1.Unix(1e9, 0)))
		}
		return labels().WithStatus(status)
	}
	// check compares the labels, the conditions and the managers.
	check := func(step string, live *policyv1.PodDisruptionBudget, err error, want string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		var names, kinds, managers []string
		for name := range live.Labels {
			names = append(names, name)
		}
		for _, condition := range live.Status.Conditions {
			kinds = append(kinds, condition.Type)
		}
		for _, e := range live.ManagedFields {
			managers = append(managers, strings.TrimSuffix(e.Manager+"/"+e.Subresource, "/")+" "+string(e.Operation))
		}
		slices.Sort(names)
		slices.Sort(kinds)
		slices.Sort(managers)
		if got := fmt.Sprint(names, kinds, live.Finalizers, managers); got != want {
			t.Errorf("%s: %s, want %s", step, got, want)
		}
	}
	const own = string(manager)
	if _, err := ssa.Apply(t.Context(), "old", c.Apply, labels("a", "b").WithFinalizers("example.com/keep")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = c.Patch(context.WithoutCancel(t.Context()), "one", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	})
	if _, err := ssa.Apply(t.Context(), "old", c.ApplyStatus, conditions("Ready", "Old")); err != nil {
		t.Fatal(err)
	}
	live, err := ssa.Apply(t.Context(), "bystander", c.Apply, labels("c"))
	check("before", live, err, "[a b c] [Old Ready] [example.com/keep] [bystander Apply old Apply old/status Apply]")

	live, migrated, err := ssa.Migrate(t.Context(), manager, c.Patch, live, "old", own)
	check("Migrate", live, err, "[a b c] [Old Ready] [example.com/keep] [bystander Apply "+own+" Apply old Apply old/status Apply]")
	s.requests.Store(0)
	again, twice, err := ssa.Migrate(t.Context(), manager, c.Patch, live, "old", own)
	if err != nil || !migrated || twice || again != live || s.requests.Load() != 0 {
		t.Errorf("migrated = %t, then %t with %d requests, %v", migrated, twice, s.requests.Load(), err)
	}
	live, err = ssa.Apply(t.Context(), manager, c.Apply, labels("a"))
	check("Apply", live, err, "[a c] [Old Ready] [example.com/keep] [bystander Apply "+own+" Apply old Apply old/status Apply]")

	live, migrated, err = ssa.MigrateStatus(t.Context(), manager, c.Patch, live, "old")
	check("MigrateStatus", live, err, "[a c] [Old Ready] [example.com/keep] [bystander Apply "+own+" Apply "+own+"/status Apply old Apply]")
	if !migrated {
		t.Error("MigrateStatus reports no change")
	}
	live, err = ssa.Apply(t.Context(), manager, c.ApplyStatus, conditions("Ready"))
	check("ApplyStatus", live, err, "[a c] [Ready] [example.com/keep] [bystander Apply "+own+" Apply "+own+"/status Apply old Apply]")
}

// The status is migrated by itself, and so is what nobody has managed before the
// first apply.
func TestServerMigrateStatus(t *testing.T) {
	s := newServer(t)
	c := s.PolicyV1().PodDisruptionBudgets(s.namespace)
	live, err := c.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"a": "b"}},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}, metav1.CreateOptions{FieldManager: "painter"})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"Ready", "Old"} {
		live.Status.Conditions = append(live.Status.Conditions, metav1.Condition{Type: kind, Status: "True", Reason: "Fine", LastTransitionTime: metav1.Unix(1e9, 0)})
	}
	if live, err = c.UpdateStatus(t.Context(), live, metav1.UpdateOptions{FieldManager: "painter"}); err != nil {
		t.Fatal(err)
	}
	status := applypolicyv1.PodDisruptionBudget("one", s.namespace).WithStatus(applypolicyv1.PodDisruptionBudgetStatus().WithConditions(
		applymetav1.Condition().WithType("Ready").WithStatus("True").WithReason("Fine").WithMessage("").WithLastTransitionTime(metav1.Unix(1e9, 0))))
	bare := applypolicyv1.PodDisruptionBudget("one", s.namespace).WithSpec(applypolicyv1.PodDisruptionBudgetSpec().WithSelector(applymetav1.LabelSelector().WithMatchLabels(map[string]string{"a": "b"})))

	_, migrated, err := ssa.MigrateStatus(t.Context(), manager, c.Patch, live, "painter")
	if err != nil || !migrated {
		t.Fatalf("migrated = %v, error %v", migrated, err)
	}
	if live, err = ssa.Apply(t.Context(), manager, c.Apply, bare); err != nil || live.Labels["a"] != "b" || len(live.Status.Conditions) != 2 {
		t.Errorf("after Apply: labels %v, conditions %v, error %v", live.Labels, live.Status.Conditions, err)
	}
	if live, err = ssa.Apply(t.Context(), manager, c.ApplyStatus, status); err != nil || live.Labels["a"] != "b" ||
		len(live.Status.Conditions) != 1 || !meta.IsStatusConditionTrue(live.Status.Conditions, "Ready") {
		t.Errorf("after ApplyStatus: labels %v, conditions %v, error %v", live.Labels, live.Status.Conditions, err)
	}
	if _, migrated, err = ssa.Migrate(t.Context(), manager, c.Patch, live, "painter"); err != nil || !migrated {
		t.Fatalf("migrated = %v, error %v", migrated, err)
	}
	if live, err = ssa.Apply(t.Context(), manager, c.Apply, bare); err != nil || live.Labels != nil || len(live.Status.Conditions) != 1 {
		t.Errorf("after Migrate: labels %v, conditions %v, error %v", live.Labels, live.Status.Conditions, err)
	}

	// Whose managedFields were cleared.
	cleared, err := c.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}],"labels":{"x":"y"}}}`), metav1.PatchOptions{FieldManager: "vandal"})
	if err != nil {
		t.Fatal(err)
	}
	if len(cleared.ManagedFields) == 0 {
		if _, _, err := ssa.Migrate(t.Context(), manager, c.Patch, cleared, "before-first-apply"); err == nil {
			t.Error("no managedFields: no error")
		}
	}
	if live, err = ssa.Apply(t.Context(), manager, c.Apply, bare); err != nil || live.Labels["x"] != "y" {
		t.Errorf("after Apply: labels %v, error %v", live.Labels, err)
	}
	if _, migrated, err = ssa.Migrate(t.Context(), manager, c.Patch, live, "before-first-apply", "vandal"); err != nil || !migrated {
		t.Fatalf("migrated = %v, error %v, managedFields %v", migrated, err, cleared.ManagedFields)
	}
	if live, err = ssa.Apply(t.Context(), manager, c.Apply, bare); err != nil || live.Labels != nil {
		t.Errorf("after Migrate: labels %v, error %v", live.Labels, err)
	}
}

// What was written in another version than the one that is applied can be migrated in
// the way that the error says.
func TestServerMigrateVersions(t *testing.T) {
	s := newServer(t)
	v1, v2 := s.AutoscalingV1().HorizontalPodAutoscalers(s.namespace), s.AutoscalingV2().HorizontalPodAutoscalers(s.namespace)
	if _, err := v1.Create(t.Context(), &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"old": "1"}},
		Spec:       autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 3, ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"}},
	}, metav1.CreateOptions{FieldManager: "painter"}); err != nil {
		t.Fatal(err)
	}
	older := applyautoscalingv1.HorizontalPodAutoscaler("one", s.namespace).WithSpec(applyautoscalingv1.HorizontalPodAutoscalerSpec().
		WithMaxReplicas(3).WithScaleTargetRef(applyautoscalingv1.CrossVersionObjectReference().WithAPIVersion("apps/v1").WithKind("Deployment").WithName("d")))
	newer := applyautoscalingv2.HorizontalPodAutoscaler("one", s.namespace).WithSpec(applyautoscalingv2.HorizontalPodAutoscalerSpec().
		WithMaxReplicas(3).WithScaleTargetRef(applyautoscalingv2.CrossVersionObjectReference().WithAPIVersion("apps/v1").WithKind("Deployment").WithName("d")))
	live, err := ssa.Apply(t.Context(), manager, v2.Apply, newer)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = ssa.Migrate(t.Context(), manager, v2.Patch, live, "painter"); err == nil || !strings.Contains(err.Error(), `"painter" wrote autoscaling/v1`) {
		t.Fatalf("error %v, want one that names painter and its version", err)
	}
	applied, err := ssa.Apply(t.Context(), manager, v1.Apply, older)
	if err != nil {
		t.Fatal(err)
	}
	if _, migrated, err := ssa.Migrate(t.Context(), manager, v1.Patch, applied, "painter"); err != nil || !migrated {
		t.Fatalf("migrated = %v, error %v", migrated, err)
	}
	if live, err = ssa.Apply(t.Context(), manager, v2.Apply, newer); err != nil || live.Labels != nil {
		t.Errorf("labels %v, error %v", live.Labels, err)
	}
}

// A migration is about the object that was read, as it was read.
func TestServerMigrateGuard(t *testing.T) {
	s := newServer(t)
	c := s.CoreV1().ConfigMaps(s.namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Data: map[string]string{"color": "red"}}
	first, err := c.Create(t.Context(), object, metav1.CreateOptions{FieldManager: "painter"})
	if err != nil {
		t.Fatal(err)
	}
	changed, err := c.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"data":{"size":"S"}}`), metav1.PatchOptions{FieldManager: "tailor"})
	if err != nil {
		t.Fatal(err)
	}
	unchanged := func(step string, want *corev1.ConfigMap, err error, is func(error) bool) {
		t.Helper()
		if !is(err) {
			t.Errorf("%s: error = %v", step, err)
		}
		if got, err := c.Get(t.Context(), "one", metav1.GetOptions{}); want != nil && (err != nil || got.ResourceVersion != want.ResourceVersion) {
			t.Errorf("%s: the object changed: %v, error %v", step, got, err)
		}
	}
	_, _, err = ssa.Migrate(t.Context(), manager, c.Patch, first, "painter")
	unchanged("changed", changed, err, apierrors.IsConflict)
	if err := c.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, _, err = ssa.Migrate(t.Context(), manager, c.Patch, changed, "painter")
	unchanged("gone", nil, err, apierrors.IsNotFound)
	second, err := c.Create(t.Context(), object, metav1.CreateOptions{FieldManager: "painter"})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = ssa.Migrate(t.Context(), manager, c.Patch, changed, "painter")
	unchanged("replaced", second, err, apierrors.IsConflict)
	liar := changed.DeepCopy()
	liar.ResourceVersion = second.ResourceVersion
	_, _, err = ssa.Migrate(t.Context(), manager, c.Patch, liar, "painter")
	unchanged("another uid", second, err, apierrors.IsConflict)
}

// Two processes migrate the same objects, and apply, while a third writer updates
// fields of its own, and what the old manager has: the fields of the third one are
// there at the end, and those of the old one are gone.
func TestServerMigrateRace(t *testing.T) {
	s := newServer(t)
	dyn, err := dynamic.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	typed := s.CoreV1().ConfigMaps(s.namespace)
	untyped := dyn.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(s.namespace)
	const rounds, writes = 10, 10
	conflicts := 0
	for round := range rounds {
		name := fmt.Sprint("object-", round)
		if _, err := typed.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"color": "blue", "old": "1"},
		}, metav1.CreateOptions{FieldManager: "painter"}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range writes {
				for _, write := range []struct{ manager, patch string }{
					{"tailor", fmt.Sprintf(`{"data":{"size-%d":"S"}}`, i)}, {"painter", fmt.Sprintf(`{"data":{"old-%d":"1"}}`, i)},
				} {
					if _, err := typed.Patch(t.Context(), name, types.MergePatchType, []byte(write.patch), metav1.PatchOptions{FieldManager: write.manager}); err != nil {
						t.Error(err)
					}
				}
			}
		})
		var mu sync.Mutex
		process := func(migrate func() error) func() {
			return func() {
				for done := false; !done; {
					err := migrate()
					mu.Lock()
					if apierrors.IsConflict(err) {
						conflicts++
					}
					mu.Unlock()
					if err != nil && !apierrors.IsConflict(err) {
						t.Error(err)
						return
					}
					done = err == nil
				}
			}
		}
		step := func() error {
			live, err := typed.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			_, _, err = ssa.Migrate(t.Context(), manager, typed.Patch, live, "painter")
			return err
		}
		dynStep := func() error {
			live, err := untyped.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			_, _, err = ssa.Migrate[*unstructured.Unstructured](t.Context(), manager, untyped.Patch, live, "painter")
			return err
		}
		wg.Go(process(step))
		wg.Go(process(dynStep))
		wg.Wait()
		process(step)() // what the old one has written since
		got, err := ssa.Apply(t.Context(), manager, typed.Apply, applycorev1.ConfigMap(name, s.namespace).WithData(map[string]string{"color": "red"}))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"color": "red"}
		for i := range writes {
			want[fmt.Sprint("size-", i)] = "S"
		}
		if diff := cmp.Diff(want, got.Data); diff != "" {
			t.Errorf("round %d: -want +got:\n%s", round, diff)
		}
	}
	if conflicts == 0 {
		t.Error("nothing raced")
	}
	t.Logf("%d conflicts in %d rounds", conflicts, rounds)
}

// A process that dies at the migration or at the apply after it, before the write
// arrives or after, is followed by one that does the same, from what it reads or from
// the copy that the first one had: the end is the one without a crash.
//
// Proves CK4.
func TestServerMigrateCrash(t *testing.T) {
	s := newServer(t)
	admin := s.CoreV1().ConfigMaps(s.namespace)
	n := 0
	for at := 0; at <= 2; at++ {
		for _, lost := range []bool{false, true} {
			for _, stale := range []bool{false, true} {
				n++
				name := fmt.Sprint("object-", n)
				if _, err := admin.Create(t.Context(), &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"color": "blue", "old": "1"},
				}, metav1.CreateOptions{FieldManager: "painter"}); err != nil {
					t.Fatal(err)
				}
				first, err := admin.Patch(t.Context(), name, types.MergePatchType, []byte(`{"data":{"size":"S"}}`), metav1.PatchOptions{FieldManager: "tailor"})
				if err != nil {
					t.Fatal(err)
				}
				dies, live := at > 0, first
				for run := 0; ; run++ {
					writes := 0
					var process *fault.Incarnation
					process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
						if writes++; !dies || writes != at {
							return fault.Fault{}
						}
						if lost {
							return fault.Fault{After: func() { process.Kill() }, Lose: true}
						}
						return fault.Fault{Before: func() { process.Kill() }, Drop: true}
					}, nil)
					if err != nil {
						t.Fatal(err)
					}
					c := kubernetes.NewForConfigOrDie(process.Config()).CoreV1().ConfigMaps(s.namespace)
					_, _, err = ssa.Migrate(t.Context(), manager, c.Patch, live, "painter")
					if err == nil {
						_, err = ssa.Apply(t.Context(), manager, c.Apply, applycorev1.ConfigMap(name, s.namespace).WithData(map[string]string{"color": "red"}))
					}
					process.Kill()
					if err == nil {
						break
					}
					switch {
					case run == 0 && dies:
					case run == 1 && stale && apierrors.IsConflict(err):
						// It reads what it has not seen, as its cache would.
						stale = false
					default:
						t.Fatalf("crash at write %d, lost %v, run %d: %v", at, lost, run, err)
					}
					dies = false
					if !stale {
						if live, err = admin.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
							t.Fatal(err)
						}
					}
				}
				got, err := admin.Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(map[string]string{"color": "red", "size": "S"}, got.Data); diff != "" {
					t.Errorf("crash at write %d, lost %v: -want +got:\n%s", at, lost, diff)
				}
				var managers []string
				for _, e := range got.ManagedFields {
					managers = append(managers, fmt.Sprint(e.Manager, " ", e.Operation))
				}
				slices.Sort(managers)
				if diff := cmp.Diff([]string{string(manager) + " Apply", "tailor Update"}, managers); diff != "" {
					t.Errorf("crash at write %d, lost %v: -want +got:\n%s", at, lost, diff)
				}
			}
		}
	}
}
