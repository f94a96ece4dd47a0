package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Reasons of the conditions that [Summary] makes when it has no part's reason to
// give. Otherwise it gives the reason of the part that decided.
const (
	ReasonAllTrue     = "AllTrue"     // every part is True
	ReasonNotReported = "NotReported" // a part is missing, or has no reason
	ReasonOutdated    = "Outdated"    // a part describes an older generation
)

// True returns a condition with status True for [Set], which fills in the rest.
func True(conditionType, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

// False returns a condition with status False for [Set], which fills in the rest.
func False(conditionType, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// Unknown returns a condition with status Unknown for [Set], which fills in the rest.
func Unknown(conditionType, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionUnknown, Reason: reason, Message: message}
}

// Set puts each of set into conditions: in the place of the one with its type, or
// at the end. generation is the metadata.generation of the object that the result
// was computed from; it becomes observedGeneration (0 for kinds without one). Where
// the list has a type more than once, the others go: some read the first, some all.
//
// lastTransitionTime is now, in whole seconds, for a new condition and for one
// whose status changed, and stays what it is otherwise. ObservedGeneration and
// LastTransitionTime of the given conditions are not used. A message that the
// API would not store as it is, is stored as near as possible: too long, it is
// cut; not UTF-8, it is made so. Errors end up in messages, and the report of a
// failure must not fail for its text.
//
// Set fails, and changes nothing, if a type, status or reason is not valid (a
// reason is a CamelCase word of the program, never a sentence), if set names a
// type twice, or if generation is older than what conditions already show: then
// obj is a stale copy, or was restored with an old status, which the restore
// should leave out. Set replaces the slice and never writes to the elements of
// the old one.
func Set(conditions *[]metav1.Condition, generation int64, set ...metav1.Condition) error {
	if conditions == nil {
		return errors.New("status: conditions is nil: pass the address of the conditions of the object")
	}
	now := metav1.Now().Rfc3339Copy()
	next := slices.Clone(*conditions)
	seen := make(map[string]bool, len(set))
	for _, c := range set {
		c.ObservedGeneration = generation
		c.LastTransitionTime = now
		c.Message = kube.Message(c.Message)
		if errs := validation.ValidateCondition(c, nil); len(errs) > 0 {
			return fmt.Errorf("status: condition %q: %w", c.Type, errs.ToAggregate())
		}
		if seen[c.Type] {
			return fmt.Errorf("status: condition %q is given twice", c.Type)
		}
		seen[c.Type] = true
		same := func(old metav1.Condition) bool { return old.Type == c.Type }
		i := slices.IndexFunc(next, same)
		if i < 0 {
			next = append(next, c)
			continue
		}
		for _, old := range next[i:] {
			if same(old) && generation < old.ObservedGeneration {
				return fmt.Errorf("status: condition %q shows generation %d, this result is for generation %d: reconcile again from a newer copy", c.Type, old.ObservedGeneration, generation)
			}
		}
		if old := next[i]; old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime
		}
		next[i] = c
		next = append(next[:i+1], slices.DeleteFunc(next[i+1:], same)...)
	}
	*conditions = next
	return nil
}

// Summary returns the condition conditionType, such as Ready, made out of parts,
// the types of other conditions. It is False if one of the parts is, Unknown if
// one is Unknown, missing or not about generation, and True if all are True. A
// part in which True is bad news, such as Degraded, does not fit in. Without parts
// Summary is Unknown.
//
// The reason is that of the first part that decided; the message names every
// part that is not True. Set the parts first, then what Summary makes of them.
func Summary(conditions []metav1.Condition, generation int64, conditionType string, parts ...string) metav1.Condition {
	if len(parts) == 0 {
		return Unknown(conditionType, ReasonNotReported, "no parts")
	}
	result := True(conditionType, ReasonAllTrue, strings.Join(parts, ", "))
	var messages []string
	for _, part := range parts {
		p := Unknown(part, ReasonNotReported, "not reported")
		switch c := meta.FindStatusCondition(conditions, part); {
		case c == nil:
		case c.ObservedGeneration != generation:
			p = Unknown(part, ReasonOutdated, fmt.Sprintf("reported for generation %d, not %d", c.ObservedGeneration, generation))
		default:
			p = *c
			if p.Reason == "" {
				p.Reason = ReasonNotReported
			}
			if p.Status != metav1.ConditionTrue && p.Status != metav1.ConditionFalse {
				p.Status = metav1.ConditionUnknown
			}
		}
		if p.Status == metav1.ConditionTrue {
			continue
		}
		if result.Status == metav1.ConditionTrue || result.Status == metav1.ConditionUnknown && p.Status == metav1.ConditionFalse {
			result.Status, result.Reason = p.Status, p.Reason
		}
		messages = append(messages, fmt.Sprintf("%s: %s", part, p.Message))
	}
	if len(messages) > 0 {
		result.Message = strings.Join(messages, "; ")
	}
	return result
}
