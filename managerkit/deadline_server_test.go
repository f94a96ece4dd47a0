package managerkit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerDeadline: each event of a failing key runs it, and the failures of these calls neither
// count nor move its deadline.
//
// Proves MK11.
func TestServerDeadline(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr := newManager(t, namespace)
	q := queue.New(queue.Config[ctrl.Request]{RateLimiter: queue.Exponential[ctrl.Request](time.Hour, 24*time.Hour)})
	calls, parked := make(chan struct{}, 100), make(chan int, 100)
	loop := &reconcile.Controller[ctrl.Request]{Queue: q, MaxAttempts: 2, Metrics: &parkings{parked: parked}}
	complete(t, mgr, namespace, loop, func(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
		if req.Name != "a" {
			return ctrl.Result{}, nil
		}
		calls <- struct{}{}
		return ctrl.Result{}, errors.New("no success")
	})
	createConfigMap(t, namespace, "a")
	startManager(t, mgr)
	receive(t, calls, "call of the first list")
	key := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: "a"}}
	configMaps := kubernetes.NewForConfigOrDie(testserver.Config(t)).CoreV1().ConfigMaps(namespace)
	for n := range 10 {
		if _, err := configMaps.Patch(t.Context(), "a", types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%d"}}`, n), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		receive(t, calls, "call of an event")
	}
	if n := q.NumRequeues(key); n != 1 || len(parked) > 0 {
		t.Errorf("%d failures count, and %d keys are parked; want those of the first deadline alone, and none", n, len(parked))
	}
}
