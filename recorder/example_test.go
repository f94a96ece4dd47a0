package recorder_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"

	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/recorder"
)

// Three equal Events become one.
func ExampleRecorder() {
	client := fake.NewClientset()
	r := &recorder.Recorder{
		Controller: "example.com/copier",
		Client:     func(ns string) recorder.Client { return client.EventsV1().Events(ns) },
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()

	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings", UID: "c0ffee"}}
	for range 3 {
		r.Event(
			recorder.Reference(settings, corev1.SchemeGroupVersion.WithKind("ConfigMap")), corev1.ObjectReference{},
			corev1.EventTypeWarning, "QuotaExceeded", "Copy", "the copy does not fit into the quota of namespace prod",
		)
	}

	cancel() // after the controllers that use it have ended
	fmt.Println(<-ended, r.Counts())
	events, _ := client.EventsV1().Events("default").List(context.Background(), metav1.ListOptions{})
	for _, e := range events.Items {
		fmt.Println(e.Regarding.Name, e.Type, e.Reason, e.Action, e.Series.Count)
	}
	// Output:
	// <nil> {1 2 0 map[]}
	// settings Warning QuotaExceeded Copy 3
}

// A reference needs no scheme, because the caller passes the kind.
func ExampleReference() {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "data", UID: "c0ffee"}}
	ref := recorder.Reference(claim, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	fmt.Println(ref.APIVersion, ref.Kind, ref.Namespace, ref.Name, ref.UID)
	// Output:
	// v1 PersistentVolumeClaim prod data c0ffee
}

// An Event that cannot be recorded is counted.
func ExampleRecorder_Event() {
	var none *recorder.Recorder // as in the test of a reconcile function
	none.Event(corev1.ObjectReference{}, corev1.ObjectReference{}, "", "", "", "")

	r := &recorder.Recorder{Controller: "example.com/copier"}
	node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "worker-1", UID: "c0ffee"}
	r.Event(node, corev1.ObjectReference{}, corev1.EventTypeNormal, "Drained", "Drain", "all pods are gone")
	r.Event(node, corev1.ObjectReference{}, "Error", "Failed", "Drain", "a type that the API does not have")
	counts := r.Counts()
	fmt.Println(counts.Held, counts.Dropped)
	// Output:
	// 1 map[invalid:1]
}

// The field Event of a leader.Elector takes a Recorder in one line.
func ExampleRecorder_elector() {
	r := &recorder.Recorder{Controller: "example.com/shop"}
	elector := &leader.Elector{
		Leases:    fake.NewClientset().CoordinationV1().Leases("shop"),
		Namespace: "shop",
		Name:      "shop-controller",
		Identity:  "replica-0",
		Event: func(obj runtime.Object, eventtype, reason, note string) {
			r.Event(recorder.Reference(obj.(metav1.Object), obj.GetObjectKind().GroupVersionKind()), corev1.ObjectReference{}, eventtype, reason, "Elect", note)
		},
	}
	err := elector.Run(context.Background(), func(context.Context) error { return nil })
	counts := r.Counts()
	fmt.Println(err, counts.Held, counts.Dropped)
	// Output:
	// <nil> 2 map[]
}

// printed is a Metrics. In a process, it is a *metrics.Metrics.
type printed struct{}

func (printed) EventsRecorded(outcome string, n int) { fmt.Println(n, outcome) }

// Metrics gets the outcome of each Event.
func ExampleMetrics() {
	r := &recorder.Recorder{Controller: "example.com/copier", Metrics: printed{}}
	node := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "worker-1", UID: "c0ffee"}
	r.Event(node, corev1.ObjectReference{}, "Error", "Failed", "Drain", "a type that the API does not have")
	// Output:
	// 1 invalid
}

// A reconciler has an EventRecorder of client-go. Its Events become a series, and are bounded.
func ExampleRecorder_Objects() {
	r := &recorder.Recorder{Controller: "example.com/copier"}
	var recorder events.EventRecorder = r.Objects(scheme.Scheme)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "c0ffee"}}
	recorder.Eventf(pod, nil, corev1.EventTypeNormal, "Copied", "Copy", "copied %d files", 3)
	fmt.Println(r.Counts().Held)
	// Output: 1
}

// A reconciler has an EventRecorder of client-go's package record.
func ExampleRecorder_Legacy() {
	r := &recorder.Recorder{Controller: "example.com/copier"}
	var recorder record.EventRecorder = r.Legacy(scheme.Scheme)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "c0ffee"}}
	recorder.Event(pod, corev1.EventTypeNormal, "Copied", "copied 3 files")
	fmt.Println(r.Counts().Held)
	// Output: 1
}
