package leader_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	oldrecord "k8s.io/client-go/tools/record"

	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/recorder"
)

// Event is one line for each recorder: that of package recorder, that of client-go's
// tools/events, and that of client-go's tools/record.
func ExampleElector_event() {
	ours := &recorder.Recorder{Controller: "example.com/shop"}
	newer := events.NewFakeRecorder(10)
	older := oldrecord.NewFakeRecorder(10)

	type eventFunc = func(obj runtime.Object, eventtype, reason, note string)
	for _, event := range []eventFunc{
		func(obj runtime.Object, eventtype, reason, note string) {
			ours.Event(recorder.Reference(obj.(metav1.Object), obj.GetObjectKind().GroupVersionKind()), corev1.ObjectReference{}, eventtype, reason, "Elect", note)
		},
		func(obj runtime.Object, eventtype, reason, note string) {
			newer.Eventf(obj, nil, eventtype, reason, "Elect", "%s", note)
		},
		func(obj runtime.Object, eventtype, reason, note string) { older.Event(obj, eventtype, reason, note) },
	} {
		elector := &leader.Elector{
			Leases:    fake.NewClientset().CoordinationV1().Leases("shop"),
			Namespace: "shop",
			Name:      "shop-controller",
			Identity:  "replica-0",
			Event:     event,
		}
		if err := elector.Run(context.Background(), func(context.Context) error { return nil }); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("recorder:", ours.Counts().Held)
	fmt.Println("tools/events:", <-newer.Events)
	fmt.Println("tools/record:", <-older.Events)
	// Output:
	// recorder: 2
	// tools/events: Normal LeaderElection replica-0 became leader in term 0
	// tools/record: Normal LeaderElection replica-0 became leader in term 0
}
