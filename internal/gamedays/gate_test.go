package gamedays

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/lab"
)

// A gate is the way from a replica to the API server: a proxy whose connections can be refused, hang, or get
// responses that are not the API server's.
type gate struct {
	addr   string
	server *http.Server
	served sync.WaitGroup

	mu       sync.Mutex
	cert     *tls.Certificate
	listener net.Listener // nil while connections are refused
	conns    map[*gatedConn]struct{}
	held     chan struct{} // closed when bytes flow again; nil while they do
	backend  *url.URL
	next     http.RoundTripper
	answer   func(*http.Request) *reply // nil, and a nil reply, pass the request on
	requests []request
}

// A reply takes the place of the API server's.
type reply struct {
	status     int
	retryAfter int           // seconds; 0 means no header
	body       string        // of the type application/json
	delay      time.Duration // before the request is passed on, if status is 0
}

// A request has reached the API server, or was answered in its place.
type request struct {
	at           time.Time
	method, path string
	watch        bool
	user         string // the user agent
	status       int
}

func newGate(t testing.TB, config *rest.Config, cert *tls.Certificate) *gate {
	t.Helper()
	addr, err := lab.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{addr: addr, cert: cert, conns: map[*gatedConn]struct{}{}}
	g.lead(t, config)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			g.mu.Lock()
			defer g.mu.Unlock()
			r.SetURL(g.backend)
		},
		Transport:     g,
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // as if the connection broke
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	g.server = &http.Server{
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, proxy) }),
		TLSConfig: &tls.Config{GetCertificate: g.certificate}, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
	}
	g.open(t)
	t.Cleanup(func() {
		g.flow()
		g.server.Close()
		g.served.Wait()
	})
	return g
}

// lead makes the gate lead to another API server.
func (g *gate) lead(t testing.TB, config *rest.Config) {
	t.Helper()
	backend, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData, CAFile: config.CAFile}})
	if err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	g.backend, g.next = backend, &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	g.mu.Unlock()
}

func (g *gate) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cert, nil
}

// present makes the gate present another certificate, also to clients that are connected now.
func (g *gate) present(t testing.TB, cert *tls.Certificate) {
	t.Helper()
	g.refuse()
	g.mu.Lock()
	g.cert = cert
	g.mu.Unlock()
	g.open(t)
}

// RoundTrip implements http.RoundTripper.
func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	g.mu.Lock()
	next := g.next
	g.mu.Unlock()
	return next.RoundTrip(r)
}

func (g *gate) serve(w http.ResponseWriter, r *http.Request, proxy http.Handler) {
	g.mu.Lock()
	answer := g.answer
	g.mu.Unlock()
	seen := request{at: time.Now(), method: r.Method, path: r.URL.Path, watch: r.URL.Query().Get("watch") == "true", user: r.UserAgent()}
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.requests = append(g.requests, seen)
	}()
	if answer != nil {
		if a := answer(r); a != nil && a.status != 0 {
			seen.status = a.status
			if a.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(a.retryAfter))
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(a.status)
			_, _ = io.WriteString(w, a.body)
			return
		} else if a != nil {
			select {
			case <-time.After(a.delay):
			case <-r.Context().Done():
				return
			}
		}
	}
	proxy.ServeHTTP(&statusWriter{w, &seen.status}, r)
}

type statusWriter struct {
	http.ResponseWriter
	status *int
}

func (w *statusWriter) WriteHeader(status int) {
	*w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// answerBy makes answer see each request first. nil ends that.
func (g *gate) answerBy(answer func(*http.Request) *reply) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = answer
}

// since returns the requests since a time.
func (g *gate) since(begin time.Time) (all []request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.requests {
		if !r.at.Before(begin) {
			all = append(all, r)
		}
	}
	return all
}

// refuse breaks all connections, and makes the machine refuse new ones.
func (g *gate) refuse() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		g.listener.Close()
		g.listener = nil
	}
	for c := range g.conns {
		c.Conn.Close()
	}
}

// open accepts connections.
func (g *gate) open(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener = l
	g.served.Go(func() { _ = g.server.ServeTLS(&gatedListener{l, g}, "", "") })
}

// hang holds all bytes, also those of new connections.
func (g *gate) hang() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		g.held = make(chan struct{})
	}
}

// flow delivers the held bytes, and lets others pass.
func (g *gate) flow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held != nil {
		close(g.held)
		g.held = nil
	}
}

type gatedListener struct {
	net.Listener
	gate *gate
}

func (l *gatedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g := &gatedConn{Conn: c, gate: l.gate}
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	l.gate.conns[g] = struct{}{}
	return g, nil
}

type gatedConn struct {
	net.Conn
	gate *gate
}

func (c *gatedConn) wait() {
	c.gate.mu.Lock()
	held := c.gate.held
	c.gate.mu.Unlock()
	if held != nil {
		<-held
	}
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wait()
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	c.wait()
	return c.Conn.Write(p)
}

func (c *gatedConn) Close() error {
	c.gate.mu.Lock()
	delete(c.gate.conns, c)
	c.gate.mu.Unlock()
	return c.Conn.Close()
}

// kubeconfig writes a kubeconfig whose token and CA are files beside it, as in a Pod.
func (g *gate) kubeconfig(t testing.TB, token string, ca []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: 'https://" + g.addr + "', certificate-authority: ca.crt}}]\nusers: [{name: u, user: {tokenFile: token}}]\n"
	for name, data := range map[string]string{"kubeconfig": text, "token": token, "ca.crt": string(ca)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
