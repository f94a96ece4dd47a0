package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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

// Down is the annotation with which a step takes a Node of [Cluster.Nodes] down, if its value is
// "true", and up again.
const Down = "world.controllerkit.github.io/down"

// runLabel of a Node has the namespace of its run.
const runLabel = "world.controllerkit.github.io/run"

// NodeName returns the name of a Node of [Cluster.Nodes] in a run: Nodes have no namespace, and runs share
// the API server.
func NodeName(env *controllertest.Env, name string) string { return env.Namespace + "-" + name }

// manageNodes creates the Nodes and deletes them at its end. It is their node lifecycle controller,
// and the garbage collector of their Pods.
func (c Cluster) manageNodes(ctx context.Context, cfg *rest.Config, env *controllertest.Env) (err error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("world: %w", err)
	}
	l := &lifecycle{kube: kube, env: env}
	defer func() { err = errors.Join(err, l.cleanUp(context.WithoutCancel(ctx), c.Nodes)) }()
	for _, name := range c.Nodes {
		if err := l.create(ctx, name); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("world: create Node %s: %w", name, err)
		}
	}
	return l.run(ctx)
}

// A lifecycle has the Nodes of a run.
type lifecycle struct {
	kube  kubernetes.Interface
	env   *controllertest.Env
	nodes corelisters.NodeLister
	pods  corelisters.PodNamespaceLister
}

func (l *lifecycle) create(ctx context.Context, name string) error {
	_, err := l.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: NodeName(l.env, name), Labels: map[string]string{runLabel: l.env.Namespace, corev1.LabelHostname: name},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// cleanUp deletes the Nodes.
func (l *lifecycle) cleanUp(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var errs []error
	for _, name := range names {
		if err := l.kube.CoreV1().Nodes().Delete(ctx, NodeName(l.env, name), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("world: delete Node %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (l *lifecycle) run(ctx context.Context) error {
	ofNamespace := informers.NewSharedInformerFactoryWithOptions(l.kube, 0, informers.WithNamespace(l.env.Namespace))
	ofRun := nodesOf(l.kube, l.env)
	pods, nodes := ofNamespace.Core().V1().Pods(), ofRun.Core().V1().Nodes()
	l.pods, l.nodes = pods.Lister().Pods(l.env.Namespace), nodes.Lister()
	work := queue.New(queue.Config[string]{})
	ofPods, err := pods.Informer().AddEventHandler(enqueue.Handler(work, func(p *corev1.Pod) []string {
		if !isOf(l.env, p.Spec.NodeName) {
			return nil
		}
		return []string{p.Spec.NodeName}
	}))
	if err != nil {
		return fmt.Errorf("world: %w", err)
	}
	ofNodes, err := nodes.Informer().AddEventHandler(enqueue.Handler(work, func(n *corev1.Node) []string { return []string{n.Name} }))
	if err != nil {
		return fmt.Errorf("world: %w", err)
	}
	defer ofNamespace.Shutdown()
	defer ofRun.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ofNamespace.StartWithContext(ctx)
	ofRun.StartWithContext(ctx)
	loop := &reconcile.Controller[string]{
		Name: "nodes", Queue: work, HasSynced: []cache.DoneChecker{ofPods.HasSyncedChecker(), ofNodes.HasSyncedChecker()},
		Reconcile: func(ctx context.Context, name string) (reconcile.Result, error) {
			return reconcile.Result{}, l.reconcile(ctx, name)
		},
	}
	return loop.Run(ctx)
}

// nodesOf returns a factory that sees the Nodes of the run.
func nodesOf(kube kubernetes.Interface, env *controllertest.Env) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = labels.Set{runLabel: env.Namespace}.String()
	}))
}

// isOf reports whether a name is that of a Node of the run.
func isOf(env *controllertest.Env, node string) bool {
	return strings.HasPrefix(node, NodeName(env, ""))
}

// isDown reports whether a Node is down, or deleted.
func isDown(nodes corelisters.NodeLister, name string) bool {
	n, err := nodes.Get(name)
	return err != nil || n.Annotations[Down] == "true"
}

// unreachable returns the taint of a Node that is down.
func unreachable(effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: effect}
}

