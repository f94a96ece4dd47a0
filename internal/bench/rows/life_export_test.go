package rows

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LifeKinds returns the names of the contenders of life/requests.
func LifeKinds() []string { return slices.Sorted(maps.Keys(lifeKinds())) }

// LifeWorld runs lives.
type LifeWorld struct{ world *lifeWorld }

// OpenLifeWorld opens a LifeWorld until the end of the test.
func OpenLifeWorld(t *testing.T) LifeWorld {
	t.Helper()
	w, err := openLifeWorld(logr.NewContext(t.Context(), logr.Discard()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.stop)
	return LifeWorld{w}
}

// Live runs n lives under a contender. It returns the objects at the end of the steady
// phase as JSON, without values that differ from run to run, and the counts by figure.
func (w LifeWorld) Live(t *testing.T, contender string, n int) ([]string, map[string]int64) {
	t.Helper()
	run, err := w.world.live(logr.NewContext(t.Context(), logr.Discard()), lifeKinds()[contender], n, lifeQuiet)
	if err != nil {
		t.Fatal(err)
	}
	s := run.steady
	objects := s.children()
	for i := range s.Widgets {
		objects = append(objects, &s.Widgets[i])
		for j := range s.Widgets[i].Status.Conditions {
			s.Widgets[i].Status.Conditions[j].LastTransitionTime = metav1.Time{}
		}
	}
	for i := range s.Services {
		s.Services[i].Spec.ClusterIP, s.Services[i].Spec.ClusterIPs = "", nil
	}
	var texts []string
	for _, obj := range objects {
		obj.SetUID("")
		obj.SetResourceVersion("")
		obj.SetCreationTimestamp(metav1.Time{})
		obj.SetManagedFields(nil)
		owners := obj.GetOwnerReferences()
		for i := range owners {
			owners[i].UID = ""
		}
		obj.SetOwnerReferences(owners)
		b, err := json.MarshalIndent(obj, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, fmt.Sprintf("%T: %s", obj, b))
	}
	return texts, run.counts
}
