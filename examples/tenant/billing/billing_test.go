package billing_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/controllerkit/controllerkit/examples/tenant/billing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a server and returns it with a client that has its own transport.
func start(t *testing.T) (*billing.Server, *billing.Client) {
	t.Helper()
	s := new(billing.Server)
	web := httptest.NewServer(s)
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		// A hanging request would block the close of the server.
		_ = s.SetMode(billing.OK, 0)
		web.Close()
	})
	return s, &billing.Client{URL: web.URL, Transport: transport}
}

func TestOpenIsIdempotent(t *testing.T) {
	s, c := start(t)
	var wg sync.WaitGroup
	ids := make([]string, 20)
	for i := range ids {
		wg.Go(func() {
			a, err := c.Open(t.Context(), "uid-1", "blue", "Basic")
			if err != nil {
				t.Error(err)
			}
			ids[i] = a.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || id == "" {
			t.Fatalf("20 concurrent opens with one key got accounts %q, want one", ids)
		}
	}
	other, err := c.Open(t.Context(), "uid-2", "green", "Premium")
	if err != nil {
		t.Fatal(err)
	}
	want := []billing.Account{
		{ID: ids[0], Key: "uid-1", Tenant: "blue", Plan: "Basic"},
		{ID: other.ID, Key: "uid-2", Tenant: "green", Plan: "Premium"},
	}
	got, err := c.Accounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(billing.Counts{Open: 21, List: 1}, s.Counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if _, err := c.Open(t.Context(), "uid-2", "green", "Basic"); err == nil || !strings.Contains(err.Error(), "409") {
		t.Errorf("Open of a known key with another plan: got %v, want 409", err)
	}
}

func TestCloseIsPermanent(t *testing.T) {
	tests := []struct {
		name string
		open bool
	}{
		{name: "an open account", open: true},
		{name: "a key never seen", open: false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, c := start(t)
			if tt.open {
				if _, err := c.Open(t.Context(), "uid", "blue", "Basic"); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 2 {
				if err := c.Close(t.Context(), "uid"); err != nil {
					t.Fatalf("Close number %d: %v", i+1, err)
				}
			}
			if _, err := c.Open(t.Context(), "uid", "blue", "Basic"); !errors.Is(err, billing.ErrClosed) {
				t.Errorf("Open after Close: got %v, want ErrClosed", err)
			}
			if got := s.Accounts(); len(got) != 0 {
				t.Errorf("accounts after Close: %v, want none", got)
			}
		})
	}
}

func TestLateOpenAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(billing.Server)
		if err := s.SetMode(billing.Slow, time.Second); err != nil {
			t.Fatal(err)
		}
		// The client dies while its request is in flight.
		ctx, die := context.WithCancel(t.Context())
		late := make(chan *httptest.ResponseRecorder, 1)
		go func() {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, openRequest(ctx))
			late <- w
		}()
		synctest.Wait()
		die()
		if err := s.SetMode(billing.OK, 0); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/accounts?key=uid", nil))
		if w.Code != http.StatusNoContent {
			t.Fatalf("close: status %d, want 204", w.Code)
		}
		if w := <-late; w.Code != http.StatusGone {
			t.Errorf("the late open: status %d, want 410", w.Code)
		}
		if got := s.Accounts(); len(got) != 0 {
			t.Errorf("accounts: %v, want none", got)
		}
	})
}

func TestModes(t *testing.T) {
	tests := []struct {
		name    string
		mode    billing.Mode
		delay   time.Duration
		timeout time.Duration
		want    string // "" means success
		refused int
	}{
		{name: "ok", mode: billing.OK},
		{name: "fail", mode: billing.Fail, refused: 1, want: "billing: open: the service returned 503 Service Unavailable: out of service"},
		{name: "hang", mode: billing.Hang, timeout: 20 * time.Millisecond, want: "billing: open: no response within 20ms: context deadline exceeded; check that the service runs and is reachable"},
		{name: "slow", mode: billing.Slow, delay: 20 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, c := start(t)
			c.Timeout = tt.timeout
			if err := s.SetMode(tt.mode, tt.delay); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			_, err := c.Open(t.Context(), "uid", "blue", "Basic")
			if got := time.Since(begin); got < tt.delay {
				t.Errorf("response after %v, want at least %v", got, tt.delay)
			}
			if got := errorText(err); got != tt.want {
				t.Errorf("got error %q, want %q", got, tt.want)
			}
			if got, want := len(s.Accounts()), boolInt(tt.want == ""); got != want {
				t.Errorf("got %d accounts, want %d", got, want)
			}
			if got := s.Counts().Refused; tt.mode != billing.Hang && got != tt.refused {
				t.Errorf("got %d refused, want %d", got, tt.refused)
			}
			if _, err := c.Accounts(t.Context()); err != nil {
				t.Errorf("Accounts: %v, want success in every mode", err)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestHang(t *testing.T) {
	tests := []struct {
		name     string
		leave    bool // the client disconnects before the mode changes
		accounts int
	}{
		{name: "applies the next mode", accounts: 1},
		{name: "opens no account after its client has disconnected", leave: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := new(billing.Server)
				if err := s.SetMode(billing.Hang, 0); err != nil {
					t.Fatal(err)
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				done := make(chan struct{})
				go func() {
					defer close(done)
					s.ServeHTTP(httptest.NewRecorder(), openRequest(ctx))
				}()
				synctest.Wait()
				select {
				case <-done:
					t.Fatal("the request returned, want it to hang")
				default:
				}
				if tt.leave {
					leave()
					<-done
				}
				if err := s.SetMode(billing.OK, 0); err != nil {
					t.Fatal(err)
				}
				<-done
				if got := len(s.Accounts()); got != tt.accounts {
					t.Errorf("got %d accounts, want %d", got, tt.accounts)
				}
				if got, want := s.Counts().Refused, 1-tt.accounts; got != want {
					t.Errorf("got %d refused, want %d", got, want)
				}
			})
		})
	}
}

func openRequest(ctx context.Context) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/accounts", strings.NewReader(`{"tenant":"blue","plan":"Basic"}`))
	r.Header.Set("Idempotency-Key", "uid")
	return r
}

func TestErrorTextIsStable(t *testing.T) {
	// A server that cuts every connection after the request.
	cutter := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer cutter.Close()
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }))
	defer stranger.Close()

	tests := []struct{ name, url, want string }{
		// Nobody listens on port 1, and no server of another test can get it.
		{name: "refused", url: "http://127.0.0.1:1", want: "billing: open: dial: connect: connection refused; check that the service runs and is reachable"},
		{name: "cut", url: cutter.URL, want: "billing: open: EOF; check that the service runs and is reachable"},
		{name: "another server", url: stranger.URL, want: "billing: open: decode the response: invalid character '<' looking for beginning of value; check that the URL is that of a billing service"},
		{name: "no URL", url: "127.0.0.1:80", want: "billing: the URL is not valid: first path segment in URL cannot contain colon"},
		{name: "no scheme", url: "//127.0.0.1:80", want: "billing: the URL is not valid: write http://host:port"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			transport := &http.Transport{DisableKeepAlives: true}
			c := &billing.Client{URL: tt.url, Transport: transport}
			for range 3 {
				_, err := c.Open(t.Context(), "uid", "blue", "Basic")
				if got := errorText(err); got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			}
		})
	}
}

