package acme_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/controllerkit/controllerkit/controllertest/world/acme"
)

// TestOrder gets certificates as a client does, with both kinds of keys.
//
// Proves AC2.
func TestOrder(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		key     crypto.Signer
		trusted bool
		names   []string
		solve   string
	}{
		{"one name", ecKey(t), false, []string{"a.example.com"}, "http-01"},
		{"an RSA account", rsaKey, false, []string{"a.example.com"}, "dns-01"},
		{"a wildcard and its parent", ecKey(t), false, []string{"*.example.com", "example.com"}, "dns-01"},
		{"a trusted account", ecKey(t), true, []string{"a.example.com", "b.example.com"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ca := newServer(t)
			ca.Trusted = test.trusted
			var mu sync.Mutex
			var asked []acme.Challenge
			ca.Validate = func(_ context.Context, c acme.Challenge) error {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, c)
				return nil
			}
			c := newClient(t, ca, test.key)
			c.register()
			order := c.want(http.StatusCreated, c.order(test.names...))
			url := order.header.Get("Location")
			for n, auth := range order.body["authorizations"].([]any) {
				a := c.want(http.StatusOK, c.post(auth.(string), nil))
				bare, wildcard := strings.CutPrefix(test.names[n], "*.")
				if name := a.body["identifier"].(map[string]any)["value"]; name != bare || a.body["wildcard"] != nil != wildcard {
					t.Errorf("the authorization of %s: %s", test.names[n], a.text)
				}
				if test.trusted {
					continue
				}
				if got := c.want(http.StatusForbidden, c.post(order.body["finalize"].(string), c.csr(test.names...))); !strings.Contains(got.text, "orderNotReady") {
					t.Errorf("an order that is pending: %s", got.text)
				}
				challenges := a.body["challenges"].([]any)
				k := slices.IndexFunc(challenges, func(c any) bool { return c.(map[string]any)["type"] == test.solve })
				if len(challenges) != 2 != wildcard || k < 0 {
					t.Fatalf("the challenges of %s: %s", test.names[n], a.text)
				}
				challenge := challenges[k].(map[string]any)
				if shown := c.want(http.StatusOK, c.post(challenge["url"].(string), nil)); shown.body["status"] != "pending" {
					t.Errorf("a look at the challenge has changed it: %s", shown.text)
				}
				if solved := c.want(http.StatusOK, c.post(challenge["url"].(string), struct{}{})); solved.body["status"] != "valid" {
					t.Errorf("the challenge is %s", solved.text)
				}
				want := acme.Challenge{Name: bare, Type: test.solve, Token: challenge["token"].(string), KeyAuthorization: challenge["token"].(string) + "." + c.thumbprint()}
				if asked[len(asked)-1] != want {
					t.Errorf("asked to validate %v, want %v", asked, want)
				}
			}
			if state := c.post(url, nil); state.body["status"] != "ready" {
				t.Fatalf("the order is %s", state.text)
			}
			for _, wrong := range [][]string{{"c.example.com"}, append([]string{"c.example.com"}, test.names...), nil} {
				if got := c.want(http.StatusBadRequest, c.post(order.body["finalize"].(string), c.csr(wrong...))); !strings.Contains(got.text, "badCSR") {
					t.Errorf("a request for %q: %s", wrong, got.text)
				}
			}
			done := c.want(http.StatusOK, c.post(order.body["finalize"].(string), c.csr(test.names...)))
			if done.body["status"] != "valid" || done.header.Get("Location") != url {
				t.Fatalf("the order is %s", done.text)
			}
			if again := c.post(order.body["finalize"].(string), c.csr(test.names...)); !strings.Contains(again.text, "orderNotReady") {
				t.Errorf("a second certificate: %s", again.text)
			}
			chain := c.want(http.StatusOK, c.post(done.body["certificate"].(string), nil))
			block, rest := pem.Decode([]byte(chain.text))
			if block == nil || string(rest) != string(ca.Root) {
				t.Fatalf("the chain is %s", chain.text)
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(ca.Root)
			if _, err := cert.Verify(x509.VerifyOptions{Roots: roots}); err != nil {
				t.Error(err)
			}
			slices.Sort(test.names)
			if !slices.Equal(cert.DNSNames, test.names) || cert.NotAfter.Sub(cert.NotBefore) != acme.Lifetime {
				t.Errorf("a certificate for %q from %v to %v", cert.DNSNames, cert.NotBefore, cert.NotAfter)
			}
			if issued := ca.Issued(); len(issued) != 1 || !issued[0].Equal(cert) {
				t.Errorf("%d certificates are issued", len(issued))
			}
		})
	}
}

