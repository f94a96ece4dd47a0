package operator_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/operator"
)

// Run serves its endpoints beside any pattern of the caller, and those of the caller in place of its own. A conflict is an error.
func TestMux(t *testing.T) {
	for pattern, want := range map[string]string{
		"/": "", "GET /": "", "GET /{name}": "", "/{name}": "", "POST /": "", "GET other.example/": "", "/{path...}": "", "GET /other": "",
		"/metrics": "mine", "GET /metrics": "mine", "HEAD /": "operator: the Mux of the operator takes no handler of /metrics: add one",
	} {
		op, err := operator.New(nowhere(), operator.Options{Name: "mux"})
		if err != nil {
			t.Fatal(err)
		}
		op.Mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "mine") })
		operator.For(op.Controller("a", nothing), corev1.Resource("configmaps"), newFactory().Core().V1().ConfigMaps())
		ctx, cancel := context.WithCancel(testlog.New().Context(t.Context()))
		cancel()
		err = op.Run(ctx)
		if strings.HasPrefix(want, "operator: ") {
			if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: Run() = %v, want %s", pattern, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: Run() = %v", pattern, err)
		}
		for path, text := range map[string]string{"/metrics": "# HELP", "/readyz": "", "/livez": ""} {
			w := httptest.NewRecorder()
			op.Mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
			if got := w.Body.String(); (got == "mine") != (want == "mine" && path == "/metrics") || got != "mine" && !strings.Contains(got, text) {
				t.Errorf("%s: %s has %.100q", pattern, path, got)
			}
		}
	}
}
