package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// debugPage has the fields of the page that the tests use.
type debugPage struct {
	Title  string
	Leader *struct {
		Lease   string
		Leading bool
		Term    int64
		Since   time.Time
	}
	Informers []struct {
		Name                string
		Objects, Bytes      int
		LastEvent, LastData time.Time
	}
	Story []struct {
		Verdict string
		Lines   []struct{ Kind, Text string }
	}
}

// TestServerDebug: the page of an operator at its own address has the leader, the informers
// with their objects, and the story of a key with the event, the call and the write. The
// same address has the profiles. Neither is served with the metrics.
func TestServerDebug(t *testing.T) {
	t.Parallel()
	eachCache(t, testServerDebug)
}

func testServerDebug(t *testing.T, cached caches) {
	config, namespace := testserver.Config(t), testserver.Namespace(t)
	p := newPairsWith(t, config, namespace, operator.Options{Name: "debug", LeaseNamespace: namespace, Debug: "127.0.0.1:0"}, cached)
	p.op.Informers.Mutated = func(m informer.Mutation) { t.Error(m) }
	ended := make(chan string, 100)
	p.c.Loop.Hook = func(ctx context.Context, key types.NamespacedName) (context.Context, func(string, error)) {
		return ctx, func(result string, _ error) { ended <- key.Name }
	}
	addrs := make(chan string, 1)
	p.op.DebugServer().BaseContext = func(l net.Listener) context.Context { addrs <- l.Addr().String(); return context.Background() }
	create(t, config, namespace, "make-a")
	start(t, p.op, testlog.New())
	receive(t, p.created)
	for range 2 { // the second call comes when the caches show the write
		for receive(t, ended) != "make-a" {
		}
	}

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	get := func(url string) []byte {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	addr := receive(t, addrs)
	var got debugPage
	if body := get("http://" + addr + "/debug/controllers?format=json&key=" + namespace + "/make-a"); json.Unmarshal(body, &got) != nil {
		t.Fatalf("%.300s", body)
	}
	if body := get("http://" + addr + "/debug/pprof/goroutine?debug=2"); !strings.Contains(string(body), "reconcile.(*Controller") {
		t.Errorf("the goroutines have no worker: %.300s", body)
	}
	if l := got.Leader; got.Title != "debug" || l == nil || !l.Leading || l.Lease != namespace+"/debug" || l.Since.IsZero() {
		t.Errorf("title %q, leader %+v", got.Title, l)
	}
	objects := map[string]int{}
	for _, i := range got.Informers {
		if objects[i.Name] = i.Objects; i.LastData.IsZero() || i.LastEvent.IsZero() || i.Bytes < 100*i.Objects {
			t.Errorf("informer %+v has no times or no bytes", i)
		}
	}
	if objects["secrets"] != 1 || objects["configmaps"] < 1 { // a namespace has a ConfigMap of its own
		t.Errorf("objects: %v", objects)
	}
	var story strings.Builder
	for _, s := range got.Story {
		for _, l := range s.Lines {
			story.WriteString(l.Kind + ": " + l.Text + "\n")
		}
	}
	for _, want := range []string{
		"event: configmaps list\n", "call: success, attempt 1, because of configmaps list\n",
		"write: create secrets " + namespace + "/: 201, resource version ", "event: secrets add\n",
	} {
		if !strings.Contains(story.String(), want) {
			t.Errorf("the story lacks %q:\n%s", want, story.String())
		}
	}
	for _, path := range []string{"/debug/controllers", "/debug/pprof/heap"} {
		w := httptest.NewRecorder()
		p.op.Mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if w.Code != http.StatusNotFound {
			t.Errorf("Mux serves %s with status %d, although it has no authentication", path, w.Code)
		}
	}
}

// TestDebugInput: the address must be loopback, and an operator without a page has none.
func TestDebugInput(t *testing.T) {
	for _, addr := range []string{":6060", "0.0.0.0:6060", "nonsense"} {
		op, err := operator.New(nowhere(), operator.Options{Name: "x", Debug: addr})
		if op != nil || err == nil || !strings.Contains(err.Error(), `operator: Options.Debug "`+addr+`": use a loopback address such as 127.0.0.1:6060`) {
			t.Errorf("%s: %v, want an error that names the field and the cure", addr, err)
		}
	}
	if op, err := operator.New(nowhere(), operator.Options{Name: "x"}); err != nil || op.Debug != nil {
		t.Errorf("without an address there is a page, or %v", err)
	}
}

// TestDebugOfYourOwn: a page that the caller sets keeps its fields, and a standby shows that it
// does not lead.
func TestDebugOfYourOwn(t *testing.T) {
	op, err := operator.New(nowhere(), operator.Options{Name: "x", LeaseNamespace: "y"})
	if err != nil {
		t.Fatal(err)
	}
	op.Debug = &debug.Page{Title: "mine"}
	c := op.Controller("a", func(context.Context, types.NamespacedName) (reconcile.Result, error) {
		return reconcile.Result{}, errors.New("no")
	})
	operator.For(c, corev1.Resource("configmaps"), newFactory().Core().V1().ConfigMaps())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = op.Run(ctx) // there is no API server
	w := httptest.NewRecorder()
	op.Debug.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?format=json", http.NoBody))
	var got debugPage
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Title != "mine" || got.Leader == nil || got.Leader.Leading || got.Leader.Lease != "y/x" || len(got.Informers) != 1 {
		t.Errorf("page: %s", w.Body)
	}
}
