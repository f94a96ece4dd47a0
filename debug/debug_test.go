package debug_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/reconcile"
)

var web = key{Namespace: "default", Name: "web"}

// TestStory: the whole story of a key, from its event to the delay after a conflict, in order
// and with causes. The text of the error is not in it.
//
// It proves DB1 and DB4.
func TestStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a *assembled
		rt := server(func(req *http.Request) (int, string) {
			time.Sleep(20 * time.Millisecond)
			switch req.Method {
			case http.MethodPatch:
				return http.StatusOK, `{"metadata":{"uid":"u","resourceVersion":"1234","annotations":{"a":"confidential"}},"data":{"password":"confidential"}}`
			case http.MethodPost:
				return http.StatusForbidden, `{"kind":"Status","message":"confidential"}`
			}
			return 0, ""
		})
		a = assemble(func(ctx context.Context, _ key) (result, error) {
			time.Sleep(time.Second)
			transport := a.page.Transport(rt)
			send(ctx, transport, http.MethodPatch, "/apis/apps/v1/namespaces/default/deployments/web")
			send(ctx, transport, http.MethodPost, "/api/v1/namespaces/default/configmaps")
			send(ctx, transport, http.MethodDelete, "/api/v1/namespaces/default/services/web")
			send(ctx, transport, http.MethodGet, "/api/v1/namespaces/default/services/web")
			send(ctx, transport, http.MethodPatch, "/api/v1/namespaces/default/services/web?dryRun=All")
			send(t.Context(), transport, http.MethodPatch, "/api/v1/namespaces/default/services/other")
			calls.NoteCleanup(ctx, "example.com/dns", []string{"record", "zone"}, time.Now().Add(-time.Hour))
			return result{}, apierrors.NewConflict(schema.GroupResource{Resource: "widgets"}, "web", errors.New("confidential"))
		})
		a.gate.why[web] = "the cache of widgets is at version 7"
		stop := a.run(t)
		a.source.AddEvent(event("update"), addOptions{}, web)
		time.Sleep(3 * time.Second)
		if got := getJSON(t, a.page, "default/web"); got.Story[0].Verdict != "It waits for the cache to show its writes: the cache of widgets is at version 7" {
			t.Errorf("while it waits: %+v", got.Story)
		}
		a.gate.open(web)
		time.Sleep(500 * time.Millisecond)
		if got := getJSON(t, a.page, "default/web"); got.Story[0].Verdict != "A worker runs it." {
			t.Errorf("while it runs: %+v", got.Story)
		}
		a.gate.mu.Lock()
		a.gate.why[web] = "the cache of deployments is at version 8"
		a.gate.mu.Unlock()
		time.Sleep(time.Second)

		got := getJSON(t, a.page, "default/web")
		want := []string{
			"event: widgets update",
			"wait: the cache of widgets is at version 7",
			"wait: the wait is over 3s",
			"call: conflict (Conflict), attempt 1, because of widgets update 1.12s",
			"write: patch deployments.apps default/web: 200, resource version 1234 20ms",
			"write: create configmaps default/: 403 20ms",
			"write: delete services default/web: no response 20ms",
			"blocked: example.com/dns: record, zone",
			"wait: the cache of deployments is at version 8",
		}
		if diff := cmp.Diff(want, got.lines()); diff != "" {
			t.Errorf("story (-want +got):\n%s", diff)
		}
		if v := got.Story[0].Verdict; !strings.Contains(v, "at version 8") || !strings.Contains(v, "The finalizer example.com/dns: record, zone blocks its deletion since") {
			t.Errorf("verdict: %s", v)
		}
		for _, page := range []string{get(t, a.page, url.Values{"key": {"default/web"}}).Body.String(), get(t, a.page, url.Values{"format": {"json"}, "key": {"default/web"}}).Body.String()} {
			if strings.Contains(page, "confidential") || !strings.Contains(page, "1234") {
				t.Errorf("the page has contents of objects or no version:\n%s", page)
			}
		}
		if got := getJSON(t, a.page, "default/other"); len(got.Story) > 0 {
			t.Errorf("a key that is unknown has a story: %+v", got.Story)
		}
		stop()
	})
}

