package operator_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/internal/testlog"
	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/operator"
)

type roundTrips func(*http.Request) (*http.Response, error)

func (f roundTrips) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestServerLive tests that /livez has the check of the informers, and /metrics their times,
// requests and sizes.
func TestServerLive(t *testing.T) {
	t.Parallel()
	config := testserver.Config(t)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { // so that each informer fails to watch, then lists
		return roundTrips(func(req *http.Request) (*http.Response, error) {
			if req.URL.Query().Has("sendInitialEvents") {
				return nil, errors.New("the server does not stream lists")
			}
			return next.RoundTrip(req)
		})
	})
	p := newPairs(t, config, testserver.Namespace(t), operator.Options{Name: "live"})
	p.op.Informers.StallTimeout = 1 // any informer is stalled
	start(t, p.op, testlog.New())
	select {
	case <-p.op.Informers.HasSyncedChecker().Done():
	case <-time.After(time.Minute):
		t.Fatal("the informers do not sync")
	}
	for _, tc := range []struct{ path, want string }{
		{"/livez", "failing: informers"},
		{"/metrics", `controller_informer_last_event_age_seconds{name="secrets"}`},
		{"/metrics", `controller_informer_objects{name="configmaps"}`},
		{"/metrics", `controller_informer_bytes{name="configmaps"}`},
		{"/metrics", `reflector_lists_total{name="secrets"} 1`},
		{"/metrics", `reflector_list_duration_seconds_count{name="secrets"} 1`},
		{"/metrics", `reflector_watches_total{name="secrets"} 1`},
		{"/metrics", `reflector_watch_duration_seconds_count{name="secrets"} 1`},
	} {
		w := httptest.NewRecorder()
		p.op.Mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, tc.path, nil))
		if !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%s: status %d without %q: %.300q", tc.path, w.Code, tc.want, w.Body)
		}
	}
}
