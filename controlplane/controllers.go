package main

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

// discoveryPeriod is the period at which the garbage collector discovers new resources.
// kube-controller-manager's command fixes it at 30s, so a test with a custom resource
// would wait that long for its first cascading deletion. Therefore this package builds
// the two controllers instead of running the command.
const discoveryPeriod = time.Second

// controllerWorkers is the number of workers of each controller. A worker empties one
// namespace at a time, one resource after the other, and tests delete many namespaces
// at once.
const controllerWorkers = 20

// runControllers runs the namespace controller and, if collect is set, the garbage collector.
// Without them, the deletion of namespaces and owner references have no effect. It returns
// after both have stopped.
func runControllers(ctx context.Context, config *rest.Config, collect bool) error {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(client, 0)
	metadataInformers := metadatainformer.NewSharedInformerFactory(metadataClient, 0)
	started := make(chan struct{})

	collector, err := garbagecollector.NewGarbageCollector(ctx, client, metadataClient,
		restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
		garbagecollector.DefaultIgnoredResources(),
		informerfactory.NewInformerFactory(shared, metadataInformers), started)
	if err != nil {
		return err
	}
	namespaces := namespace.NewNamespaceController(ctx, client, metadataClient,
		client.Discovery().ServerPreferredNamespacedResources,
		shared.Core().V1().Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes)

	shared.Start(ctx.Done())
	metadataInformers.Start(ctx.Done())
	close(started)
	var wg sync.WaitGroup
	if collect {
		wg.Go(func() { collector.Run(ctx, controllerWorkers, 30*time.Second) })
		wg.Go(func() { collector.Sync(ctx, client.Discovery(), discoveryPeriod) })
	}
	wg.Go(func() { namespaces.Run(ctx, controllerWorkers) })
	wg.Wait()
	shared.Shutdown()
	metadataInformers.Shutdown()
	return nil
}
