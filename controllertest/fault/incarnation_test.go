package fault_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/controllerkit/controllerkit/controllertest/fault"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// canary is the token of every configuration here; no error may show it.
const canary = "canary-token-1f0e"

const configMaps = "/api/v1/namespaces/ns/configmaps"

// serve starts a server with TLS and HTTP/2.
func serve(t testing.TB, h http.HandlerFunc) *rest.Config {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return &rest.Config{
		Host: s.URL, BearerToken: canary, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})},
	}
}

func incarnate(t testing.TB, cfg *rest.Config, on func(*fault.Op) fault.Fault, done func(*fault.Op, int, []byte)) *fault.Incarnation {
	t.Helper()
	i, err := fault.New(cfg, on, done)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Kill)
	return i
}

// always is a fault that happens to every request.
func always(f fault.Fault) func(*fault.Op) fault.Fault {
	return func(*fault.Op) fault.Fault { return f }
}

func client(t testing.TB, i *fault.Incarnation) *http.Client {
	t.Helper()
	c, err := rest.HTTPClientFor(i.Config())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func clientset(t testing.TB, i *fault.Incarnation) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(i.Config())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func request(t testing.TB, i *fault.Incarnation, method, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, i.Config().Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// send makes a request and reads the whole answer.
func send(t testing.TB, i *fault.Incarnation, method, path, body string) (int, string, error) {
	t.Helper()
	response, err := client(t, i).Do(request(t, i, method, path, body))
	if err != nil {
		safe(t, err)
		return 0, "", err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	safe(t, err)
	return response.StatusCode, string(b), err
}

// safe fails the test if an error tells a secret.
func safe(t testing.TB, err error) {
	t.Helper()
	for _, text := range []string{fmt.Sprint(err), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
		if strings.Contains(text, canary) {
			t.Errorf("the error tells the token: %s", text)
		}
	}
}

// story notes what happened, in order.
type story struct {
	mu    sync.Mutex
	lines []string
}

func (s *story) add(line string) {
	s.mu.Lock()
	s.lines = append(s.lines, line)
	s.mu.Unlock()
}

func (s *story) want(t testing.TB, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(want, s.lines); diff != "" {
		t.Errorf("what happened (-want +got):\n%s", diff)
	}
}

const createdBody = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"made"},"data":{"a":"0123456789012345678901234567890123456789"}}`

// TestFault is every field of Fault on its own: what the caller sees, and
// whether the server has the request.
//
// Proves N2.
func TestFault(t *testing.T) {
	const while = 50 * time.Millisecond
	teapot := &fault.Response{Code: http.StatusTeapot, Reason: "Teapot", Message: "no coffee"}
	tests := []struct {
		name    string
		fault   func(s *story) fault.Fault
		want    []string // what happened, in order
		status  int
		body    string
		sendErr error // of the request
		readErr error // of reading the answer
		atLeast time.Duration
	}{
		{
			name:  "nothing",
			fault: func(*story) fault.Fault { return fault.Fault{} },
			want:  []string{"on", "server", "done 201", "caller"}, status: 201, body: createdBody,
		}, {
			name:  "Before",
			fault: func(s *story) fault.Fault { return fault.Fault{Before: func() { s.add("before") }} },
			want:  []string{"on", "before", "server", "done 201", "caller"}, status: 201, body: createdBody,
		}, {
			name: "Delay",
			fault: func(s *story) fault.Fault {
				return fault.Fault{Before: func() { s.add("before") }, Delay: while}
			},
			want: []string{"on", "before", "server", "done 201", "caller"}, status: 201, body: createdBody, atLeast: while,
		}, {
			name:  "Drop",
			fault: func(*story) fault.Fault { return fault.Fault{Drop: true} },
			want:  []string{"on", "caller"}, sendErr: syscall.ECONNRESET,
		}, {
			name:  "Rewrite",
			fault: func(*story) fault.Fault { return fault.Fault{Rewrite: fault.SetQuery("fieldManager", "x")} },
			want:  []string{"on", "server fieldManager=x", "done 201", "caller"}, status: 201, body: createdBody,
		}, {
			name:  "Answer",
			fault: func(*story) fault.Fault { return fault.Fault{Response: teapot} },
			want:  []string{"on", "caller"}, status: 418,
			body: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no coffee","reason":"Teapot","code":418}`,
		}, {
			name:  "Answer and Commit",
			fault: func(*story) fault.Fault { return fault.Fault{Response: teapot, Commit: true} },
			want:  []string{"on", "server", "done 201", "caller"}, status: 418,
			body: `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"no coffee","reason":"Teapot","code":418}`,
		}, {
			name:  "After",
			fault: func(s *story) fault.Fault { return fault.Fault{After: func() { s.add("after") }} },
			want:  []string{"on", "server", "done 201", "after", "caller"}, status: 201, body: createdBody,
		}, {
			name: "Hold",
			fault: func(s *story) fault.Fault {
				return fault.Fault{After: func() { s.add("after") }, Hold: while}
			},
			want: []string{"on", "server", "done 201", "after", "caller"}, status: 201, body: createdBody, atLeast: while,
		}, {
			name:  "Lose",
			fault: func(*story) fault.Fault { return fault.Fault{Lose: true} },
			want:  []string{"on", "server", "done 201", "caller"}, sendErr: syscall.ECONNRESET,
		}, {
			name:  "Drip",
			fault: func(*story) fault.Fault { return fault.Fault{SlowBody: while} },
			want:  []string{"on", "server", "done 201", "caller"}, status: 201, body: createdBody, atLeast: while,
		}, {
			name:  "Trunc",
			fault: func(*story) fault.Fault { return fault.Fault{Truncate: true} },
			want:  []string{"on", "server", "done 201", "caller"}, status: 201, body: createdBody[:len(createdBody)/2], readErr: io.ErrUnexpectedEOF,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := new(story)
			cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.ProtoMajor != 2 || r.Header.Get("Authorization") != "Bearer "+canary {
					t.Errorf("the server got %s with %q", r.Proto, r.Header.Get("Authorization"))
				}
				s.add(strings.TrimSpace("server " + r.URL.RawQuery))
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, createdBody)
			})
			i := incarnate(t, cfg, func(*fault.Op) fault.Fault {
				s.add("on")
				return test.fault(s)
			}, func(_ *fault.Op, status int, body []byte) {
				s.add(fmt.Sprint("done ", status))
				if string(body) != createdBody {
					t.Errorf("done got %q", body)
				}
			})
			began := time.Now()
			r := request(t, i, http.MethodPost, configMaps, `{"metadata":{"name":"made"}}`)
			sent := r.URL.String()
			response, err := client(t, i).Do(r)
			safe(t, err)
			if !errors.Is(err, test.sendErr) {
				t.Fatalf("the caller got the error %v, want %v", err, test.sendErr)
			}
			if err == nil {
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				safe(t, err)
				if !errors.Is(err, test.readErr) {
					t.Errorf("the caller read with the error %v, want %v", err, test.readErr)
				}
				if response.StatusCode != test.status || string(body) != test.body {
					t.Errorf("the caller got %d %q, want %d %q", response.StatusCode, body, test.status, test.body)
				}
			}
			if took := time.Since(began); took < test.atLeast {
				t.Errorf("it took %v, want %v", took, test.atLeast)
			}
			if r.URL.String() != sent {
				t.Errorf("the caller's request is now to %s", r.URL)
			}
			s.add("caller")
			s.want(t, test.want...)
		})
	}
}

