package apply

import (
	"cmp"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// atomics remembers which fields of Go types are atomic, by their schemaField. The
// schemas of generated extract functions are compiled into the program, so the values
// do not change, and there are at most as many as fields.
var atomics sync.Map

// settled reports whether the schema agrees with the decision. probe is a copy of live,
// whose managedFields it sets.
func settled[T metav1.Object, C any](manager string, d *decider, probe T, extract func(T, string) (C, error)) bool {
	var questions []question
	for _, q := range d.questions {
		switch atomic, known := atomics.Load(q.field); {
		case !known:
			questions = append(questions, q)
		case atomic != q.atomic:
			return false
		}
	}
	if len(questions) == 0 {
		return true
	}
	if extract == nil {
		return false
	}
	// If the manager owned a member of the field, extract would take all of an atomic
	// field and would omit a granular one. So ask with such an entry.
	slices.SortFunc(questions, func(a, b question) int { return cmp.Compare(a.at, b.at) })
	var fields []byte
	at := 0
	for _, q := range questions {
		fields = append(append(fields, d.owned[at:q.at]...), `"f:":{}`...)
		at = q.at
	}
	fields = append(fields, d.owned[at:]...)
	probe.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: d.version,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(fields)),
	}})
	extracted, err := extract(probe, manager)
	if err != nil {
		return false
	}
	encoded, err := encode(extracted)
	if err != nil {
		return false
	}
	root, err := d.parse(encoded)
	if err != nil {
		return false
	}
	byField := make(map[int32]question, len(questions))
	for _, q := range questions {
		byField[q.config] = q
	}
	holds := true
	complete := d.beside(d.config, root, func(config, extracted int32) bool {
		q, ok := byField[config]
		if ok && !q.shown {
			holds = false
		} else if ok {
			atomic := d.nodes[extracted].n > 0
			if q.field.parent != nil {
				atomics.Store(q.field, atomic)
			}
			holds = holds && atomic == q.atomic
		}
		return ok
	})
	return complete && holds
}

// beside walks both the configuration and the extracted one until found reports true for a
// field. It reports false where the two differ.
func (d *decider) beside(config, extracted int32, found func(config, extracted int32) bool) bool {
	if found(config, extracted) {
		return true
	}
	c, x := d.nodes[config], d.nodes[extracted]
	switch {
	case c.kind < list || c.n == 0:
		return true
	case c.kind != x.kind, c.kind == list && c.n != x.n:
		return false
	}
	hint := int32(0)
	for i, j := c.child, x.child; i != 0; i = d.nodes[i].next {
		if c.kind == object {
			j = d.member(extracted, hint, "", d.nodes[i].key)
			hint = cmp.Or(j, hint)
		}
		if !d.beside(i, j, found) {
			return false
		}
		if c.kind == list {
			j = d.nodes[j].next
		}
	}
	return true
}
