// Command tenant is a complete controller: see README.md beside it.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/examples/tenant/controller"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	o := parseOrExit(os.Args[1:])
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "tenant:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("no cluster configuration: set -kubeconfig or run in a Pod: %w", err)
	}
	config.QPS = -1 // no client-side limit: the API server has priority and fairness

	registry, mux := prometheus.NewRegistry(), http.NewServeMux()
	m, err := metrics.New(registry)
	if err != nil {
		return err
	}
	c, err := controller.New(controller.Config{REST: config, Billing: o.billing(ctx, mux), Workers: o.workers, Selector: o.selector, Metrics: m})
	if err != nil {
		return err
	}
	elector := &leader.Elector{
		Namespace: o.leaseNamespace, Name: "tenant-controller",
		LeaseDuration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
		Metrics: m,
	}
	lead := c.Run
	if o.leaderElect {
		if elector.Leases, err = leader.NewClient(config, o.leaseNamespace); err != nil {
			return err
		}
		lead = func(ctx context.Context) error { return elector.Run(ctx, c.Run) }
	}

	group := &shutdown.Group{} // stops the part that was added last first
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/readyz", group.Ready())
	mux.Handle("/livez", group.Live())
	group.AddReady("informers", c.Ready)
	group.AddLive("leader", func() error { return elector.Check(nil) })
	group.AddLive("controller", c.Check)
	group.Add("http", shutdown.Server(&http.Server{Addr: o.listen, Handler: mux}))
	group.Add("informers", c.RunInformers)
	group.Add("controller", lead)
	return group.Run(ctx)
}
