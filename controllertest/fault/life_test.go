package fault_test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// TestKill holds that a killed incarnation sends and receives nothing, and that
// nothing is left of it.
//
// Proves N1.
func TestKill(t *testing.T) {
	var served, conns atomic.Int32
	arrived := make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		if r.Method == http.MethodPost || r.URL.Query().Has("watch") {
			arrived <- struct{}{}
			<-r.Context().Done() // never answered
		}
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	closed := make(chan struct{}, 10)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			conns.Add(1)
		case http.StateClosed:
			conns.Add(-1)
			closed <- struct{}{}
		}
	}
	s.StartTLS()
	defer s.Close()
	cfg := &rest.Config{Host: s.URL, BearerToken: canary, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	}}
	before := goleak.IgnoreCurrent()

	var delayed sync.WaitGroup
	delayed.Add(1)
	i := incarnate(t, cfg, func(op *fault.Op) fault.Fault {
		if op.Name == "delayed" {
			return fault.Fault{Before: delayed.Done, Delay: time.Hour}
		}
		return fault.Fault{}
	}, nil)
	c := client(t, i)
	results := make(chan error)
	try := func(r *http.Request) {
		response, err := c.Do(r)
		if err == nil {
			_, err = io.ReadAll(response.Body)
			_ = response.Body.Close()
		}
		results <- err
	}
	go try(request(t, i, http.MethodPost, configMaps, `{}`))
	<-arrived
	go try(request(t, i, http.MethodGet, configMaps+"?watch=1", ""))
	<-arrived
	release := i.Hold("")
	defer release()
	go try(request(t, i, http.MethodPut, configMaps+"/delayed", `{}`))
	delayed.Wait()

	select {
	case <-i.Killed():
		t.Error("Killed is closed before Kill")
	default:
	}
	i.Kill()
	i.Kill() // twice is as good as once
	<-i.Killed()
	for range 3 {
		if err := <-results; !errors.Is(err, fault.ErrKilled) {
			t.Errorf("a request under way ended with %v, want ErrKilled", err)
		} else {
			safe(t, err)
		}
	}
	had := served.Load()
	if had != 2 {
		t.Errorf("the server got %d requests, want 2: the delayed one must not be sent", had)
	}
	if _, err := c.Do(request(t, i, http.MethodGet, configMaps, "")); !errors.Is(err, fault.ErrKilled) {
		t.Errorf("a request with an old client: %v, want ErrKilled", err)
	}
	if _, _, err := send(t, i, http.MethodGet, configMaps, ""); !errors.Is(err, fault.ErrKilled) {
		t.Errorf("a request with a new client: %v, want ErrKilled", err)
	}
	if err := (fault.Fault{}).Call(t.Context(), i, func(context.Context) error { t.Error("the call was made"); return nil }); !errors.Is(err, fault.ErrKilled) {
		t.Errorf("a call: %v, want ErrKilled", err)
	}
	if n := served.Load(); n != had {
		t.Errorf("the server got %d requests of a killed incarnation", n-had)
	}
	<-closed
	if n := conns.Load(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	if err := goleak.Find(before); err != nil {
		t.Errorf("goroutines are left: %v", err)
	}
}

// TestKillWhileDialing holds that a connection that comes too late is closed, and
// that nobody waits for one that does not come.
//
// Proves N1.
func TestKillWhileDialing(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the server got %s", r.URL) }))
	closed := make(chan struct{})
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			close(closed)
		}
	}
	s.Start() // without TLS, whose handshake would notice by itself
	t.Cleanup(s.Close)
	dialing := make(chan struct{})
	i := incarnate(t, &rest.Config{Host: s.URL, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		close(dialing)
		<-ctx.Done()
		return (&net.Dialer{}).DialContext(context.WithoutCancel(ctx), network, address)
	}}, nil, nil)
	result := make(chan error)
	go func() {
		_, _, err := send(t, i, http.MethodGet, configMaps, "")
		result <- err
	}()
	<-dialing
	i.Kill()
	if err := <-result; !errors.Is(err, fault.ErrKilled) {
		t.Errorf("the request ended with %v, want ErrKilled", err)
	}
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("the connection is left open")
	}
}

