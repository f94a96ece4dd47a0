package metrics_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/controllerkit/controllerkit/metrics"
)

// print shows the counters and gauges of one family.
func print(reg prometheus.Gatherer, family string) {
	families, _ := reg.Gather()
	for _, f := range families {
		if f.GetName() != family {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				fmt.Printf("%s=%s ", l.GetName(), l.GetValue())
			}
			fmt.Println(m.GetCounter().GetValue() + m.GetGauge().GetValue())
		}
	}
}

// The Metrics goes into the Metrics field of a controller and of an elector.
func ExampleNew() {
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		fmt.Println(err)
		return
	}
	m.ReconcileWorkers("widgets", 2) // what a controller does with it
	m.ReconcileStarted("widgets")
	m.ReconcileFinished(context.Background(), "widgets", "success", 30*time.Millisecond, time.Second)
	print(reg, "controller_workers")
	m.LeaderStatus("widgets/lease", true) // what an elector does with it
	print(reg, "leader_election_master_status")
	// Output:
	// controller=widgets 2
	// name=widgets/lease 1
}

// It counts the requests of every client that is made from the configuration.
func ExampleMetrics_Transport() {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	reg := prometheus.NewRegistry()
	m, _ := metrics.New(reg)

	config := &rest.Config{Host: server.URL}
	config.Wrap(m.Transport)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = resp.Body.Close()
	client.CloseIdleConnections()

	families, _ := reg.Gather()
	for _, f := range families {
		fmt.Println(f.GetName(), len(f.GetMetric()))
	}
	// Output:
	// rest_client_request_duration_seconds 1
	// rest_client_requests_total 1
}

// client-go's own queues take a Metrics as well.
func ExampleMetrics_NewDepthMetric() {
	reg := prometheus.NewRegistry()
	m, _ := metrics.New(reg)
	q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "widgets", MetricsProvider: m})
	q.Add("default/a")
	q.Add("default/b")
	print(reg, "workqueue_depth")
	q.ShutDown()
	m.ForgetQueue("widgets")
	print(reg, "workqueue_depth")
	// Output: name=widgets 2
}
