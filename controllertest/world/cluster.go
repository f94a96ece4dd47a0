package world

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Exit is the annotation of a Pod with the phase in which its containers end, Succeeded or
// Failed. Without it they run until the Pod is deleted.
const Exit = "world.controllerkit.github.io/exit"

// defaultNode is the Node of all Pods if the run has no Nodes.
const defaultNode = "node"

// A Cluster is the scheduler, the kubelets and the protection of claims of a run. The zero value is
// ready to use.
type Cluster struct {
	// Nodes are the names of the Nodes that Run creates, by [NodeName], and deletes at its end.
	// nil means that all Pods are bound to "node", which no object describes.
	Nodes []string

	// Ready reports whether a running Pod is ready. It is asked again at each event of the Pod.
	// nil means that each is ready.
	Ready func(*corev1.Pod) bool

	// Exit returns the phase in which the containers of a running Pod end, Succeeded or Failed,
	// or "" while they run. It is asked again at each event of the Pod. nil means the
	// annotation [Exit].
	Exit func(*corev1.Pod) corev1.PodPhase
}

// Run is a [Program].
//
// A Pod of a DaemonSet is bound to the Node that its affinity names. Another Pod is bound to the
// Node that is up, not cordoned, and has the fewest Pods of the run. A Pod waits while a claim of
// it does not exist or is being deleted.
//
// A deleted claim loses the finalizer that the API server gave it when no bound Pod uses it.
//
// A Node that is [Down] gets the status Unknown and the taint unreachable, and its Pods are not
// ready. Its Pods are deleted at once, whatever their tolerationSeconds, unless they tolerate the
// taint without a limit. The Pods of a deleted Node are deleted without a grace period, and the
// Node is not created again.
func (c Cluster) Run(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	programs := []Program{c.runPods, protectClaims}
	if len(c.Nodes) > 0 {
		programs = append(programs, c.manageNodes)
	}
	return Together(programs...)(ctx, cfg, env)
}

// runPods is the scheduler and the kubelets.
func (c Cluster) runPods(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("world: %w", err)
	}
	shared := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
	ofRun := nodesOf(kube, env)
	pods, claims, nodes := shared.Core().V1().Pods(), shared.Core().V1().PersistentVolumeClaims(), ofRun.Core().V1().Nodes()
	work := queue.New(queue.Config[string]{})
	n := &node{
		Cluster: c, kube: kube, env: env, pods: pods.Lister().Pods(env.Namespace), claims: claims.Lister().PersistentVolumeClaims(env.Namespace),
		nodes: nodes.Lister(), addresses: map[types.UID]int{},
	}
	every := func() (keys []string) { // of the Pods, after an event of another object
		all, _ := n.pods.List(labels.Everything()) // a lister over a cache has no error
		for _, p := range all {
			keys = append(keys, p.Name)
		}
		return keys
	}
	loop := &reconcile.Controller[string]{Name: "kubelet", Queue: work, Reconcile: func(ctx context.Context, name string) (reconcile.Result, error) {
		return reconcile.Result{}, n.run(ctx, name)
	}}
	for _, add := range []func() (cache.ResourceEventHandlerRegistration, error){
		func() (cache.ResourceEventHandlerRegistration, error) {
			return pods.Informer().AddEventHandler(enqueue.Handler(work, func(p *corev1.Pod) []string { return []string{p.Name} }))
		},
		func() (cache.ResourceEventHandlerRegistration, error) {
			return claims.Informer().AddEventHandler(enqueue.Handler(work, func(*corev1.PersistentVolumeClaim) []string { return every() }))
		},
		func() (cache.ResourceEventHandlerRegistration, error) {
			return nodes.Informer().AddEventHandler(enqueue.Handler(work, func(*corev1.Node) []string { return every() }))
		},
	} {
		handler, err := add()
		if err != nil {
			return fmt.Errorf("world: %w", err)
		}
		loop.HasSynced = append(loop.HasSynced, handler.HasSyncedChecker())
	}
	defer shared.Shutdown()
	defer ofRun.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared.StartWithContext(ctx)
	ofRun.StartWithContext(ctx)
	return loop.Run(ctx)
}

// A node is a running Cluster. One worker uses it.
type node struct {
	Cluster
	kube      kubernetes.Interface
	env       *controllertest.Env
	pods      corelisters.PodNamespaceLister
	claims    corelisters.PersistentVolumeClaimNamespaceLister
	nodes     corelisters.NodeLister
	addresses map[types.UID]int // of the Pods that it has started
}

