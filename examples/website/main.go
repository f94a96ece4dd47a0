// Command website is an operator for websites: see its README.md.
package main

import (
	"context"
	"flag"
	"log"
	"os"

	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/preview"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	o := operator.Options{Name: "website-operator"}
	kubeconfig := flag.String("kubeconfig", "", "`file` with the cluster; empty means that of the Pod")
	dnsURL := flag.String("dns", "http://127.0.0.1:8053", "`URL` of the DNS service")
	flag.StringVar(&o.LeaseNamespace, "lease-namespace", "", "`namespace` of the Lease; empty means no election")
	flag.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "`address` of /metrics, /readyz and /livez")
	flag.BoolFunc("preview", "print what this version would change, and exit with 0 for nothing, 1 for an error, and 2 for changes", func(string) error {
		o.Preview = &preview.Preview{}
		return nil
	})
	flag.Parse()
	ctx, cancel := shutdown.Context(context.Background())
	err := controller.Run(ctx, o, *kubeconfig, *dnsURL)
	cancel()
	if err == nil && o.Preview != nil {
		report := o.Preview.Report()
		if err = report.WriteText(os.Stdout); err == nil {
			os.Exit(report.ExitCode())
		}
	}
	if err != nil {
		log.Fatalln("website:", err)
	}
}
