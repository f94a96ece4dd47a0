package applyset

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Attempt is an attempt to apply an object. Live is nil if the object is absent.
type Attempt struct {
	Live                                             metav1.Object
	Adopts, MayRecreate, RejectsNoVersion, Recreated bool
	Previous                                         int
}

// Next returns the name of the step after the response, and the action of a success.
func (a Attempt) Next(manager string, response *unstructured.Unstructured, err error) (step string, action Action) {
	t := &attempt{live: a.Live, adopts: a.Adopts, mayRecreate: a.MayRecreate, previous: a.Previous, rejectsNoVersion: a.RejectsNoVersion, recreated: a.Recreated}
	s := t.next(manager, response, err)
	if s == accept {
		action = t.action(response)
	}
	return [...]string{accept: "accept", readAgain: "readAgain", recreate: "recreate", undo: "undo", fail: "fail"}[s], action
}

// MayApply returns the error for an existing object of a call with the parent.
func MayApply(s *Set, parent, live metav1.Object) error {
	_, err := (&setCall{Set: s, parent: parent}).mayApply(nil, live, "")
	return err
}

// Remembered returns of how many parents the Set has a memory.
func Remembered(s *Set) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.memories)
}
