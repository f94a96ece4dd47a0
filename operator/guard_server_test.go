package operator_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// TestServerGuard: with leader.Guard in Config the parts of the Operator and the calls write
// as before, and a call that goes on after its term does not.
func TestServerGuard(t *testing.T) {
	t.Parallel()
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	op, err := operator.New(config, operator.Options{Name: "guarded", LeaseNamespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	op.Config.Wrap(leader.Guard)
	kube := kubernetes.NewForConfigOrDie(op.Config)
	write := func(ctx context.Context, name string) error {
		_, err := kube.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	type call struct {
		ctx context.Context
		err error
	}
	calls := make(chan call, 10)
	c := op.Controller("guarded", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		if key.Name == "make" {
			calls <- call{ctx, write(ctx, "made")}
		}
		return reconcile.Result{}, nil
	})
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	operator.For(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
	op.Writes(corev1.Resource("secrets"), "create")
	stop := start(t, op, testlog.New())
	create(t, config, namespace, "make")
	made := receive(t, calls)
	if made.err != nil {
		t.Errorf("a write of the leader: %v", made.err)
	}
	if err := stop(); err != nil {
		t.Errorf("Run() = %v", err)
	}
	if err := write(context.WithoutCancel(made.ctx), "late"); !errors.Is(err, leader.ErrLost) {
		t.Errorf("a write after the term: %v, want ErrLost", err)
	}
}
