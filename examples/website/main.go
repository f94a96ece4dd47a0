// Command website is an operator for websites: see its README.md.
package main

import (
	"context"
	"flag"
	"log"

	"github.com/controllerkit/controllerkit/examples/website/controller"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	o := operator.Options{Name: "website-operator"}
	kubeconfig := flag.String("kubeconfig", "", "`file` with the cluster; empty means that of the Pod")
	dnsURL := flag.String("dns", "http://127.0.0.1:8053", "`URL` of the DNS service")
	flag.StringVar(&o.LeaseNamespace, "lease-namespace", "", "`namespace` of the Lease; empty means no election")
	flag.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "`address` of /metrics, /readyz and /livez")
	flag.StringVar(&o.Debug, "debug", "127.0.0.1:6060", "loopback `address` of the debug page; empty means none")
	flag.Parse()
	ctx, cancel := shutdown.Context(context.Background())
	err := controller.Run(ctx, o, *kubeconfig, *dnsURL)
	cancel()
	if err != nil {
		log.Fatalln("website:", err)
	}
}
