package kstatus_test

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/status"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

// original is what kstatus makes of an object of a kind that it does not know.
func original(o *policyv1.PodDisruptionBudget) string {
	if o.DeletionTimestamp != nil {
		return "terminating"
	}
	if seen := o.Status.ObservedGeneration; seen != 0 && seen != o.Generation {
		return "in progress"
	}
	for _, c := range o.Status.Conditions {
		if c.Status == metav1.ConditionTrue {
			switch c.Type {
			case "Reconciling":
				return "in progress"
			case "Stalled":
				return "failed"
			}
		}
	}
	if ready := meta.FindStatusCondition(o.Status.Conditions, "Ready"); ready != nil && ready.Status != metav1.ConditionTrue {
		return "in progress"
	}
	return "current"
}

// meant is what the author of a status can have meant: only one thing, else "".
func meant(o *policyv1.PodDisruptionBudget) string {
	is := map[string]metav1.ConditionStatus{}
	for _, c := range o.Status.Conditions {
		if c.Status == metav1.ConditionUnknown && c.Type != "Ready" || c.ObservedGeneration == 0 || c.ObservedGeneration > o.Generation {
			return ""
		}
		if c.ObservedGeneration < o.Generation {
			return "in progress" // whatever it was, it is about another spec
		}
		is[c.Type] = c.Status
	}
	switch ready, reconciling, stalled := is["Ready"] == "True", is["Reconciling"] == "True", is["Stalled"] == "True"; {
	case ready && !reconciling && !stalled:
		return "current"
	case !ready && reconciling && !stalled:
		return "in progress"
	case !ready && !reconciling && stalled:
		return "failed"
	}
	return ""
}

// All statuses of a small world: what Check lets pass is read by kstatus as it is
// meant, and something passes of each kind.
func TestCheckAgainstKstatus(t *testing.T) {
	passed := map[string]int{}
	n := 0
	statuses := []metav1.ConditionStatus{"", "True", "False", "Unknown"}
	types := []string{"Ready", "Reconciling", "Stalled"}
	for world := range 4 * 4 * 4 * 4 * 4 * 3 * 2 {
		rest := world
		pick := func(n int) int { v := rest % n; rest /= n; return v }
		o := budget()
		o.Generation, o.Status.ObservedGeneration, o.Status.Conditions = 2, int64(pick(4)), nil
		generations := []int64{int64(pick(4)), int64(1 + pick(3))}
		for i, typ := range types {
			if s := statuses[pick(4)]; s != "" {
				o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: typ, Status: s, Reason: "R", LastTransitionTime: metav1.Unix(1e9, 0), ObservedGeneration: generations[min(i, 1)]})
			}
		}
		if pick(2) == 1 && len(o.Status.Conditions) > 1 {
			c := o.Status.Conditions
			c[0], c[len(c)-1] = c[len(c)-1], c[0]
		}
		n++
		if kstatus.Check(o) != nil {
			continue
		}
		if o.Status.ObservedGeneration == 0 {
			t.Fatalf("passes without observedGeneration: %+v", o.Status)
		}
		got, want := original(o), meant(o)
		if got != want {
			t.Fatalf("passes, is read as %q and meant as %q: %+v", got, want, o.Status)
		}
		passed[got]++
	}
	if len(passed) != 3 {
		t.Errorf("passed: %v, want some of each", passed)
	}
	t.Logf("%d statuses, passed %v", n, passed)
}

// The result of Conditions passes Check and kstatus reads it as meant.
func TestConditions(t *testing.T) {
	for _, tt := range []struct {
		ready   metav1.Condition
		stalled bool
		want    string
	}{
		{ready: status.True("Ready", "Fine", "m"), want: "current"},
		{ready: status.True("Ready", "Fine", "m"), stalled: true, want: "current"},
		{ready: status.False("Ready", "Waiting", "m"), want: "in progress"},
		{ready: status.False("Ready", "BadSpec", "m"), stalled: true, want: "failed"},
		{ready: status.Unknown("Ready", "NoAnswer", "m"), want: "in progress"},
		{ready: status.Unknown("Ready", "NoAnswer", "m"), stalled: true, want: "failed"},
	} {
		// From every state into this one.
		for _, before := range []metav1.Condition{status.True("Ready", "Fine", ""), status.False("Ready", "Waiting", "")} {
			for _, stalled := range []bool{false, true} {
				o := budget()
				o.Status.ObservedGeneration, o.Status.Conditions = 3, nil
				for _, set := range [][]metav1.Condition{kstatus.Conditions(before, stalled), kstatus.Conditions(tt.ready, tt.stalled)} {
					if err := status.Set(&o.Status.Conditions, 3, set...); err != nil {
						t.Fatal(err)
					}
				}
				if err := kstatus.Check(o); err != nil || original(o) != tt.want {
					t.Errorf("%v, %v: is read as %q, error %v, want %q: %+v", tt.ready, tt.stalled, original(o), err, tt.want, o.Status.Conditions)
				}
			}
		}
	}
}

