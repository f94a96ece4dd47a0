package status

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// The conditions that kstatus, and with it Flux, Helm and others that wait for objects
// of any kind, reads of kinds that it does not know. Besides them it reads
// status.observedGeneration, and nothing of a condition but its status. An object that
// is being deleted is Terminating to it, whatever its status says.
const (
	TypeReady       = "Ready"       // True: done
	TypeReconciling = "Reconciling" // True: on the way
	TypeStalled     = "Stalled"     // True: not without a change from outside
)

// ForKstatus returns ready, a condition of type Ready, and with it Reconciling and
// Stalled as they must be for kstatus: both False if ready is True; otherwise
// Stalled is True if stalled says that trying again cannot help, and Reconciling if
// not. The one that is True has the reason and message of ready. Give all three to
// [Set] or [Apply], and set status.observedGeneration, which Apply does not send.
func ForKstatus(ready metav1.Condition, stalled bool) []metav1.Condition {
	reconciling, stuck := False(TypeReconciling, ready.Reason, ""), False(TypeStalled, ready.Reason, "")
	switch {
	case ready.Status == metav1.ConditionTrue:
	case stalled:
		stuck = True(TypeStalled, ready.Reason, ready.Message)
	default:
		reconciling = True(TypeReconciling, ready.Reason, ready.Message)
	}
	return []metav1.Condition{ready, reconciling, stuck}
}

// maxChecked bounds the errors that Check makes of a hostile object.
const maxChecked = 1000

// Check is for tests: it returns an error that lists what kstatus, or somebody who
// waits for a condition, would misread in the status of obj, an object that the API
// server returned.
//
//   - metadata.generation or status.observedGeneration is missing, so that the status
//     of an older generation passes for the present one; or it is ahead, and
//     everybody waits for ever.
//   - Ready, Reconciling or Stalled is about another generation than
//     status.observedGeneration, or about none: kstatus does not look at theirs.
//   - Nothing says how the object is doing, which kstatus takes for done; or Ready is
//     not True and neither Reconciling nor Stalled is, which it takes for progress,
//     for ever.
//   - Two of the three contradict each other.
//   - Reconciling or Stalled is Unknown, which kstatus takes for False.
//   - A condition is not valid, or there twice.
//
// Of an object that is being deleted kstatus does not read the status: there Check
// reports only conditions that are not valid or ahead.
//
// It is strict about kinds that use Ready alone: [ForKstatus] makes what is missing.
func Check(obj metav1.Object) error {
	if kube.IsNil(obj) {
		return errors.New("status: the object is nil: pass one that the API server returned")
	}
	v := read(obj)
	if !v.conditioned {
		return fmt.Errorf("status: %T has no status.conditions of type []metav1.Condition", obj)
	}
	var found []error
	report := func(format string, args ...any) { found = append(found, fmt.Errorf("status: "+format, args...)) }

	if n := len(v.conditions); n > maxChecked {
		report("status.conditions has %d conditions: nobody can read more than %d", n, maxChecked)
		v.conditions = v.conditions[:maxChecked]
	}
	generation := obj.GetGeneration()
	deleting := obj.GetDeletionTimestamp() != nil
	switch {
	case deleting:
	case generation == 0:
		report("metadata.generation is missing: kstatus cannot tell old from new")
	case v.observed == 0:
		report("status.observedGeneration is missing: kstatus takes the status of an older generation for that of %d", generation)
	case v.observed > generation:
		report("status.observedGeneration is %d, ahead of metadata.generation %d: kstatus waits for ever", v.observed, generation)
	}
	for _, err := range validation.ValidateConditions(v.conditions, field.NewPath("status", "conditions")) {
		report("%w", err)
	}
	for _, c := range v.conditions {
		kstatus := !deleting && (c.Type == TypeReady || c.Type == TypeReconciling || c.Type == TypeStalled)
		switch {
		case c.ObservedGeneration > generation:
			report("condition %s is about generation %d, ahead of metadata.generation %d", c.Type, c.ObservedGeneration, generation)
		case kstatus && c.ObservedGeneration != v.observed:
			report("condition %s is about generation %d, and kstatus takes it as about %d, which is status.observedGeneration", c.Type, c.ObservedGeneration, v.observed)
		}
		if kstatus && c.Type != TypeReady && c.Status == metav1.ConditionUnknown {
			report("condition %s is Unknown: kstatus takes that for False", c.Type)
		}
	}
	is := func(conditionType string) bool { return meta.IsStatusConditionTrue(v.conditions, conditionType) }
	ready, reconciling, stalled := is(TypeReady), is(TypeReconciling), is(TypeStalled)
	switch {
	case deleting:
	case reconciling && stalled:
		report("conditions Reconciling and Stalled are both True: kstatus believes the one that comes first")
	case ready && (reconciling || stalled):
		report("condition Ready is True, and so is Reconciling or Stalled, which kstatus believes")
	case ready || reconciling || stalled:
	case meta.FindStatusCondition(v.conditions, TypeReady) == nil:
		report("condition Ready is missing: kstatus takes the object for done")
	default:
		report("condition Ready is not True, and neither is Reconciling nor Stalled: kstatus takes it for progress, for ever")
	}
	return errors.Join(found...)
}