// TestStates: each state of a key has its reason.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := func(name string) key { return key{Namespace: "default", Name: name} }
		a := assemble(func(ctx context.Context, k key) (result, error) {
			switch k.Name {
			case "busy":
				<-ctx.Done()
			case "hot":
				return result{RequeueAfter: 1}, nil
			case "retried":
				return result{}, errors.New("no disk")
			case "periodic":
				return result{RequeueAfter: time.Hour}, nil
			}
			return result{}, nil
		})
		a.loop.Workers = 2
		a.gate.why[named("gated")] = "behind"
		stop := a.run(t)
		a.source.AddEvent(event("add"), addOptions{}, named("busy"), named("hot"), named("retried"), named("periodic"), named("gated"), named("fine"))
		a.source.AddEvent(event("add"), addOptions{After: time.Hour}, named("late"))
		time.Sleep(5*time.Second + 50*time.Millisecond) // the hot key runs each 100ms
		got := map[string]string{}
		for _, k := range getJSON(t, a.page, "").Controllers[0].Keys {
			got[k.Key] += k.State + ": " + k.Why + "\n"
		}
		want := map[string]string{
			"default/busy":     "running: A worker runs it.\n",
			"default/hot":      "delayed: It ran too often, so it is limited to 10 calls a second. The last call ended with requeue.\nhot: It ran too often, so it is limited to 10 calls a second. The last call ended with requeue.\n",
			"default/retried":  "parked: MaxAttempts parked it. Its next event runs it. The last call ended with error.\n",
			"default/periodic": "delayed: The last call asked for it by RequeueAfter.\n",
			"default/gated":    "gated: It waits for the cache to show its writes: behind\n",
			"default/late":     "delayed: It was added with a delay.\n",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("keys (-want +got):\n%s", diff)
		}
		if s := getJSON(t, a.page, "default/fine").Story; len(s) != 1 || s[0].Verdict != "Not in the queue: its next event runs it. The last call ended with success." {
			t.Errorf("a key that is done: %+v", s)
		}
		stop()
	})
}

// TestBlocked: a key is blocked until a later call of it is not, or the loop stops. Another replica may have the key
// by then: without a call for half an hour it is blocked no more, unless it is queued here or its last call was final.
func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocks, end := true, error(nil)
		var after time.Duration
		a := assemble(func(ctx context.Context, _ key) (result, error) {
			if blocks {
				calls.NoteCleanup(ctx, "example.com/dns", nil, time.Now())
			}
			return result{RequeueAfter: after}, end
		})
		stop := a.run(t)
		check := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			s := getJSON(t, a.page, "default/web")
			c := s.Controllers[0]
			counted := 0
			for _, n := range c.Counts {
				if n.State == "blocked" {
					counted = n.Keys
				}
			}
			told := len(s.Story) > 0 && strings.Contains(s.Story[0].Verdict, "The finalizer example.com/dns blocks its deletion")
			if len(c.Blocked) != want || counted != want || told != (want == 1) {
				t.Errorf("%s: %d blocked, %d counted, %t in the story, want %d", when, len(c.Blocked), counted, told, want)
			}
		}
		call := func() {
			a.source.Add(web)
			synctest.Wait()
		}
		call()
		check("after a call", 1)
		blocks = false
		call()
		check("after the cleanup", 0)
		blocks = true
		call()
		time.Sleep(29 * time.Minute)
		check("half an hour later", 1)
		time.Sleep(time.Hour)
		check("an hour later", 0)
		after = 3 * time.Hour
		call()
		time.Sleep(time.Hour)
		check("while a call is queued", 1)
		after, end = 0, reconcile.ErrTerminal
		call()
		time.Sleep(4 * time.Hour)
		check("after a terminal error", 1)
		stop()
		check("when the loop has stopped", 0)
	})
}

