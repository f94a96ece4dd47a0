package acme_test

import (
	"crypto/x509"
	"fmt"

	"github.com/controllerkit/controllerkit/controllertest/world/acme"
)

// The script of a scenario gives the URL and the CA to the controller, such as cert-manager in an Issuer.
func Example() {
	ca := acme.NewServer()
	defer ca.Close()
	ca.Trusted = true // without challenges

	issuer := map[string]any{"acme": map[string]any{"server": ca.URL, "caBundle": ca.Root}}
	fmt.Println(len(issuer))

	roots := x509.NewCertPool()
	fmt.Println(roots.AppendCertsFromPEM(ca.Root), len(ca.Issued()))
	// Output:
	// 1
	// true 0
}