// TestRoundTripper holds that the caller's request stays as it is, as the
// interface demands.
func TestRoundTripper(t *testing.T) {
	t.Parallel()
	i := incarnate(t, serve(t, func(http.ResponseWriter, *http.Request) {}), always(fault.Fault{Rewrite: fault.SetQuery("a", "b")}), nil)
	r := request(t, i, http.MethodPut, configMaps+"/a?c=d", "body")
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
	was := r.Clone(r.Context())
	response, err := i.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if r.URL.String() != was.URL.String() || !cmp.Equal(r.Header, was.Header) {
		t.Errorf("the request is now %s %v, and was %s %v", r.URL, r.Header, was.URL, was.Header)
	}
}

// TestFaultOfWatch is what happens to the answer of a watch: it is established,
// or not.
func TestFaultOfWatch(t *testing.T) {
	tests := []struct {
		name    string
		fault   fault.Fault
		reached bool
		err     error
		status  int
	}{
		{name: "nothing", reached: true, status: 200},
		{name: "Drop", fault: fault.Fault{Drop: true}, err: syscall.ECONNRESET},
		{name: "Lose", fault: fault.Fault{Lose: true}, reached: true, err: syscall.ECONNRESET},
		{name: "Answer", fault: fault.Fault{Response: &fault.Response{Code: 410}}, status: 410},
		{name: "Answer and Commit", fault: fault.Fault{Response: &fault.Response{Code: 503}, Commit: true}, reached: true, status: 503},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var reached atomic.Bool
			ended := make(chan struct{})
			cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				defer close(ended)
				reached.Store(true)
				w.Header().Set("Content-Type", "application/json")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			})
			i := incarnate(t, cfg, always(test.fault), nil)
			response, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps+"?watch=true", ""))
			safe(t, err)
			if !errors.Is(err, test.err) {
				t.Fatalf("the caller got the error %v, want %v", err, test.err)
			}
			if err == nil {
				if response.StatusCode != test.status {
					t.Errorf("the caller got %d, want %d", response.StatusCode, test.status)
				}
				_ = response.Body.Close()
			}
			if n := i.Streams("configmaps"); n != 0 {
				t.Errorf("%d watches are established, although the caller has none", n)
			}
			if reached.Load() != test.reached {
				t.Errorf("the server got the request: %t", reached.Load())
			}
			if test.reached {
				<-ended // the server's side goes with the caller's
			}
		})
	}
}

