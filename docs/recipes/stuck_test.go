package recipes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/debug"
	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

func newObserved(config *rest.Config) (*operator.Operator, error) {
	return operator.New(config, operator.Options{
		Name: "widgets", LeaseNamespace: "shop",
		Listen: ":8080",          // /metrics, /readyz and /livez
		Debug:  "127.0.0.1:6060", // /debug/controllers and /debug/pprof/
	})
}

// testStuck: the commands of the page find the reason for which a Widget does not move.
func testStuck(t *testing.T) {
	page, err := os.ReadFile("stuck-object.md")
	if err != nil {
		t.Fatal(err)
	}
	namespace := testserver.Namespace(t)
	op, err := newObserved(testserver.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	handlers := map[string]http.Handler{"8080": op.Mux, "6060": op.Debug}
	// The test needs no ports and no election.
	if op, err = operator.New(testserver.Config(t), operator.Options{Name: "widgets", Namespace: namespace, Debug: "127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	handlers["8080"], handlers["6060"] = op.Mux, op.Debug
	called := make(chan struct{}, 1000)
	c := operator.Kind(op, widgetVersion.WithResource("widgets"), operator.Reconciler[*Widget]{
		Reconcile: func(context.Context, *Widget) (reconcile.Result, error) {
			return reconcile.Result{}, errors.New("the paint shop is closed")
		},
	})
	c.Loop.Hook = func(ctx context.Context, _ types.NamespacedName) (context.Context, func(string, error)) {
		return ctx, func(string, error) { called <- struct{}{} }
	}
	var lines lines
	_ = run(t, klog.NewContext(t.Context(), testlog.Text(&lines, 0)), op.Run, func() {})
	widgets := newWidgets(t, testserver.Config(t)).Namespace(namespace)
	if _, err := widgets.Create(t.Context(), &Widget{ObjectMeta: metav1.ObjectMeta{Name: "red"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // Hook gets the end of the first call before its line is written
		receive(t, called)
	}

	urls := regexp.MustCompile(`localhost:(\d+)(/[^' ]*)`).FindAllStringSubmatch(string(page), -1)
	if len(urls) != 3 {
		t.Errorf("the page has the URLs %v, want 3", urls)
	}
	bodies := map[string]string{}
	for _, u := range urls {
		w := httptest.NewRecorder()
		path := strings.Replace(u[2], "shop/red", namespace+"/red", 1)
		handler := handlers[u[1]]
		if strings.HasPrefix(path, "/debug/pprof/") {
			handler = debug.Profiles()
		}
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		if w.Code != http.StatusOK || w.Body.Len() == 0 {
			t.Errorf("%s has the status %d", u[0], w.Code)
		}
		bodies[strings.SplitN(path, "?", 2)[0]] = w.Body.String()
	}
	var state struct {
		Story []struct {
			Verdict string
			Lines   []struct{ At, Kind, Text string }
		}
	}
	if err := json.Unmarshal([]byte(bodies["/debug/controllers"]), &state); err != nil {
		t.Fatal(err)
	}
	if len(state.Story) != 1 || state.Story[0].Verdict == "" || len(state.Story[0].Lines) < 2 {
		t.Errorf("the story is %+v", state.Story)
	}
	var source strings.Builder // of the verdicts
	for _, name := range []string{"state.go", "html.go"} {
		text, err := os.ReadFile("../../debug/" + name)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	for _, verdict := range regexp.MustCompile(`(?m)^- \*(.+)\*:`).FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(source.String(), verdict[1]) {
			t.Errorf("package debug has no verdict %q", verdict[1])
		}
	}
	for _, name := range regexp.MustCompile(`controller_[a-z_]+`).FindAllString(string(page), -1) {
		if !strings.Contains(bodies["/metrics"], "\n"+name+"{controller=\"widgets\"") {
			t.Errorf("/metrics has no %s", name)
		}
	}
	if want := `controller_failing_keys{controller="widgets",result="error"} 1`; !strings.Contains(bodies["/metrics"], want) {
		t.Errorf("/metrics has no %s", want)
	}
	pattern := regexp.MustCompile(`grep '(.*shop/red.*)'`).FindStringSubmatch(string(page))
	if pattern == nil {
		t.Fatal("the page has no grep")
	}
	found := lines.having(strings.Replace(pattern[1], "shop/red", namespace+"/red", 1))
	if !strings.Contains(found, "Reconcile failed") || !strings.Contains(found, "the paint shop is closed") {
		t.Errorf("grep finds %q in\n%s", found, lines.having(""))
	}
}

// lines are the lines of a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) having(text string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found strings.Builder
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			found.WriteString(line)
		}
	}
	return found.String()
}
