package external_test

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// tryOnce calls Once, and returns the time of a WaitingError as wait.
func tryOnce(ctx context.Context, c controllerkit.Patcher[*corev1.ConfigMap], obj *corev1.ConfigMap, r external.Resource) (id string, wait time.Duration, err error) {
	id, err = external.Once(ctx, c, obj, r)
	if wait = kube.Waits(err); wait > 0 {
		err = nil
	}
	return id, wait, err
}

// tryEnsure calls Ensure, and returns no WaitingError beside a Result that has its time.
func tryEnsure(ctx context.Context, c controllerkit.Patcher[*corev1.ConfigMap], obj *corev1.ConfigMap, r external.Resource) (external.Result, error) {
	result, err := external.Ensure(ctx, c, obj, r)
	wait := kube.Waits(err)
	if result.State == external.Busy && wait != result.RequeueAfter {
		panic("a Busy thing, and no WaitingError with its time")
	}
	if result.State == external.Busy {
		err = nil
	}
	return result, err
}
