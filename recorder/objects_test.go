package recorder_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"

	"github.com/controllerkit/controllerkit/recorder"
)

var (
	_ events.EventRecorder = (*recorder.Objects)(nil)
	_ record.EventRecorder = (*recorder.Legacy)(nil)
)

// TestObjects: the recorders of client-go write the Event that Recorder.Event writes.
func TestObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		r := &recorder.Recorder{Controller: "example.com/copier", Client: func(ns string) recorder.Client { return client.EventsV1().Events(ns) }}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "1"}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "2"}}
		widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"namespace": "ns", "name": "w", "uid": "3"}}}
		ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: "ns", Name: "s", UID: "4"}
		var none *corev1.Pod

		objects := r.Objects(scheme.Scheme)
		objects.Eventf(pod, node, corev1.EventTypeNormal, "Bound", "Bind", "to %s", "b")
		objects.Eventf(widget, none, corev1.EventTypeWarning, "Failed", "Make", "100% sure")
		objects.AnnotatedEventf(ref, nil, map[string]string{"a": "b"}, corev1.EventTypeNormal, "Read", "Read", "%d times", 2)
		legacy := r.Legacy(scheme.Scheme)
		legacy.Event(pod, corev1.EventTypeNormal, "Seen", "100% seen")
		legacy.Eventf(pod, corev1.EventTypeNormal, "Counted", "%d of %d", 1, 2)
		legacy.AnnotatedEventf(pod, map[string]string{"a": "b"}, corev1.EventTypeNormal, "Noted", "no args: %d")
		// Dropped as invalid: no scheme, a kind that it lacks, no object, no metadata.
		r.Objects(nil).Eventf(pod, nil, corev1.EventTypeNormal, "Lost", "Lose", "")
		r.Legacy(runtime.NewScheme()).Event(pod, corev1.EventTypeNormal, "Lost", "")
		objects.Eventf(none, nil, corev1.EventTypeNormal, "Lost", "Lose", "")
		legacy.Event(&metav1.Status{}, corev1.EventTypeNormal, "Lost", "")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		list, err := client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range list.Items {
			related := ""
			if e.Related != nil {
				related = e.Related.Kind
			}
			got = append(got, fmt.Sprint(e.Regarding.APIVersion, e.Regarding.Kind, e.Regarding.Namespace, e.Regarding.Name, e.Regarding.UID, related, e.Type, e.Reason, e.Action, e.Note, len(e.Annotations)))
		}
		slices.SortFunc(got, strings.Compare)
		want := []string{
			fmt.Sprint("example.com/v1", "Widget", "ns", "w", "3", "", "Warning", "Failed", "Make", "100% sure", 0),
			fmt.Sprint("v1", "Pod", "ns", "a", "1", "Node", "Normal", "Bound", "Bind", "to b", 0),
			fmt.Sprint("v1", "Pod", "ns", "a", "1", "", "Normal", "Counted", "Counted", "1 of 2", 0),
			fmt.Sprint("v1", "Pod", "ns", "a", "1", "", "Normal", "Noted", "Noted", "no args: %d", 0),
			fmt.Sprint("v1", "Pod", "ns", "a", "1", "", "Normal", "Seen", "Seen", "100% seen", 0),
			fmt.Sprint("v1", "Secret", "ns", "s", "4", "", "Normal", "Read", "Read", "2 times", 0),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if n := r.Counts().Dropped["invalid"]; n != 4 {
			t.Errorf("%d Events are invalid, want 4", n)
		}
		var nobody *recorder.Recorder
		nobody.Objects(nil).Eventf(pod, nil, "", "", "", "")
		nobody.Legacy(nil).Event(pod, "", "", "")
	})
}