// TestHostileService checks that arbitrary data from the service yields errors that
// are short lines of printable text.
func TestHostileService(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, tt := range []struct{ name, response, want string }{
		{"status line", "HTTP/1.1 503 " + long + "\x1b[2J\r\nContent-Length: 0\r\n\r\n", "503 Service Unavailable"},
		{"unknown status", "HTTP/1.1 799 \x1b[2J\r\nContent-Length: 0\r\n\r\n", "799"},
		{"body", `HTTP/1.1 500 x` + "\r\n\r\n" + `{"error":"a\u001b[2J\r\nb` + long + `"}`, "a?[2J b"},
		{"no HTTP", "\x1b[2J" + long + "\r\n\r\n", "malformed HTTP"},
		{"account id", "HTTP/1.1 200 OK\r\n\r\n" + `{"id":"\u001b[2J"}`, `account id "?[2J"`},
		{"long account id", "HTTP/1.1 200 OK\r\n\r\n" + `{"id":"` + long + `"}`, "account id"},
		{"no account id", "HTTP/1.1 200 OK\r\n\r\n{}", `account id ""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				request := make([]byte, 1<<10)
				_, _ = conn.Read(request)
				_, _ = io.WriteString(conn, tt.response) // the client may disconnect before the end
			})
			defer wg.Wait()
			defer l.Close()
			c := &billing.Client{URL: "http://" + l.Addr().String(), Transport: &http.Transport{DisableKeepAlives: true}}
			_, err = c.Open(t.Context(), "uid", "blue", "Basic")
			got := errorText(err)
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want it to contain %q", got, tt.want)
			}
			if len(got) > 512 || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("got %d bytes %.600q, want a short line of printable text", len(got), got)
			}
		})
	}
}

func TestOpenCancelled(t *testing.T) {
	s, c := start(t)
	if err := s.SetMode(billing.Hang, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Open(ctx, "uid", "blue", "Basic"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestBadRequests(t *testing.T) {
	s, c := start(t)
	tests := []struct {
		name, method, path, key, body string
		want                          int
	}{
		{name: "no key to open", method: "POST", path: "/accounts", body: "{}", want: 400},
		{name: "no JSON", method: "POST", path: "/accounts", key: "uid", body: "x", want: 400},
		{name: "no key to close", method: "DELETE", path: "/accounts", want: 400},
		{name: "unknown path", method: "GET", path: "/account", want: 404},
		{name: "unknown mode", method: "PUT", path: "/mode?mode=explode", want: 400},
		{name: "unknown delay", method: "PUT", path: "/mode?mode=slow&delay=soon", want: 400},
		{name: "delay too long", method: "PUT", path: "/mode?mode=slow&delay=1h", want: 400},
		{name: "mode as JSON", method: "PUT", path: "/mode", body: `{"mode":"slow","delay":"1ms"}`, want: 204},
		{name: "mode as query", method: "PUT", path: "/mode?mode=ok", want: 204},
		{name: "counts", method: "GET", path: "/counts", want: 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := url.Parse(c.URL + tt.path)
			if err != nil {
				t.Fatal(err)
			}
			req := &http.Request{Method: tt.method, URL: u, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(tt.body))}
			if tt.key != "" {
				req.Header.Set("Idempotency-Key", tt.key)
			}
			resp, err := c.Transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != tt.want {
				t.Errorf("got status %d, want %d", resp.StatusCode, tt.want)
			}
		})
	}
	if got := s.Accounts(); len(got) != 0 {
		t.Errorf("accounts: %v, want none", got)
	}
}