// TestInvalid: a name that is not validated ends its order.
func TestInvalid(t *testing.T) {
	t.Parallel()
	ca := newServer(t)
	ca.Validate = func(context.Context, acme.Challenge) error { return errors.New("no such host") }
	c := newClient(t, ca, ecKey(t))
	c.register()
	order := c.want(http.StatusCreated, c.order("a.example.com"))
	auth := order.body["authorizations"].([]any)[0].(string)
	for range 2 { // a second answer changes nothing
		got := c.want(http.StatusOK, c.post(auth+"/http-01", struct{}{}))
		if got.body["status"] != "invalid" || !strings.Contains(got.text, "http-01 of a.example.com: no such host") {
			t.Errorf("the challenge is %s", got.text)
		}
	}
	if got := c.post(auth+"/dns-01", struct{}{}); got.body["status"] != "pending" {
		t.Errorf("the other challenge is %s", got.text)
	}
	if got := c.post(auth, nil); got.body["status"] != "invalid" {
		t.Errorf("the authorization is %s", got.text)
	}
	if got := c.post(order.header.Get("Location"), nil); got.body["status"] != "invalid" || !strings.Contains(got.text, "no such host") {
		t.Errorf("the order is %s", got.text)
	}
	if got := c.post(order.body["finalize"].(string), c.csr("a.example.com")); got.status != http.StatusForbidden || len(ca.Issued()) > 0 {
		t.Errorf("finalize: %s", got.text)
	}
}

// TestValidateAlone: the validation goes on after the client that asked for it was killed, until the server is
// closed.
func TestValidateAlone(t *testing.T) {
	t.Parallel()
	ca := newServer(t)
	begun, left, ended := make(chan struct{}, 2), make(chan struct{}), make(chan error, 2)
	ca.Validate = func(ctx context.Context, c acme.Challenge) error {
		begun <- struct{}{}
		if c.Name == "b.example.com" { // until Close
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		}
		<-left
		ended <- ctx.Err()
		return ctx.Err()
	}
	c := newClient(t, ca, ecKey(t))
	c.register()
	order := c.want(http.StatusCreated, c.order("a.example.com"))
	second := c.want(http.StatusCreated, c.order("b.example.com"))
	ask := func(order result) {
		auth := order.body["authorizations"].([]any)[0].(string)
		ctx, kill := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, auth+"/http-01", strings.NewReader(c.signed(auth+"/http-01", struct{}{})))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/jose+json")
		go func() { <-begun; kill() }()
		if response, err := c.http.Do(request); err == nil {
			response.Body.Close()
			t.Error("the request was not killed")
		}
	}
	ask(order)
	close(left)
	if err := <-ended; err != nil {
		t.Errorf("the context of Validate has the error %v after the client was killed", err)
	}
	c.nonce = ""
	for { // until the server has noted the result
		got := c.post(order.header.Get("Location"), nil)
		if got.body["status"] == "ready" {
			break
		}
		if got.body["status"] != "pending" {
			t.Fatalf("the order is %s", got.text)
		}
	}
	ask(second)
	ca.Close()
	if err := <-ended; err == nil {
		t.Error("Close does not end the context of Validate")
	}
}