// TestReset holds that requests under way see a connection that was reset, and that
// the next ones are served on a new connection.
func TestReset(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	var first sync.Map
	cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, again := first.LoadOrStore(r.URL.String(), true); again {
			_, _ = io.WriteString(w, createdBody)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Has("watch") {
			w.(http.Flusher).Flush()
		}
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	i := incarnate(t, cfg, nil, nil)
	results := make(chan error)
	for _, path := range []string{configMaps, configMaps + "?watch=true"} {
		go func() {
			_, _, err := send(t, i, http.MethodGet, path, "")
			results <- err
		}()
		<-arrived
	}
	i.Reset()
	for range 2 {
		if err := <-results; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("it ended with %v, want a reset connection", err)
		}
	}
	if status, _, err := send(t, i, http.MethodGet, configMaps, ""); status != http.StatusOK {
		t.Errorf("the next request: %d %v", status, err)
	}
}

// TestIsolation holds that incarnations of one configuration have nothing in
// common.
func TestIsolation(t *testing.T) {
	t.Parallel()
	var addresses sync.Map
	var watches atomic.Int32
	lines := make(chan string)
	cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		addresses.Store(r.RemoteAddr, true)
		if r.URL.Query().Has("watch") && watches.Add(1) == 1 {
			events(nil)(w, r)
			return
		}
		events(lines)(w, r)
	})
	given := rest.CopyConfig(cfg)
	first, second := incarnate(t, cfg, always(fault.Fault{}), nil), incarnate(t, cfg, nil, nil)
	if diff := cmp.Diff(given.String(), cfg.String()); diff != "" {
		t.Errorf("New has changed the configuration:\n%s", diff)
	}
	first.Config().Host = "elsewhere" // a copy
	open(t, first, "configmaps")
	body := open(t, second, "configmaps")
	defer first.Hold("")()
	defer first.Freeze()()
	first.Cut("", true)
	first.Reset()
	first.Kill()
	lines <- added(1)
	if line, err := body.ReadString('\n'); line != added(1) {
		t.Errorf("the other incarnation's watch: %q %v", line, err)
	}
	if status, _, err := send(t, second, http.MethodGet, configMaps, ""); status != http.StatusOK {
		t.Errorf("the other incarnation's request: %d %v", status, err)
	}
	if first.Watches()["configmaps"] != 0 || second.Watches()["configmaps"] != 1 {
		t.Errorf("established: %v and %v", first.Watches(), second.Watches())
	}
	n := 0
	addresses.Range(func(any, any) bool { n++; return true })
	if n != 2 {
		t.Errorf("%d connections, want one of each", n)
	}
}

// TestConfig holds what becomes of the configuration that New is given.
//
// Proves N4.
func TestConfig(t *testing.T) {
	t.Parallel()
	var got []string
	cfg := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = append(got, r.URL.Path, r.Header.Get("X-Wrapped"), r.Header.Get("Accept"))
	})
	for _, test := range []struct {
		name string
		with func(*rest.Config)
		want string
	}{
		{"a transport", func(c *rest.Config) { c.Transport = http.DefaultTransport }, "Transport"},
		{"an exec plugin", func(c *rest.Config) { c.ExecProvider = &clientcmdapi.ExecConfig{} }, "ExecProvider"},
		{"a bad CA", func(c *rest.Config) { c.CAData = []byte("x") }, "fault: "},
		{"a bad host", func(c *rest.Config) { c.Host = "http://%" }, "fault: "},
	} {
		c := rest.CopyConfig(cfg)
		test.with(c)
		_, err := fault.New(c, nil, nil)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error that says %q", test.name, err, test.want)
		}
		safe(t, err)
	}
	cfg.Host += "/clusters/one/"
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return wrapped(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("X-Wrapped", "yes")
			r.Header.Set("Accept", "application/vnd.kubernetes.protobuf;as=Table;v=v1, application/cbor, */*")
			return rt.RoundTrip(r)
		})
	})
	var ops []fault.Op
	i := incarnate(t, cfg, func(op *fault.Op) fault.Fault { ops = append(ops, *op); return fault.Fault{} }, nil)
	if _, _, err := send(t, i, http.MethodGet, strings.TrimPrefix(configMaps, "/")+"/a", ""); err != nil {
		t.Fatal(err)
	}
	want := []string{"/clusters/one" + configMaps + "/a", "yes", "application/json;as=Table;v=v1,application/json, */*"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the server got (-want +got):\n%s", diff)
	}
	if len(ops) != 1 || ops[0].Resource != "configmaps" || ops[0].Name != "a" {
		t.Errorf("on was asked about %+v", ops)
	}
}
