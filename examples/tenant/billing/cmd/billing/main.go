// Command billing runs the billing service of the tenant example by itself.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/controllerkit/controllerkit/examples/tenant/billing"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "address to listen on")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "billing: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	fmt.Fprintf(os.Stderr, "billing: listening on %s; accounts are kept in memory\n", *listen)
	s := &http.Server{Addr: *listen, Handler: new(billing.Server), ReadHeaderTimeout: 10 * time.Second}
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		fmt.Fprintln(os.Stderr, "billing:", err)
		os.Exit(1)
	}
}