// run does the next thing for a Pod.
func (n *node) run(ctx context.Context, name string) error {
	cached, err := n.pods.Get(name)
	if err != nil {
		return ignore(err)
	}
	pod, api := cached.DeepCopy(), n.kube.CoreV1().Pods(cached.Namespace)
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if isOf(n.env, pod.Spec.NodeName) && isDown(n.nodes, pod.Spec.NodeName) {
		return nil // its kubelet does nothing
	}
	switch {
	case pod.DeletionTimestamp != nil && pod.Spec.NodeName != "" && !ended:
		return n.report(ctx, pod, corev1.PodFailed)
	case pod.DeletionTimestamp != nil:
		if pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
			return nil // only finalizers hold it
		}
		return ignore(api.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}))
	case ended:
		return nil
	case pod.Spec.NodeName == "":
		for _, claim := range claimsOf(pod) {
			if c, err := n.claims.Get(claim); err != nil || c.DeletionTimestamp != nil {
				return ignore(err) // the event of the claim comes back here
			}
		}
		target := n.place(pod)
		if target == "" {
			return nil // as the event of a Node does
		}
		return ignore(api.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: target}}, metav1.CreateOptions{}))
	}
	phase := corev1.PodRunning
	if pod.Status.Phase == corev1.PodRunning { // it is seen running before it ends
		if exit := n.exit(pod); exit != "" {
			phase = exit
		}
	}
	return n.report(ctx, pod, phase)
}

// exit returns the phase in which the containers of a running Pod have ended, or "".
func (n *node) exit(pod *corev1.Pod) corev1.PodPhase {
	phase := corev1.PodPhase(pod.Annotations[Exit])
	if n.Exit != nil {
		phase = n.Exit(pod)
	}
	if phase != corev1.PodSucceeded && phase != corev1.PodFailed {
		return ""
	}
	return phase
}

// report writes the status of a Pod, if it changes.
func (n *node) report(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase) error {
	ready := phase == corev1.PodRunning && (n.Ready == nil || n.Ready(pod.DeepCopy()))
	before := pod.Status.DeepCopy()
	pod.Status.Phase = phase
	pod.Status.PodIP = n.address(pod)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		status := corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: ready, Started: new(phase == corev1.PodRunning)}
		switch phase {
		case corev1.PodRunning:
			status.State.Running = &corev1.ContainerStateRunning{}
		case corev1.PodSucceeded:
			status.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed"}
		default:
			status.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
		}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
	}
	setCondition(&pod.Status, corev1.ContainersReady, ready)
	setCondition(&pod.Status, corev1.PodReady, ready)
	if apiequality.Semantic.DeepEqual(before, &pod.Status) {
		return nil
	}
	_, err := n.kube.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return ignore(err)
}

// address returns the IP of a Pod: the one that it has, or the lowest that no running Pod has.
func (n *node) address(pod *corev1.Pod) string {
	if pod.Status.PodIP != "" {
		return pod.Status.PodIP
	}
	all, _ := n.pods.List(labels.Everything()) // a lister over a cache has no error
	used, alive := map[string]bool{}, map[types.UID]bool{pod.UID: true}
	for _, p := range all {
		alive[p.UID] = true
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			used[p.Status.PodIP] = true
		}
	}
	for uid, index := range n.addresses { // also of those whose status the cache does not show yet
		switch {
		case !alive[uid]:
			delete(n.addresses, uid)
		case uid != pod.UID:
			used[addressOf(index)] = true
		}
	}
	index := 1
	for used[addressOf(index)] {
		index++
	}
	n.addresses[pod.UID] = index
	return addressOf(index)
}

func addressOf(index int) string {
	return fmt.Sprintf("10.%d.%d.%d", index>>16&255, index>>8&255, index&255)
}

// setCondition sets a condition of a Pod.
func setCondition(s *corev1.PodStatus, kind corev1.PodConditionType, is bool) {
	want := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
	if is {
		want.Status = corev1.ConditionTrue
	}
	i := slices.IndexFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	switch {
	case i < 0:
		s.Conditions = append(s.Conditions, want)
	case s.Conditions[i].Status != want.Status:
		s.Conditions[i] = want
	}
}
