// Package families finds the metrics that controller-runtime has registered, so that others feed them under
// their names.
package families

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// A family is the description of a registered collector.
type family struct {
	help   string
	labels []string
}

var description = regexp.MustCompile(`fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*").*variableLabels: \{([^}]*)\}`)

// parse returns the name and the family of a description. A Desc has no other way to tell
// them than its text.
func parse(d *prometheus.Desc) (name string, f family) {
	parts := description.FindStringSubmatch(d.String())
	if parts == nil {
		return "", family{}
	}
	name, err := strconv.Unquote(parts[1])
	if err != nil {
		return "", family{}
	}
	if f.help, err = strconv.Unquote(parts[2]); err != nil {
		return "", family{}
	}
	return name, family{help: f.help, labels: strings.Split(parts[3], ",")}
}

// A Set has the registered families by their names.
type Set map[string]family

// Known returns the families that controller-runtime's registry has.
func Known() Set {
	all := Set{}
	c, ok := crmetrics.Registry.(interface{ Describe(chan<- *prometheus.Desc) })
	if !ok {
		return all
	}
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		c.Describe(ch)
	}()
	for d := range ch {
		name, f := parse(d)
		all[name] = f
	}
	return all
}

// registered sets into to the registered collector of the name.
func registered[V prometheus.Collector](all Set, name string, into *V, like func(family) V) error {
	f, ok := all[name]
	if !ok {
		return fmt.Errorf("controller-runtime's registry has no %s: use the registry that controller-runtime makes", name)
	}
	err := crmetrics.Registry.Register(like(f))
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if v, ok := already.ExistingCollector.(V); ok {
			*into = v
			return nil
		}
	}
	return fmt.Errorf("controller-runtime's registry has an unknown form of %s: %w", name, err)
}

// Counter sets into to the registered collector of the name.
func (all Set) Counter(name string, into **prometheus.CounterVec) error {
	return registered(all, name, into, func(f family) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: f.help}, f.labels)
	})
}

// Gauge sets into to the registered collector of the name.
func (all Set) Gauge(name string, into **prometheus.GaugeVec) error {
	return registered(all, name, into, func(f family) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: f.help}, f.labels)
	})
}

// Histogram sets into to the registered collector of the name.
func (all Set) Histogram(name string, into **prometheus.HistogramVec) error {
	return registered(all, name, into, func(f family) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: f.help}, f.labels)
	})
}

// Beside registers collectors without the families that controller-runtime has under the
// same names.
type Beside struct{ prometheus.Registerer }

// Register implements prometheus.Registerer.
func (b Beside) Register(c prometheus.Collector) error {
	err := b.Registerer.Register(without{c})
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if first, ok := already.ExistingCollector.(without); ok {
			return prometheus.AlreadyRegisteredError{ExistingCollector: first.Collector, NewCollector: c}
		}
	}
	return err
}

// without hides the families of a collector that controller-runtime has.
type without struct{ prometheus.Collector }

func taken(d *prometheus.Desc) bool {
	name, _ := parse(d)
	return strings.HasPrefix(name, "workqueue_") || strings.HasPrefix(name, "leader_election_") || strings.HasPrefix(name, "rest_client_")
}

func (w without) Describe(ch chan<- *prometheus.Desc) {
	all := make(chan *prometheus.Desc)
	go func() {
		defer close(all)
		w.Collector.Describe(all)
	}()
	for d := range all {
		if !taken(d) {
			ch <- d
		}
	}
}

func (w without) Collect(ch chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric)
	go func() {
		defer close(all)
		w.Collector.Collect(all)
	}()
	for m := range all {
		if !taken(m.Desc()) {
			ch <- m
		}
	}
}
