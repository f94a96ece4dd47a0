package debug_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/internal/calls"
)

// hostile are names that attack a page, its source or its size.
var hostile = []string{
	"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "javascript:alert(1)", "a\nb\r\n\x00\x1b[31m", "\xff\xfe",
	"\u202egnp.exe", "{{.Title}}", "</style><script>alert(1)</script>", "'; DROP TABLE x; --", strings.Repeat("<", 1<<20), strings.Repeat("\xff", 1<<20),
}

// TestHostileNames: names of keys, controllers, informers, Leases, sources, events, finalizers,
// steps, groups, objects and reasons cannot run a script or break a line, and the page stays
// small.
//
// It proves DB2 and DB3.
func TestHostileNames(t *testing.T) {
	for _, name := range hostile {
		k := key{Namespace: name, Name: name}
		page := &debug.Page{
			Title:     name,
			Leader:    func() debug.Leader { return debug.Leader{Lease: name} },
			Informers: func() []debug.Informer { return []debug.Informer{{Name: name}} },
		}
		c := page.Controller(name)
		c.Queue, c.Loop = fakeQueue{name}, fakeLoop{name}
		g := newGate()
		g.why[k] = name
		if c.Gate(g).Ready(k, func() {}) {
			t.Fatal("the gate is open")
		}
		g.open(k)
		c.Source(name, &adder{}).AddEvent(event(name), addOptions{}, k)
		ctx, end := c.Hook(nil)(context.WithValue(t.Context(), calls.Triggers{}, []string{name, name}), k)
		rt := page.Transport(server(func(*http.Request) (int, string) {
			return 200, fmt.Sprintf(`{"metadata":{"resourceVersion":%q}}`, strings.ToValidUTF8(name, "?"))
		}))
		send(ctx, rt, http.MethodPatch, "/api/v1/namespaces/"+url.PathEscape(name)+"/pods/"+url.PathEscape(name))
		calls.NoteCleanup(ctx, name, []string{name, name}, time.Now())
		end("error", nil)

		search := name
		if len(search) > 400 {
			search = search[:400]
		}
		for _, format := range []string{"html", "json"} {
			body := get(t, page, url.Values{"format": {format}, "key": {search + "/" + search}}).Body.String()
			scripts, most := 1, 256<<10
			if format == "json" {
				scripts = 0
			}
			if n := strings.Count(body, "<script"); n != scripts || strings.Contains(body, "<img") || strings.Contains(body, `href="javascript`) {
				t.Errorf("%.20q as %s: %d scripts, or other markup:\n%.300s", name, format, n, body)
			}
			if len(body) > most {
				t.Errorf("%.20q as %s: the page has %d bytes, want at most %d", name, format, len(body), most)
			}
			if !utf8.ValidString(body) || strings.ContainsAny(body, "\x00\x1b\r\u202e") || strings.Contains(body, "a\nb") {
				t.Errorf("%.20q as %s: the page has unprintable characters", name, format)
			}
		}
	}
}

// adder drops the keys.
type adder struct{}

func (*adder) Add(key)                                          {}
func (*adder) AddEvent(controllerkit.Event, addOptions, ...key) {}

// fakeQueue and fakeLoop have keys of a hostile name. A real queue cuts names; these do not.
type (
	fakeQueue struct{ name string }
	fakeLoop  struct{ name string }
)

func (q fakeQueue) Snapshot() controllerkit.QueueState {
	return controllerkit.QueueState{Name: q.name, Ready: 1, Keys: []controllerkit.QueueKey{{Key: q.name, State: "ready", Group: q.name}}}
}
func (q fakeQueue) SnapshotOf(...key) controllerkit.QueueState { return q.Snapshot() }

func (l fakeLoop) Snapshot() controllerkit.LoopState {
	return controllerkit.LoopState{Name: l.name, Gated: 1, Keys: []controllerkit.LoopKey{{Key: l.name, State: "gated", Reason: l.name, Triggers: []string{l.name}}}}
}
func (l fakeLoop) SnapshotOf(...key) controllerkit.LoopState { return l.Snapshot() }

// TestMillionKeys: with 1,000,000 keys in the queue and in the history the page has as many
// bytes and the read as many allocations as with 1000.
//
// It proves DB3.
func TestMillionKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for 2s")
	}
	measure := func(n int) (bytes int, allocs float64) {
		a := assemble(nil)
		defer a.queue.ShutDown()
		hook := a.c.Hook(nil)
		keys := make([]key, n)
		for i := range keys {
			keys[i] = key{Namespace: "default", Name: fmt.Sprintf("object-%07d", i)}
			_, end := hook(t.Context(), keys[i])
			end("error", nil)
		}
		a.source.AddEvent(event("list"), addOptions{}, keys[:n/2]...)
		a.source.AddEvent(event("list"), addOptions{After: time.Hour}, keys[n/2:]...)
		allocs = testing.AllocsPerRun(5, func() { bytes = get(t, a.page, nil).Body.Len() })
		if s := getJSON(t, a.page, "").Controllers[0]; s.Counts[1].Keys != n/2 || s.Counts[1].Shown != 50 || s.Counts[2].Keys != n-n/2 {
			t.Errorf("%d keys: counts %+v", n, s.Counts)
		}
		return bytes, allocs
	}
	few, fewAllocs := measure(1000)
	n := 1_000_000
	if raceEnabled {
		n = 100_000 // make test runs this test without the race detector, too
	}
	many, manyAllocs := measure(n)
	t.Logf("1000 keys: %d bytes, %.0f allocations; %d keys: %d bytes, %.0f allocations", few, fewAllocs, n, many, manyAllocs)
	if many > few*11/10 || manyAllocs > fewAllocs*1.1+100 {
		t.Errorf("1000 keys give %d bytes and %.0f allocations, 1,000,000 keys %d and %.0f", few, fewAllocs, many, manyAllocs)
	}
	if many > 256<<10 {
		t.Errorf("the page has %d bytes, want at most 256 KiB", many)
	}
}

