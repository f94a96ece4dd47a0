package recorder_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testnames"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/recorder"
)

// A Recorder accepts each controller, reason and action that the API server accepts.
func TestServerNames(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(testserver.Config(t)).EventsV1()
	done, cancel := context.WithCancel(t.Context())
	cancel()
	names := testnames.All(t)
	server := func(change func(e *eventsv1.Event, name string)) func(string) error {
		return func(name string) error {
			e := &eventsv1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}, EventTime: metav1.NewMicroTime(time.Now()),
				Regarding: corev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "one"}, Type: corev1.EventTypeNormal,
				Reason: "Reason", Action: "Action", ReportingController: "example.com/widgets", ReportingInstance: "one",
			}
			change(e, name)
			_, err := client.Events("default").Create(t.Context(), e, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
	}
	newRecorder := func(controller string) *recorder.Recorder {
		return &recorder.Recorder{Client: func(namespace string) recorder.Client { return client.Events(namespace) }, Controller: controller}
	}
	testnames.Compare(t, names, server(func(e *eventsv1.Event, name string) { e.ReportingController = name }),
		func(name string) error { return newRecorder(name).Run(done) }, nil)

	record := func(reason, action func(name string) string) func(name string) error {
		r := newRecorder("example.com/widgets")
		invalid, objects := uint64(0), 0
		return func(name string) error {
			objects++ // each object has a budget
			r.Event(corev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: strconv.Itoa(objects)}, corev1.ObjectReference{}, corev1.EventTypeNormal, reason(name), action(name), "")
			before := invalid
			if invalid = r.Counts().Dropped["invalid"]; invalid > before {
				return errNoConnection
			}
			return nil
		}
	}
	same, word := func(name string) string { return name }, func(string) string { return "Word" }
	testnames.Compare(t, names, server(func(e *eventsv1.Event, name string) { e.Reason = name }), record(same, word), nil)
	testnames.Compare(t, names, server(func(e *eventsv1.Event, name string) { e.Action = name }), record(word, same), nil)
}