// TestBlockedFull: keys of long ago do not keep others from the list of the blocked ones.
func TestBlockedFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := &debug.Page{}
		hook := page.Controller("widgets").Hook(nil)
		call := func(name string) {
			ctx, end := hook(t.Context(), key{Name: name})
			calls.NoteCleanup(ctx, "example.com/dns", nil, time.Now())
			end("requeue", nil)
		}
		for n := range 2000 {
			call(fmt.Sprint(n))
		}
		time.Sleep(time.Hour)
		call("new")
		if got := getJSON(t, page, "").Controllers[0].Blocked; len(got) != 1 || got[0].Key != "/new" {
			t.Errorf("blocked: %+v, want the new key", got)
		}
	})
}

// TestFlood: 20,000 successes of other keys, and 1,000 of its own, do not displace the failures of
// a key.
//
// It proves DB4.
func TestFlood(t *testing.T) {
	page := &debug.Page{}
	c := page.Controller("widgets")
	hook := c.Hook(nil)
	end := func(k key, result string) {
		_, end := hook(t.Context(), k)
		end(result, nil)
	}
	end(web, "timeout")
	for i := range 20_000 {
		end(key{Name: fmt.Sprint(i)}, "success")
	}
	s := getJSON(t, page, "default/web")
	if got := s.lines(); len(got) != 1 || !strings.HasPrefix(got[0], "call: timeout") {
		t.Errorf("story of the failing key: %q", got)
	}
	if f := s.Controllers[0].Failures; len(f) != 1 || f[0].Result != "timeout" {
		t.Errorf("failures: %+v", f)
	}
	if got := s.Controllers[0].Results; len(got) != 50 || got[0].Key != "/19999" || got[49].Key != "/19950" {
		t.Errorf("results: %+v", got)
	}
	if got := getJSON(t, page, "19999").lines(); len(got) != 1 {
		t.Errorf("story of the last key: %q", got)
	}
	for range 1000 {
		end(web, "success")
	}
	if got := getJSON(t, page, "default/web").lines(); len(got) < 100 || !strings.HasPrefix(got[0], "call: timeout") {
		t.Errorf("story of %d lines after the key's own successes: %q", len(got), got[:min(len(got), 3)])
	}
	if got := getJSON(t, page, "0").Story; got != nil {
		t.Errorf("story of a key that is forgotten: %+v", got)
	}
}

// TestSameContent: the HTML has each text of the JSON.
func TestSameContent(t *testing.T) {
	a := full(t)
	html := get(t, a.page, url.Values{"key": {"default/web"}}).Body.String()
	var s any
	if err := json.Unmarshal(get(t, a.page, url.Values{"key": {"default/web"}, "format": {"json"}}).Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	n := 0
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, field := range v {
				walk(path+"."+name, field)
			}
		case []any:
			for _, item := range v {
				walk(path, item)
			}
		case string:
			if _, err := time.Parse(time.RFC3339, v); err == nil || strings.HasSuffix(path, ".took") {
				return // the HTML has it in another form, or it differs between two reads
			}
			if n++; !strings.Contains(html, v) {
				t.Errorf("%s is %q, which the HTML does not have", path, v)
			}
		}
	}
	walk("", s)
	if n < 30 {
		t.Errorf("only %d texts were compared", n)
	}
}

// full returns a page with something in each field.
func full(t *testing.T) *assembled {
	a := assemble(func(ctx context.Context, k key) (result, error) {
		calls.NoteCleanup(ctx, "example.com/dns", []string{"record"}, time.Now())
		return result{RequeueAfter: time.Hour}, errors.New("no disk")
	})
	a.page.Leader = func() debug.Leader {
		return debug.Leader{Lease: "shop/shop", Leading: true, Term: 7, Since: time.Now()}
	}
	a.page.Shards = func() debug.Shards {
		return debug.Shards{Owned: []int{3, 17}, Draining: 1, Ownerless: 2, Replicas: 5}
	}
	a.page.Informers = func() []debug.Informer {
		return []debug.Informer{{Name: "widgets.example.com", Objects: 12, Bytes: 3 << 19, LastEvent: time.Now(), LastData: time.Now(), Mutated: "default/blue .spec"}}
	}
	gated, done := key{Namespace: "default", Name: "gated"}, make(chan bool)
	a.gate.why[gated] = "behind"
	hook := a.loop.Hook
	a.loop.Hook = func(ctx context.Context, k key) (context.Context, func(string, error)) {
		ctx, end := hook(ctx, k)
		return ctx, func(result string, err error) { end(result, err); close(done) }
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.loop.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; a.queue.ShutDown() })
	a.source.AddEvent(event("update"), addOptions{}, gated, web)
	<-done
	for len(a.loop.SnapshotOf(gated).Keys[0].State)*a.queue.Snapshot().Delayed == 0 {
		// the loop is about to delay both keys
	}
	a.source.AddEvent(event("update"), addOptions{After: time.Hour}, web)
	return a
}

