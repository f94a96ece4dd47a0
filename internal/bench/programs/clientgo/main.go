// Command clientgo is the contender of the rows about processes on client-go alone: an
// informer, a work queue and workers, without metrics, Events or a stop that waits for work.
package main

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/listers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/internal/bench/internal/contender"
)

func main() { contender.Main(run) }

func run(ctx context.Context, p *contender.Process) error {
	informer, get, err := source(p)
	if err != nil {
		return err
	}
	if p.Trim {
		if err := informer.SetTransform(trim); err != nil {
			return err
		}
	}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]())
	add := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			queue.Add(key)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add,
	}); err != nil {
		return err
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
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
				obj, err := get(key.Namespace, key.Name)
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

// source returns the informer of the flag -kind, as informer-gen makes it, and the reads of its lister.
func source(p *contender.Process) (cache.SharedIndexInformer, func(namespace, name string) (metav1.Object, error), error) {
	if p.Kind == contender.Gadgets {
		client, err := contender.GadgetClient(p.Config, p.Namespace)
		if err != nil {
			return nil, nil, err
		}
		informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return client.List(ctx, options)
			},
			WatchFuncWithContext: client.Watch,
		}, client), &contender.Gadget{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		objects := listers.New[*contender.Gadget](informer.GetIndexer(), contender.GadgetResource())
		return informer, func(namespace, name string) (metav1.Object, error) {
			return listers.NewNamespaced(objects, namespace).Get(name)
		}, nil
	}
	kube, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		return nil, nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(p.Namespace))
	if p.Kind == contender.Deployments {
		of := factory.Apps().V1().Deployments()
		objects := of.Lister()
		return of.Informer(), func(namespace, name string) (metav1.Object, error) {
			return objects.Deployments(namespace).Get(name)
		}, nil
	}
	of := factory.Core().V1().ConfigMaps()
	objects := of.Lister()
	return of.Informer(), func(namespace, name string) (metav1.Object, error) {
		return objects.ConfigMaps(namespace).Get(name)
	}, nil
}

// trim is a transform.
func trim(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}
