package zoo

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/controllertest"
)

// A byHand is the part that controllers written with client-go alone have in
// common: a work queue of names, and workers that retry until they succeed. It
// does not wait for its own writes: the controllers choose names, and writes from a
// stale cache are refused.
type byHand struct {
	env        *controllertest.Env
	kube       kubernetes.Interface
	configMaps typedcorev1.ConfigMapInterface
	factory    informers.SharedInformerFactory
	queue      workqueue.TypedRateLimitingInterface[string]
	synced     []cache.DoneChecker

	forgetFailed bool // a bug of worker: no retry after an error
	maxTries     int  // a bug of worker: no retry after this many; 0 means no bound
}

func newByHand(cfg *rest.Config, env *controllertest.Env) (*byHand, error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	h := &byHand{
		env: env, kube: kube, configMaps: kube.CoreV1().ConfigMaps(env.Namespace),
		factory: informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace),
			informers.WithTweakListOptions(func(options *metav1.ListOptions) {
				if options.ResourceVersion == "0" { // any version, however old
					options.ResourceVersion = ""
				}
			})),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 200*time.Millisecond)),
	}
	env.Queue(h.queue)
	return h, nil
}

// handle has handler called for the ConfigMaps of the namespace.
func (h *byHand) handle(handler cache.ResourceEventHandler) (cache.SharedIndexInformer, error) {
	informer := h.factory.Core().V1().ConfigMaps().Informer()
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return nil, err
	}
	h.synced = append(h.synced, informer.HasSyncedChecker(), registration.HasSyncedChecker())
	return informer, nil
}

// run blocks until all has stopped.
func (h *byHand) run(ctx context.Context, reconcile func(ctx context.Context, name string) error) error {
	var workers sync.WaitGroup
	defer h.factory.Shutdown()
	defer workers.Wait()
	defer h.queue.ShutDown()
	h.factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", h.synced...) {
		return nil
	}
	for range 2 {
		workers.Go(func() {
			for h.next(ctx, reconcile) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

func (h *byHand) next(ctx context.Context, reconcile func(ctx context.Context, name string) error) bool {
	name, shutdown := h.queue.Get()
	if shutdown {
		return false
	}
	defer h.queue.Done(name)
	err := reconcile(ctx, name)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Could not reconcile", "name", name, "err", err)
	}
	if err != nil && !h.forgetFailed && (h.maxTries == 0 || h.queue.NumRequeues(name) < h.maxTries) {
		h.queue.AddRateLimited(name)
		return true
	}
	h.queue.Forget(name)
	return true
}

// update changes a copy of an object from a cache. If the object is stale, its version
// makes the update a conflict.
func (h *byHand) update(ctx context.Context, cached *corev1.ConfigMap, change func(*corev1.ConfigMap)) (*corev1.ConfigMap, error) {
	cm := cached.DeepCopy()
	change(cm)
	return h.configMaps.Update(ctx, cm, metav1.UpdateOptions{})
}

// ignoreNotFound returns nil for a NotFound error.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// userStep is a step that works with the ConfigMaps of the namespace.
func userStep(name string, do func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return err
		}
		return do(ctx, kube.CoreV1().ConfigMaps(env.Namespace))
	}}
}

// userCreates is a step that creates ConfigMaps with a label.
func userCreates(names, label string) controllertest.Step {
	return userStep("create "+names, func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
		for name := range strings.FieldsSeq(names) {
			if err := userCreatesConfigMap(ctx, configMaps, name, label); err != nil {
				return err
			}
		}
		return nil
	})
}

func userCreatesConfigMap(ctx context.Context, configMaps typedcorev1.ConfigMapInterface, name, label string) error {
	_, err := configMaps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: "true"}},
		Data:       map[string]string{"v": "1"},
	}, metav1.CreateOptions{})
	return err
}

func userDeletes(name string) controllertest.Step {
	return userStep("delete "+name, func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
		return configMaps.Delete(ctx, name, metav1.DeleteOptions{})
	})
}

// userChangesAndDeletes is a step that sets the datum of the ConfigMap a. As soon as its
// mirror shows the datum, the user deletes another ConfigMap, while the event of the
// controller's own write may be late. In between, the user may create one more ConfigMap
// and wait for its mirror.
func userChangesAndDeletes(datum, deleted, created string) controllertest.Step {
	return userStep("set a to "+datum+", then delete "+deleted, func(ctx context.Context, configMaps typedcorev1.ConfigMapInterface) error {
		err := userDoesAndWaits(ctx, configMaps, "mirror-a", func() error {
			_, err := configMaps.Patch(ctx, "a", types.MergePatchType, []byte(`{"data":{"v":"`+datum+`"}}`), metav1.PatchOptions{})
			return err
		}, func(cm *corev1.ConfigMap) bool { return cm.Data["v"] == datum })
		if err == nil && created != "" {
			err = userDoesAndWaits(ctx, configMaps, "mirror-"+created, func() error {
				return userCreatesConfigMap(ctx, configMaps, created, workerSource)
			}, func(*corev1.ConfigMap) bool { return true })
		}
		if err != nil {
			return err
		}
		return ignoreNotFound(configMaps.Delete(ctx, deleted, metav1.DeleteOptions{}))
	})
}

// userDoesAndWaits makes a change and waits for a ConfigMap to show the outcome. The
// wait is bounded, because a mutant may never show it.
func userDoesAndWaits(ctx context.Context, configMaps typedcorev1.ConfigMapInterface, name string, do func() error, shown func(*corev1.ConfigMap) bool) error {
	stream, err := configMaps.Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: name}))
	if err != nil {
		return err
	}
	defer stream.Stop()
	if err := do(); err != nil {
		return err
	}
	patience := time.After(3 * time.Second)
	for {
		select {
		case event, ok := <-stream.ResultChan():
			if cm, is := event.Object.(*corev1.ConfigMap); !ok || is && shown(cm) {
				return nil
			}
		case <-patience:
			return nil
		}
	}
}
