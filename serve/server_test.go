package serve_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/controllerkit/controllerkit/internal/testpipe"
	"github.com/controllerkit/controllerkit/serve"
)

func aPair(t *testing.T) *serve.KeyPair {
	t.Helper()
	cert, key := newPair(t, "a", time.Now().Add(time.Hour))
	dir := t.TempDir()
	pair := &serve.KeyPair{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	if err := os.WriteFile(pair.Cert, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pair.Key, key, 0o600); err != nil {
		t.Fatal(err)
	}
	return pair
}

// TestConfig proves SV7.
func TestConfig(t *testing.T) {
	api := &reviewer{}
	h := http.HandlerFunc(served)
	plain := api.guard()
	plain.PlainHTTP = true
	for _, tc := range []struct {
		name   string
		config serve.Config
		want   string // in the error; "" means none
	}{
		{"loopback", serve.Config{Handler: h}, ""},
		{"loopback, IPv6", serve.Config{Handler: h, Addr: "[::1]:0"}, ""},
		{"localhost", serve.Config{Handler: h, Addr: "localhost:0"}, ""},
		{"guarded", serve.Config{Handler: h, Addr: ":8443", Guard: api.guard(), KeyPair: aPair(t)}, ""},
		{"behind a proxy", serve.Config{Handler: h, Addr: ":8443", Guard: plain}, ""},
		{"no Handler", serve.Config{}, "Config.Handler is nil"},
		{"nil Handler", serve.Config{Handler: http.HandlerFunc(nil)}, "Config.Handler is nil"},
		{"no port", serve.Config{Handler: h, Addr: "127.0.0.1"}, `Config.Addr "127.0.0.1" is not valid`},
		{"no Guard", serve.Config{Handler: h, Addr: ":8443", KeyPair: aPair(t)}, `Config.Addr ":8443": set Config.Guard`},
		{"no Guard, all addresses", serve.Config{Handler: h, Addr: "0.0.0.0:8443", KeyPair: aPair(t)}, "set Config.Guard"},
		{"no Guard, a name", serve.Config{Handler: h, Addr: "localhost.evil:8443", KeyPair: aPair(t)}, "set Config.Guard"},
		{"no TLS", serve.Config{Handler: h, Addr: "[::]:8443", Guard: api.guard()}, "set Config.KeyPair"},
		{"empty Guard", serve.Config{Handler: h, Guard: &serve.Guard{}}, "Guard.Tokens is nil"},
		{"no files", serve.Config{Handler: h, KeyPair: &serve.KeyPair{}}, "KeyPair.Cert"},
		{"relative path", serve.Config{Handler: h, Open: []string{"readyz"}}, `Config.Open has "readyz"`},
		{"path with dots", serve.Config{Handler: h, Open: []string{"/readyz/../metrics"}}, "Config.Open has"},
	} {
		server, err := serve.New(tc.config)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: New() = %v, want %q", tc.name, err, tc.want)
		}
		if err == nil && tc.config.Addr == "" && server.Addr != "127.0.0.1:6060" {
			t.Errorf("%s: the address is %q, want loopback", tc.name, server.Addr)
		}
	}
}

// exchange sends a request as bytes on its own connection, and returns the status code.
func exchange(t *testing.T, p *testpipe.Listener, request string) int {
	t.Helper()
	conn := p.Dial(t)
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, request) }()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%.60q: %v", request, err)
	}
	conn.Close() // before the body: that of HEAD has a length and no bytes
	resp.Body.Close()
	return resp.StatusCode
}

// TestHosts holds that a page of a browser cannot read a server without a Guard. It proves
// SV7 and SV5.
func TestHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := "none"
		server, err := serve.New(serve.Config{Open: []string{"/readyz"}, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { token = r.Header.Get("Authorization") })})
		if err != nil {
			t.Fatal(err)
		}
		p := inMemory(t, server)
		for request, want := range map[string]int{
			"GET / HTTP/1.1\r\nHost: localhost:6060":                        200,
			"GET / HTTP/1.1\r\nHost: LOCALHOST":                             200,
			"GET / HTTP/1.1\r\nHost: 127.0.0.1:6060":                        200,
			"GET / HTTP/1.1\r\nHost: [::1]:6060":                            200,
			"GET / HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Bearer secret": 200,
			"GET / HTTP/1.1\r\nHost: evil.invalid":                          403,
			"GET / HTTP/1.1\r\nHost: evil.invalid:6060":                     403,
			"GET / HTTP/1.1\r\nHost: localhost.evil.invalid":                403,
			"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.invalid":                403,
			"GET http://evil.invalid/ HTTP/1.1\r\nHost: localhost":          403,
			"GET / HTTP/1.0": 403,
			"GET /readyz HTTP/1.1\r\nHost: localhost":    200,
			"GET /readyz HTTP/1.1\r\nHost: evil.invalid": 403,
			"GET //debug HTTP/1.1\r\nHost: localhost":    400,
			"GET // HTTP/1.1\r\nHost: localhost":         400,
		} {
			if got := exchange(t, p, request+"\r\n\r\n"); got != want {
				t.Errorf("%q gives %d, want %d", request, got, want)
			}
		}
		if token != "" {
			t.Errorf("the handler got the token %q", token)
		}
	})
}

