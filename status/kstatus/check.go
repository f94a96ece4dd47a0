package kstatus

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/controllerkit/controllerkit/internal/fields"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/status"
)

// The types of the conditions that kstatus reads in every kind. Of a condition it reads only
// the status.
const (
	typeReady       = "Ready"       // True: done
	typeReconciling = "Reconciling" // True: on the way
	typeStalled     = "Stalled"     // True: not without a change from outside
)

// Conditions returns ready, a condition of type Ready, with the conditions Reconciling and
// Stalled that kstatus expects. Both are False if ready is True. Otherwise Stalled is True
// if stalled reports that a retry cannot help, and Reconciling is True if not. The True
// condition has the reason and message of ready. Pass all three to status.Set or status.Apply, and
// set status.observedGeneration, which Apply does not send.
func Conditions(ready metav1.Condition, stalled bool) []metav1.Condition {
	reconciling, stuck := status.False(typeReconciling, ready.Reason, ""), status.False(typeStalled, ready.Reason, "")
	switch {
	case ready.Status == metav1.ConditionTrue:
	case stalled:
		stuck = status.True(typeStalled, ready.Reason, ready.Message)
	default:
		reconciling = status.True(typeReconciling, ready.Reason, ready.Message)
	}
	return []metav1.Condition{ready, reconciling, stuck}
}

// Check is for tests. If it returns nil, kstatus reads the status as intended. It returns
// an error that lists the mistakes in the status of obj, an object that the API server
// returned:
//
//   - metadata.generation or status.observedGeneration is missing, so kstatus accepts the status of an older generation. Or it is ahead, and kstatus waits without end.
//   - Ready, Reconciling or Stalled is about another generation than status.observedGeneration, which kstatus ignores.
//   - Ready is missing, which kstatus reads as done. Or no condition of Ready, Reconciling
//     and Stalled is True, which it reads as progress.
//   - Two of the three contradict each other.
//   - Reconciling or Stalled is Unknown, which kstatus reads as False.
//   - A condition is not valid, or its type is repeated.
//
// kstatus ignores the status of an object that is being deleted. For such an object Check
// reports only conditions that are not valid or ahead.
//
// Check is strict about kinds that use Ready alone; [Conditions] makes the other two.
func Check(obj metav1.Object) error {
	if kube.IsNil(obj) {
		return errors.New("kstatus: the object is nil: pass one that the API server returned")
	}
	v := fields.Read(obj)
	if !v.Conditioned {
		return fmt.Errorf("kstatus: %T has no status.conditions of type []metav1.Condition", obj)
	}
	var found []error
	report := func(format string, args ...any) { found = append(found, fmt.Errorf("kstatus: "+format, args...)) }

	if v.Total > fields.MaxConditions {
		report("status.conditions has %d conditions: Check reads only %d", v.Total, fields.MaxConditions)
	}
	generation := obj.GetGeneration()
	deleting := obj.GetDeletionTimestamp() != nil
	switch {
	case deleting:
	case generation == 0:
		report("metadata.generation is missing: kstatus cannot tell old from new")
	case v.Observed == 0:
		report("status.observedGeneration is missing: kstatus takes the status of an older generation for that of %d", generation)
	case v.Observed > generation:
		report("status.observedGeneration is %d, ahead of metadata.generation %d: kstatus waits without end", v.Observed, generation)
	}
	for _, err := range validation.ValidateConditions(v.Conditions, field.NewPath("status", "conditions")) {
		report("%w", err)
	}
	for _, c := range v.Conditions {
		kstatus := !deleting && (c.Type == typeReady || c.Type == typeReconciling || c.Type == typeStalled)
		switch {
		case c.ObservedGeneration > generation:
			report("condition %s is about generation %d, ahead of metadata.generation %d", c.Type, c.ObservedGeneration, generation)
		case kstatus && c.ObservedGeneration != v.Observed:
			report("condition %s is about generation %d, and kstatus takes it as about %d, which is status.observedGeneration", c.Type, c.ObservedGeneration, v.Observed)
		}
		if kstatus && c.Type != typeReady && c.Status == metav1.ConditionUnknown {
			report("condition %s is Unknown: kstatus takes that for False", c.Type)
		}
	}
	is := func(conditionType string) bool { return meta.IsStatusConditionTrue(v.Conditions, conditionType) }
	ready, reconciling, stalled := is(typeReady), is(typeReconciling), is(typeStalled)
	switch {
	case deleting:
	case reconciling && stalled:
		report("conditions Reconciling and Stalled are both True: kstatus believes the one that comes first")
	case ready && (reconciling || stalled):
		report("condition Ready is True, and so is Reconciling or Stalled, which kstatus believes")
	case ready || reconciling || stalled:
	case meta.FindStatusCondition(v.Conditions, typeReady) == nil:
		report("condition Ready is missing: kstatus takes the object for done")
	default:
		report("condition Ready is not True, and neither is Reconciling nor Stalled: kstatus reads it as endless progress")
	}
	return errors.Join(found...)
}
