package status_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/status"
)

type pdb = policyv1.PodDisruptionBudget

func forms() []form {
	set := func(condition metav1.Condition) func(o *pdb) error {
		return func(o *pdb) error {
			o.Status.ObservedGeneration = o.Generation
			return status.Set(&o.Status.Conditions, o.Generation, condition)
		}
	}
	return []form{
		{name: "Update", verb: "update", step: func(ctx context.Context, c policyclient.PodDisruptionBudgetInterface, obj *pdb, condition metav1.Condition) (*pdb, error) {
			return status.Update(ctx, c, obj, set(condition))
		}},
		{name: "Patch", verb: "patch", step: func(ctx context.Context, c policyclient.PodDisruptionBudgetInterface, obj *pdb, condition metav1.Condition) (*pdb, error) {
			return status.Patch(ctx, c, obj, set(condition))
		}},
		{name: "Apply", verb: "patch", step: func(ctx context.Context, c policyclient.PodDisruptionBudgetInterface, obj *pdb, condition metav1.Condition) (*pdb, error) {
			return apply(ctx, c, "manager-"+condition.Type, obj, condition)
		}},
	}
}

// Three controllers, one of each form and each with no more rights than it needs,
// keep a condition each, while a user changes the spec, so that copies are stale much of the time. Whatever is stored, at any
// time, has each condition from a reconcile of the generation that it shows, no
// generation goes back, and no condition gets lost.
//
// Proves S2, S3, S4 and CK6.
func TestServerThreeWriters(t *testing.T) {
	t.Parallel()
	const rounds = 40
	admin, err := kubernetes.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	namespace := testserver.Namespace(t)
	budgets := admin.PolicyV1().PodDisruptionBudgets(namespace)
	first := createBudget(t, budgets)
	var wg sync.WaitGroup
	conflicts := map[string]int{}
	var mu sync.Mutex
	w, err := budgets.Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forms() {
		c := as(t, admin, namespace, f.name, f.verb)
		if err := granted(t, func(ctx context.Context) error {
			_, err := c.Get(ctx, "one", metav1.GetOptions{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			obj := first
			for i := 0; i < rounds; {
				// The reason tells the generation that was seen: it is what a reconcile finds out.
				condition := metav1.Condition{Type: f.name, Status: metav1.ConditionTrue, Reason: fmt.Sprintf("Saw_%d", obj.Generation), Message: fmt.Sprint(i)}
				answer, err := f.step(t.Context(), c, obj, condition)
				switch {
				case err == nil:
					obj = answer
					i++
					continue
				case !apierrors.IsConflict(err):
					t.Errorf("%s: %v", f.name, err)
					return
				}
				mu.Lock()
				conflicts[f.name]++
				mu.Unlock()
				if obj, err = c.Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for i := range rounds {
			patch := fmt.Appendf(nil, `{"spec":{"maxUnavailable":%d}}`, i+1)
			if _, err := budgets.Patch(t.Context(), "one", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	last := get(t, budgets)
	seen := map[string]metav1.Condition{}
	states := 0
	for event := range w.ResultChan() {
		obj, ok := event.Object.(*pdb)
		if !ok {
			t.Fatalf("event %+v", event)
		}
		states++
		for typ := range seen {
			if meta.FindStatusCondition(obj.Status.Conditions, typ) == nil {
				t.Fatalf("condition %s is lost at resourceVersion %s", typ, obj.ResourceVersion)
			}
		}
		for _, c := range obj.Status.Conditions {
			if c.Reason != fmt.Sprintf("Saw_%d", c.ObservedGeneration) || c.ObservedGeneration > obj.Generation {
				t.Errorf("condition %+v of an object of generation %d", c, obj.Generation)
			}
			old := seen[c.Type]
			if c.ObservedGeneration < old.ObservedGeneration {
				t.Errorf("%s goes back from %d to %d", c.Type, old.ObservedGeneration, c.ObservedGeneration)
			}
			if !old.LastTransitionTime.IsZero() && !c.LastTransitionTime.Equal(&old.LastTransitionTime) {
				t.Errorf("%s: lastTransitionTime moves without a flip", c.Type)
			}
			seen[c.Type] = c
		}
		if obj.ResourceVersion == last.ResourceVersion {
			w.Stop()
			break
		}
	}
	if len(seen) != 3 || states < 3*rounds {
		t.Errorf("%d states with conditions %v, want at least %d and 3", states, seen, 3*rounds)
	}
	t.Logf("%d states, conflicts %v", states, conflicts)
}

// A controller dies at each of its writes, before it or after it, and the next life
// starts from the newest copy or from the first one, which does not have the
// bystander's condition yet. The end is the same each time.
//
// Proves CK4.
func TestServerCrash(t *testing.T) {
	t.Parallel()
	for _, f := range forms() {
		t.Run(f.name, func(t *testing.T) {
			want, writes := life(t, f, 0, false, false)
			if writes != 3 {
				t.Fatalf("a life has %d writes, want 3: the test is wrong", writes)
			}
			for at := 1; at <= writes; at++ {
				for way := range 4 {
					lost, stale := way&1 > 0, way&2 > 0
					got, _ := life(t, f, at, lost, stale)
					if got != want {
						t.Errorf("crash at write %d (lost answer: %v, stale start: %v) ends as\n%s\nwant\n%s", at, lost, stale, got, want)
					}
				}
			}
		})
	}
}

// life takes an object through three steps, which it reads off the conditions, and
// crashes at write number at, 0 for never. It returns the end state.
func life(t *testing.T, f form, at int, lost, staleStart bool) (end string, writes int) {
	t.Helper()
	ctx := t.Context()
	admin, _ := newBudgets(t)
	first := createBudget(t, admin)
	bystander, err := status.Update(ctx, admin, first, func(o *pdb) error {
		return status.Set(&o.Status.Conditions, o.Generation, status.True("Bystander", "There", ""))
	})
	if err != nil {
		t.Fatal(err)
	}

	begin := func() (policyclient.PodDisruptionBudgetInterface, *fault.Incarnation) {
		var process *fault.Incarnation
		process, err := fault.New(testserver.Config(t), func(op *fault.Op) fault.Fault {
			if !op.IsWrite() {
				return fault.Fault{}
			}
			writes++
			switch {
			case writes != at:
				return fault.Fault{}
			case lost:
				return fault.Fault{After: process.Kill, Lose: true}
			default:
				return fault.Fault{Before: process.Kill, Drop: true}
			}
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(process.Config())
		if err != nil {
			t.Fatal(err)
		}
		return client.PolicyV1().PodDisruptionBudgets(first.Namespace), process
	}
	client, process := begin()
	defer func() { process.Kill() }()
	steps := []metav1.Condition{
		status.False("Step", "One", "of three"), status.False("Step", "Two", "of three"), status.True("Step", "Three", "of three"),
	}
	obj := bystander
	for pass := 0; ; pass++ {
		if pass == 20 {
			t.Fatal("no end after 20 passes")
		}
		done := -1
		if c := meta.FindStatusCondition(obj.Status.Conditions, "Step"); c != nil {
			for i, step := range steps {
				if step.Reason == c.Reason {
					done = i
				}
			}
		}
		if done == len(steps)-1 {
			break
		}
		answer, err := f.step(ctx, client, obj, steps[done+1])
		if err == nil {
			obj = answer
			continue
		}
		stale := false
		select {
		case <-process.Killed():
			client, process = begin()
			stale = staleStart
		default:
			if !apierrors.IsConflict(err) {
				t.Fatal(err)
			}
		}
		if obj = first; !stale {
			obj = get(t, admin)
		}
	}
	stored := get(t, admin)
	for _, c := range stored.Status.Conditions {
		end += fmt.Sprintf("%s %s %s %q %d\n", c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration)
	}
	return end, writes
}

// Each form needs one verb on the status and nothing else. Without it, and with all
// other verbs, the error is a Forbidden and nothing is written.
//
// Proves CK6.
func TestServerRBAC(t *testing.T) {
	admin, err := kubernetes.NewForConfig(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	namespace := testserver.Namespace(t)
	budgets := admin.PolicyV1().PodDisruptionBudgets(namespace)
	obj := createBudget(t, budgets)
	for _, f := range forms() {
		t.Run(f.name, func(t *testing.T) {
			other := map[string]string{"update": "patch", "patch": "update"}[f.verb]
			without := as(t, admin, namespace, "without-"+f.name, other, "get", "create", "delete")
			with := as(t, admin, namespace, "with-"+f.name, f.verb)
			condition := status.True(f.name, "Fine", "")
			if _, err := f.step(t.Context(), without, obj, condition); !apierrors.IsForbidden(err) {
				t.Errorf("without %s: error %v, want Forbidden", f.verb, err)
			}
			err := granted(t, func(ctx context.Context) error {
				answer, err := f.step(ctx, with, obj, condition)
				if err == nil {
					obj = answer
				}
				return err
			})
			if err != nil {
				t.Errorf("with %s: %v", f.verb, err)
			}
			if !meta.IsStatusConditionTrue(get(t, budgets).Status.Conditions, f.name) {
				t.Error("nothing is stored")
			}
		})
	}
}

// All three forms through the dynamic client, on a custom resource: there the server
// ignores the metadata of a status, its uid included, but not the resourceVersion.
//
// Proves S3 and S1.
func TestServerCustomForms(t *testing.T) {
	t.Parallel()
	const group = "forms.test.controllerkit.dev"
	config, requests := testserver.Counted(t)
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	resource := widgetDefinition(t, group)
	namespace := testserver.Namespace(t)
	widgets := dyn.Resource(resource).Namespace(namespace)
	blank := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group + "/v1", "kind": "Widget", "metadata": map[string]any{"name": "one", "namespace": namespace},
		}}
	}
	stale := createServed(t, widgets, blank())
	do := func(obj *unstructured.Unstructured, reason string) (*unstructured.Unstructured, error) {
		return status.Apply(t.Context(), "a", applier{widgets}, obj, blank(), status.True("Ready", reason, ""))
	}
	obj := stale
	for i, want := range []int64{1, 0} {
		before := requests.Load()
		if obj, err = do(obj, "Fine"); err != nil {
			t.Fatal(err)
		}
		if n := requests.Load() - before; n != want {
			t.Errorf("apply %d: %d requests, want %d; managedFields %v", i, n, want, obj.GetManagedFields())
		}
	}
	if _, err := do(stale, "Stale"); !apierrors.IsConflict(err) {
		t.Errorf("apply of a stale copy: %v, want a Conflict", err)
	}
	phase := func(value string) func(u *unstructured.Unstructured) error {
		return func(u *unstructured.Unstructured) error {
			return unstructured.SetNestedField(u.Object, value, "status", "phase")
		}
	}
	for i, want := range []int64{1, 0} {
		before := requests.Load()
		if obj, err = status.Patch(t.Context(), widgets, obj, phase("x")); err != nil {
			t.Fatal(err)
		}
		if n := requests.Load() - before; n != want {
			t.Errorf("patch %d: %d requests, want %d", i, n, want)
		}
	}
	if _, err := status.Patch(t.Context(), widgets, stale, phase("y")); !apierrors.IsConflict(err) {
		t.Errorf("patch of a stale copy: %v, want a Conflict", err)
	}
	// The name is taken by another object.
	if err := widgets.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	createServed(t, widgets, blank())
	if _, err := status.Patch(t.Context(), widgets, obj, phase("z")); !apierrors.IsConflict(err) {
		t.Errorf("patch of another object: %v, want a Conflict", err)
	}
	if _, err := do(obj, "Other"); !apierrors.IsConflict(err) {
		t.Errorf("apply to another object: %v, want a Conflict", err)
	}
	fresh, err := widgets.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || fresh.Object["status"] != nil {
		t.Errorf("the new object has status %v, error %v, want none", fresh.Object["status"], err)
	}
}
