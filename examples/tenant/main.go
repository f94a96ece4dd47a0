// Command tenant is a complete controller: see its README.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/examples/tenant/controller"
	"github.com/controllerkit/controllerkit/metrics"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/shard"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	o := parseOrExit(os.Args[1:])
	ctx, cancel := shutdown.Context(context.Background())
	code, err := run(ctx, o)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tenant:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, o options) (exitCode int, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return 0, fmt.Errorf("no cluster configuration: set -kubeconfig or run in a Pod: %w", err)
	}
	m, err := metrics.New(nil)
	if err != nil {
		return 0, err
	}
	var group *shard.Group
	electIn := o.leaseNamespace
	if o.shards > 0 {
		unlimited := rest.CopyConfig(config)
		unlimited.QPS = -1 // a renewal must not wait behind client-go's 5 requests a second
		leases, err := coordinationv1client.NewForConfig(unlimited)
		if err != nil {
			return 0, err
		}
		group = &shard.Group{
			Leases: leases.Leases(o.leaseNamespace), Namespace: o.leaseNamespace, Name: "tenant-shards", Ranges: shard.Ranges{N: o.shards},
			LeaseDuration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod, Metrics: m,
		}
		electIn = ""
	}
	var p *preview.Preview
	if o.preview != "" {
		p = &preview.Preview{}
	}
	op, err := operator.New(config, operator.Options{Name: "tenant-controller", LeaseNamespace: electIn, Listen: o.listen, Metrics: m, Preview: p})
	if err != nil {
		return 0, err
	}
	if op.Elector != nil {
		op.Elector.LeaseDuration, op.Elector.RenewDeadline, op.Elector.RetryPeriod = o.leaseDuration, o.renewDeadline, o.retryPeriod
	}
	if err := controller.Register(ctx, op, controller.Config{Billing: o.billing(ctx, op.Mux), Workers: o.workers, Selector: o.selector, Group: group, Metrics: m}); err != nil {
		return 0, err
	}
	if err := op.Run(ctx); err != nil || p == nil {
		return 0, err
	}
	report := p.Report()
	if o.preview == "json" {
		return report.ExitCode(), json.NewEncoder(os.Stdout).Encode(report)
	}
	return report.ExitCode(), report.WriteText(os.Stdout)
}