// TestResponse holds that client-go understands the answers as those of a server.
//
// Proves N5.
func TestResponse(t *testing.T) {
	tests := []struct {
		answer fault.Response
		is     func(error) bool
		delay  int
	}{
		{fault.Response{Code: 409, Reason: metav1.StatusReasonConflict}, apierrors.IsConflict, 0},
		{fault.Response{Code: 403, Reason: metav1.StatusReasonForbidden}, apierrors.IsForbidden, 0},
		{fault.Response{Code: 422, Reason: metav1.StatusReasonInvalid}, apierrors.IsInvalid, 0},
		{fault.Response{Code: 429, Reason: metav1.StatusReasonTooManyRequests, RetryAfter: 7}, apierrors.IsTooManyRequests, 7},
		{fault.Response{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, RetryAfter: 3}, apierrors.IsServiceUnavailable, 3},
		{fault.Response{Code: 500, Reason: metav1.StatusReasonInternalError}, apierrors.IsInternalError, 0},
		{fault.Response{Code: 504, Reason: metav1.StatusReasonTimeout}, apierrors.IsTimeout, 0},
		{fault.Response{Code: 410, Reason: metav1.StatusReasonExpired}, apierrors.IsResourceExpired, 0},
		{fault.Response{Code: 404, Reason: metav1.StatusReasonNotFound}, apierrors.IsNotFound, 0},
	}
	cfg := serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the server got %s", r.URL) })
	for _, test := range tests {
		t.Run(fmt.Sprint(test.answer.Code), func(t *testing.T) {
			t.Parallel()
			test.answer.Message = "as the plan says"
			i := incarnate(t, cfg, always(fault.Fault{Response: &test.answer}), nil)
			err := clientset(t, i).CoreV1().RESTClient().Put().Resource("configmaps").Namespace("ns").Name("a").
				Body(&corev1.ConfigMap{}).MaxRetries(0).Do(t.Context()).Error()
			safe(t, err)
			if !test.is(err) || !strings.Contains(err.Error(), "as the plan says") {
				t.Errorf("client-go reads %#v", err)
			}
			if delay, ok := apierrors.SuggestsClientDelay(err); delay != test.delay || ok != (test.delay > 0) {
				t.Errorf("client-go reads a delay of %d (%t), want %d", delay, ok, test.delay)
			}
			response, err2 := client(t, i).Do(request(t, i, http.MethodGet, configMaps, ""))
			if err2 != nil {
				t.Fatal(err2)
			}
			_ = response.Body.Close()
			if got, want := response.Header.Get("Retry-After"), strings.Trim(fmt.Sprint(test.delay), "0"); got != want {
				t.Errorf("the header Retry-After is %q, want %q", got, want)
			}
			if status := apierrors.APIStatus(nil); !errors.As(err, &status) || int(status.Status().Code) != test.answer.Code {
				t.Errorf("client-go reads %#v", err)
			}
		})
	}
}

