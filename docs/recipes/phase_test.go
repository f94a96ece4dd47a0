package recipes_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/status/kstatus"
)

// registerBoth is the release that writes conditions and, for its old readers, the phase.
func registerBoth(op *operator.Operator, r *painting) {
	operator.Kind(op, widgetVersion.WithResource("widgets"), operator.Reconciler[*Widget]{
		Reconcile: r.reconcile,
		Phases: map[kstatus.State]string{
			kstatus.Ready: "Running", kstatus.Progressing: "Pending", kstatus.Failed: "Failed",
		},
	})
}

// registerConditions is the release after the last reader of the phase.
func registerConditions(op *operator.Operator, r *painting) {
	operator.Kind(op, widgetVersion.WithResource("widgets"), operator.Reconciler[*Widget]{
		Reconcile: func(ctx context.Context, w *Widget) (reconcile.Result, error) {
			w.Status.Phase = "" // removes the field from stored objects
			return r.reconcile(ctx, w)
		},
	})
}

// painting has the unchanged work.
type painting struct{}

func (painting) reconcile(_ context.Context, w *Widget) (reconcile.Result, error) {
	if w.Spec.After == "nothing" {
		return reconcile.Result{}, reconcile.ErrTerminal
	}
	w.Status.Color = "green"
	return reconcile.Result{}, nil
}

// testPhase: the first release derives the phase from the condition, also of an object of an older program,
// and the second one removes it.
func testPhase(t *testing.T) {
	namespace := testserver.Namespace(t)
	widgets := newWidgets(t, testserver.Config(t)).Namespace(namespace)
	for name, after := range map[string]string{"good": "", "bad": "nothing"} {
		w := &Widget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: WidgetSpec{After: after}}
		if _, err := widgets.Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		patch(t, widgets, name, `{"status":{"phase":"Provisioning"}}`, "status")
	}
	is := func(phase, condition string) func(*Widget) bool {
		return func(w *Widget) bool {
			return w.Status.Phase == phase && len(w.Status.Conditions) > 0 && string(w.Status.Conditions[0].Status) == condition
		}
	}
	for _, release := range []struct {
		register  func(*operator.Operator, *painting)
		good, bad string
	}{{registerBoth, "Running", "Failed"}, {registerConditions, "", ""}} {
		op, err := operator.New(testserver.Config(t), operator.Options{Name: "phase", Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		release.register(op, &painting{})
		stop, _ := start(t, op)
		good := await(t, widgets, "good", is(release.good, "True"))
		await(t, widgets, "bad", is(release.bad, "False"))
		stop()
		if good.Status.ObservedGeneration != good.Generation {
			t.Errorf("observedGeneration is %d", good.Status.ObservedGeneration)
		}
	}
}
