package debug_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

type (
	key        = types.NamespacedName
	controller = reconcile.Controller[key]
	result     = reconcile.Result
	addOptions = controllerkit.AddOptions
)

// get returns the response to a request for the page.
func get(t testing.TB, h http.Handler, query url.Values) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/controllers?"+query.Encode(), http.NoBody))
	return w
}

// getJSON returns the page as JSON.
func getJSON(t testing.TB, h http.Handler, search string) (s pageState) {
	t.Helper()
	w := get(t, h, url.Values{"format": {"json"}, "key": {search}})
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || w.Code != http.StatusOK {
		t.Fatalf("status %d, %v: %.200s", w.Code, err, w.Body)
	}
	return s
}

// pageState has the fields of the JSON that tests use.
type pageState struct {
	Search      string
	Controllers []struct {
		Name   string
		Counts []struct {
			State       string
			Keys, Shown int
		}
		Keys []struct {
			Key, State, Why string
			Attempts        int
			Triggers        []string
			Last            *struct{ Result string }
		}
		Blocked  []struct{ Key, Text string }
		Failures []struct{ Key, Result string }
		Results  []struct{ Key, Result string }
	}
	Story []struct {
		Controller, Verdict string
		Lines               []struct{ Kind, Text, Took string }
	}
}

// lines returns the story of the first controller.
func (s pageState) lines() (lines []string) {
	if len(s.Story) == 0 {
		return nil
	}
	for _, l := range s.Story[0].Lines {
		lines = append(lines, strings.TrimRight(l.Kind+": "+l.Text+" "+l.Took, " "))
	}
	return lines
}

// gate is a Gate that is closed for some keys, with a reason.
type gate struct {
	mu    sync.Mutex
	why   map[key]string // of closed keys
	wakes map[key]func()
}

func (g *gate) Begin(ctx context.Context, _ key) context.Context { return ctx }
func (g *gate) End(key)                                          {}

func (g *gate) Ready(k key, wake func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why[k] == "" {
		return true
	}
	g.wakes[k] = wake
	return false
}

func (g *gate) EnsureReady(k key) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why[k] == "" {
		return nil
	}
	return errors.New(g.why[k])
}

func (g *gate) open(k key) {
	g.mu.Lock()
	wake := g.wakes[k]
	delete(g.why, k)
	g.mu.Unlock()
	if wake != nil {
		wake()
	}
}

func newGate() *gate { return &gate{why: map[key]string{}, wakes: map[key]func(){}} }

// server is a transport that responds with a status and a body.
type server func(*http.Request) (status int, body string)

func (s server) RoundTrip(req *http.Request) (*http.Response, error) {
	status, body := s(req)
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req,
	}, nil
}

// send sends a write with the context of a call.
func send(ctx context.Context, rt http.RoundTripper, method, path string) {
	req, err := http.NewRequestWithContext(ctx, method, "http://server"+path, http.NoBody)
	if err != nil {
		panic(err)
	}
	if resp, err := rt.RoundTrip(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// assembled is a page with one controller of the real pieces.
type assembled struct {
	page   *debug.Page
	c      *debug.Controller
	queue  *queue.Queue[key]
	loop   *controller
	gate   *gate
	source controllerkit.EventAdder[types.NamespacedName]
}

func assemble(fn reconcile.Func[key]) *assembled {
	a := &assembled{page: &debug.Page{Title: "shop"}, gate: newGate()}
	a.c = a.page.Controller("widgets")
	a.queue = queue.New(queue.Config[key]{Name: "widgets"})
	a.loop = &controller{Name: "widgets", Queue: a.queue, Reconcile: fn, MaxAttempts: 3}
	a.loop.Hook, a.loop.Gate = a.c.Hook(nil), a.c.Gate(a.gate)
	a.c.Queue, a.c.Loop = a.queue, a.loop
	a.source = a.c.Source("widgets", a.loop.Source("widgets"))
	return a
}

// run runs the loop until the test ends or stop is called.
func (a *assembled) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.loop.Run(ctx) }()
	return func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run() = %v", err)
			}
		case <-time.After(time.Hour): // of a fake clock
			t.Error("Run does not return")
		}
		a.queue.ShutDown()
	}
}

// event is an event without objects.
func event(kind string) controllerkit.Event { return controllerkit.Event{Kind: kind} }
