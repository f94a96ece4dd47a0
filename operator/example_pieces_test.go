package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/consistency"
	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/recorder"
	"github.com/controllerkit/controllerkit/shutdown"
)

// runPieces is runAssembled, expanded by hand.
func runPieces(ctx context.Context, config *rest.Config, namespace string) error {
	m, err := metrics.New(nil)
	if err != nil {
		return err
	}
	config = rest.AddUserAgent(rest.CopyConfig(config), "mirror")
	config.QPS = -1 // no client-side limit: the API server has priority and fairness
	leases, err := leader.NewClient(config, namespace)
	if err != nil {
		return err
	}
	writes := consistency.New(consistency.Config{Metrics: m})
	config.Wrap(m.Transport)
	config.Wrap(informer.ConsistentLists)
	config.Wrap(informer.EndSilentWatches(0))
	config.Wrap(writes.Wrap)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	events := &recorder.Recorder{
		Controller: "mirror",
		Client:     func(namespace string) recorder.Client { return kube.EventsV1().Events(namespace) },
	}

	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	configMaps, services := factory.Core().V1().ConfigMaps(), factory.Core().V1().Services()
	r := &mirror{kube: kube, configMaps: configMaps.Lister(), services: services.Lister()}
	r.event = func(about metav1.Object, eventType, reason, action, note string, args ...any) {
		if len(args) > 0 {
			note = fmt.Sprintf(note, args...)
		}
		events.Event(recorder.Reference(about, kind), corev1.ObjectReference{}, eventType, reason, action, note)
	}
	set := &informer.Set{Metrics: m, Mutated: func(change informer.Mutation) {
		klog.FromContext(ctx).Error(errors.New(change.String()), "The program changed an object in a cache")
	}}
	m.ReconcileObjects("mirror", func() int64 { return int64(len(configMaps.Informer().GetStore().ListKeys())) })
	loop := &reconcile.Controller[types.NamespacedName]{
		Name:      "mirror",
		Queue:     queue.New(queue.Config[types.NamespacedName]{Name: "mirror", MetricsProvider: m}),
		Reconcile: r.reconcile,
		Workers:   4,
		HasSynced: []cache.DoneChecker{set.HasSyncedChecker()},
		Gate:      writes,
		Metrics:   m,
	}
	for _, w := range []struct {
		resource schema.GroupResource
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{corev1.Resource("configmaps"), configMaps.Informer(), enqueue.Handler(loop.Source("configmaps"), enqueue.KeyOf[*corev1.ConfigMap])},
		{corev1.Resource("services"), services.Informer(), enqueue.Handler(loop.Source("services"), enqueue.ControllerOf[*corev1.Service](kind.GroupKind()))},
	} {
		registration, err := loop.Handle(w.informer, w.handler)
		if err != nil {
			return err
		}
		if err := writes.AddInformer(w.resource, w.informer); err != nil {
			return err
		}
		set.Add(w.resource.String(), w.informer, registration)
	}
	elector := &leader.Elector{Leases: leases, Namespace: namespace, Name: "mirror", Metrics: m}

	group, mux := &shutdown.Group{}, http.NewServeMux()
	mux.Handle("/metrics", m.Handler())
	mux.Handle("/readyz", group.Ready())
	mux.Handle("/livez", group.Live())
	group.AddReady("informers", set.Ready)
	group.AddLive("informers", set.Check)
	group.AddLive("mirror", func() error { return loop.Check(nil) })
	group.AddLive("leader", func() error { return elector.Check(nil) })
	group.Add("http", shutdown.Server(&http.Server{Addr: "127.0.0.1:0", Handler: mux}))
	group.Add("informers", set.Run)
	group.Add("events", events.Run)
	group.Add("controllers", func(ctx context.Context) error {
		select {
		case <-set.HasSyncedChecker().Done():
			return elector.Run(ctx, loop.Run)
		case <-ctx.Done():
			return nil
		}
	})
	return group.Run(ctx)
}

// The controller of the other example, made from the pieces that an Operator assembles.
func Example_pieces() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"} // in a Pod: rest.InClusterConfig()
	ctx, cancel := shutdown.Context(context.Background())
	cancel() // a program defers this, and runs until SIGTERM
	fmt.Println("stopped:", runPieces(ctx, config, "mirrors"))
	// Output: stopped: <nil>
}
