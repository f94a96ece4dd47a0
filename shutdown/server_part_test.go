package shutdown_test

import (
	"context"
	"crypto/tls"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/shutdown"
)

// serve runs srv as a part until stop is called, and gives its address.
func serve(t *testing.T, srv *http.Server) (addr string, stop func() error) {
	t.Helper()
	addrs := make(chan string, 1)
	srv.Addr = "127.0.0.1:0"
	srv.BaseContext = func(l net.Listener) context.Context { addrs <- l.Addr().String(); return context.Background() }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- shutdown.Server(srv)(ctx) }()
	select {
	case addr = <-addrs:
	case err := <-done:
		cancel()
		t.Fatalf("Server ended at once: %v", err)
	}
	return addr, func() error { cancel(); return <-done }
}

func client() *http.Client { return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} }

func TestServerFinishesRunningRequests(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		_, _ = io.WriteString(w, "done")
	})}
	shutdownBegan := make(chan struct{})
	srv.RegisterOnShutdown(func() { close(shutdownBegan) })
	addr, stop := serve(t, srv)
	body := make(chan string, 1)
	go func() {
		resp, err := client().Get("http://" + addr)
		if err != nil {
			body <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		body <- string(b)
	}()
	<-entered
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	<-shutdownBegan // the part was told, and the request still runs
	close(release)
	if got := <-body; got != "done" {
		t.Errorf("the running request got %q, want done", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("Server() = %v, want nil", err)
	}
	if srv.ReadHeaderTimeout != 10*time.Second {
		t.Errorf("ReadHeaderTimeout = %v, want 10s when it was 0", srv.ReadHeaderTimeout)
	}
}

// The contexts of requests have the logger of the part, and do not end with the part's context while the request
// can finish.
func TestServerContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close() // for the part
	logs := testlog.New()
	ctx, cancel := context.WithCancel(logs.Context(t.Context()))
	defer cancel()
	stopping := make(chan struct{})
	srv := &http.Server{Addr: addr, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-stopping
		klog.FromContext(r.Context()).Info("From a handler", "err", r.Context().Err())
	})}
	srv.RegisterOnShutdown(func() { close(stopping) })
	done := make(chan error, 1)
	go func() { done <- shutdown.Server(srv)(ctx) }()
	for served := false; !served; { // connections are refused until it listens
		select {
		case err := <-done:
			t.Fatalf("Server ended at once: %v", err)
		default:
		}
		resp, err := client().Get("http://" + addr)
		if served = err == nil; served {
			resp.Body.Close()
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Server() = %v", err)
	}
	if lines := logs.Find("From a handler"); len(lines) != 1 || lines[0].Values["err"] != nil {
		t.Errorf("the logger of the part has %v, want one line without an error of the context", logs.All())
	}
}

func TestServerInAGroupClosesWhatHangsInTime(t *testing.T) {
	entered := make(chan struct{})
	handlerDone := make(chan struct{})
	srv := &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done() // ends only because the connection is closed
		close(handlerDone)
	})}
	addrs := make(chan string, 1)
	srv.BaseContext = func(l net.Listener) context.Context { addrs <- l.Addr().String(); return context.Background() }
	const grace = 10 * time.Second
	const wait = grace * 99 / 100 * 3 / 4 // Run needs a hundredth
	g := &shutdown.Group{GracePeriod: grace}
	g.Add("server", shutdown.Server(srv))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	addr := <-addrs
	go func() {
		if resp, err := client().Get("http://" + addr); err == nil {
			resp.Body.Close()
		}
	}()
	<-entered
	start := time.Now()
	cancel()
	err := <-done
	if took := time.Since(start); took < wait {
		t.Errorf("Run() returned after %v, want %v for the request", took, wait)
	}
	if err == nil || !strings.Contains(err.Error(), "closed connections that were still open") || strings.Contains(err.Error(), "did not stop") {
		t.Errorf("Run() = %v, want the server to close the connection before it is late", err)
	}
	<-handlerDone
}

func TestServerAddressInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	err = shutdown.Server(&http.Server{Addr: ln.Addr().String()})(t.Context())
	if err == nil || !strings.Contains(err.Error(), "address already in use: set another Addr") || !strings.HasPrefix(err.Error(), "shutdown: server: ") {
		t.Errorf("Server() = %v, want address already in use", err)
	}
}

// What the caller has not set has a bound.
func TestServerTimeouts(t *testing.T) {
	for _, tc := range []struct {
		name               string
		srv                *http.Server
		header, read, idle time.Duration
	}{
		{name: "none", srv: &http.Server{}, header: 10 * time.Second, read: 30 * time.Second, idle: 2 * time.Minute},
		{name: "own", srv: &http.Server{ReadHeaderTimeout: 1, IdleTimeout: 2}, header: 1, read: 30 * time.Second, idle: 2},
		{name: "long headers", srv: &http.Server{ReadHeaderTimeout: time.Minute}, header: time.Minute, read: time.Minute, idle: 2 * time.Minute},
		{name: "endless headers", srv: &http.Server{ReadHeaderTimeout: -1}, header: -1, idle: 2 * time.Minute},
		{name: "disabled", srv: &http.Server{ReadHeaderTimeout: -1, ReadTimeout: -1, IdleTimeout: -1}, header: -1, read: -1, idle: -1},
		{name: "endless bodies", srv: &http.Server{ReadTimeout: -1}, header: 10 * time.Second, read: -1, idle: 2 * time.Minute},
		{name: "long bodies", srv: &http.Server{ReadTimeout: 10 * time.Minute}, header: 10 * time.Second, read: 10 * time.Minute, idle: 2 * time.Minute},
		{name: "short requests", srv: &http.Server{ReadTimeout: time.Second}, header: time.Second, read: time.Second, idle: 2 * time.Minute},
		{name: "all", srv: &http.Server{ReadHeaderTimeout: 1, ReadTimeout: 2, IdleTimeout: 3}, header: 1, read: 2, idle: 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, stop := serve(t, tc.srv)
			if err := stop(); err != nil {
				t.Errorf("Server() = %v", err)
			}
			if tc.srv.ReadHeaderTimeout != tc.header || tc.srv.ReadTimeout != tc.read || tc.srv.IdleTimeout != tc.idle {
				t.Errorf("timeouts = %v, %v, %v; want %v, %v, %v", tc.srv.ReadHeaderTimeout, tc.srv.ReadTimeout, tc.srv.IdleTimeout, tc.header, tc.read, tc.idle)
			}
		})
	}
}

func TestServerTLS(t *testing.T) {
	pattern := httptest.NewTLSServer(nil) // for its certificate and a client that trusts it
	defer pattern.Close()
	srv := &http.Server{
		TLSConfig: &tls.Config{Certificates: pattern.TLS.Certificates},
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }),
	}
	addr, stop := serve(t, srv)
	c := pattern.Client()
	resp, err := c.Get("https://" + addr)
	if err != nil {
		t.Fatalf("GET over TLS: %v", err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	c.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Errorf("Server() = %v", err)
	}
}