// TestRefused holds the requests that count for nothing.
//
// Proves AC1.
func TestRefused(t *testing.T) {
	t.Parallel()
	ca := newServer(t)
	other := newClient(t, ca, ecKey(t))
	other.register()
	theirs := other.want(http.StatusCreated, other.order("a.example.com")).header.Get("Location")
	c := newClient(t, ca, ecKey(t))
	c.register()
	order := c.want(http.StatusCreated, c.order("a.example.com"))
	url, newOrder := order.header.Get("Location"), c.urls["newOrder"].(string)
	changed := func(change func(map[string]any), url string, payload any) result {
		c.change = change
		return c.post(url, payload)
	}
	used := c.nonce
	c.post(url, nil)
	tests := []struct {
		name string
		got  func() result
		want string
	}{
		{"a used nonce", func() result { return changed(func(h map[string]any) { h["nonce"] = used }, url, nil) }, "400 badNonce"},
		{"no nonce", func() result { return changed(func(h map[string]any) { delete(h, "nonce") }, url, nil) }, "400 badNonce"},
		{"another URL", func() result { return changed(func(h map[string]any) { h["url"] = theirs }, url, nil) }, "401 unauthorized"},
		{"another account's signature", func() result { return changed(func(h map[string]any) { h["kid"] = other.account }, theirs, nil) }, "400 malformed"},
		{"another account's order", func() result { return c.post(theirs, nil) }, "401 unauthorized"},
		{"another account", func() result { return c.post(other.account, map[string]string{"status": "deactivated"}) }, "401 unauthorized"},
		{"an unknown account", func() result { return changed(func(h map[string]any) { h["kid"] = "https://x/1" }, url, nil) }, "400 accountDoesNotExist"},
		{"a key beside the account", func() result { return changed(func(h map[string]any) { h["jwk"] = c.jwk() }, url, nil) }, "400 malformed"},
		{"neither key nor account", func() result { return changed(func(h map[string]any) { delete(h, "kid") }, url, nil) }, "400 malformed"},
		{"a key in place of the account", func() result {
			return changed(func(h map[string]any) { delete(h, "kid"); h["jwk"] = c.jwk() }, url, nil)
		}, "400 malformed"},
		{"another algorithm", func() result { return changed(func(h map[string]any) { h["alg"] = "none" }, url, nil) }, "400 malformed"},
		{"another content type", func() result { return c.send(url, "application/json", "{}") }, "415 malformed"},
		{"no JSON", func() result { return c.send(url, "application/jose+json", "x") }, "400 malformed"},
		{"no header", func() result { return c.send(url, "application/jose+json", "{}") }, "400 malformed"},
		{"a header without base64", func() result { return c.send(url, "application/jose+json", `{"protected":"?"}`) }, "400 malformed"},
		{"a payload without base64", func() result { return c.send(url, "application/jose+json", `{"protected":"e30","payload":"?"}`) }, "400 malformed"},
		{"a body without end", func() result { return c.send(url, "application/jose+json", `"`+strings.Repeat("x", 100<<10)) }, "400 malformed"},
		{"no names", func() result { return c.order() }, "400 malformed"},
		{"too many names", func() result { return c.order(make([]string, 101)...) }, "400 malformed"},
		{"a wrong name", func() result { return c.order("a b") }, "400 rejectedIdentifier"},
		{"an address", func() result {
			return c.post(newOrder, map[string]any{"identifiers": []map[string]string{{"type": "ip", "value": "127.0.0.1"}}})
		}, "400 unsupportedIdentifier"},
		{"an order without JSON", func() result { return c.post(newOrder, nil) }, "400 malformed"},
		{"an unknown order", func() result { return c.post(strings.TrimSuffix(theirs, "/1")+"/99", nil) }, "404 malformed"},
		{"an unknown authorization", func() result { return c.post(url+"/2", nil) }, "404 malformed"},
		{"an unknown challenge", func() result { return c.post(url+"/1/tls-alpn-01", nil) }, "404 malformed"},
		{"no certificate yet", func() result { return c.post(url+"/certificate", nil) }, "404 malformed"},
		{"no certificate request", func() result { return c.post(url+"/finalize", map[string]string{"csr": "AAAA"}) }, "400 badCSR"},
		{"a certificate request without base64", func() result { return c.post(url+"/finalize", map[string]string{"csr": "?"}) }, "400 badCSR"},
		{"a finalize without JSON", func() result { return c.post(url+"/finalize", nil) }, "400 malformed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := test.got()
			got := fmt.Sprint(r.status, " ", strings.TrimPrefix(fmt.Sprint(r.body["type"]), "urn:ietf:params:acme:error:"))
			if got != test.want || r.body["detail"] == "" || r.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s, want %s: %s", got, test.want, r.text)
			}
		})
	}
	if state := c.want(http.StatusOK, c.post(url, nil)); state.body["status"] != "pending" {
		t.Errorf("the order is %s", state.text)
	}
	if state := other.want(http.StatusOK, other.post(other.account, nil)); state.body["status"] != "valid" {
		t.Errorf("the other account is %s", state.text)
	}
}