// TestRetriesOfTheClient holds that a reset connection is one that client-go
// knows: a read is repeated by itself, and a write is not.
//
// Proves N5.
func TestRetriesOfTheClient(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	cfg := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, createdBody)
	})
	var asked atomic.Int32
	i := incarnate(t, cfg, func(op *fault.Op) fault.Fault {
		switch {
		case op.Verb == "create":
			return fault.Fault{Lose: true}
		case asked.Add(1) == 1:
			return fault.Fault{Drop: true}
		}
		return fault.Fault{}
	}, nil)
	c := clientset(t, i).CoreV1().ConfigMaps("ns")
	if _, err := c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the create whose answer was lost: %v", err)
	}
	if n := served.Load(); n != 1 {
		t.Errorf("the server got the create %d times", n)
	}
	if _, err := c.Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Errorf("the get that was dropped once: %v", err)
	}
	if got, want := [2]int32{asked.Load(), served.Load()}, [2]int32{2, 2}; got != want {
		t.Errorf("gets tried and requests served: %v, want %v", got, want)
	}
}

// events is a handler that sends what is put into a channel as a watch's events,
// and answers other requests at once.
func events(lines <-chan string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			_, _ = io.WriteString(w, createdBody)
			return
		}
		w.(http.Flusher).Flush()
		for {
			select {
			case line, ok := <-lines:
				if !ok {
					return
				}
				_, _ = io.WriteString(w, line)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
}

func added(n int) string {
	return fmt.Sprintf(`{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"cm-%d","resourceVersion":"%d"}}}`+"\n", n, n)
}

// open establishes a watch.
func open(t testing.TB, i *fault.Incarnation, resource string) *bufio.Reader {
	t.Helper()
	response, err := client(t, i).Do(request(t, i, http.MethodGet, "/api/v1/namespaces/ns/"+resource+"?watch=true", ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return bufio.NewReader(response.Body)
}

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

// meanwhile gives what must not happen the time to happen, as long as some other
// requests take.
func meanwhile(t testing.TB) {
	t.Helper()
	i := incarnate(t, serve(t, func(http.ResponseWriter, *http.Request) {}), nil, nil)
	for range 10 {
		if _, _, err := send(t, i, http.MethodGet, configMaps, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFreeze holds that a frozen incarnation neither sends nor receives.
//
// Proves N4.
func TestFreeze(t *testing.T) {
	var thawed atomic.Bool
	inTime := func(t testing.TB, what string) {
		t.Helper()
		if !thawed.Load() {
			t.Errorf("%s before thaw", what)
		}
	}
	t.Run("sends nothing", func(t *testing.T) {
		thawed.Store(false)
		cfg := serve(t, func(http.ResponseWriter, *http.Request) { inTime(t, "the server got a request") })
		i := incarnate(t, cfg, func(*fault.Op) fault.Fault { inTime(t, "on was asked"); return fault.Fault{} }, nil)
		thaw, other := i.Freeze(), i.Freeze()
		result := make(chan error)
		go func() {
			_, _, err := send(t, i, http.MethodPost, configMaps, `{}`)
			inTime(t, "the caller got its answer")
			result <- err
		}()
		other()
		other() // counts once
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("does not send what it was about to", func(t *testing.T) {
		thawed.Store(false)
		cfg := serve(t, func(http.ResponseWriter, *http.Request) { inTime(t, "the server got a request") })
		var i *fault.Incarnation
		thaws := make(chan func(), 1)
		i = incarnate(t, cfg, func(*fault.Op) fault.Fault {
			return fault.Fault{Before: func() { thaws <- i.Freeze() }}
		}, nil)
		result := make(chan error)
		go func() {
			_, _, err := send(t, i, http.MethodPost, configMaps, `{}`)
			result <- err
		}()
		thaw := <-thaws
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("receives no answer", func(t *testing.T) {
		thawed.Store(false)
		arrived, answer := make(chan struct{}), make(chan struct{})
		cfg := serve(t, func(http.ResponseWriter, *http.Request) {
			arrived <- struct{}{}
			<-answer
		})
		answered := make(chan struct{})
		i := incarnate(t, cfg, nil, func(*fault.Op, int, []byte) { close(answered) })
		result := make(chan error)
		go func() {
			_, _, err := send(t, i, http.MethodPost, configMaps, `{}`)
			inTime(t, "the caller got its answer")
			result <- err
		}()
		<-arrived
		thaw := i.Freeze()
		close(answer)
		<-answered // it is here, and the caller does not see it
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("does not see that a request failed", func(t *testing.T) {
		thawed.Store(false)
		arrived, aborted := make(chan struct{}), make(chan struct{})
		cfg := serve(t, func(http.ResponseWriter, *http.Request) {
			arrived <- struct{}{}
			<-aborted
			panic(http.ErrAbortHandler)
		})
		i := incarnate(t, cfg, nil, nil)
		result := make(chan error)
		go func() {
			_, _, err := send(t, i, http.MethodPost, configMaps, `{}`)
			inTime(t, "the caller got its error")
			result <- err
		}()
		<-arrived
		thaw := i.Freeze()
		close(aborted)
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err == nil {
			t.Error("a request that was aborted has no error")
		}
	})
	t.Run("establishes no watch", func(t *testing.T) {
		thawed.Store(false)
		cfg := serve(t, events(nil))
		var i *fault.Incarnation
		thaws := make(chan func(), 1)
		i = incarnate(t, cfg, nil, func(*fault.Op, int, []byte) { thaws <- i.Freeze() })
		result := make(chan error)
		go func() {
			response, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps+"?watch=true", ""))
			inTime(t, "the caller got its watch")
			if err == nil {
				_ = response.Body.Close()
			}
			result <- err
		}()
		thaw := <-thaws
		meanwhile(t)
		thawed.Store(true)
		thaw()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("delivers no event and no end", func(t *testing.T) {
		for _, how := range []string{"event", "cut", "gone"} {
			thawed.Store(false)
			lines := make(chan string)
			i := incarnate(t, serve(t, events(lines)), nil, nil)
			body := open(t, i, "configmaps")
			lines <- added(1)
			if line, err := body.ReadString('\n'); line != added(1) {
				t.Fatalf("read %q %v", line, err)
			}
			thaw := i.Freeze()
			result := make(chan string)
			go func() {
				line, err := body.ReadString('\n')
				inTime(t, fmt.Sprintf("the caller read %q %v", line, err))
				result <- line
			}()
			lines <- added(2)
			if how != "event" {
				i.Cut("configmaps", how == "gone")
			}
			meanwhile(t)
			thawed.Store(true)
			thaw()
			if line, want := <-result, map[string]string{"event": added(2), "cut": "", "gone": gone410}[how]; line != want {
				t.Errorf("%s: read %q, want %q", how, line, want)
			}
		}
	})
	t.Run("ends with the context", func(t *testing.T) {
		i := incarnate(t, serve(t, events(nil)), nil, nil)
		defer i.Freeze()()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps, "").WithContext(ctx)); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// TestHold holds that what a held watch is sent is late, and not lost; that other
// resources and requests go on; and that a held watch can be established.
//
// Proves N4.
func TestHold(t *testing.T) {
	for _, held := range []string{"configmaps", ""} {
		t.Run("held "+held, func(t *testing.T) {
			t.Parallel()
			lines, others := make(chan string), make(chan string)
			cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "secrets") {
					events(others)(w, r)
				} else {
					events(lines)(w, r)
				}
			})
			i := incarnate(t, cfg, nil, nil)
			var released atomic.Bool
			release, again := i.Hold(held), i.Hold(held)
			body := open(t, i, "configmaps") // established all the same
			secrets := open(t, i, "secrets")
			if got, want := i.Watches(), map[string]int{"configmaps": 1, "secrets": 1}; !cmp.Equal(got, want) {
				t.Errorf("established are %v, want %v", got, want)
			}
			result := make(chan string)
			go func() {
				var all strings.Builder
				for range 3 {
					line, err := body.ReadString('\n')
					if !released.Load() {
						t.Errorf("delivered %q %v before release", line, err)
					}
					all.WriteString(line)
				}
				result <- all.String()
			}()
			for n := range 3 {
				lines <- added(n)
			}
			again()
			again() // counts once
			if status, _, err := send(t, i, http.MethodGet, configMaps+"/a", ""); status != http.StatusOK {
				t.Errorf("a get: %d %v", status, err)
			}
			if held != "" {
				others <- added(7)
				if line, err := secrets.ReadString('\n'); line != added(7) {
					t.Errorf("another resource: %q %v", line, err)
				}
			}
			meanwhile(t)
			released.Store(true)
			release()
			if got, want := <-result, added(0)+added(1)+added(2); got != want {
				t.Errorf("delivered %q, want %q", got, want)
			}
		})
	}
	t.Run("ends with the context", func(t *testing.T) {
		t.Parallel()
		lines := make(chan string)
		i := incarnate(t, serve(t, events(lines)), nil, nil)
		ctx, cancel := context.WithCancel(t.Context())
		response, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps+"?watch=true", "").WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		lines <- added(1) + added(2) // one piece, of which the first half is read
		if _, err := io.ReadFull(response.Body, make([]byte, len(added(1)))); err != nil {
			t.Fatal(err)
		}
		defer i.Hold("configmaps")()
		cancel()
		if b, err := io.ReadAll(response.Body); len(b) > 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("read %q %v", b, err)
		}
	})
}

// TestCut holds what client-go sees of a watch that is cut.
//
// Proves N3.
func TestCut(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone %t", gone), func(t *testing.T) {
			t.Parallel()
			lines, others := make(chan string), make(chan string)
			cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "secrets") {
					events(others)(w, r)
				} else {
					events(lines)(w, r)
				}
			})
			i := incarnate(t, cfg, nil, nil)
			w, err := clientset(t, i).CoreV1().ConfigMaps("ns").Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			secrets := open(t, i, "secrets")
			lines <- added(1)
			if event := <-w.ResultChan(); event.Type != watch.Added {
				t.Fatalf("got %v", event)
			}
			release := i.Hold("configmaps")
			lines <- added(2) // received by the process's kernel, so to speak, and not by the process
			i.Cut("configmaps", gone)
			release()
			var rest []watch.Event
			for event := range w.ResultChan() {
				rest = append(rest, event)
			}
			switch {
			case gone:
				if len(rest) != 1 || rest[0].Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(rest[0].Object)) {
					t.Errorf("got %v, want one event with 410 Expired", rest)
				}
			case len(rest) > 0:
				t.Errorf("got %v, want no event", rest)
			}
			if n := i.Streams("configmaps"); n != 0 {
				t.Errorf("%d watches are established", n)
			}
			others <- added(3)
			if line, err := secrets.ReadString('\n'); line != added(3) {
				t.Errorf("another resource: %q %v", line, err)
			}
			i.Cut("", false)
			if line, err := secrets.ReadString('\n'); line != "" || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("after all were cut: %q %v", line, err)
			}
		})
	}
	t.Run("what was received and not read", func(t *testing.T) {
		t.Parallel()
		for name, end := range map[string]func(i *fault.Incarnation){
			"cut":  func(i *fault.Incarnation) { i.Cut("configmaps", false) },
			"gone": func(i *fault.Incarnation) { i.Cut("configmaps", true) },
			"kill": func(i *fault.Incarnation) { i.Kill() },
		} {
			for _, held := range []bool{false, true} {
				lines := make(chan string)
				i := incarnate(t, serve(t, events(lines)), nil, nil)
				response, err := client(t, i).Do(request(t, i, http.MethodGet, configMaps+"?watch=true", ""))
				if err != nil {
					t.Fatal(err)
				}
				lines <- added(1) + added(2) // one piece, of which the first half is read
				if _, err := io.ReadFull(response.Body, make([]byte, len(added(1)))); err != nil {
					t.Fatal(err)
				}
				if held {
					defer i.Hold("configmaps")()
				}
				end(i)
				b, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if name == "gone" != (string(b) == gone410) || name != "gone" && (len(b) > 0 || err == nil) {
					t.Errorf("%s, held %t: read %q %v", name, held, b, err)
				}
			}
		}
	})
	t.Run("within an event", func(t *testing.T) {
		t.Parallel()
		lines := make(chan string)
		i := incarnate(t, serve(t, events(lines)), nil, nil)
		body := open(t, i, "configmaps")
		lines <- `{"type":`
		if _, err := body.ReadByte(); err != nil {
			t.Fatal(err)
		}
		i.Cut("configmaps", true)
		if b, err := io.ReadAll(body); string(b) != `"type":` || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("read %q %v: the last event would be glued to the one that was begun", b, err)
		}
	})
}

