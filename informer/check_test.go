package informer_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// state is what an apiServer does at present.
type state int

const (
	serves state = iota // a bookmark each minute
	down                // refuses connections and ends watches
	hangs               // keeps watches without data
)

// apiServer serves ConfigMaps, of which it has none.
type apiServer struct {
	mu    sync.Mutex
	state state
}

func (s *apiServer) set(now state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = now
}

func (s *apiServer) now() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *apiServer) RoundTrip(req *http.Request) (*http.Response, error) {
	if s.now() == down {
		return nil, errRefused
	}
	respond := func(code int, body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: req}, nil
	}
	switch query := req.URL.Query(); {
	case query.Has("sendInitialEvents"):
		return respond(http.StatusUnprocessableEntity, io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)))
	case query.Has("watch"):
		return respond(http.StatusOK, &bookmarks{server: s, ctx: req.Context()})
	}
	return respond(http.StatusOK, io.NopCloser(strings.NewReader(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[]}`)))
}

// bookmarks is the body of a watch.
type bookmarks struct {
	server *apiServer
	ctx    context.Context
	rest   io.Reader
}

func (b *bookmarks) Read(p []byte) (int, error) {
	if b.rest != nil {
		if n, err := b.rest.Read(p); err == nil {
			return n, nil
		}
	}
	select {
	case <-time.After(time.Minute):
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
	switch b.server.now() {
	case down:
		return 0, io.EOF
	case hangs:
		<-b.ctx.Done()
		return 0, b.ctx.Err()
	}
	b.rest = strings.NewReader(`{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"5"}}}` + "\n")
	return b.rest.Read(p)
}

func (b *bookmarks) Close() error { return nil }

// Check knows a stalled informer from a quiet one and from a server that is down.
func TestCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &apiServer{}
		config := &rest.Config{Host: "http://server", Transport: server}
		config.Wrap(informer.EndSilentWatches(-1))
		inf := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer()
		var set informer.Set
		set.Add("configmaps", inf)
		if err := set.Check(); err != nil || !set.LastEvents()["configmaps"].IsZero() {
			t.Errorf("before Run: Check = %v, LastEvents = %v, want nil and no time", err, set.LastEvents())
		}
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		<-set.HasSyncedChecker().Done()
		age := func() time.Duration { return time.Since(set.LastEvents()["configmaps"]) }
		healthy := func(when string, oldest time.Duration) {
			t.Helper()
			for range 120 {
				time.Sleep(time.Minute)
				if err := set.Check(); err != nil {
					t.Fatalf("%s: Check = %v", when, err)
				}
			}
			if a := age(); a > oldest {
				t.Errorf("%s: the last event is %v old", when, a)
			}
		}
		healthy("quiet", time.Minute)
		server.set(down)
		healthy("server down", 3*time.Hour)
		if a := age(); a < 118*time.Minute {
			t.Errorf("the last event is %v old while the server is down for 2h", a)
		}
		server.set(serves)
		healthy("server back", time.Minute)
		server.set(hangs)
		synctest.Wait()
		since := age()
		time.Sleep(10*time.Minute - since - 1)
		if err := set.Check(); err != nil {
			t.Errorf("Check = %v before StallTimeout", err)
		}
		time.Sleep(time.Nanosecond)
		if err := set.Check(); err == nil || err.Error() != `informer: "configmaps" is stalled: it has sent no request and received no data for 10m0s` {
			t.Errorf("Check = %v after StallTimeout", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if err := set.Check(); err != nil {
			t.Errorf("Check = %v after Run", err)
		}
	})
}

// tracked is an informer that a weak pointer finds.
type tracked struct{ cache.SharedIndexInformer }

// ofOne has the functions that Metrics gets of one informer.
type ofOne struct {
	noted
	last      func() time.Time
	malformed func() int
}

func (m *ofOne) InformerLast(_ string, last func() time.Time)     { m.last = last }
func (m *ofOne) InformerMalformed(_ string, malformed func() int) { m.malformed = malformed }

// The functions that Metrics gets return zero after Run, and do not keep the informer in memory: on
// a replica that campaigns again, the metrics live longer than the Set.
func TestMetricsAfterRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := &ofOne{noted: noted{calls: map[string]int{}}}
		term := func() weak.Pointer[tracked] {
			config := &rest.Config{Host: "http://server", Transport: &apiServer{}}
			config.Wrap(informer.EndSilentWatches(-1))
			inf := &tracked{informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer()}
			set := &informer.Set{Metrics: metrics}
			set.Add("configmaps", inf)
			ctx, cancel := context.WithCancel(quiet(t))
			done := make(chan error, 1)
			go func() { done <- set.Run(ctx) }()
			<-set.HasSyncedChecker().Done()
			time.Sleep(2 * time.Minute) // a bookmark comes each minute
			if metrics.last().IsZero() || metrics.malformed() != 0 {
				t.Errorf("while Run runs: %v and %d", metrics.last(), metrics.malformed())
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			return weak.Make(inf)
		}
		old := term()
		time.Sleep(time.Hour) // for the timers
		if !metrics.last().IsZero() || metrics.malformed() != 0 {
			t.Errorf("after Run: %v and %d, want zero", metrics.last(), metrics.malformed())
		}
		for range 3 {
			runtime.GC()
		}
		if old.Value() != nil {
			t.Error("the functions keep the informer in memory")
		}
		runtime.KeepAlive(metrics)
	})
}

// An informer whose client does not have the transport is not checked.
func TestCheckUnobserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := informer.Set{StallTimeout: time.Minute, Metrics: (*noted)(nil)}
		set.Add("a", healthy())
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		time.Sleep(time.Hour)
		if err := set.Check(); err != nil {
			t.Errorf("Check = %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// noted counts the calls of Metrics.
type noted struct {
	mu    sync.Mutex
	calls map[string]int
	last  map[string]func() time.Time
}

func (n *noted) note(what, name string, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d < 0 {
		name = "negative duration"
	}
	n.calls[what+" "+name]++
}

func (n *noted) InformerListed(name string, d time.Duration)  { n.note("listed", name, d) }
func (n *noted) InformerWatched(name string, d time.Duration) { n.note("watched", name, d) }
func (n *noted) InformerMutated(name string, _ int)           { n.note("compared", name, 0) }
func (n *noted) InformerMalformed(string, func() int)         {}
func (n *noted) InformerLast(name string, last func() time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last != nil {
		n.last[name] = last
	}
}

// Two informers of one client are told apart, and data of each counts.
func TestServerCheck(t *testing.T) {
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	admin := typedClient(t, config)
	config.Wrap(informer.EndSilentWatches(-1))
	core := informers.NewSharedInformerFactoryWithOptions(typedClient(t, config), 0, informers.WithNamespace(namespace)).Core().V1()
	added := make(chan string, 100)
	handler, err := core.ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { added <- o.(*corev1.ConfigMap).Name }})
	if err != nil {
		t.Fatal(err)
	}
	metrics := &noted{calls: map[string]int{}, last: map[string]func() time.Time{}}
	set := informer.Set{Timeout: time.Minute, StopTimeout: time.Minute, StallTimeout: 24 * time.Hour, Metrics: metrics}
	set.Add("configmaps", core.ConfigMaps().Informer(), handler)
	set.Add("secrets", core.Secrets().Informer())
	ctx, cancel := context.WithCancel(quiet(t))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	select {
	case <-set.HasSyncedChecker().Done():
	case err := <-done:
		t.Fatalf("Run() = %v", err)
	}
	before := time.Now()
	for _, want := range []string{"zero", "one"} { // the time of an event is noted before the next one comes
		if _, err := admin.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: want}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for name := range added {
			if name == want {
				break
			}
		}
	}
	last := set.LastEvents()
	if len(last) != 2 || last["configmaps"].Before(before) || last["secrets"].IsZero() {
		t.Errorf("LastEvents = %v, want a time after %v for configmaps, and one for secrets", last, before)
	}
	if err := set.Check(); err != nil {
		t.Errorf("Check = %v", err)
	}
	for name, at := range last {
		if got := metrics.last[name](); got.Before(at) {
			t.Errorf("the metrics of %s have the time %v, want at least %v", name, got, at)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	metrics.mu.Lock()
	defer metrics.mu.Unlock()
	for _, want := range []string{"watched configmaps", "watched secrets"} {
		if metrics.calls[want] == 0 {
			t.Errorf("no %q in %v", want, fmt.Sprint(metrics.calls))
		}
	}
}