// TestFields: the fields of the JSON are an interface. A field that is removed or renamed
// breaks its readers.
func TestFields(t *testing.T) {
	a := full(t)
	var s any
	if err := json.Unmarshal(get(t, a.page, url.Values{"key": {"default/web"}, "format": {"json"}}).Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, field := range v {
				walk(path+"."+name, field)
			}
		case []any:
			for _, item := range v {
				walk(path+"[]", item)
			}
		default:
			set[strings.TrimPrefix(path, ".")] = true
		}
	}
	walk("", s)
	var got []string
	for path := range set {
		got = append(got, path)
	}
	slices.Sort(got)
	want := strings.Fields(`
		controllers[].blocked[].at controllers[].blocked[].key controllers[].blocked[].kind controllers[].blocked[].text
		controllers[].busy controllers[].counts[].keys controllers[].counts[].shown controllers[].counts[].state
		controllers[].failures[].at controllers[].failures[].attempt controllers[].failures[].key controllers[].failures[].result
		controllers[].failures[].took controllers[].failures[].triggers[]
		controllers[].keys[].attempts controllers[].keys[].key
		controllers[].keys[].last.at controllers[].keys[].last.attempt controllers[].keys[].last.key controllers[].keys[].last.result
		controllers[].keys[].last.took controllers[].keys[].last.triggers[]
		controllers[].keys[].priority controllers[].keys[].since controllers[].keys[].state controllers[].keys[].triggers[]
		controllers[].keys[].until controllers[].keys[].why controllers[].name
		controllers[].results[].at controllers[].results[].attempt controllers[].results[].key controllers[].results[].result
		controllers[].results[].took controllers[].results[].triggers[]
		controllers[].running controllers[].shuttingDown controllers[].workers
		informers[].bytes informers[].lastData informers[].lastEvent informers[].mutated informers[].name informers[].objects
		leader.leading leader.lease leader.since leader.term now search
		shards.draining shards.owned[] shards.ownerless shards.replicas shards.surplus
		story[].controller story[].lines[].at story[].lines[].key story[].lines[].kind story[].lines[].text story[].lines[].took
		story[].verdict title`)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

// TestRequests: methods, parameters and headers.
func TestRequests(t *testing.T) {
	page := &debug.Page{}
	for _, tc := range []struct {
		method, query string
		code          int
		want          string
	}{
		{http.MethodGet, "", http.StatusOK, "<title>controllers</title>"},
		{http.MethodHead, "", http.StatusOK, ""},
		{http.MethodGet, "format=json", http.StatusOK, `"title":"controllers"`},
		{http.MethodGet, "key=a/b", http.StatusOK, "No controller of this process knows the key"},
		{http.MethodGet, "format=xml", http.StatusBadRequest, "the parameter format is unknown: use json"},
		{http.MethodGet, "key=" + strings.Repeat("x", 1025), http.StatusBadRequest, "the parameter key is too long"},
		{http.MethodPost, "", http.StatusMethodNotAllowed, "use GET"},
	} {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest(tc.method, "/debug/controllers?"+tc.query, http.NoBody))
		if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%s %.40s: %d, %.200s, want %d with %q", tc.method, tc.query, w.Code, w.Body, tc.code, tc.want)
		}
		for header, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'sha256-", "X-Content-Type-Options": "nosniff",
			"Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
		} {
			if got := w.Header().Get(header); !strings.HasPrefix(got, want) {
				t.Errorf("%s %.40s: %s is %q, want %q", tc.method, tc.query, header, got, want)
			}
		}
	}
}

