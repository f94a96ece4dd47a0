package operator_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerAgain tests an Operator that loses its Lease, leads again and stops, and then
// another one in the process, with the same client of package crd.
func TestServerAgain(t *testing.T) {
	t.Parallel()
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	configMaps, err := crd.New[*corev1.ConfigMap](config, corev1.SchemeGroupVersion.WithKind("ConfigMap"), "configmaps")
	if err != nil {
		t.Fatal(err)
	}
	newOperator := func() (*operator.Operator, <-chan string) {
		op, err := operator.New(config, operator.Options{Name: "again", LeaseNamespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		keys := make(chan string, 100)
		c := op.Controller("again", func(_ context.Context, key types.NamespacedName) (reconcile.Result, error) {
			keys <- key.Name
			return reconcile.Result{}, nil
		})
		operator.For(c, corev1.Resource("configmaps"), configMaps.Namespace(namespace).Informer(0, nil))
		return op, keys
	}
	wait := func(keys <-chan string, name string) {
		t.Helper()
		for receive(t, keys) != name {
		}
	}

	first, keys := newOperator()
	logs, leads := testlog.New(), make(chan struct{}, 10)
	logs.Hook = func(message string) {
		if message == "Starting controller" {
			leads <- struct{}{}
		}
	}
	stop := start(t, first, logs)
	create(t, config, namespace, "a")
	wait(keys, "a")
	receive(t, leads)
	leases := kubernetes.NewForConfigOrDie(config).CoordinationV1().Leases(namespace)
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		lease, err := leases.Get(t.Context(), "again", metav1.GetOptions{})
		if err != nil {
			return err
		}
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = ptr.To("another"), ptr.To[int32](1)
		lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
		_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	receive(t, leads)
	create(t, config, namespace, "b")
	wait(keys, "b")
	if err := stop(); err != nil {
		t.Errorf("Run() = %v", err)
	}
	if err := first.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "operator: Run was called twice") {
		t.Errorf("the second Run() of an Operator = %v, want an error that names the cure", err)
	}

	second, keys := newOperator()
	start(t, second, testlog.New())
	wait(keys, "a")
	create(t, config, namespace, "c")
	wait(keys, "c")
}
