// Command dns serves the DNS records of the website example, which it loses when it ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"

	"github.com/controllerkit/controllerkit/examples/website/dns"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8053", "`address` of the service")
	flag.Parse()
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	server := shutdown.Server(&http.Server{Addr: *listen, Handler: new(dns.Server)})
	if err := server(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "dns:", err)
		os.Exit(1)
	}
}