// TestNil: a page without pieces, nil gates and hooks.
func TestNil(t *testing.T) {
	page := &debug.Page{}
	c := page.Controller("widgets")
	if g := c.Gate(nil); g != nil {
		t.Errorf("Gate(nil) = %v", g)
	}
	if g := c.Gate((*gate)(nil)); g != nil {
		t.Errorf("Gate of a nil pointer = %v", g)
	}
	func() {
		defer func() {
			if v := recover(); v != "debug: Source: next is nil: pass a Source of the loop" {
				t.Errorf("Source(nil) panics with %v", v)
			}
		}()
		c.Source("widgets", nil)
	}()
	if w := get(t, page, nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "It does not run.") {
		t.Errorf("a page without pieces: %d, %s", w.Code, w.Body)
	}
	ended := ""
	hook := c.Hook(func(ctx context.Context, _ key) (context.Context, func(string, error)) {
		return ctx, func(result string, _ error) { ended = result }
	})
	if _, end := hook(t.Context(), web); end != nil {
		end("success", nil)
	}
	if got := getJSON(t, page, "default/web").lines(); ended != "success" || len(got) != 1 {
		t.Errorf("the next hook got %q, the story is %q", ended, got)
	}
}

// TestShards: the page and its JSON have the shards of the process, and a bounded number of them.
func TestShards(t *testing.T) {
	owned := []int{3, 17}
	page := &debug.Page{Shards: func() debug.Shards {
		return debug.Shards{Owned: owned, Draining: 1, Ownerless: 2, Surplus: 3, Replicas: 5}
	}}
	const want = "5 replicas take part. This process owns 2 shards, of which 1 drain. 2 shards have no owner, and 3 must move.</p>\n<p>Owned: 3 17.</p>"
	if body := get(t, page, nil).Body.String(); !strings.Contains(body, want) {
		t.Errorf("the page lacks %q:\n%s", want, body)
	}
	read := func() (s struct {
		Shards *debug.Shards
		More   string
	}) {
		t.Helper()
		if err := json.Unmarshal(get(t, page, url.Values{"format": {"json"}}).Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if got := read(); got.Shards == nil || !slices.Equal(got.Shards.Owned, owned) || got.Shards.Draining != 1 || got.Shards.Ownerless != 2 || got.Shards.Surplus != 3 || got.Shards.Replicas != 5 {
		t.Errorf("the JSON has %+v", got.Shards)
	}
	owned = slices.Repeat(owned, 1000)
	if got := read(); len(got.Shards.Owned) != 1000 || !strings.Contains(got.More, "1000 of 2000 shards are shown") {
		t.Errorf("the JSON has %d shards, and says %q", len(got.Shards.Owned), got.More)
	}
	page.Shards = nil
	if got := read(); got.Shards != nil {
		t.Errorf("a page without shards has %+v", got.Shards)
	}
}

// A wait without a wake is recorded like others.
func TestGateWithoutWake(t *testing.T) {
	for name, next := range map[string]func(*gate) controllerkit.Gate[key]{
		"reasons":    func(g *gate) controllerkit.Gate[key] { return g },
		"no reasons": func(g *gate) controllerkit.Gate[key] { return struct{ controllerkit.Gate[key] }{g} },
	} {
		t.Run(name, func(t *testing.T) {
			g, k := newGate(), key{Name: "a"}
			g.why[k] = "behind"
			page := &debug.Page{}
			wrapped := page.Controller("c").Gate(next(g))
			if wrapped.Ready(k, nil) {
				t.Error("Ready = true of a closed gate")
			}
			g.open(k)
			if !wrapped.Ready(k, nil) {
				t.Error("Ready = false of an open gate")
			}
			w := httptest.NewRecorder()
			page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?key=a", nil))
			if got := w.Body.String(); !strings.Contains(got, "the wait is over") {
				t.Errorf("the page lacks the end of the wait:\n%s", got)
			}
		})
	}
}
