package acme_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"testing"

	"github.com/controllerkit/controllerkit/controllertest/world/acme"
)

var encoding = base64.RawURLEncoding

// A client signs requests as RFC 8555 says, and those of a test as it should not.
type client struct {
	t       testing.TB
	ca      *acme.Server
	http    *http.Client
	key     crypto.Signer
	account string
	nonce   string // of the last response
	urls    map[string]any
	change  func(header map[string]any) // of the next request
}

func newServer(t testing.TB) *acme.Server {
	t.Helper()
	ca := acme.NewServer()
	t.Cleanup(ca.Close)
	return ca
}

func newClient(t testing.TB, ca *acme.Server, key crypto.Signer) *client {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.Root) {
		t.Fatal("the root does not decode")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	c := &client{t: t, ca: ca, http: &http.Client{Transport: transport}, key: key, urls: map[string]any{}}
	response, err := c.http.Get(ca.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&c.urls); err != nil {
		t.Fatal(err)
	}
	return c
}

func ecKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (c *client) jwk() map[string]string {
	switch key := c.key.Public().(type) {
	case *ecdsa.PublicKey:
		point, err := key.Bytes()
		if err != nil {
			c.t.Fatal(err)
		}
		return map[string]string{"kty": "EC", "crv": "P-256", "x": encoding.EncodeToString(point[1:33]), "y": encoding.EncodeToString(point[33:])}
	case *rsa.PublicKey:
		return map[string]string{"kty": "RSA", "n": encoding.EncodeToString(key.N.Bytes()), "e": encoding.EncodeToString(big.NewInt(int64(key.E)).Bytes())}
	}
	return nil
}

// thumbprint is RFC 7638: json.Marshal sorts the keys.
func (c *client) thumbprint() string {
	text, err := json.Marshal(c.jwk())
	if err != nil {
		c.t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	return encoding.EncodeToString(sum[:])
}

func (c *client) sign(text string) string {
	digest := sha256.Sum256([]byte(text))
	switch key := c.key.(type) {
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
		if err != nil {
			c.t.Fatal(err)
		}
		signature := make([]byte, 64)
		r.FillBytes(signature[:32])
		s.FillBytes(signature[32:])
		return encoding.EncodeToString(signature)
	case *rsa.PrivateKey:
		signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, digest[:])
		if err != nil {
			c.t.Fatal(err)
		}
		return encoding.EncodeToString(signature)
	}
	return ""
}

// A result is a response.
type result struct {
	status int
	header http.Header
	text   string
	body   map[string]any // if the text is JSON
}

// post sends a signed request. A nil payload is POST-as-GET.
func (c *client) post(url string, payload any) result {
	c.t.Helper()
	return c.send(url, "application/jose+json", c.signed(url, payload))
}

// signed returns the body of a signed request.
func (c *client) signed(url string, payload any) string {
	c.t.Helper()
	if c.nonce == "" {
		response, err := c.http.Head(c.urls["newNonce"].(string))
		if err != nil {
			c.t.Fatal(err)
		}
		response.Body.Close()
		c.nonce = response.Header.Get("Replay-Nonce")
	}
	header := map[string]any{"nonce": c.nonce, "url": url, "alg": "ES256"}
	if _, ok := c.key.(*rsa.PrivateKey); ok {
		header["alg"] = "RS256"
	}
	if c.account == "" {
		header["jwk"] = c.jwk()
	} else {
		header["kid"] = c.account
	}
	if c.change != nil {
		c.change(header)
		c.change = nil
	}
	var text []byte
	if payload != nil {
		text = c.encode(payload)
	}
	protected, body := encoding.EncodeToString(c.encode(header)), encoding.EncodeToString(text)
	signature := c.sign(protected + "." + body)
	return string(c.encode(map[string]string{"protected": protected, "payload": body, "signature": signature}))
}

func (c *client) encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	return text
}

func (c *client) send(url, contentType, body string) result {
	c.t.Helper()
	response, err := c.http.Post(url, contentType, bytes.NewReader([]byte(body)))
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	c.nonce = response.Header.Get("Replay-Nonce")
	r := result{status: response.StatusCode, header: response.Header, text: string(got)}
	_ = json.Unmarshal(got, &r.body)
	return r
}

// want ends the test if the status is another one.
func (c *client) want(status int, r result) result {
	c.t.Helper()
	if r.status != status {
		c.t.Fatalf("status %d, want %d: %s", r.status, status, r.text)
	}
	return r
}

func (c *client) register() {
	c.t.Helper()
	r := c.want(http.StatusCreated, c.post(c.urls["newAccount"].(string), map[string]any{"termsOfServiceAgreed": true, "contact": []string{"mailto:a@example.com"}}))
	c.account = r.header.Get("Location")
}

func (c *client) order(names ...string) result {
	c.t.Helper()
	var ids []map[string]string
	for _, name := range names {
		ids = append(ids, map[string]string{"type": "dns", "value": name})
	}
	return c.post(c.urls["newOrder"].(string), map[string]any{"identifiers": ids})
}

func (c *client) csr(names ...string) map[string]any {
	c.t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: names}, ecKey(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	return map[string]any{"csr": encoding.EncodeToString(der)}
}
