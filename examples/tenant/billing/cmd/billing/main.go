// Command billing runs the billing service of the tenant example.
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
	listen := flag.String("listen", "127.0.0.1:8090", "listen on this `address`")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "billing: unexpected argument %q: use flags only\n", flag.Arg(0))
		os.Exit(2)
	}
	fmt.Fprintf(os.Stderr, "billing: listening on %s; the accounts are in memory only\n", *listen)
	s := &http.Server{Addr: *listen, Handler: new(billing.Server), ReadHeaderTimeout: 10 * time.Second}
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		fmt.Fprintln(os.Stderr, "billing:", err)
		os.Exit(1)
	}
}
