package findings

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// start returns a Scenario.Start. create makes controllers as kube-controller-manager
// does, and returns a function for each one that blocks until its context is done.
func start(create func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error)) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		cfg = rest.CopyConfig(cfg)
		cfg.QPS = -1
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		shared := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
		runs, err := create(ctx, kube, shared)
		if err != nil {
			return err
		}
		defer shared.Shutdown()
		shared.StartWithContext(ctx)
		var wg sync.WaitGroup
		for _, run := range runs {
			wg.Go(func() { run(ctx) })
		}
		wg.Wait()
		return nil
	}
}

// step returns a step of the user.
func step(name string, do func(ctx context.Context, kube kubernetes.Interface, namespace string) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		return do(ctx, kube, env.Namespace)
	}}
}

// template returns the template of Pods with a restart policy and volumes by claim.
func template(app string, policy corev1.RestartPolicy) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{RestartPolicy: policy, Containers: []corev1.Container{{Name: "c", Image: "image"}}},
	}
}

// as converts an object of the state.
func as[T any](u *unstructured.Unstructured) (*T, error) {
	if u == nil {
		return nil, nil
	}
	obj := new(T)
	return obj, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj)
}
