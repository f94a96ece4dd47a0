package grace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/operator/internal/grace"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answers is an API server that fails n times before it sends the spec of a Pod.
func answers(n int, spec string) *rest.Config {
	return &rest.Config{Host: "http://server", QPS: -1, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		if n--; n >= 0 {
			return nil, errors.New("connection refused")
		}
		body := `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"spec":` + spec + `}`
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	})}
}

func TestOf(t *testing.T) {
	sleep := func(seconds int64) string {
		return fmt.Sprintf(`{"lifecycle":{"preStop":{"sleep":{"seconds":%d}}}}`, seconds)
	}
	for spec, want := range map[string]time.Duration{
		`{}`:                                   30 * time.Second,
		`{"terminationGracePeriodSeconds":0}`:  0,
		`{"terminationGracePeriodSeconds":60}`: time.Minute,
		`{"containers":[` + sleep(2) + `,{},` + sleep(1) + `,{"lifecycle":{}},{"lifecycle":{"preStop":{}}}]}`: 28 * time.Second,
		// What no API server stores does not overflow.
		`{"terminationGracePeriodSeconds":9223372036854775807}`:                           365 * 24 * time.Hour,
		`{"terminationGracePeriodSeconds":0,"containers":[` + sleep(1<<62) + `]}`:         -365 * 24 * time.Hour,
		`{"terminationGracePeriodSeconds":-1,"containers":[` + sleep(-1<<62) + `,{},{}]}`: -time.Second,
	} {
		if got, err := grace.Of(t.Context(), answers(0, spec), time.Minute, "ns", "p"); err != nil || got != want {
			t.Errorf("Of(%s) = %v, %v, want %v", spec, got, err, want)
		}
	}
}

// TestRetries: a server that cannot be reached is asked again until the timeout.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		got, err := grace.Of(t.Context(), answers(3, `{}`), 10*time.Second, "ns", "p")
		if took := time.Since(begin); err != nil || got != 30*time.Second || took != 3*time.Second {
			t.Errorf("Of() = %v, %v after %v, want 30s after 3s", got, err, took)
		}
		_, err = grace.Of(t.Context(), answers(100, `{}`), 10*time.Second, "ns", "p")
		if err == nil || !strings.Contains(err.Error(), "the Pod cannot be read within 10s: ") || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("Of() = %v, want the last failure", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		if _, err := grace.Of(ctx, answers(100, `{}`), 10*time.Second, "ns", "p"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Of() = %v, want the context's error", err)
		}
	})
}