func (l *lifecycle) reconcile(ctx context.Context, name string) error {
	all, _ := l.pods.List(labels.Everything()) // a lister over a cache has no error
	pods := slices.DeleteFunc(all, func(p *corev1.Pod) bool { return p.Spec.NodeName != name })
	node, err := l.nodes.Get(name)
	if err != nil {
		return l.collect(ctx, pods)
	}
	down := node.Annotations[Down] == "true"
	if err := l.mark(ctx, node.DeepCopy(), down); err != nil || !down {
		return ignore(err)
	}
	var errs []error
	for _, p := range pods {
		errs = append(errs, l.evict(ctx, p.DeepCopy()))
	}
	return errors.Join(errs...)
}

// mark writes the status and the taints of a Node.
func (l *lifecycle) mark(ctx context.Context, node *corev1.Node, down bool) error {
	want := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	var taints []corev1.Taint
	if down {
		want.Status, want.Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
		taints = []corev1.Taint{unreachable(corev1.TaintEffectNoSchedule), unreachable(corev1.TaintEffectNoExecute)}
	}
	for _, t := range node.Spec.Taints { // those of users stay
		if t.Key != corev1.TaintNodeUnreachable && t.Key != corev1.TaintNodeNotReady {
			taints = append(taints, t)
		}
	}
	same := func(a, b corev1.Taint) bool { return a.Key == b.Key && a.Effect == b.Effect && a.Value == b.Value }
	if !slices.EqualFunc(taints, node.Spec.Taints, same) {
		node.Spec.Taints = taints
		updated, err := l.kube.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		node = updated
	}
	for _, c := range node.Status.Conditions {
		if c.Type == want.Type && c.Status == want.Status {
			return nil
		}
	}
	want.LastHeartbeatTime, want.LastTransitionTime = metav1.Now(), metav1.Now()
	node.Status.Conditions = []corev1.NodeCondition{want}
	_, err := l.kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// evict makes a Pod of a Node that is down not ready, and deletes it unless it tolerates the taint without a limit.
func (l *lifecycle) evict(ctx context.Context, pod *corev1.Pod) error {
	api := l.kube.CoreV1().Pods(pod.Namespace)
	before := pod.Status.DeepCopy()
	if pod.Status.Phase == corev1.PodRunning {
		setCondition(&pod.Status, corev1.PodReady, false)
	}
	if !apiequality.Semantic.DeepEqual(before, &pod.Status) {
		if _, err := api.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			return ignore(err)
		}
	}
	taint := unreachable(corev1.TaintEffectNoExecute)
	tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		all := t.Key == "" && t.Operator == corev1.TolerationOpExists
		return t.TolerationSeconds == nil && (all || t.Key == taint.Key) && (t.Effect == "" || t.Effect == taint.Effect)
	})
	if tolerated || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	return ignore(api.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}))
}

// collect deletes the Pods of a Node that is gone.
func (l *lifecycle) collect(ctx context.Context, pods []*corev1.Pod) error {
	var errs []error
	for _, p := range pods {
		if p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0 {
			continue // only finalizers hold it
		}
		errs = append(errs, ignore(l.kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
		})))
	}
	return errors.Join(errs...)
}

// place returns the Node of a Pod, or "" if there is none yet.
func (n *node) place(pod *corev1.Pod) string {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, f := range term.MatchFields {
				if len(f.Values) > 0 {
					return f.Values[0] // as the controller of DaemonSets requires
				}
			}
		}
	}
	all, _ := n.nodes.List(labels.Everything()) // a lister over a cache has no error
	if len(n.Nodes) == 0 {
		return defaultNode
	}
	pods, _ := n.pods.List(labels.Everything())
	best, least := "", 0
	slices.SortFunc(all, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	for _, candidate := range all {
		if candidate.Spec.Unschedulable || isDown(n.nodes, candidate.Name) {
			continue
		}
		count := 0
		for _, p := range pods {
			if p.Spec.NodeName == candidate.Name {
				count++
			}
		}
		if best == "" || count < least {
			best, least = candidate.Name, count
		}
	}
	return best
}
