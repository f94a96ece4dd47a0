package findings

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/controllertest"
)

// start returns a Scenario.Start. create makes controllers as kube-controller-manager
// does, and returns a function for each one that blocks until its context is done.
func start(create func(ctx context.Context, kube kubernetes.Interface, shared informers.SharedInformerFactory) ([]func(context.Context), error)) func(context.Context, *rest.Config, *controllertest.Env) error {
	return startWith(func(ctx context.Context, p process) ([]func(context.Context), error) {
		return create(ctx, p.kube, p.shared)
	})
}

// A process is what startWith gives to the controllers of a kube-controller-manager.
type process struct {
	namespace string // of the run
	cfg       *rest.Config
	kube      kubernetes.Interface
	shared    informers.SharedInformerFactory // of the namespace, and of cluster-scoped objects
}

// startWith is start for controllers that need more than a client and informers.
func startWith(create func(ctx context.Context, p process) ([]func(context.Context), error)) func(context.Context, *rest.Config, *controllertest.Env) error {
	return func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		cfg = rest.CopyConfig(cfg)
		cfg.QPS = -1
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		shared := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
		runs, err := create(ctx, process{namespace: env.Namespace, cfg: cfg, kube: kube, shared: shared})
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

// closed returns a closed channel.
func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// createNodes returns a Scenario.Setup that creates Nodes, which all runs share.
func createNodes(names ...string) func(context.Context, *rest.Config) error {
	return func(ctx context.Context, cfg *rest.Config) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		for _, name := range names {
			_, err := kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err == nil { // admission has tainted it as not ready
				_, err = kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
			}
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
		}
		return nil
	}
}

// createPods creates Pods that no scheduler binds. The quota of a namespace may be unknown to
// the API server for a moment, so the first creation is repeated for some time.
func createPods(ctx context.Context, kube kubernetes.Interface, namespace string, names ...string) error {
	for n, name := range names {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: template(name, corev1.RestartPolicyAlways).Spec}
		err := repeat(ctx, func() error {
			_, err := kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		}, func(err error) bool { return n == 0 && apierrors.IsForbidden(err) })
		if err != nil {
			return err
		}
	}
	return nil
}

// repeat calls do for up to 5s while its error passes. It is for what the API server has in its own
// caches: no event shows a change of them.
func repeat(ctx context.Context, do func() error, passes func(error) bool) error {
	err := do()
	for deadline := time.Now().Add(5 * time.Second); passes(err) && time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		err = do()
	}
	return err
}

// withoutAddresses is a Scenario.Mask. Pods that are created together get their addresses in any order.
func withoutAddresses(obj *unstructured.Unstructured) {
	unstructured.RemoveNestedField(obj.Object, "status", "podIP")
	unstructured.RemoveNestedField(obj.Object, "status", "podIPs")
}

// podOn returns a Pod that is bound to a Node, for scenarios without a scheduler.
func podOn(node, name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: template(name, corev1.RestartPolicyAlways).Spec}
	pod.Spec.NodeName = node
	return pod
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

// program returns a Scenario.Command of a program for one namespace.
func program(path string) func(controllertest.Process) (*exec.Cmd, error) {
	return func(p controllertest.Process) (*exec.Cmd, error) {
		return exec.Command(path, "-kubeconfig", p.Kubeconfig, "-namespace", p.Namespace), nil
	}
}

// build compiles the program of a module in a folder.
func build(ctx context.Context, folder, program string, flags ...string) error {
	program, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-C", folder, "-o", program}, flags...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", program, err, out)
	}
	return nil
}

// back returns the downgrade that reverses an upgrade. The definitions stay.
func back(s controllertest.Scenario) controllertest.Scenario {
	from := *s.From
	s.Start, s.Command, from.Start, from.Command = from.Start, from.Command, s.Start, s.Command
	s.Name, s.From = strings.Replace(s.Name, "upgrade", "downgrade", 1), &from
	return s
}

// sourceOf returns the folder of the source of a module that the module in folder requires. If
// there is none, it is a folder that does not exist, which the exploration reports.
func sourceOf(folder, module string) string {
	// Not go list, which has no folder for a module that was not downloaded yet.
	out, err := exec.Command("go", "mod", "download", "-C", folder, "-json", module).Output()
	var found struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		return fmt.Sprintf("go mod download %s: %v", module, err)
	}
	return found.Dir
}
