package world_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/controllertest/world"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// A run is a namespace with a Cluster.
type run struct {
	*testing.T
	kube      kubernetes.Interface
	env       *controllertest.Env
	namespace string
	stop      func()
	history   *history
}

// start runs a Cluster until the test ends, and writes down what happens to Pods.
func start(t *testing.T, c world.Cluster) *run {
	t.Helper()
	cfg := testserver.Config(t)
	r := &run{T: t, kube: kubernetes.NewForConfigOrDie(cfg), namespace: testserver.Namespace(t), history: &history{pods: map[types.UID][]corev1.Pod{}, addresses: map[string]types.UID{}}}
	r.env = &controllertest.Env{Namespace: r.namespace}
	r.await("the ServiceAccount of the namespace", func(ctx context.Context) error {
		_, err := r.kube.CoreV1().ServiceAccounts(r.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	w, err := r.kube.CoreV1().Pods(r.namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var beside sync.WaitGroup
	beside.Go(func() {
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				r.history.note(t, pod)
			}
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, cfg, r.env) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		w.Stop()
		beside.Wait()
	})
	t.Cleanup(r.stop)
	return r
}

// history has what happened to the Pods of a run.
type history struct {
	mu        sync.Mutex
	pods      map[types.UID][]corev1.Pod
	addresses map[string]types.UID // of running Pods
	shared    []string
}

// note checks what must hold in each state.
func (h *history) note(t *testing.T, pod *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	order := []corev1.PodPhase{"", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}
	if past := h.pods[pod.UID]; len(past) > 0 {
		last := past[len(past)-1]
		if slices.Index(order, pod.Status.Phase) < slices.Index(order, last.Status.Phase) || last.Spec.NodeName != "" && pod.Spec.NodeName != last.Spec.NodeName ||
			last.Status.PodIP != "" && pod.Status.PodIP != last.Status.PodIP {
			t.Errorf("Pod %s: %s on %s with %s after %s on %s with %s", pod.Name, pod.Status.Phase, pod.Spec.NodeName, pod.Status.PodIP, last.Status.Phase, last.Spec.NodeName, last.Status.PodIP)
		}
	}
	h.pods[pod.UID] = append(h.pods[pod.UID], *pod)
	if pod.Status.PodIP == "" {
		return
	}
	running := pod.Status.Phase == corev1.PodRunning
	switch other, used := h.addresses[pod.Status.PodIP]; {
	case running && used && other != pod.UID:
		h.shared = append(h.shared, fmt.Sprintf("%s of %s", pod.Status.PodIP, pod.Name))
	case running:
		h.addresses[pod.Status.PodIP] = pod.UID
	case used && other == pod.UID:
		delete(h.addresses, pod.Status.PodIP)
	}
}

// await waits for ok, which is tried at each event of a Pod, a claim or a Node.
func (r *run) await(what string, ok func(ctx context.Context) error) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	core := r.kube.CoreV1()
	pods, err := core.Pods(r.namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	defer pods.Stop()
	claims, err := core.PersistentVolumeClaims(r.namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	defer claims.Stop()
	nodes, err := core.Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	defer nodes.Stop()
	for {
		err := ok(ctx)
		if err == nil {
			return
		}
		select {
		case <-pods.ResultChan():
		case <-claims.ResultChan():
		case <-nodes.ResultChan():
		case <-ctx.Done():
			r.Fatalf("%s: %v", what, err)
		}
	}
}

// create creates a Pod.
func (r *run) create(name string, change func(*corev1.Pod)) {
	r.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "image"}},
		AutomountServiceAccountToken: new(false),
	}}
	if change != nil {
		change(pod)
	}
	if _, err := r.kube.CoreV1().Pods(r.namespace).Create(r.Context(), pod, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
}

