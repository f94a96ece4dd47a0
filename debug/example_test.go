package debug_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
)

// The page of a controller, and the story of one key. Package serve has a server for it.
func ExamplePage() {
	q := queue.New(queue.Config[types.NamespacedName]{Name: "widgets"})
	defer q.ShutDown()
	ctx, stop := context.WithCancel(context.Background())
	loop := &reconcile.Controller[types.NamespacedName]{Name: "widgets", Queue: q, MaxAttempts: 1}
	loop.Reconcile = func(context.Context, types.NamespacedName) (reconcile.Result, error) {
		stop()
		return reconcile.Result{}, fmt.Errorf("no quota: %w", reconcile.ErrTerminal)
	}

	page := &debug.Page{Title: "shop"}
	c := page.Controller("widgets")
	c.Queue, c.Loop = q, loop
	loop.Hook = c.Hook(nil)
	mux := http.NewServeMux()
	mux.Handle("/debug/controllers", page)
	mux.Handle("/debug/pprof/", debug.Profiles())

	source := c.Source("widgets", loop.Source("widgets")) // for enqueue.Handler
	source.Add(types.NamespacedName{Namespace: "default", Name: "web"})
	_ = loop.Run(ctx)

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/controllers?key=default/web", http.NoBody))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 text/html; charset=utf-8
}

// The form of the page sets how much the process logs, for a time.
func ExampleKlog() {
	page := &debug.Page{Verbosity: debug.Klog}
	post := httptest.NewRequest(http.MethodPost, "/debug/controllers?verbosity=2&for=5m", http.NoBody)
	w := httptest.NewRecorder()
	page.ServeHTTP(w, post)
	fmt.Println(w.Code, klog.V(2).Enabled(), klog.V(3).Enabled())

	page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/debug/controllers?verbosity=0&for=0s", http.NoBody))
	fmt.Println(klog.V(1).Enabled())
	// Output:
	// 303 true false
	// false
}

// A transport that records the writes of each call.
func ExamplePage_Transport() {
	page := &debug.Page{}
	c := page.Controller("widgets")
	hook := c.Hook(nil) // the Hook of a reconcile.Controller
	ctx, end := hook(context.Background(), types.NamespacedName{Name: "web"})
	transport := page.Transport(roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }))
	req, _ := http.NewRequestWithContext(ctx, http.MethodDelete, "http://server/api/v1/namespaces/default/pods/web", http.NoBody)
	resp, err := transport.RoundTrip(req)
	if err == nil {
		resp.Body.Close()
	}
	end("error", err)
	fmt.Println(err)
	// Output: refused
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A gate whose waits the page shows with their causes.
func ExampleController_Gate() {
	page := &debug.Page{}
	c := page.Controller("widgets")
	g := newGate() // such as a consistency.Store
	web := types.NamespacedName{Namespace: "default", Name: "web"}
	g.why[web] = "the cache of widgets is behind"
	fmt.Println(c.Gate(g).Ready(web, func() { fmt.Println("woken") }))
	g.open(web)
	// Output:
	// false
	// woken
}
