// Command billing runs the billing service of the tenant example.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"

	"github.com/controllerkit/controllerkit/examples/tenant/billing"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "listen on this `address`")
	cert := flag.String("cert", "", "serve TLS with the certificate of this `file`, and -key")
	key := flag.String("key", "", "`file` of the certificate's private key")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "billing: unexpected argument %q: use flags only\n", flag.Arg(0))
		os.Exit(2)
	}
	server, err := newServer(*listen, *cert, *key)
	if err != nil {
		fmt.Fprintln(os.Stderr, "billing:", err)
		os.Exit(2)
	}
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	fmt.Fprintf(os.Stderr, "billing: listening on %s; the accounts are in memory only\n", *listen)
	if err := shutdown.Server(server)(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "billing:", err)
		os.Exit(1)
	}
}

// newServer returns the server, with TLS if it has a certificate. Without one, only this
// host may reach it.
func newServer(listen, cert, key string) (*http.Server, error) {
	s := &http.Server{Addr: listen, Handler: new(billing.Server)}
	switch {
	case (cert == "") != (key == ""):
		return nil, errors.New("-cert and -key belong together: set both or neither")
	case cert == "" && billing.CheckRemote("http://"+listen) != nil:
		return nil, fmt.Errorf("-listen %q is not a loopback address such as 127.0.0.1:8090: set -cert and -key as well", listen)
	case cert == "":
		return s, nil
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("-cert and -key: %w", err)
	}
	s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	return s, nil
}
