package outcome

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/enqueue/pause"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/status"
)

// Pause adds the condition of a paused object to the status of obj. Ready and the observed generation stay. Without
// a Ready it becomes Unknown, because programs take an object without one for ready.
func Pause(obj any, paused metav1.Condition) error {
	fill(obj)
	list := conditions(obj)
	if list == nil {
		return nil
	}
	set := []metav1.Condition{paused}
	if find(*list) == nil {
		set = append(set, status.Unknown(Ready, pause.Reason, paused.Message))
	}
	*list = slices.Clone(*list)
	return status.Set(list, paused.ObservedGeneration, set...)
}

// Rest shows a paused object as skipped in a preview. If writes is true, it writes the condition.
func Rest[T interface {
	controllerkit.Object
	DeepCopy() T
}](ctx context.Context, client controllerkit.Patcher[T], before T, paused metav1.Condition, writes bool) error {
	if note, on := calls.InPreview(ctx); on {
		note("Reconcile: " + paused.Message)
	}
	if !writes {
		return nil
	}
	obj := before.DeepCopy()
	if err := Pause(obj, paused); err != nil {
		return err
	}
	_, err := status.Patch(ctx, client, before, func(target T) { Take(target, obj) })
	if kube.IsGone(err, before.GetName()) {
		return nil // there is nothing to report on
	}
	return err
}

// isPause reports whether a condition is that of Pause.
func isPause(c metav1.Condition) bool { return c.Type == pause.Paused && c.Reason == pause.Reason }