// delete deletes a Pod with its grace period.
func (r *run) delete(name string) {
	r.Helper()
	if err := r.kube.CoreV1().Pods(r.namespace).Delete(r.Context(), name, metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
}

func (r *run) get(ctx context.Context, name string) (*corev1.Pod, error) {
	return r.kube.CoreV1().Pods(r.namespace).Get(ctx, name, metav1.GetOptions{})
}

// is returns an error unless the Pod has a phase, and is ready or not.
func (r *run) is(name string, phase corev1.PodPhase, ready bool) func(context.Context) error {
	return func(ctx context.Context) error {
		pod, err := r.get(ctx, name)
		if err != nil {
			return err
		}
		if pod.Status.Phase != phase || isReady(pod) != ready {
			return fmt.Errorf("it is %s, ready: %t", pod.Status.Phase, isReady(pod))
		}
		return nil
	}
}

// gone returns an error unless the Pod does not exist.
func (r *run) gone(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		pod, err := r.get(ctx, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is there: %s, deleted at %v", pod.Status.Phase, pod.DeletionTimestamp)
		}
		return err
	}
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// TestServerPods: Pods run, end and are deleted, with IPs of their own that are used again.
//
// Proves WD1, WD2.
func TestServerPods(t *testing.T) {
	r := start(t, world.Cluster{})
	for _, name := range []string{"a", "b", "c"} {
		r.create(name, nil)
	}
	for _, name := range []string{"a", "b", "c"} {
		r.await(name, r.is(name, corev1.PodRunning, true))
	}
	if got := strings.Join(r.addresses(), " "); got != "10.0.0.1 10.0.0.2 10.0.0.3" {
		t.Errorf("the addresses are %s", got)
	}
	r.create("done", func(p *corev1.Pod) { p.Annotations = map[string]string{world.Exit: "Succeeded"} })
	r.await("done", r.is("done", corev1.PodSucceeded, false))
	r.create("fails", func(p *corev1.Pod) { p.Annotations = map[string]string{world.Exit: "Failed"} })
	r.await("fails", r.is("fails", corev1.PodFailed, false))
	r.create("odd", func(p *corev1.Pod) { p.Annotations = map[string]string{world.Exit: "Exploded"} })
	r.await("odd", r.is("odd", corev1.PodRunning, true))
	r.delete("a")
	r.await("the end of a", r.gone("a"))
	r.create("d", nil)
	r.await("d", r.is("d", corev1.PodRunning, true))
	r.stop()

	r.history.mu.Lock()
	defer r.history.mu.Unlock()
	if len(r.history.shared) > 0 {
		t.Errorf("addresses of two running Pods: %v", r.history.shared)
	}
	for _, states := range r.history.pods {
		switch last := states[len(states)-1]; last.Name {
		case "a":
			if last.Status.Phase != corev1.PodFailed || last.DeletionTimestamp == nil {
				t.Errorf("a was deleted in the phase %s", last.Status.Phase)
			}
		case "done", "fails":
			seen := slices.ContainsFunc(states, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && isReady(&p) })
			if !seen || last.Status.ContainerStatuses[0].State.Terminated == nil {
				t.Errorf("%s was seen running: %t; its container: %+v", last.Name, seen, last.Status.ContainerStatuses[0].State)
			}
		}
	}
}

// addresses returns the IPs of the running Pods, sorted.
func (r *run) addresses() (all []string) {
	r.Helper()
	pods, err := r.kube.CoreV1().Pods(r.namespace).List(r.Context(), metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodRunning {
			all = append(all, p.Status.PodIP)
		}
	}
	slices.Sort(all)
	return all
}

// TestServerFunctions: the functions decide over readiness and the end.
func TestServerFunctions(t *testing.T) {
	has := func(label string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool { return p.Labels[label] != "" }
	}
	r := start(t, world.Cluster{Ready: has("ready"), Exit: func(p *corev1.Pod) corev1.PodPhase {
		if has("end")(p) {
			return corev1.PodSucceeded
		}
		return ""
	}})
	r.create("a", func(p *corev1.Pod) { p.Annotations = map[string]string{world.Exit: "Failed"} }) // Exit replaces it
	r.await("a runs", r.is("a", corev1.PodRunning, false))
	label := func(name string) {
		if _, err := r.kube.CoreV1().Pods(r.namespace).Patch(t.Context(), "a", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, name), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("ready")
	r.await("a is ready", r.is("a", corev1.PodRunning, true))
	label("end")
	r.await("a ends", r.is("a", corev1.PodSucceeded, false))
}

// TestServerClaims: a Pod waits for its claim, and a deleted claim for its Pods.
//
// Proves WD3.
func TestServerClaims(t *testing.T) {
	r := start(t, world.Cluster{})
	r.create("a", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	})
	r.create("b", nil)
	r.await("b runs", r.is("b", corev1.PodRunning, true))
	if pod, err := r.get(t.Context(), "a"); err != nil || pod.Spec.NodeName != "" {
		t.Errorf("a is on Node %q without its claim, %v", pod.Spec.NodeName, err)
	}
	claims := r.kube.CoreV1().PersistentVolumeClaims(r.namespace)
	if _, err := claims.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.await("a runs", r.is("a", corev1.PodRunning, true))
	if err := claims.Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.create("c", nil) // what the cluster does after the deletion
	r.await("c runs", r.is("c", corev1.PodRunning, true))
	if _, err := claims.Get(t.Context(), "data", metav1.GetOptions{}); err != nil {
		t.Errorf("the claim that a uses: %v", err)
	}
	r.delete("a")
	r.await("the claim is deleted", func(ctx context.Context) error {
		if _, err := claims.Get(ctx, "data", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.Join(err, errors.New("it is there"))
		}
		_, err := r.get(ctx, "a")
		if err == nil {
			t.Error("the claim is gone before its Pod")
		}
		return nil
	})
}

