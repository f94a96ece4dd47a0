package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/controllerkit/controllerkit/internal/fields"
)

// SetOf is [Set] for a list of another type than metav1.Condition, such as the type that a project has
// had for longer:
//
//	err := status.SetOf(&widget.Status.Conditions, widget.Generation, status.True("Ready", "Deployed", ""))
//
// C is a struct whose JSON has the fields type, status, reason, message and lastTransitionTime of
// metav1.Condition. SetOf fails if C lacks one that gets a value. The other fields keep their values, and are
// zero in a new condition. If C has no field observedGeneration, a result for an older generation is not noticed. SetOf
// fails for more than 1000 conditions.
func SetOf[C any](conditions *[]C, generation int64, set ...metav1.Condition) error {
	if conditions == nil {
		return errors.New("status: conditions is nil: pass the address of the conditions of the object")
	}
	own := *conditions
	if len(own) > fields.MaxConditions {
		return tooMany(len(own))
	}
	before := make([]metav1.Condition, len(own))
	for i, c := range own {
		if err := convert(c, &before[i]); err != nil {
			return fmt.Errorf("status: condition %d of type %T: %w", i, c, err)
		}
	}
	after := before
	if err := setTyped(&after, generation, set); err != nil {
		return err
	}
	next := make([]C, len(after))
	for i, c := range after {
		if j := slices.Index(before, c); j >= 0 {
			next[i] = own[j]
			continue
		}
		var old metav1.Condition
		if j := slices.IndexFunc(before, func(old metav1.Condition) bool { return old.Type == c.Type }); j >= 0 {
			next[i], old = own[j], before[j]
		}
		if err := overlay(&next[i], old, c); err != nil {
			return fmt.Errorf("status: condition %q: %w", c.Type, err)
		}
	}
	*conditions = next
	return nil
}

// overlay replaces own, which is old, by one with the fields of c and its other fields.
func overlay[C any](own *C, old, c metav1.Condition) error {
	var content, update map[string]any
	if err := errors.Join(convert(*own, &content), convert(c, &update)); err != nil {
		return err
	}
	if c.LastTransitionTime.Equal(&old.LastTransitionTime) {
		update["lastTransitionTime"] = content["lastTransitionTime"] // with its fraction of a second
	}
	for _, name := range []string{"type", "status", "observedGeneration", "lastTransitionTime", "reason", "message"} {
		if value, ok := update[name]; ok {
			content[name] = value
		} else {
			delete(content, name)
		}
	}
	var next C
	var stored metav1.Condition
	if err := errors.Join(convert(content, &next), convert(next, &stored)); err != nil {
		return err
	}
	if stored.LastTransitionTime.Equal(&c.LastTransitionTime) {
		stored.LastTransitionTime = c.LastTransitionTime // in the same zone
	}
	if stored.ObservedGeneration = c.ObservedGeneration; stored != c {
		return fmt.Errorf("type %T has not all of the fields type, status, reason, message and lastTransitionTime of a condition: use a type that has them", next)
	}
	*own = next
	return nil
}

// convert sets into to the value with the same JSON.
func convert(from, into any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return utiljson.Unmarshal(data, into)
}
