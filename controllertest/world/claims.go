package world

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/controllertest"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// protectClaims removes the finalizer that the API server gives each PersistentVolumeClaim from a
// deleted one, once no Pod that is bound uses it.
func protectClaims(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("world: %w", err)
	}
	shared := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
	pods, claims := shared.Core().V1().Pods(), shared.Core().V1().PersistentVolumeClaims()
	work := queue.New(queue.Config[string]{})
	ofPods, err := pods.Informer().AddEventHandler(enqueue.Handler(work, claimsOf))
	if err != nil {
		return fmt.Errorf("world: %w", err)
	}
	ofClaims, err := claims.Informer().AddEventHandler(enqueue.Handler(work, func(c *corev1.PersistentVolumeClaim) []string { return []string{c.Name} }))
	if err != nil {
		return fmt.Errorf("world: %w", err)
	}
	defer shared.Shutdown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared.StartWithContext(ctx)
	cached := claims.Lister().PersistentVolumeClaims(env.Namespace)
	loop := &reconcile.Controller[string]{
		Name: "claims", Queue: work, HasSynced: []cache.DoneChecker{ofPods.HasSyncedChecker(), ofClaims.HasSyncedChecker()},
		Reconcile: func(ctx context.Context, name string) (reconcile.Result, error) {
			claim, err := cached.Get(name)
			if err != nil || claim.DeletionTimestamp == nil {
				return reconcile.Result{}, ignore(err)
			}
			return reconcile.Result{}, release(ctx, kube, claim)
		},
	}
	return loop.Run(ctx)
}

// release removes the finalizer of a deleted claim that no Pod uses. It reads the Pods from the API
// server, because a cache may lack one that has just been bound.
func release(ctx context.Context, kube kubernetes.Interface, claim *corev1.PersistentVolumeClaim) error {
	pods, err := kube.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if slices.Contains(claimsOf(&p), claim.Name) && p.Spec.NodeName != "" {
			return nil
		}
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":["kubernetes.io/pvc-protection"]}}`, claim.UID)
	_, err = kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
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
