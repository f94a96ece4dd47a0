// Command clientgo is the contender of the rows about processes on client-go alone: an
// informer, a work queue and workers, without metrics, Events or a stop that waits for work.
package main

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

func main() { contender.Main(run) }

func run(ctx context.Context, p *contender.Process) error {
	kube, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		return err
	}
	options := []informers.SharedInformerOption{informers.WithNamespace(p.Namespace)}
	if p.Trim {
		options = append(options, informers.WithTransform(func(obj any) (any, error) {
			if cm, ok := obj.(*corev1.ConfigMap); ok {
				cm.ManagedFields = nil
			}
			return obj, nil
		}))
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, options...)
	configMaps := factory.Core().V1().ConfigMaps()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]())
	add := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			queue.Add(key)
		}
	}
	if _, err := configMaps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add,
	}); err != nil {
		return err
	}
	objects := configMaps.Lister()
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), configMaps.Informer().HasSynced) {
		return errors.New("the cache was not filled")
	}
	var workers sync.WaitGroup
	for range contender.Workers {
		workers.Go(func() {
			for {
				key, shutdown := queue.Get()
				if shutdown {
					return
				}
				obj, err := objects.ConfigMaps(key.Namespace).Get(key.Name)
				if err == nil {
					err = p.Reconciled(ctx, obj)
				}
				if err == nil || apierrors.IsNotFound(err) {
					queue.Forget(key)
				} else {
					queue.AddRateLimited(key)
				}
				queue.Done(key)
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()
	return nil
}
