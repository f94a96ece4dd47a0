package lab

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Op is a request of a controller.
type Op struct {
	At     time.Time
	Method string
	Path   string
	Write  bool
	Query  string
	Lease  bool
	Status int // of the response; 0 before that
	Body   string
}

// String returns the method and the path, for example "PATCH /api/v1/namespaces/x".
func (op Op) String() string { return op.Method + " " + op.Path }

// Intercept calls before for each request, and after for each response before the
// client gets it. If before returns false, the request is dropped. If after returns
// false, the response is lost. In both cases the client's connection is closed. For
// writes, after runs when the response is complete; for reads, when it begins.
func Intercept(next http.Handler, before, after func(Op) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := Op{
			At:     time.Now(),
			Method: r.Method,
			Path:   r.URL.Path,
			Write:  r.Method != http.MethodGet && r.Method != http.MethodHead,
			Query:  r.URL.RawQuery,
			Lease:  strings.Contains(r.URL.Path, "/leases"),
		}
		if op.Write {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			op.Body = string(body)
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		if !before(op) {
			panic(http.ErrAbortHandler)
		}
		if !op.Write {
			next.ServeHTTP(&statusWriter{ResponseWriter: w, wrote: func(status int) {
				op.Status = status
				if !after(op) {
					panic(http.ErrAbortHandler)
				}
			}}, r)
			return
		}
		response := &recorder{header: http.Header{}, status: http.StatusOK}
		next.ServeHTTP(response, r)
		op.Status = response.status
		if !after(op) {
			panic(http.ErrAbortHandler)
		}
		for k, v := range response.header {
			w.Header()[k] = v
		}
		w.WriteHeader(response.status)
		_, _ = w.Write(response.body.Bytes())
	})
}

// statusWriter calls wrote when the response begins. Unwrap lets
// http.ResponseController find the flusher.
type statusWriter struct {
	http.ResponseWriter
	once  sync.Once
	wrote func(status int)
}

func (w *statusWriter) WriteHeader(status int) {
	w.once.Do(func() { w.wrote(status) })
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { w.wrote(http.StatusOK) })
	return w.ResponseWriter.Write(p)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// recorder buffers a response.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// Server is an HTTP or HTTPS server on loopback.
type Server struct {
	URL    string
	CA     []byte // PEM; nil without TLS
	server *http.Server
	served chan struct{}
	close  func()
}

// Serve serves h on a free port.
func Serve(h http.Handler) (*Server, error) { return serve(h, "http", nil) }

func serve(h http.Handler, scheme string, cert *tls.Certificate) (*Server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{
		URL:    scheme + "://" + ln.Addr().String(),
		server: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)},
		served: make(chan struct{}),
		close:  func() {},
	}
	if cert != nil {
		s.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
		s.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*cert}}
	}
	go func() { // until Close
		defer close(s.served)
		if cert == nil {
			_ = s.server.Serve(ln)
			return
		}
		_ = s.server.ServeTLS(ln, "", "")
	}()
	return s, nil
}

// selfSigned returns a certificate for loopback. The proxy needs TLS, because
// client-go sends tokens only over TLS.
func selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "lab"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Close stops the server and closes all connections.
func (s *Server) Close() {
	s.server.Close()
	<-s.served
	s.close()
}

// Proxy serves the API server of cfg on loopback and adds no credentials. It calls
// before and after for each request, as [Intercept] does.
func Proxy(cfg *rest.Config, before, after func(Op) bool) (*Server, error) {
	backend, err := url.Parse(cfg.Host)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: cfg.CAData, CAFile: cfg.CAFile}})
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	cert, err := selfSigned()
	if err != nil {
		return nil, err
	}
	s, err := serve(Intercept(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(backend) },
		Transport:     transport,
		FlushInterval: -1, // flush each watch event at once
		ErrorLog:      log.New(io.Discard, "", 0),
	}, before, after), "https", cert)
	if err != nil {
		return nil, err
	}
	s.close = transport.CloseIdleConnections
	return s, nil
}
