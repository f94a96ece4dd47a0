package informer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
)

// measured stands for a *metrics.Metrics.
type measured map[string]int

type counter func()

func (c counter) Set(float64)     { c() }
func (c counter) Observe(float64) { c() }

func (m measured) count(kind string, labels ...string) counter {
	return func() { m[kind+" "+strings.Join(labels, ",")]++ }
}

func (m measured) InformerQueue(name, group, version, resource string) interface{ Set(float64) } {
	return m.count("queue", name, group, version, resource)
}

func (m measured) InformerLatency(name, group, version, resource string) interface{ Observe(float64) } {
	return m.count("latency", name, group, version, resource)
}

func (m measured) InformerVersion(name, group, version, resource string) interface{ Set(float64) } {
	return m.count("version", name, group, version, resource)
}

// The informers of a factory with a name. A process sets the provider once.
func ExampleClientGo() {
	m := measured{} // a *metrics.Metrics
	cache.SetInformerMetricsProvider(informer.ClientGo(m))
	name, err := cache.NewInformerName("widgets")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer name.Release()
	factory := informers.NewSharedInformerFactoryWithOptions(fake.NewClientset(), 0, informers.WithInformerName(name))
	pods := factory.Core().V1().Pods().Informer()
	_ = pods // for a Set
	// Output:
}

// TestClientGo: client-go reports what its informers do, with a name, until the name is released.
func TestClientGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := measured{}
		name, err := cache.NewInformerName("clientgo")
		if err != nil {
			t.Fatal(err)
		}
		id := name.WithResource(corev1.SchemeGroupVersion.WithResource("pods"))
		provider := informer.ClientGo(m)
		queue, latency, version := provider.NewQueuedItemMetric(id), provider.NewProcessingLatencyMetric(id), provider.NewStoreResourceVersionMetric(id)
		report := func() { queue.Set(1); latency.Observe(1); version.Set(1) }
		report()
		name.Release()
		report() // of an informer that stops
		for _, kind := range []string{"queue", "latency", "version"} {
			if n := m[kind+" clientgo,,v1,pods"]; n != 1 {
				t.Errorf("%s was set %d times, want 1: %v", kind, n, m)
			}
		}
		again, err := cache.NewInformerName("clientgo")
		if err != nil {
			t.Fatal(err)
		}
		defer again.Release()
		client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", ResourceVersion: "7"}})
		pods := cache.NewSharedIndexInformerWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return client.CoreV1().Pods("").List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return client.CoreV1().Pods("").Watch(ctx, o)
			},
		}, client), &corev1.Pod{}, cache.SharedIndexInformerOptions{
			Identifier: again.WithResource(corev1.SchemeGroupVersion.WithResource("pods")), InformerMetricsProvider: provider,
		})
		stop := make(chan struct{})
		ended := make(chan struct{})
		go func() { defer close(ended); pods.Run(stop) }()
		synctest.Wait()
		close(stop)
		<-ended
		if m["latency clientgo,,v1,pods"] < 2 || m["queue clientgo,,v1,pods"] < 2 {
			t.Errorf("the informer reported %v", m)
		}
	})
}

func TestClientGoNil(t *testing.T) {
	defer func() {
		if got := recover(); got != "informer: ClientGo: m is nil: pass e.g. a *metrics.Metrics" {
			t.Errorf("ClientGo(nil) panicked with %v", got)
		}
	}()
	informer.ClientGo(nil)
}
