package managerkit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/managerkit"
	"github.com/controllerkit/controllerkit/reconcile"
)

// A parked key runs once at an event, and a new generation begins its count anew.
func TestServerGeneration(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	mgr := newManager(t, namespace)
	calls, parked := make(chan int, 100), make(chan int, 100)
	n := 0
	loop := &reconcile.Controller[ctrl.Request]{MaxAttempts: 3, Metrics: &parkings{parked: parked}}
	f := crreconcile.Func(func(context.Context, ctrl.Request) (ctrl.Result, error) {
		n++
		calls <- n
		return ctrl.Result{}, errors.New("no success")
	})
	b := ctrl.NewControllerManagedBy(mgr).Named("mk-generation").For(&appsv1.Deployment{})
	if err := managerkit.Complete(b, f, loop, controller.Options{}); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "a"}
	deployments := kubernetes.NewForConfigOrDie(testserver.Config(t)).AppsV1().Deployments(namespace)
	if _, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "example.com/a"}}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	startManager(t, mgr)
	for _, tt := range []struct {
		patch string
		calls int // until it is parked
	}{
		{`{"metadata":{"labels":{"a":"b"}}}`, 3}, // of the first list
		{`{"spec":{"replicas":2}}`, 1},
		{`{"metadata":{"labels":{"a":"c"}}}`, 3},
		{"", 1},
	} {
		for range tt.calls {
			receive(t, calls, "a call")
		}
		receive(t, parked, "a parked key")
		if len(calls) > 0 {
			t.Errorf("more than %d calls before %s", tt.calls, tt.patch)
		}
		if tt.patch != "" {
			if _, err := deployments.Patch(t.Context(), "a", types.MergePatchType, []byte(tt.patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// parkings sends the number of parked keys when there is one.
type parkings struct {
	parked chan<- int
}

func (p *parkings) ReconcileKeys(_ string, _, parked int) {
	if parked > 0 {
		p.parked <- parked
	}
}
func (*parkings) ReconcileWorkers(string, int)                                                    {}
func (*parkings) ReconcileStarted(string)                                                         {}
func (*parkings) ReconcileHeld(string)                                                            {}
func (*parkings) ReconcileFailing(string, string, int)                                            {}
func (*parkings) ReconcileWrote(string, string, bool)                                             {}
func (*parkings) ReconcileFinished(context.Context, string, string, time.Duration, time.Duration) {}
