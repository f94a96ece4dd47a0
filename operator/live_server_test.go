package operator_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

// TestServerLive tests that /livez has the check of the informers, and /metrics their times.
func TestServerLive(t *testing.T) {
	t.Parallel()
	p := newPairs(t, testserver.Config(t), testserver.Namespace(t), operator.Options{Name: "live"})
	p.op.Informers.StallTimeout = 1 // any informer is stalled
	start(t, p.op, testlog.New())
	select {
	case <-p.op.Informers.HasSyncedChecker().Done():
	case <-time.After(time.Minute):
		t.Fatal("the informers do not sync")
	}
	for _, tc := range []struct{ path, want string }{
		{"/livez", "failing: informers"},
		{"/metrics", `controller_informer_last_event_timestamp_seconds{name="secrets"}`},
		{"/metrics", `controller_informer_objects{name="configmaps"}`},
		{"/metrics", `controller_informer_bytes{name="configmaps"}`},
	} {
		w := httptest.NewRecorder()
		p.op.Mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, tc.path, nil))
		if !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%s: status %d without %q: %.300q", tc.path, w.Code, tc.want, w.Body)
		}
	}
}
