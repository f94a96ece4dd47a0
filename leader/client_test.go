package leader_test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/controllerkit/controllerkit/leader"
)

func TestNewClientBadInput(t *testing.T) {
	for _, tt := range []struct {
		name      string
		config    *rest.Config
		namespace string
		want      string // is part of the error
	}{
		{name: "no config", namespace: "shop", want: "config is nil"},
		{name: "no host", config: &rest.Config{}, namespace: "shop", want: "config.Host is empty"},
		{name: "no namespace", config: &rest.Config{Host: "https://127.0.0.1"}, want: "namespace is empty"},
		{name: "refused by client-go", config: &rest.Config{Host: "https://127.0.0.1", Username: "a", BearerToken: "hidden"}, namespace: "shop", want: "bearer token"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leases, err := leader.NewClient(tt.config, tt.namespace)
			if leases != nil || err == nil || !strings.HasPrefix(err.Error(), "leader: ") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("NewClient() = %v, %v, want nil and an error of leader that says %q", leases, err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "hidden") {
				t.Errorf("NewClient() = %v, which shows a credential", err)
			}
		})
	}
}

// A frontend is an API server as far as connections go. It answers every
// request with an empty Lease and remembers it.
type frontend struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	inFlight func() // called while a request is; nil means nothing
}

func startFrontend(t *testing.T) *frontend {
	f := &frontend{}
	f.Server = httptest.NewUnstartedServer(f)
	f.EnableHTTP2 = true
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

func (f *frontend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, r)
	inFlight := f.inFlight
	f.mu.Unlock()
	if inFlight != nil {
		inFlight()
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease"}`)
}

func (f *frontend) config() *rest.Config {
	return &rest.Config{Host: f.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}),
	}}
}

// get reads a Lease and returns the request as it arrived.
func (f *frontend) get(t *testing.T, leases leader.LeaseClient) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := leases.Get(ctx, leaseName, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[len(f.requests)-1]
}

func ownClient(t *testing.T, config *rest.Config, ns string) leader.LeaseClient {
	t.Helper()
	leases, err := leader.NewClient(config, ns)
	if err != nil {
		t.Fatal(err)
	}
	return leases
}

// TestNewClientRequests: the fields of the configuration that are kept and changed.
func TestNewClientRequests(t *testing.T) {
	f := startFrontend(t)
	config := f.config()
	config.BearerToken = "token"
	config.Impersonate.UserName = "somebody"
	config.UserAgent = "shop/1.0"
	config.NextProtos = []string{"h2", "http/1.1"}
	// Any of these would make every request fail, or wait forever.
	config.QPS, config.Burst = 1e-6, 1
	config.RateLimiter = flowcontrol.NewFakeNeverRateLimiter()
	config.Timeout = time.Nanosecond
	wrapped := 0
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			wrapped++
			return rt.RoundTrip(r)
		})
	})
	dialled := 0
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled++
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	before := rest.CopyConfig(config)

	leases := ownClient(t, config, "shop")
	const requests = 20
	var r *http.Request
	for range requests {
		r = f.get(t, leases)
	}
	got := map[string]any{
		"path":          r.URL.Path,
		"protocol":      r.Proto,
		"user agent":    r.UserAgent(),
		"authorization": r.Header.Get("Authorization"),
		"impersonate":   r.Header.Get("Impersonate-User"),
		"wrapped":       wrapped,
		"dialled":       dialled,
	}
	want := map[string]any{
		"path":          "/apis/coordination.k8s.io/v1/namespaces/shop/leases/" + leaseName,
		"protocol":      "HTTP/1.1",
		"user agent":    "shop/1.0/leader-election",
		"authorization": "Bearer token",
		"impersonate":   "somebody",
		"wrapped":       requests,
		"dialled":       1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}

	functions := cmp.FilterPath(func(p cmp.Path) bool {
		switch p.Last().String() {
		case ".Dial", ".WrapTransport", ".RateLimiter":
			return true
		}
		return false
	}, cmp.Comparer(func(a, b any) bool { return (a == nil) == (b == nil) }))
	if diff := cmp.Diff(before, config, functions); diff != "" {
		t.Errorf("the caller's configuration was changed (-before +after):\n%s", diff)
	}
	if got, want := f.get(t, ownClient(t, f.config(), "shop")).UserAgent(), rest.DefaultKubernetesUserAgent()+"/leader-election"; got != want {
		t.Errorf("user agent of a configuration without one = %q, want %q", got, want)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestNewClientConnections: which clients share a connection. The ordinary ones
// show that client-go shares where it can.
func TestNewClientConnections(t *testing.T) {
	ordinary := func(t *testing.T, config *rest.Config) leader.LeaseClient {
		clients, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return clients.CoordinationV1().Leases("shop")
	}
	own := func(t *testing.T, config *rest.Config) leader.LeaseClient {
		return ownClient(t, config, "shop")
	}
	for _, tt := range []struct {
		name          string
		change        func(*rest.Config)
		first, second func(*testing.T, *rest.Config) leader.LeaseClient
		plain         bool // without TLS
		shared        bool
	}{
		{name: "two ordinary clients", first: ordinary, second: ordinary, shared: true},
		{name: "an ordinary client and an own one", first: ordinary, second: own},
		{name: "two own ones", first: own, second: own},
		{name: "without TLS, two ordinary clients", first: ordinary, second: ordinary, plain: true, shared: true},
		{name: "without TLS, an ordinary client and an own one", first: ordinary, second: own, plain: true},
		{name: "a configuration of HTTP/1.1", first: ordinary, second: own,
			change: func(c *rest.Config) { c.NextProtos = []string{"http/1.1"} }},
		{name: "a configuration with a proxy function", first: ordinary, second: own,
			change: func(c *rest.Config) { c.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } }},
		{name: "a configuration with a Transport", first: ordinary, second: own, shared: true,
			change: func(c *rest.Config) {
				rt, err := rest.TransportFor(c)
				if err != nil {
					t.Fatal(err)
				}
				c.Transport, c.TLSClientConfig = rt, rest.TLSClientConfig{}
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startFrontend(t)
			config := f.config()
			if tt.plain {
				server := httptest.NewServer(f)
				t.Cleanup(server.Close)
				config = &rest.Config{Host: server.URL}
			}
			if tt.change != nil {
				tt.change(config)
			}
			first, second := tt.first(t, config), tt.second(t, config)
			a := f.get(t, first).RemoteAddr
			if again := f.get(t, first).RemoteAddr; again != a {
				t.Errorf("the first client uses the connections %s and %s, want it to keep one", a, again)
			}
			if b := f.get(t, second).RemoteAddr; (a == b) != tt.shared {
				t.Errorf("the connections are %s and %s, want them the same: %v", a, b, tt.shared)
			}
		})
	}
}

