package informer

import (
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// FactoryMetrics has the series of client-go's own measurements of its informers, by their cache.InformerName and
// their resource. *metrics.Metrics implements it.
type FactoryMetrics interface {
	InformerQueue(name, group, version, resource string) interface{ Set(items float64) }
	InformerLatency(name, group, version, resource string) interface{ Observe(seconds float64) }
	InformerVersion(name, group, version, resource string) interface{ Set(version float64) }
}

// ClientGo returns the provider by which client-go measures its informers: the events that wait for the cache, the
// time that one takes there, and the resource version of the cache. It is for informers with a
// cache.InformerName, such as those of a factory, whose names client-go keeps for the whole process:
//
//	cache.SetInformerMetricsProvider(informer.ClientGo(m)) // once in a process, before the factory
//	name, err := cache.NewInformerName("widgets")
//	...
//	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithInformerName(name))
//
// The age of the data of any informer is in the metrics of a [Set]. ClientGo panics if m is nil.
func ClientGo(m FactoryMetrics) cache.InformerMetricsProvider {
	if kube.IsNil(m) {
		panic("informer: ClientGo: m is nil: pass e.g. a *metrics.Metrics")
	}
	return provider{m}
}

type provider struct{ m FactoryMetrics }

func (p provider) NewQueuedItemMetric(id cache.InformerNameAndResource) cache.GaugeMetric {
	of := id.GroupVersionResource()
	return gauge{id, p.m.InformerQueue(id.Name(), of.Group, of.Version, of.Resource)}
}

func (p provider) NewProcessingLatencyMetric(id cache.InformerNameAndResource) cache.HistogramMetric {
	of := id.GroupVersionResource()
	return histogram{id, p.m.InformerLatency(id.Name(), of.Group, of.Version, of.Resource)}
}

func (p provider) NewStoreResourceVersionMetric(id cache.InformerNameAndResource) cache.GaugeMetric {
	of := id.GroupVersionResource()
	return gauge{id, p.m.InformerVersion(id.Name(), of.Group, of.Version, of.Resource)}
}

// gauge is a gauge until the name of its informer is released.
type gauge struct {
	id cache.InformerNameAndResource
	to interface{ Set(float64) }
}

func (g gauge) Set(value float64) {
	if g.id.Reserved() {
		g.to.Set(value)
	}
}

type histogram struct {
	id cache.InformerNameAndResource
	to interface{ Observe(float64) }
}

func (h histogram) Observe(value float64) {
	if h.id.Reserved() {
		h.to.Observe(value)
	}
}