// Whoever forgets the certificate must not serve in clear text.
func TestServerTLSWithoutACertificate(t *testing.T) {
	srv := &http.Server{Addr: "127.0.0.1:0", TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // serving would end without an error
	defer cancel()
	if err := shutdown.Server(srv)(ctx); err == nil || !strings.Contains(err.Error(), "has no certificate") {
		t.Errorf("Server() = %v, want an error about the certificate", err)
	}
}

func TestServerNilAndClosedByOthers(t *testing.T) {
	want := "shutdown: Server got a nil *http.Server: pass one"
	if err := shutdown.Server(nil)(t.Context()); err == nil || err.Error() != want {
		t.Errorf("Server(nil) = %v, want %s", err, want)
	}
	srv := &http.Server{}
	_, stop := serve(t, srv)
	_ = srv.Close()
	if err := stop(); err != nil {
		t.Errorf("Server() = %v after srv.Close, want nil", err)
	}
}

// TestServerInsideAnotherFunction: the group did not end the context, so the
// group's deadline must not be taken for the requests'.
func TestServerInsideAnotherFunction(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	srv := &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		_, _ = io.WriteString(w, "done")
	})}
	addrs := make(chan string, 1)
	srv.BaseContext = func(l net.Listener) context.Context { addrs <- l.Addr().String(); return context.Background() }
	srv.RegisterOnShutdown(func() { close(release) })
	g := &shutdown.Group{}
	g.Add("outer", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		go func() { <-entered; cancel() }()
		return shutdown.Server(srv)(ctx)
	})
	done := make(chan error, 1)
	go func() { done <- g.Run(t.Context()) }()
	resp, err := client().Get("http://" + <-addrs)
	if err != nil {
		t.Fatalf("GET: %v, want the request to be finished", err)
	}
	resp.Body.Close()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// TestServerInAGroupWithoutABound: a GracePeriod of centuries is more than the
// nanoseconds since 1970 can count.
func TestServerInAGroupWithoutABound(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	srv := &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
	})}
	addrs := make(chan string, 1)
	srv.BaseContext = func(l net.Listener) context.Context { addrs <- l.Addr().String(); return context.Background() }
	// Closing what is open comes right after this, if at all, so give it the time.
	srv.RegisterOnShutdown(func() { time.AfterFunc(100*time.Millisecond, func() { close(release) }) })
	g := &shutdown.Group{GracePeriod: math.MaxInt64}
	g.Add("server", shutdown.Server(srv))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	go func() { <-entered; cancel() }()
	resp, err := client().Get("http://" + <-addrs)
	if err != nil {
		t.Errorf("GET: %v, want the request to be finished", err)
	} else {
		resp.Body.Close()
	}
	if err := <-done; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func TestServerRunsOnce(t *testing.T) {
	srv := &http.Server{Addr: "127.0.0.1:0"}
	ctx, cancel := context.WithCancel(t.Context())
	srv.BaseContext = func(net.Listener) context.Context { cancel(); return context.Background() }
	part := shutdown.Server(srv)
	if err := part(ctx); err != nil {
		t.Fatalf("first run = %v", err)
	}
	want := "shutdown: server 127.0.0.1:0 was run twice: an http.Server serves once, create a new one"
	if err := part(t.Context()); err == nil || err.Error() != want {
		t.Errorf("second run = %v, want %s", err, want)
	}
}

// TestServerThatCouldNotListenMayTryAgain: nothing was served yet.
func TestServerThatCouldNotListenMayTryAgain(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	part := shutdown.Server(&http.Server{
		Addr:        ln.Addr().String(),
		BaseContext: func(net.Listener) context.Context { cancel(); return context.Background() },
	})
	if err := part(ctx); err == nil {
		t.Error("first run = nil, want address in use")
	}
	ln.Close()
	if err := part(ctx); err != nil {
		t.Errorf("second run = %v, want nil", err)
	}
}

// TestServerWhoseListenerFails leaves no connection behind.
func TestServerWhoseListenerFails(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	cut := make(chan bool, 1)
	srv := &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		select {
		case <-r.Context().Done():
			cut <- true
		case <-release:
			cut <- false
		}
	})}
	listeners := make(chan net.Listener, 1)
	srv.BaseContext = func(l net.Listener) context.Context { listeners <- l; return context.Background() }
	done := make(chan error, 1)
	go func() { done <- shutdown.Server(srv)(t.Context()) }()
	l := <-listeners
	go func() {
		if resp, err := client().Get("http://" + l.Addr().String()); err == nil {
			resp.Body.Close()
		}
	}()
	<-entered
	l.Close()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "use of closed network connection") {
		t.Errorf("Server() = %v, want the listener's error", err)
	}
	time.AfterFunc(2*time.Second, func() { close(release) })
	if !<-cut {
		t.Error("a request went on after the part had returned")
	}
}
