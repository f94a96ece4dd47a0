package status_test

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/status"
)

// job is the table that most kinds with phases have.
func job() status.Phases {
	return status.Phases{
		{Name: "Succeeded", When: map[string]metav1.ConditionStatus{"Complete": "True"}},
		{Name: "Failed", When: map[string]metav1.ConditionStatus{"Complete": "False"}, Next: []string{"Pending"}},
		{Name: "Running", When: map[string]metav1.ConditionStatus{"Started": "True"}, Next: []string{"Succeeded", "Failed"}},
		{Name: "Pending", Next: []string{"Running"}},
	}
}

// Every phase against every set of conditions: what may follow follows, and the
// rest is an error that names both.
func TestPhases(t *testing.T) {
	allowed := map[string][]string{
		"": {"Pending", "Running", "Succeeded", "Failed"}, "Pending": {"Pending", "Running"}, "Running": {"Running", "Succeeded", "Failed"},
		"Succeeded": {"Succeeded"}, "Failed": {"Failed", "Pending"},
	}
	statuses := []metav1.ConditionStatus{"", "True", "False", "Unknown"}
	seen := map[string]int{}
	for present, next := range allowed {
		for _, complete := range statuses {
			for _, started := range statuses {
				for generation := range int64(3) { // of the conditions; the object has 1
					var conditions []metav1.Condition
					want := "Pending"
					for _, c := range []metav1.Condition{{Type: "Complete", Status: complete}, {Type: "Started", Status: started}} {
						if c.Status != "" {
							c.ObservedGeneration = generation
							conditions = append(conditions, c)
						}
					}
					if generation == 1 {
						switch {
						case complete == "True":
							want = "Succeeded"
						case complete == "False":
							want = "Failed"
						case started == "True":
							want = "Running"
						}
					}
					got, err := job().Next(present, conditions, 1)
					if slices.Contains(next, want) {
						if err != nil || got != want {
							t.Errorf("%q with %v: %q, error %v, want %q", present, conditions, got, err, want)
						}
						seen["yes"]++
						continue
					}
					if err == nil || got != "" {
						t.Errorf("%q with %v: %q, error %v, want an error", present, conditions, got, err)
					}
					refused(t, present, err, fmt.Sprintf("%q is followed by one of", present))
					refused(t, present, err, fmt.Sprintf("say %q", want))
					seen["no"]++
				}
			}
		}
	}
	if seen["yes"] == 0 || seen["no"] == 0 {
		t.Errorf("allowed and refused: %v, want some of both", seen)
	}
}

// TestBadPhases proves CK2.
func TestBadPhases(t *testing.T) {
	for _, tt := range []struct {
		name    string
		phases  status.Phases
		present string
		want    string
	}{
		{name: "none", want: "no phase fits"},
		{name: "no name", phases: status.Phases{{}}, want: "Phases[0].Name"},
		{name: "twice", phases: status.Phases{{Name: "A"}, {Name: "A"}}, want: "Phases[1].Name"},
		{name: "unknown next", phases: status.Phases{{Name: "A", Next: []string{"B"}}}, want: `Phases[0].Next has "B"`},
		{name: "bad status", phases: status.Phases{{Name: "A", When: map[string]metav1.ConditionStatus{"X": "Yes"}}}, want: `When["X"]`},
		{name: "unknown present", phases: status.Phases{{Name: "A"}}, present: "Z", want: `phase "Z" is not in the table`},
		{name: "nothing fits", phases: status.Phases{{Name: "A", When: map[string]metav1.ConditionStatus{"X": "True"}}}, want: "no phase fits"},
	} {
		_, err := tt.phases.Next(tt.present, nil, 1)
		refused(t, tt.name, err, tt.want)
	}
}

func ExamplePhases() {
	phases := status.Phases{
		{Name: "Succeeded", When: map[string]metav1.ConditionStatus{"Complete": metav1.ConditionTrue}},
		{Name: "Failed", When: map[string]metav1.ConditionStatus{"Complete": metav1.ConditionFalse}, Next: []string{"Pending"}},
		{Name: "Running", When: map[string]metav1.ConditionStatus{"Started": metav1.ConditionTrue}, Next: []string{"Succeeded", "Failed"}},
		{Name: "Pending", Next: []string{"Running"}},
	}
	var conditions []metav1.Condition
	phase := ""
	for _, c := range []metav1.Condition{
		status.False("Started", "NoNode", ""), status.True("Started", "Scheduled", ""), status.False("Complete", "ExitCode", ""),
		status.Unknown("Complete", "Retry", ""),
	} {
		if err := status.Set(&conditions, 1, c); err != nil {
			fmt.Println(err)
		}
		next, err := phases.Next(phase, conditions, 1)
		if err != nil {
			fmt.Println(err)
			break
		}
		phase = next
		fmt.Println(phase)
	}
	// Output:
	// Pending
	// Running
	// Failed
	// status: phase "Failed" is followed by one of ["Pending"], and the conditions say "Running"
}
