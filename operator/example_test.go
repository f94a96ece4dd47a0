package operator_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/owner"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
)

// A mirror keeps a Service for each ConfigMap of a namespace.
type mirror struct {
	kube       kubernetes.Interface
	configMaps corelisters.ConfigMapLister
	services   corelisters.ServiceLister
	event      func(about metav1.Object, eventType, reason, action, note string, args ...any)
}

func (m *mirror) reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	cm, err := m.configMaps.ConfigMaps(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil // the garbage collector deletes the Service
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if _, err := m.services.Services(key.Namespace).Get(key.Name); !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone},
	}
	if err := owner.SetController(cm, corev1.SchemeGroupVersion.WithKind("ConfigMap"), service); err != nil {
		return reconcile.Result{}, err
	}
	if _, err = m.kube.CoreV1().Services(key.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return reconcile.Result{}, err
	}
	m.event(cm, corev1.EventTypeNormal, "Created", "Create", "Service %s exists now", key.Name)
	return reconcile.Result{}, nil
}

// register adds the mirror to a process.
func (m *mirror) register(op *operator.Operator, namespace string) (err error) {
	if m.kube, err = kubernetes.NewForConfig(op.Config); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(m.kube, 0, informers.WithNamespace(namespace))
	c := op.Controller("mirror", m.reconcile)
	m.configMaps = operator.For(c, corev1.Resource("configmaps"), factory.Core().V1().ConfigMaps())
	m.services = operator.Owns(c, corev1.Resource("services"), factory.Core().V1().Services())
	m.event = c.Event
	op.Writes(corev1.Resource("services"), "create")
	return nil
}

// runAssembled runs the mirror as a process.
func runAssembled(ctx context.Context, config *rest.Config, namespace string) error {
	op, err := operator.New(config, operator.Options{Name: "mirror", LeaseNamespace: namespace, Listen: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	if err := new(mirror).register(op, namespace); err != nil {
		return err
	}
	return op.Run(ctx)
}

// A whole controller whose function gets a key, and reads and writes by itself.
func Example_keys() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"} // in a Pod: rest.InClusterConfig()
	ctx, cancel := shutdown.Context(context.Background())
	cancel() // a program defers this, and runs until SIGTERM
	fmt.Println("stopped:", runAssembled(ctx, config, "mirrors"))
	// Output: stopped: <nil>
}

// A process that goes on after its operator failed. An Operator runs once, so runAssembled
// makes everything again. Most programs exit instead, and their Pod starts again.
func Example_again() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"} // in a Pod: rest.InClusterConfig()
	ctx, cancel := shutdown.Context(context.Background())
	cancel() // a program defers this, and runs until SIGTERM
	for {
		err := runAssembled(ctx, config, "mirrors")
		if ctx.Err() != nil {
			fmt.Println("stopped:", err)
			return
		}
		klog.FromContext(ctx).Error(err, "The operator ended and runs again")
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	// Output: stopped: <nil>
}
