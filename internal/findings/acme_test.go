package findings

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"testing"

	"golang.org/x/crypto/acme"

	ca "github.com/controllerkit/controllerkit/controllertest/world/acme"
)

// TestACMEClient lets the ACME client of x/crypto, which shares no code with the server, get a certificate.
func TestACMEClient(t *testing.T) {
	server := ca.NewServer()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server.Root)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	client := &acme.Client{Key: key, DirectoryURL: server.URL, HTTPClient: &http.Client{Transport: transport}}
	var shown string // by the client
	server.Validate = func(_ context.Context, c ca.Challenge) error {
		if c.KeyAuthorization != shown {
			return errors.New("another key authorization")
		}
		return nil
	}
	ctx := t.Context()
	account, err := client.Register(ctx, &acme.Account{Contact: []string{"mailto:a@example.com"}}, acme.AcceptTOS)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := client.GetReg(ctx, ""); err != nil || again.URI != account.URI {
		t.Errorf("the account is %v, %v, want %s", again, err, account.URI)
	}
	names := []string{"a.example.com", "b.example.com"}
	order, err := client.AuthorizeOrder(ctx, acme.DomainIDs(names...))
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range order.AuthzURLs {
		auth, err := client.GetAuthorization(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		for _, challenge := range auth.Challenges {
			if challenge.Type != "http-01" {
				continue
			}
			if shown, err = client.HTTP01ChallengeResponse(challenge.Token); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Accept(ctx, challenge); err != nil {
				t.Fatal(err)
			}
		}
		if auth, err = client.WaitAuthorization(ctx, url); err != nil || auth.Status != acme.StatusValid {
			t.Fatalf("the authorization is %v, %v", auth, err)
		}
	}
	if order, err = client.WaitOrder(ctx, order.URI); err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: names}, key)
	if err != nil {
		t.Fatal(err)
	}
	chain, _, err := client.CreateOrderCert(ctx, order.FinalizeURL, csr, true)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Error(err)
		}
	}

	if order, err = client.AuthorizeOrder(ctx, acme.DomainIDs("c.example.com")); err != nil {
		t.Fatal(err)
	}
	auth, err := client.GetAuthorization(ctx, order.AuthzURLs[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Accept(ctx, auth.Challenges[1]); err != nil { // dns-01, and nothing is shown
		t.Fatal(err)
	}
	if _, err := client.WaitAuthorization(ctx, order.AuthzURLs[0]); err == nil {
		t.Error("a name that is not proven is valid")
	}
}
