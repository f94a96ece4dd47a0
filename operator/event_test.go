package operator

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/recorder"
)

// written is a client that sends the Events that are created.
type written chan *eventsv1.Event

func (w written) Create(_ context.Context, event *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	w <- event
	return event, nil
}

func (w written) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*eventsv1.Event, error) {
	return &eventsv1.Event{}, nil
}

// TestEventNote tests that a note is formatted only if it has args.
func TestEventNote(t *testing.T) {
	op, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, Options{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	c := op.Controller("x", func(context.Context, types.NamespacedName) (reconcile.Result, error) { return reconcile.Result{}, nil })
	c.owner = corev1.Resource("configmaps")
	op.served.Found(served.Kinds{c.owner: {GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Namespaced: true}})
	events := make(written, 2)
	op.Events.Client = func(string) recorder.Client { return events }
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "a", UID: "u"}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- op.Events.Run(ctx) }()
	c.Event(obj, corev1.EventTypeNormal, "Full", "Count", "100% of it")
	c.Event(obj, corev1.EventTypeNormal, "Fuller", "Count", "%d%% of it", 101)
	for range 2 {
		event := <-events
		want := map[string]string{"Full": "100% of it", "Fuller": "101% of it"}[event.Reason]
		if event.Note != want || event.Regarding.Kind != "ConfigMap" || event.Regarding.Name != "one" {
			t.Errorf("the Event %s has the note %q about %v, want %q", event.Reason, event.Note, event.Regarding, want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