// TestCheck tests the mistakes that Check reports.
func TestCheck(t *testing.T) {
	fine := Common{ObservedGeneration: 3, Conditions: []metav1.Condition{{Type: "Ready", Status: "True", Reason: "R", ObservedGeneration: 3, LastTransitionTime: metav1.Unix(1e9, 0)}}}
	meta := metav1.ObjectMeta{Name: "one", Generation: 3}
	if err := kstatus.Check(&shaped[*Common]{ObjectMeta: meta, Status: &fine}); err != nil {
		t.Errorf("a pointer as status: %v", err)
	}
	if err := kstatus.Check(&shaped[ownList]{ObjectMeta: meta, Status: ownList{ObservedGeneration: 3, Conditions: fine.Conditions}}); err != nil {
		t.Errorf("conditions in a type of their own: %v", err)
	}
	if err := kstatus.Check(&shaped[*Common]{ObjectMeta: meta}); err == nil || !strings.Contains(err.Error(), "status.observedGeneration is missing") {
		t.Errorf("a nil pointer as status: %v, want that the fields are missing", err)
	}
	c := func(typ string, s metav1.ConditionStatus, generation int64) metav1.Condition {
		return metav1.Condition{Type: typ, Status: s, Reason: "R", ObservedGeneration: generation, LastTransitionTime: metav1.Unix(1e9, 0)}
	}
	for _, tt := range []struct {
		name       string
		generation int64
		observed   int64
		conditions []metav1.Condition
		want       []string // in this order
	}{
		{name: "fine", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "True", 3)}},
		{name: "fine and old", generation: 3, observed: 2, conditions: []metav1.Condition{c("Ready", "True", 2)}},
		{name: "others may be older", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "True", 3), c("Backup", "Unknown", 1)}},
		{name: "empty", want: []string{"metadata.generation is missing", "Ready is missing"}},
		{name: "not observed", generation: 3, conditions: []metav1.Condition{c("Ready", "True", 3)}, want: []string{"status.observedGeneration is missing", "condition Ready is about generation 3"}},
		{name: "ahead", generation: 3, observed: 4, conditions: []metav1.Condition{c("Ready", "True", 4)}, want: []string{"ahead of metadata.generation", "condition Ready is about generation 4, ahead"}},
		{name: "no generation in Ready", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "True", 0)}, want: []string{"condition Ready is about generation 0"}},
		{name: "old Ready", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "True", 2)}, want: []string{"condition Ready is about generation 2"}},
		{name: "no Ready", generation: 3, observed: 3, conditions: []metav1.Condition{c("Other", "True", 3)}, want: []string{"Ready is missing"}},
		{name: "only False", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "False", 3)}, want: []string{"as endless progress"}},
		{name: "only Unknown", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "Unknown", 3)}, want: []string{"as endless progress"}},
		{name: "both", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "False", 3), c("Reconciling", "True", 3), c("Stalled", "True", 3)}, want: []string{"both True"}},
		{name: "ready and stalled", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "True", 3), c("Stalled", "True", 3)}, want: []string{"Ready is True, and so is"}},
		{name: "unknown progress", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "True", 3), c("Reconciling", "Unknown", 3)}, want: []string{"Reconciling is Unknown"}},
		{name: "invalid and twice", generation: 3, observed: 3, conditions: []metav1.Condition{c("Ready", "True", 3), c("Ready", "Yes", 3)}, want: []string{"Duplicate", "status.conditions[1].status"}},
	} {
		o := budget()
		o.Generation, o.Status.ObservedGeneration, o.Status.Conditions = tt.generation, tt.observed, tt.conditions
		err := kstatus.Check(o)
		var lines []string
		if err != nil {
			lines = strings.Split(err.Error(), "\n")
		}
		ok := len(lines) == len(tt.want)
		for i := range min(len(lines), len(tt.want)) {
			ok = ok && strings.HasPrefix(lines[i], "kstatus: ") && strings.Contains(lines[i], tt.want[i])
		}
		if !ok {
			t.Errorf("%s: found\n%v\nwant lines with %q", tt.name, err, tt.want)
		}
	}
	// kstatus does not read the status of what is being deleted, so nothing is misread.
	o := budget()
	o.DeletionTimestamp = new(metav1.Unix(1e9, 0))
	o.Status.Conditions = []metav1.Condition{c("Ready", "False", 3), c("Stalled", "Unknown", 2)}
	refused(t, "deleted", kstatus.Check(o), "")
	o.Status.Conditions = []metav1.Condition{c("Ready", "Yes", 3)}
	refused(t, "deleted and invalid", kstatus.Check(o), "status.conditions[0].status")
	o.Status.Conditions = []metav1.Condition{c("Ready", "True", 4)}
	refused(t, "deleted and ahead", kstatus.Check(o), "ahead of metadata.generation 3")

	var none *policyv1.PodDisruptionBudget
	refused(t, "nil", kstatus.Check(none), "object is nil")
	refused(t, "own condition type", kstatus.Check(&appsv1.Deployment{}), "status.conditions")
}

func ExampleConditions() {
	o := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 2}}
	o.Status.ObservedGeneration = o.Generation
	const retryHelps = false
	if err := status.Set(&o.Status.Conditions, o.Generation,
		kstatus.Conditions(status.False("Ready", "BadSelector", "the selector is empty"), !retryHelps)...); err != nil {
		fmt.Println(err)
	}
	for _, c := range o.Status.Conditions {
		fmt.Println(c.Type, c.Status)
	}
	// Output:
	// Ready False
	// Reconciling False
	// Stalled True
}

func ExampleCheck() {
	o := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 2}}
	if err := status.Set(&o.Status.Conditions, 2, status.True("Ready", "EnoughPods", "")); err != nil {
		fmt.Println(err)
	}
	fmt.Println(kstatus.Check(o)) // in a test: if err := kstatus.Check(o); err != nil { t.Error(err) }
	// Output:
	// kstatus: status.observedGeneration is missing: kstatus takes the status of an older generation for that of 2
	// kstatus: condition Ready is about generation 2, and kstatus takes it as about 0, which is status.observedGeneration
}