// blockedWriter blocks in its first Write until it is released.
type blockedWriter struct {
	httptest.ResponseRecorder
	once             sync.Once
	writing, release chan struct{}
}

func (w *blockedWriter) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.writing); <-w.release })
	return len(b), nil
}

// TestSlowReader: while a client does not read its response, events, calls, waits and other
// readers go on.
func TestSlowReader(t *testing.T) {
	a := full(t)
	for _, format := range []string{"html", "json"} {
		w := &blockedWriter{writing: make(chan struct{}), release: make(chan struct{})}
		w.HeaderMap = http.Header{} //nolint:staticcheck // the zero recorder has none
		done := make(chan struct{})
		go func() {
			a.page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?format="+format, http.NoBody))
			close(done)
		}()
		<-w.writing
		k := key{Name: "other-" + format}
		a.source.AddEvent(event("update"), addOptions{After: time.Hour}, k)
		if got := getJSON(t, a.page, k.Name).lines(); len(got) != 1 {
			t.Errorf("story while another client reads: %q", got)
		}
		close(w.release)
		<-done
	}
}

// TestConcurrent: pages are read while everything is recorded.
func TestConcurrent(t *testing.T) {
	page := &debug.Page{}
	c := page.Controller("widgets")
	c.Queue, c.Loop = fakeQueue{"a"}, fakeLoop{"a"}
	g := newGate()
	hook, gated, source := c.Hook(nil), c.Gate(g), c.Source("widgets", &adder{})
	rt := page.Transport(server(func(*http.Request) (int, string) { return 200, `{"metadata":{"resourceVersion":"1"}}` }))
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 100 {
				k := key{Name: fmt.Sprint(worker, "-", i%10)}
				source.AddEvent(event("update"), addOptions{})
				source.Add(k)
				g.mu.Lock()
				g.why[k] = "behind"
				g.mu.Unlock()
				gated.Ready(k, func() {})
				g.open(k)
				ctx, end := hook(t.Context(), k)
				send(ctx, rt, http.MethodPatch, "/api/v1/namespaces/a/pods/b")
				calls.NoteCleanup(ctx, "example.com/dns", nil, time.Now())
				end("error", nil)
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for i := range 10 {
				if code := get(t, page, url.Values{"key": {fmt.Sprint("0-", i%10)}}).Code; code != http.StatusOK {
					t.Errorf("status %d", code)
				}
				page.Controller("late")
			}
		})
	}
	wg.Wait()
}

// TestManyControllers: the page bounds the number of controllers, informers and blocked keys.
//
// It proves DB3.
func TestManyControllers(t *testing.T) {
	page := &debug.Page{Informers: func() []debug.Informer { return make([]debug.Informer, 1000) }}
	for i := range 1000 {
		page.Controller(fmt.Sprint("c", i))
	}
	c := page.Controller("last")
	for i := range 3000 {
		ctx, end := c.Hook(nil)(t.Context(), key{Name: fmt.Sprint(i)})
		calls.NoteCleanup(ctx, "example.com/dns", nil, time.Now())
		end("error", nil)
	}
	s := getJSON(t, page, "2999")
	if len(s.Controllers) != 50 || len(s.Story) != 1 {
		t.Errorf("%d controllers, %d stories", len(s.Controllers), len(s.Story))
	}
	if html := get(t, page, nil).Body.String(); !strings.Contains(html, "200 of 1000 informers are shown. 50 of 1001 controllers are shown.") {
		t.Errorf("the page does not say what it leaves out: %.1000s", html)
	}
	other := &debug.Page{}
	blocked := other.Controller("blocked")
	for i := range 3000 {
		ctx, end := blocked.Hook(nil)(t.Context(), key{Name: fmt.Sprint(i)})
		calls.NoteCleanup(ctx, "example.com/dns", nil, time.Now())
		end("error", nil)
	}
	got := getJSON(t, other, "").Controllers[0]
	if n := len(got.Counts); len(got.Blocked) != 50 || n == 0 || got.Counts[n-1].Keys != 1000 {
		t.Errorf("%d blocked are shown, counts %+v, want 50 of 1000", len(got.Blocked), got.Counts)
	}
}
