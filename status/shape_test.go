package status_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/status"
)

// shaped is an object whose status has the shape S.
type shaped[S any] struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            S `json:"status,omitempty"`
	copy              func(S) S
}

func (s *shaped[S]) DeepCopy() *shaped[S] {
	c := *s
	c.Status = s.copy(s.Status)
	return &c
}

// Common is embedded in statuses.
type Common struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

type embedding struct {
	Common `json:",inline"`
	Size   int `json:"size"`
}

type pointing struct {
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
}

// back tries to let the generation go back.
func back[S any](t *testing.T, name string, s S, copy func(S) S, mutate func(S) S) {
	t.Helper()
	obj := &shaped[S]{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u", ResourceVersion: "1", Generation: 3}, Status: s, copy: copy}
	_, err := status.Patch(t.Context(), silent[*shaped[S]]{t}, obj, func(o *shaped[S]) { o.Status = mutate(o.Status) })
	refused(t, name, err, "shows generation 3")
}

// A status is read by its names in JSON, whatever its shape in Go.
//
// Proves S12.
func TestShapes(t *testing.T) {
	three, two := int64(3), int64(2)
	back(t, "embedded", embedding{Common: Common{ObservedGeneration: 3}}, func(s embedding) embedding { return s },
		func(s embedding) embedding { s.ObservedGeneration = 2; return s })
	back(t, "embedded conditions", embedding{Common: Common{Conditions: []metav1.Condition{{Type: "Ready", ObservedGeneration: 3}}}}, func(s embedding) embedding { return s },
		func(s embedding) embedding {
			s.Conditions = []metav1.Condition{{Type: "Ready", ObservedGeneration: 2}}
			return s
		})
	back(t, "pointer to a number", pointing{ObservedGeneration: &three}, func(s pointing) pointing { return s },
		func(s pointing) pointing { s.ObservedGeneration = &two; return s })
	back(t, "no number left", pointing{ObservedGeneration: &three}, func(s pointing) pointing { return s },
		func(s pointing) pointing { s.ObservedGeneration = nil; return s })
	back(t, "pointer to a status", &Common{ObservedGeneration: 3}, func(s *Common) *Common { c := *s; return &c },
		func(s *Common) *Common { s.ObservedGeneration = 2; return s })
	back(t, "no status left", &Common{ObservedGeneration: 3}, func(s *Common) *Common { c := *s; return &c },
		func(*Common) *Common { return nil })
}

// A field of the status that the type does not know is not in the patch.
//
// Proves S9.
func TestPatchOfOlderType(t *testing.T) {
	type old struct {
		Size int `json:"size"`
	}
	obj := &shaped[old]{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "u", ResourceVersion: "1"}, copy: func(s old) old { return s }}
	r := &recorder[*shaped[old]]{}
	if _, err := status.Patch(t.Context(), r, obj, func(o *shaped[old]) { o.Status.Size = 4 }); err != nil {
		t.Fatal(err)
	}
	if got, want := string(r.data), `{"metadata":{"resourceVersion":"1","uid":"u"},"status":{"size":4}}`; got != want {
		t.Errorf("patch %s, want %s", got, want)
	}
}
