package findings

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// exitAnnotation of a Pod is the phase in which its container ends. A Pod without it runs
// until it is deleted.
const exitAnnotation = "findings.example.com/exit"

// A node is the rest of the cluster: the scheduler, the kubelet and the protection of
// claims. It is a Scenario.World.
type node struct {
	kube   kubernetes.Interface
	pods   corelisters.PodNamespaceLister
	claims corelisters.PersistentVolumeClaimNamespaceLister
}

// workload is a key of the node's queue: a Pod, or a claim.
type workload struct {
	claim bool
	name  string
}

func world(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
	pods, claims := shared.Core().V1().Pods(), shared.Core().V1().PersistentVolumeClaims()
	work := queue.New(queue.Config[workload]{})
	n := node{kube, pods.Lister().Pods(env.Namespace), claims.Lister().PersistentVolumeClaims(env.Namespace)}
	ofPods, err := pods.Informer().AddEventHandler(enqueue.Handler(work, func(p *corev1.Pod) []workload {
		keys := []workload{{name: p.Name}}
		for _, claim := range claimsOf(p) {
			keys = append(keys, workload{claim: true, name: claim})
		}
		return keys
	}))
	if err != nil {
		return err
	}
	ofClaims, err := claims.Informer().AddEventHandler(enqueue.Handler(work, func(c *corev1.PersistentVolumeClaim) []workload {
		keys := []workload{{claim: true, name: c.Name}}
		all, _ := n.pods.List(labels.Everything())
		for _, p := range all {
			if slices.Contains(claimsOf(p), c.Name) {
				keys = append(keys, workload{name: p.Name})
			}
		}
		return keys
	}))
	if err != nil {
		return err
	}
	defer shared.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared.StartWithContext(ctx)
	loop := &reconcile.Controller[workload]{
		Name: "node", Queue: work, HasSynced: []cache.DoneChecker{ofPods.HasSyncedChecker(), ofClaims.HasSyncedChecker()},
		Reconcile: func(ctx context.Context, key workload) (reconcile.Result, error) {
			if key.claim {
				return reconcile.Result{}, n.protect(ctx, key.name)
			}
			return reconcile.Result{}, n.run(ctx, key.name)
		},
	}
	return loop.Run(ctx)
}

// run is the scheduler and the kubelet of a Pod.
func (n node) run(ctx context.Context, name string) error {
	cached, err := n.pods.Get(name)
	if err != nil {
		return ignore(err)
	}
	pod, api := cached.DeepCopy(), n.kube.CoreV1().Pods(cached.Namespace)
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	exit := corev1.PodPhase(pod.Annotations[exitAnnotation])
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
		return ignore(api.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: nodeOf(pod)}}, metav1.CreateOptions{}))
	case pod.Status.Phase != corev1.PodRunning:
		return n.report(ctx, pod, corev1.PodRunning)
	case exit != "":
		return n.report(ctx, pod, exit)
	}
	return nil
}

// nodeOf returns the only Node that the affinity of a Pod allows, which is the Node of a daemon
// Pod, and "node" without such an affinity.
func nodeOf(pod *corev1.Pod) string {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, f := range term.MatchFields {
				return f.Values[0]
			}
		}
	}
	return "node"
}

// report writes the status of a Pod.
func (n node) report(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase) error {
	ready := corev1.ConditionFalse
	if phase == corev1.PodRunning {
		ready = corev1.ConditionTrue
	}
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = phase, "10.1.0.1", []corev1.PodIP{{IP: "10.1.0.1"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}}
	_, err := n.kube.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return ignore(err)
}

// protect removes the finalizer of a deleted claim that no Pod uses.
func (n node) protect(ctx context.Context, name string) error {
	claim, err := n.claims.Get(name)
	if err != nil || claim.DeletionTimestamp == nil {
		return ignore(err)
	}
	users, err := n.kube.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range users.Items {
		if slices.Contains(claimsOf(&p), name) && p.Spec.NodeName != "" {
			return nil
		}
	}
	patch := []byte(`{"metadata":{"uid":"` + string(claim.UID) + `","$deleteFromPrimitiveList/finalizers":["kubernetes.io/pvc-protection"]}}`)
	_, err = n.kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return ignore(err)
}

// claimsOf returns the names of the claims of a Pod.
func claimsOf(pod *corev1.Pod) (names []string) {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}

// ignore returns nil for errors that the next event cures.
func ignore(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