// TestAccount holds the life of an account, and that one key has one.
func TestAccount(t *testing.T) {
	t.Parallel()
	ca := newServer(t)
	c := newClient(t, ca, ecKey(t))
	newAccount := c.urls["newAccount"].(string)
	if got := c.post(newAccount, map[string]any{"onlyReturnExisting": true}); !strings.Contains(got.text, "accountDoesNotExist") {
		t.Errorf("an account that does not exist: %s", got.text)
	}
	c.register()
	url := c.account
	c.account = ""
	if got := c.want(http.StatusOK, c.post(newAccount, map[string]any{"onlyReturnExisting": true})); got.header.Get("Location") != url {
		t.Errorf("the account is %s, want %s", got.header.Get("Location"), url)
	}
	c.account = url
	if got := c.want(http.StatusOK, c.post(url, map[string]any{"contact": []string{"mailto:b@example.com"}})); !strings.Contains(got.text, "b@example.com") {
		t.Errorf("the account is %s", got.text)
	}
	if got := c.want(http.StatusOK, c.post(url, map[string]any{"status": "deactivated"})); got.body["status"] != "deactivated" {
		t.Errorf("the account is %s", got.text)
	}
	if got := c.order("a.example.com"); got.status != http.StatusUnauthorized {
		t.Errorf("an order of an account that is deactivated: %s", got.text)
	}
}

// TestKeys holds the keys that are refused.
func TestKeys(t *testing.T) {
	t.Parallel()
	ca := newServer(t)
	c := newClient(t, ca, ecKey(t))
	right := c.jwk()
	for _, test := range []struct {
		name string
		key  map[string]string
	}{
		{"another type", map[string]string{"kty": "oct"}},
		{"another curve", map[string]string{"kty": "EC", "crv": "P-384", "x": right["x"], "y": right["y"]}},
		{"a point that is not on the curve", map[string]string{"kty": "EC", "crv": "P-256", "x": right["x"], "y": right["x"]}},
		{"a long coordinate", map[string]string{"kty": "EC", "crv": "P-256", "x": right["x"] + "AAAA", "y": right["y"]}},
		{"no coordinate", map[string]string{"kty": "EC", "crv": "P-256", "x": right["x"]}},
		{"a small RSA key", map[string]string{"kty": "RSA", "n": right["x"], "e": "AQAB"}},
		{"an even exponent", map[string]string{"kty": "RSA", "n": strings.Repeat("_", 342), "e": "AA"}},
		{"another key", newClient(t, ca, ecKey(t)).jwk()},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.change = func(h map[string]any) { h["jwk"] = test.key }
			got := c.post(c.urls["newAccount"].(string), map[string]any{})
			if got.status != http.StatusBadRequest || !strings.Contains(got.text, "badPublicKey") && !strings.Contains(got.text, "not signed") {
				t.Errorf("status %d: %s", got.status, got.text)
			}
		})
	}
}

// TestNonces: nonces that nobody uses are bounded.
func TestNonces(t *testing.T) {
	t.Parallel()
	ca := newServer(t)
	c := newClient(t, ca, ecKey(t))
	c.register()
	first := c.nonce
	for range 10_000 {
		ca.NewNonce()
	}
	c.nonce = first
	if got := c.post(c.account, nil); !strings.Contains(got.text, "badNonce") {
		t.Errorf("the oldest of 10,001 nonces: %s", got.text)
	}
	c.want(http.StatusOK, c.post(c.account, nil)) // with the nonce of that response
}
