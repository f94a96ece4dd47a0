// Command store serves the snapshots of the backup example to this host, and loses them when
// it ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"

	"github.com/controllerkit/controllerkit/examples/backup/store"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8054", "`address` of the service")
	flag.Parse()
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	if err := serve(ctx, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "store:", err)
		os.Exit(1)
	}
}

// serve serves only this host, because requests over plain HTTP can be read and changed.
func serve(ctx context.Context, listen string) error {
	if _, err := store.NewClient("http://" + listen); err != nil {
		return fmt.Errorf("-listen %q is not a loopback address: use one such as 127.0.0.1:8054", listen)
	}
	return shutdown.Server(&http.Server{Addr: listen, Handler: new(store.Server)})(ctx)
}