// TestIsolation holds that incarnations of one configuration have nothing in
// common.
//
// Proves N6.
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
	if first.Streams("configmaps") != 0 || second.Streams("configmaps") != 1 {
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
// Proves N7.
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

type wrapped func(*http.Request) (*http.Response, error)

func (f wrapped) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestCall is every field of Fault that applies to a call.
func TestCall(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	const while = 30 * time.Millisecond
	tests := []struct {
		name    string
		fault   fault.Fault
		made    bool
		err     error
		atLeast time.Duration
	}{
		{"nothing", fault.Fault{}, true, failed, 0},
		{"Delay", fault.Fault{Delay: while}, true, failed, while},
		{"Drop", fault.Fault{Drop: true}, false, syscall.ECONNRESET, 0},
		{"Hold", fault.Fault{Hold: while}, true, failed, while},
		{"Lose", fault.Fault{Lose: true}, true, syscall.ECONNRESET, 0},
	}
	cfg := serve(t, func(http.ResponseWriter, *http.Request) {})
	for _, test := range tests {
		i := incarnate(t, cfg, nil, nil)
		var order []string
		test.fault.Before = func() { order = append(order, "before") }
		test.fault.After = func() { order = append(order, "after") }
		began := time.Now()
		err := test.fault.Call(t.Context(), i, func(context.Context) error {
			order = append(order, "call")
			return failed
		})
		if !errors.Is(err, test.err) {
			t.Errorf("%s: the error is %v, want %v", test.name, err, test.err)
		}
		want := []string{"before"}
		if test.made {
			want = []string{"before", "call", "after"}
		}
		if !slices.Equal(order, want) {
			t.Errorf("%s: %v, want %v", test.name, order, want)
		}
		if took := time.Since(began); took < test.atLeast {
			t.Errorf("%s: took %v", test.name, took)
		}
	}
	t.Run("killed after it", func(t *testing.T) {
		i := incarnate(t, cfg, nil, nil)
		made := false
		err := fault.Fault{After: i.Kill}.Call(t.Context(), i, func(context.Context) error { made = true; return nil })
		if !made || !errors.Is(err, fault.ErrKilled) {
			t.Errorf("made %t, error %v", made, err)
		}
	})
	t.Run("killed before it", func(t *testing.T) {
		i := incarnate(t, cfg, nil, nil)
		err := fault.Fault{Before: i.Kill}.Call(t.Context(), i, func(context.Context) error { t.Error("made"); return nil })
		if !errors.Is(err, fault.ErrKilled) {
			t.Error(err)
		}
	})
}
