package status

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/controllerkit/controllerkit/internal/fields"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// The reasons of the conditions that [Summary] makes if no part's reason fits.
const (
	reasonAllTrue     = "AllTrue"     // every part is True
	reasonNotReported = "NotReported" // a part is missing, or its reason is empty
	reasonOutdated    = "Outdated"    // a part describes another generation
)

// True returns a condition with status True for [Set], which sets the other fields.
func True(conditionType, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

// False returns a condition with status False for [Set], which sets the other fields.
func False(conditionType, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// Unknown returns a condition with status Unknown for [Set], which sets the other fields.
func Unknown(conditionType, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionUnknown, Reason: reason, Message: message}
}

// Set puts each condition of set into conditions, in the place of the one with its type
// or at the end. generation is the metadata.generation of the object from which the
// result was computed. It becomes observedGeneration; use 0 for kinds without a
// generation. If the list repeats a given type, Set removes the repetitions, because
// clients read different ones.
//
// lastTransitionTime becomes the current time, in whole seconds, if the condition is new
// or its status changed, and stays otherwise. Set ignores ObservedGeneration and
// LastTransitionTime of set. It cuts a message that is too long and replaces invalid
// UTF-8, because messages contain errors, and the report of an error must not fail for
// its text.
//
// Set fails and leaves conditions unchanged in these cases. A type, status or reason is not
// valid; a reason is a CamelCase word. set repeats a type. generation is older than a stored
// observedGeneration: then obj is stale, or was restored with its old status.
//
// The rules are those of apimachinery's ValidateCondition, because one condition that the API
// server rejects makes the write of the whole status fail. The schema that controller-gen
// makes of metav1.Condition is the same, except that it limits a type to 316 characters, and
// not the domain in it to 253 and the name to 63.
//
// Set replaces the slice and does not modify the elements of the old one.
//
// The conditions of an unstructured object are the list in its status. Set keeps the
// fields of a condition that metav1.Condition lacks, unless it changes that condition. It
// fails for more than 1000 conditions, and so does Apply.
func Set[C *[]metav1.Condition | *unstructured.Unstructured](conditions C, generation int64, set ...metav1.Condition) error {
	switch conditions := any(conditions).(type) {
	case *unstructured.Unstructured:
		return setUntyped(conditions, generation, set)
	case *[]metav1.Condition:
		return setTyped(conditions, generation, set)
	}
	return nil // unreachable
}

// setUntyped is Set for the status of an unstructured object.
func setUntyped(u *unstructured.Unstructured, generation int64, set []metav1.Condition) error {
	if u == nil || u.Object == nil {
		return errors.New("status: the unstructured object is nil: pass one that the API server returned")
	}
	before := fields.Read(u)
	if !before.Conditioned {
		return errors.New("status: status.conditions of the unstructured object is no list of objects: pass an object whose conditions are of type metav1.Condition")
	}
	if before.Total > fields.MaxConditions {
		return tooMany(before.Total)
	}
	after := before.Conditions
	if err := setTyped(&after, generation, set); err != nil {
		return err
	}
	old, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	items := make([]any, len(after))
	for i, c := range after {
		if j := slices.Index(before.Conditions, c); j >= 0 {
			items[i] = old[j]
			continue
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
		if err != nil {
			return fmt.Errorf("status: condition %q: %w", c.Type, err)
		}
		items[i] = content
	}
	if err := unstructured.SetNestedSlice(u.Object, items, "status", "conditions"); err != nil {
		return fmt.Errorf("status: the unstructured object: %w", err)
	}
	return nil
}

// tooMany is the error for more conditions than are read.
func tooMany(n int) error {
	return fmt.Errorf("status: status.conditions has %d conditions, and at most %d are read: remove those that no controller sets", n, fields.MaxConditions)
}

func setTyped(conditions *[]metav1.Condition, generation int64, set []metav1.Condition) error {
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

// Summary returns a condition of the type conditionType, such as Ready, made from parts,
// the types of other conditions. It is False if a part is False. Otherwise it is Unknown
// if a part is Unknown, missing or not about generation, or there are no parts. Otherwise
// it is True. A part whose True is bad, such as Degraded, does not fit.
//
// The reason comes from the first part that decided. It is AllTrue if every part is True,
// NotReported for a part that is missing or has no reason, and Outdated for a part about
// another generation. The message names every part that is not True. Set the parts first,
// then the result of Summary.
func Summary(conditions []metav1.Condition, generation int64, conditionType string, parts ...string) metav1.Condition {
	if len(parts) == 0 {
		return Unknown(conditionType, reasonNotReported, "no parts")
	}
	result := True(conditionType, reasonAllTrue, strings.Join(parts, ", "))
	var messages []string
	for _, part := range parts {
		p := Unknown(part, reasonNotReported, "not reported")
		switch c := meta.FindStatusCondition(conditions, part); {
		case c == nil:
		case c.ObservedGeneration != generation:
			p = Unknown(part, reasonOutdated, fmt.Sprintf("reported for generation %d, not %d", c.ObservedGeneration, generation))
		default:
			p = *c
			if p.Reason == "" {
				p.Reason = reasonNotReported
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