// TestServerNodes: a Node goes down, comes back and is deleted.
//
// Proves WD4.
func TestServerNodes(t *testing.T) {
	r := start(t, world.Cluster{Nodes: []string{"x", "y"}})
	x, y := world.NodeName(r.env, "x"), world.NodeName(r.env, "y")
	r.create("a", nil)
	r.await("a runs", r.is("a", corev1.PodRunning, true))
	r.create("b", nil)
	r.await("b runs", r.is("b", corev1.PodRunning, true))
	on := map[string]string{}
	for _, name := range []string{"a", "b"} {
		pod, err := r.get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		on[pod.Spec.NodeName] = name
	}
	if on[x] == "" || on[y] == "" {
		t.Fatalf("the Pods are on %v, want one on each Node", on)
	}
	r.create("stays", func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{x}}},
		}}}}}
	})
	r.await("stays runs", r.is("stays", corev1.PodRunning, true))
	down := func(value string) {
		if _, err := r.kube.CoreV1().Nodes().Patch(t.Context(), x, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, world.Down, value), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	nodeIs := func(status corev1.ConditionStatus) func(context.Context) error {
		return func(ctx context.Context) error {
			n, err := r.kube.CoreV1().Nodes().Get(ctx, x, metav1.GetOptions{})
			if err != nil {
				return err
			}
			tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
			if len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Status != status || tainted == (status == corev1.ConditionTrue) {
				return fmt.Errorf("it has %+v and the taints %v", n.Status.Conditions, n.Spec.Taints)
			}
			return nil
		}
	}
	r.await("x is up", nodeIs(corev1.ConditionTrue))
	down("true")
	r.await("x is down", nodeIs(corev1.ConditionUnknown))
	r.await("a Pod that tolerates it is not ready", r.is("stays", corev1.PodRunning, false))
	r.await("the other is being deleted", func(ctx context.Context) error {
		pod, err := r.get(ctx, on[x])
		if err == nil && (pod.DeletionTimestamp == nil || isReady(pod)) {
			err = fmt.Errorf("deleted at %v, ready: %t", pod.DeletionTimestamp, isReady(pod))
		}
		return err
	})
	r.create("c", nil)
	r.await("c runs", r.is("c", corev1.PodRunning, true))
	for name, node := range map[string]string{"c": y, on[x]: x, "stays": x} {
		if pod, err := r.get(t.Context(), name); err != nil || pod.Spec.NodeName != node || (pod.DeletionTimestamp != nil) != (name == on[x]) {
			t.Errorf("%s: %v; it is on %s, deleted at %v", name, err, pod.Spec.NodeName, pod.DeletionTimestamp)
		}
	}
	down("false")
	r.await("x is up", nodeIs(corev1.ConditionTrue))
	r.await("the evicted Pod ends", r.gone(on[x]))
	r.await("the other is ready", r.is("stays", corev1.PodRunning, true))

	if err := r.kube.CoreV1().Nodes().Delete(t.Context(), x, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.await("its Pod is deleted", r.gone("stays"))
	r.stop()
	for _, name := range []string{x, y} {
		if _, err := r.kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("Node %s after the run: %v", name, err)
		}
	}
}

// TestServerTogether: all end with the first, and its error is told.
func TestServerTogether(t *testing.T) {
	broken := errors.New("broken")
	err := world.Together(world.Cluster{Nodes: []string{"x"}}.Run, func(context.Context, *rest.Config, *controllertest.Env) error { return broken })(
		klog.NewContext(t.Context(), klog.Logger{}), testserver.Config(t), &controllertest.Env{Namespace: testserver.Namespace(t)})
	if !errors.Is(err, broken) || err.Error() != "broken" {
		t.Errorf("Together: %v, want broken alone", err)
	}
}
