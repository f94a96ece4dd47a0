package fault_test

import (
	"bufio"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

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

type wrapped func(*http.Request) (*http.Response, error)

func (f wrapped) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
