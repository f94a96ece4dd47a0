package status

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Phases is the table of the phases of a kind that must have one field with a summary.
// The phase comes from the first row whose conditions match, so it adds no information to
// the conditions.
type Phases []Phase

// Phase is a row of [Phases].
type Phase struct {
	Name string // not empty, once in the table
	// When has the types of the conditions that make the phase, and the status that
	// each must have for the present generation. A condition that is missing, or
	// about another generation, is Unknown. Empty means always, as for the last row.
	When map[string]metav1.ConditionStatus
	// Next has the phases that may follow. The phase itself always may. Empty means
	// that it is final.
	Next []string
}

// Next returns the phase of the conditions for generation. Write it together with them.
// present is the stored phase; if it is empty, as in a new object, every phase may
// follow.
//
// Next fails if the phase may not follow present. Then the conditions, the table or
// another writer is wrong, so write neither the conditions nor the phase. Next also fails
// if no row matches, present is not in the table, or the table is not valid.
func (p Phases) Next(present string, conditions []metav1.Condition, generation int64) (string, error) {
	if err := p.check(); err != nil {
		return "", err
	}
	row := slices.IndexFunc(p, func(row Phase) bool { return row.fits(conditions, generation) })
	if row < 0 {
		return "", errors.New("status: no phase fits the conditions: let the last one have an empty When")
	}
	next := p[row].Name
	if present == "" || present == next {
		return next, nil
	}
	from := slices.IndexFunc(p, func(row Phase) bool { return row.Name == present })
	if from < 0 {
		return "", fmt.Errorf("status: the present phase %q is not in the table", present)
	}
	if !slices.Contains(p[from].Next, next) {
		return "", fmt.Errorf("status: phase %q is followed by one of %q, and the conditions say %q", present, p[from].Next, next)
	}
	return next, nil
}

func (row Phase) fits(conditions []metav1.Condition, generation int64) bool {
	for conditionType, want := range row.When {
		got := metav1.ConditionUnknown
		if c := meta.FindStatusCondition(conditions, conditionType); c != nil && c.ObservedGeneration == generation {
			got = c.Status
		}
		if got != want {
			return false
		}
	}
	return true
}

// check rejects a table that is not valid.
func (p Phases) check() error {
	names := make(map[string]bool, len(p))
	for i, row := range p {
		if row.Name == "" || names[row.Name] {
			return fmt.Errorf("status: Phases[%d].Name is %q: each phase needs a name of its own", i, row.Name)
		}
		names[row.Name] = true
		for conditionType, s := range row.When {
			if s != metav1.ConditionTrue && s != metav1.ConditionFalse && s != metav1.ConditionUnknown {
				return fmt.Errorf("status: Phases[%d].When[%q] is %q: use True, False or Unknown", i, conditionType, s)
			}
		}
	}
	for i, row := range p {
		for _, next := range row.Next {
			if !names[next] {
				return fmt.Errorf("status: Phases[%d].Next has %q, which is not in the table", i, next)
			}
		}
	}
	return nil
}