// TestNewClientDialsAfterTimeout: a call that runs out of time is the last on any
// of the connections there were. Two of them are dead here, as when a watch just
// gave one back.
//
// Proves L10.
func TestNewClientDialsAfterTimeout(t *testing.T) {
	f := startFrontend(t)
	path := startPath(t, f.Listener.Addr().String())
	config := f.config()
	config.Host = "https://" + path.addr()
	leases := ownClient(t, config, "shop")

	var both sync.WaitGroup
	both.Add(2)
	f.mu.Lock()
	f.inFlight = func() { both.Done(); both.Wait() }
	f.mu.Unlock()
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() { _, _ = leases.Get(t.Context(), leaseName, metav1.GetOptions{}) })
	}
	calls.Wait()
	f.mu.Lock()
	f.inFlight = nil
	f.mu.Unlock()

	if n := path.freeze(); n != 2 {
		t.Fatalf("%d connections before they die, want 2", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := leases.Get(ctx, leaseName, metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Get() on a dead connection = %v, want it to run out of time", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := leases.Get(ctx, leaseName, metav1.GetOptions{}); err != nil {
		t.Errorf("the next Get() = %v, want it to dial", err)
	}
}

// A path is a way to a server, over TCP on the loopback, whose connections can
// die as they do when a middlebox forgets them: the peer accepts
// data and sends none, without an error.
type path struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	mu    sync.Mutex // guards the field below and those of its connections
	conns map[*pathConn]bool
}

type pathConn struct {
	client, server net.Conn
	frozen         bool
}

func startPath(t *testing.T, server string) *path {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &path{listener: listener, server: server, conns: map[*pathConn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = p.listener.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *path) addr() string { return p.listener.Addr().String() }

func (p *path) accept() {
	defer p.cut() // what was accepted while the listener was closed
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &pathConn{client: client, server: server}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		p.wg.Go(func() { p.carry(c, server, client) })
		p.wg.Go(func() { p.carry(c, client, server) })
	}
}

// carry copies until an end closes. What comes once c is frozen goes nowhere, and
// the end of the server's side is not passed on either.
func (p *path) carry(c *pathConn, to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		frozen := c.frozen
		p.mu.Unlock()
		if err == nil && !frozen {
			_, err = to.Write(buffer[:n])
		}
		if err == nil {
			continue
		}
		_ = c.server.Close()
		if from == c.client || !frozen {
			_ = c.client.Close()
			p.mu.Lock()
			delete(p.conns, c)
			p.mu.Unlock()
		}
		return
	}
}

// freeze makes the connections that are there dead, and returns how many died.
// New ones work.
func (p *path) freeze() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for c := range p.conns {
		if !c.frozen {
			c.frozen = true
			n++
		}
	}
	return n
}

// cut closes the connections that are there, dead ones too.
func (p *path) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.client.Close()
		_ = c.server.Close()
	}
}