// TestOpen holds that a path without a token is exactly that path. It proves SV5.
func TestOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &reviewer{allow: []string{"/metrics"}}
		server, err := serve.New(serve.Config{Handler: http.HandlerFunc(served), Guard: api.guard(), Open: []string{"/readyz"}})
		if err != nil {
			t.Fatal(err)
		}
		p := inMemory(t, server)
		for line, want := range map[string]int{
			"GET /readyz":                200,
			"HEAD /readyz":               200,
			"GET /readyz?verbose":        200,
			"POST /readyz":               401,
			"GET /readyz/":               401,
			"GET /READYZ":                401,
			"GET /metrics":               401,
			"GET /readyz/../metrics":     400,
			"GET /metrics/../readyz":     400,
			"GET /readyz%2f..%2fdebug":   400,
			"GET /%72eadyz":              400,
			"GET //readyz":               400,
			"GET /metrics?x=/readyz":     401,
			"GET http://x/metrics":       401,
			"OPTIONS /metrics":           401,
			"OPTIONS *":                  400,
			"GET /metrics#/../readyz":    400,
			"GET /readyz%00":             401,
			"GET /metrics;/../../readyz": 400,
		} {
			if got := exchange(t, p, line+" HTTP/1.1\r\nHost: x\r\n\r\n"); got != want {
				t.Errorf("%s gives %d, want %d", line, got, want)
			}
		}
		if n := api.tokens.Load(); n > 0 {
			t.Errorf("%d reviews, want none", n)
		}
		resp := httptest.NewRecorder()
		server.Handler.ServeHTTP(resp, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if got := resp.Body.String(); got != "served /readyz" {
			t.Errorf("GET /readyz gives the body %q, want that of the handler alone", got)
		}
	})
}

// TestSlowClients tests that the connection of a client that sends or reads slowly closes
// within a minute.
func TestSlowClients(t *testing.T) {
	for _, tc := range []struct {
		name, sent string
		want       time.Duration
	}{
		{"nothing", "", 10 * time.Second},
		{"part of the headers", "GET / HTTP/1.1\r\nHost:", 10 * time.Second},
		{"part of the body", "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab", 30 * time.Second},
		{"a response that is not read", "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n", time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan struct{}, 1000)
				server, err := serve.New(serve.Config{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					if r.URL.Path == "/large" {
						for {
							if _, err := w.Write(make([]byte, 1<<16)); err != nil {
								break
							}
						}
						ended <- struct{}{}
					}
				})})
				if err != nil {
					t.Fatal(err)
				}
				p := inMemory(t, server)
				start := time.Now()
				for range 300 { // other slow clients
					conn := p.Dial(t)
					defer conn.Close()
					if _, err := io.WriteString(conn, tc.sent); err != nil {
						t.Fatal(err)
					}
				}
				if got := exchange(t, p, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); got != 200 {
					t.Errorf("a good client gets %d, want 200", got)
				}
				conn := p.Dial(t)
				defer conn.Close()
				if _, err := io.WriteString(conn, tc.sent); err != nil {
					t.Fatal(err)
				}
				if strings.Contains(tc.sent, "/large") {
					<-ended
				} else {
					_, _ = io.Copy(io.Discard, conn) // until the server closes it
				}
				if took := time.Since(start); took < tc.want || took > tc.want+time.Second {
					t.Errorf("the connection was closed after %v, want %v", took, tc.want)
				}
			})
		})
	}
}

// TestDrip sends one byte of a header a second.
func TestDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := serve.New(serve.Config{Handler: http.HandlerFunc(served)})
		if err != nil {
			t.Fatal(err)
		}
		conn := inMemory(t, server).Dial(t)
		defer conn.Close()
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		start := time.Now()
		for i := 0; ; i++ {
			if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nX: xxxxxxxxxxxxxxxxxxxxxxxxxxx"[i:i+1]); err != nil {
				break
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(start); took > 11*time.Second {
			t.Errorf("the connection was closed after %v, want 10s", took)
		}
	})
}

// TestLargeHeaders tests that headers that are too large get 431.
func TestLargeHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := serve.New(serve.Config{Handler: http.HandlerFunc(served)})
		if err != nil {
			t.Fatal(err)
		}
		p := inMemory(t, server)
		for size, want := range map[int]int{20 << 10: 200, 40 << 10: 431, 1 << 20: 431} {
			if got := exchange(t, p, "GET / HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", size)+"\r\n\r\n"); got != want {
				t.Errorf("%d bytes of headers give %d, want %d", size, got, want)
			}
		}
	})
}

// TestProtocols: HTTP/2 is off, with and without TLS.
func TestProtocols(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, asked := range []bool{false, true} {
			server, err := serve.New(serve.Config{Handler: http.HandlerFunc(served), KeyPair: aPair(t)})
			if err != nil {
				t.Fatal(err)
			}
			want := "http/1.1"
			if asked {
				server.Protocols, want = nil, "h2"
			}
			conn := tls.Client(inMemory(t, server).Dial(t), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
			if err := conn.HandshakeContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := conn.ConnectionState().NegotiatedProtocol; got != want {
				t.Errorf("the protocol is %q, want %q", got, want)
			}
			conn.Close()
		}
	})
}
