package informer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/informer"
)

// refusing rejects all requests during an outage, and then passes them on.
type refusing struct {
	next     http.RoundTripper
	code     int    // 0 refuses the connection
	after    string // Retry-After of a response
	over     atomic.Bool
	requests atomic.Int32
}

func (r *refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	switch r.requests.Add(1); {
	case r.over.Load():
		return r.next.RoundTrip(req)
	case r.code == 0:
		return nil, errRefused
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if r.after != "" {
		header.Set("Retry-After", r.after)
	}
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":%d}`, r.code)
	return &http.Response{StatusCode: r.code, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

// setOf returns a Set of one informer, whose client has the transport.
func setOf(transport http.RoundTripper, timeout time.Duration) *informer.Set {
	config := &rest.Config{Host: "http://server", Transport: transport, QPS: -1}
	config.Wrap(informer.EndSilentWatches(0))
	set := &informer.Set{Timeout: timeout}
	set.Add("configmaps", informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer())
	return set
}

// TestStopInAnOutage: an informer stops at once while the API server refuses it.
func TestStopInAnOutage(t *testing.T) {
	for name, server := range map[string]func() *refusing{
		"refused":              func() *refusing { return &refusing{} },
		"429":                  func() *refusing { return &refusing{code: http.StatusTooManyRequests} },
		"429 with Retry-After": func() *refusing { return &refusing{code: http.StatusTooManyRequests, after: "1"} },
		"429 without end":      func() *refusing { return &refusing{code: http.StatusTooManyRequests, after: "1000000000"} },
	} {
		t.Run(name, func(t *testing.T) {
			for n := range 40 {
				synctest.Test(t, func(t *testing.T) {
					outage := server()
					set := setOf(outage, time.Hour)
					ctx, cancel := context.WithCancel(quiet(t))
					var stopped time.Time
					time.AfterFunc(time.Duration(n)*3700*time.Millisecond, func() { stopped = time.Now(); cancel() })
					if err := set.Run(ctx); err != nil || time.Since(stopped) != 0 {
						t.Errorf("Run() = %v, %v after the stop, want nil at once", err, time.Since(stopped))
					}
					time.Sleep(2 * time.Minute) // a pause of client-go would end here
					if got := outage.requests.Load(); got > 12 {
						t.Errorf("the informer sent %d requests in %d s", got, 4*n)
					}
				})
			}
		})
	}
}

// TestOutageIsNamed proves I2.
func TestOutageIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		server *refusing
		want   string
		is     func(error) bool
	}{
		"refused": {&refusing{}, `"configmaps": cannot watch configmaps: the server could not be reached, when client-go last tried, `, func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		"429":     {&refusing{code: http.StatusTooManyRequests}, `"configmaps": cannot watch configmaps: the server is overloaded: `, apierrors.IsTooManyRequests},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := setOf(tc.server, 20*time.Second).Run(quiet(t))
				if !errors.Is(err, informer.ErrNotSynced) || !tc.is(err) || !strings.Contains(fmt.Sprint(err), tc.want) || strings.Contains(fmt.Sprint(err), "has not stopped") {
					t.Errorf("Run() = %v, want %s", err, tc.want)
				}
			})
		})
	}
}

// TestOutageEnds: the informer syncs after an outage, at most a pause late.
func TestOutageEnds(t *testing.T) {
	for _, code := range []int{0, http.StatusTooManyRequests} {
		synctest.Test(t, func(t *testing.T) {
			outage := &refusing{next: &apiServer{}, code: code, after: "7"}
			set := setOf(outage, time.Hour)
			ctx, cancel := context.WithCancel(quiet(t))
			done := make(chan error, 1)
			go func() { done <- set.Run(ctx) }()
			time.Sleep(10 * time.Minute)
			if got := outage.requests.Load(); got < 10 || got > 30 {
				t.Errorf("the informer sent %d requests in 10 min, want a growing pause of up to a minute", got)
			}
			outage.over.Store(true)
			end := time.Now()
			<-set.HasSyncedChecker().Done()
			if late := time.Since(end); late > time.Minute {
				t.Errorf("the informer synced %v after the outage", late)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
