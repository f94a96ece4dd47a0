package leader_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/leader"
)

// TestStamp: the stamp comes to the annotations that are there, and a map that is
// shared with a cache stays as it is.
func TestStamp(t *testing.T) {
	term := leader.Term{LeaseUID: "uid", Number: 7}
	for _, tt := range []struct {
		name string
		have map[string]string
		want map[string]string
	}{
		{name: "nil", want: map[string]string{leader.TermAnnotation: "uid/7"}},
		{name: "empty", have: map[string]string{}, want: map[string]string{leader.TermAnnotation: "uid/7"}},
		{name: "others", have: map[string]string{"a": "b"}, want: map[string]string{"a": "b", leader.TermAnnotation: "uid/7"}},
		{name: "older", have: map[string]string{leader.TermAnnotation: "uid/6"}, want: map[string]string{leader.TermAnnotation: "uid/7"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cached := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: tt.have}}
			before := cached.DeepCopy()
			shallow := *cached
			term.Stamp(&shallow)
			if diff := cmp.Diff(tt.want, shallow.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, cached); diff != "" {
				t.Errorf("the cached object changed (-before +after):\n%s", diff)
			}
		})
	}
	first := term.Annotations()
	first["a"] = "b"
	if diff := cmp.Diff(map[string]string{leader.TermAnnotation: "uid/7"}, term.Annotations()); diff != "" {
		t.Errorf("Annotations() after a caller changed its own (-want +got):\n%s", diff)
	}
}
