package acme

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log" //nolint:depguard // http.Server.ErrorLog has its type
	"math/big"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// A Server is a certificate authority. Its methods may be called concurrently.
type Server struct {
	// URL is that of the directory, on the loopback interface.
	URL string

	// Root is the certificate of the authority as PEM. The server's own TLS certificate and all that
	// it issues have its signature.
	Root []byte

	// Trusted tells that names need no challenge. Set it before the first request.
	Trusted bool

	// Validate checks a name after the client has said that it is ready. If it returns an error, the
	// challenge and its order are invalid. nil means to believe the client. It may be called concurrently. Set it before
	// the first request. ctx is done after Close, but not when the client leaves: an authority validates apart
	// from the request.
	Validate func(ctx context.Context, c Challenge) error

	ca     *x509.Certificate
	key    crypto.Signer
	base   string
	server *http.Server
	done   chan struct{}   // closed after Serve
	ctx    context.Context //nolint:containedctx // of Validate
	cancel context.CancelFunc

	mu       sync.Mutex
	nonces   map[string]bool // that were not used yet
	oldest   []string        // the same, by age
	accounts []*account
	orders   []*order
	issued   []*x509.Certificate
}

// A Challenge is a proof that the account controls a name.
type Challenge struct {
	Name  string // without "*."
	Type  string // "http-01" or "dns-01"
	Token string

	// KeyAuthorization is what the client must show: as it is by http-01, and its SHA-256 digest
	// in base64url by dns-01.
	KeyAuthorization string
}

// Lifetime is that of a certificate.
const Lifetime = 90 * 24 * time.Hour

// NewServer starts a server. The caller must close it.
func NewServer() *Server {
	s := &Server{nonces: map[string]bool{}, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	if s.key, s.ca, err = newRoot(); err != nil {
		panic(err) // no random bytes
	}
	s.Root = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.ca.Raw})
	own, err := s.ownCertificate()
	if err != nil {
		panic(err)
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // no loopback interface, like net/http/httptest
	}
	s.base = "https://" + listener.Addr().String()
	s.URL = s.base + "/directory"
	s.server = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12},
		ErrorLog:          log.New(io.Discard, "", 0), // a client that is killed is no news
	}
	go func() {
		defer close(s.done)
		_ = s.server.ServeTLS(listener, "", "") // until Close
	}()
	return s
}

// Close stops the server and closes its connections.
func (s *Server) Close() {
	s.cancel()
	_ = s.server.Close()
	<-s.done
}

// Issued returns the certificates in the order of their issuance.
func (s *Server) Issued() []*x509.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.issued)
}

func newRoot() (crypto.Signer, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "controllertest ACME"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(10 * 365 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(der)
	return key, ca, err
}

func (s *Server) ownCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "127.0.0.1"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: s.ca.NotBefore, NotAfter: s.ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.ca, key.Public(), s.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// issue signs the certificate of a request for the names.
func (s *Server) issue(request *x509.CertificateRequest, names []string) (*x509.Certificate, error) {
	if err := request.CheckSignature(); err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now().Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber: serial, DNSNames: names, NotBefore: now, NotAfter: now.Add(Lifetime), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.ca, request.PublicKey, s.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
