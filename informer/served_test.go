package informer_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testlog"
)

// servedFrom is an informer of a resource that is served from a time on. It counts its lists.
func servedFrom(at time.Time, lists *atomic.Int64) cache.SharedIndexInformer {
	notServed := func() error {
		if time.Now().Before(at) {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "widgets"}, "")
		}
		return nil
	}
	return listWatch(func() error { lists.Add(1); return notServed() }, func(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
		if opts.SendInitialEvents != nil {
			return nil, errors.New("the server has no watch-list")
		}
		return watch.NewFake(), nil
	})
}

// TestServed: the informers list while Served runs. Until it returns, they are not synced, Timeout does not
// begin, and an informer whose list fails waits silently.
func TestServed(t *testing.T) {
	const took = time.Minute // longer than Timeout
	for _, tc := range []struct {
		name   string
		from   time.Duration // when the resource is served
		result error         // of Served
		stop   time.Duration // when ctx ends
		want   string        // part of the error of Run; "" means nil
		lists  int64         // at the end
	}{
		{name: "served", stop: 2 * took, lists: 1},
		{name: "served later", from: took, stop: 2 * took, lists: 2},
		{name: "served after Timeout", from: took + 40*time.Second, stop: 3 * took, want: `informer: not synced within 30s: "widgets": cannot list widgets`},
		{name: "not served", from: 2 * took, result: errors.New("it is not served"), stop: 2 * took, want: "it is not served", lists: 1},
		{name: "stopped", from: took, result: context.Canceled, stop: took / 2, lists: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var lists, handled atomic.Int64
				set := &informer.Set{
					Timeout: 30 * time.Second,
					Served: func(ctx context.Context) error {
						select {
						case <-ctx.Done():
							return ctx.Err()
						case <-time.After(took):
							return tc.result
						}
					},
					WatchErrorHandler: func(context.Context, *cache.Reflector, error) { handled.Add(1) },
				}
				set.Add("widgets", servedFrom(begin.Add(tc.from), &lists))
				logs := testlog.New()
				ctx, cancel := context.WithTimeout(logs.Context(t.Context()), tc.stop)
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- set.Run(ctx) }()
				time.Sleep(min(tc.stop, took) - time.Second)
				if lists.Load() != 1 || handled.Load() != 0 || set.HasSynced() {
					t.Errorf("before the end of Served: %d lists, %d handled errors, synced is %t, want one list", lists.Load(), handled.Load(), set.HasSynced())
				}
				if err := set.Ready(); tc.from == 0 && (err == nil || err.Error() != "informer: not synced: waiting for Set.Served") {
					t.Errorf("Ready() = %v, want that it waits for Served", err)
				}
				for _, line := range logs.All() {
					if line.Err != nil || line.Level == 0 {
						t.Errorf("logged: %s: %v", line.Message, line.Err)
					}
				}
				if tc.stop > took && tc.want == "" {
					<-set.HasSyncedChecker().Done()
					if waited := time.Since(begin); waited < took || waited > took+10*time.Second {
						t.Errorf("synced after %v, want soon after Served", waited)
					}
				}
				err := <-ended
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("Run() = %v, want %q", err, tc.want)
				}
				if tc.lists > 0 && lists.Load() != tc.lists {
					t.Errorf("%d lists, want %d", lists.Load(), tc.lists)
				}
			})
		})
	}
}

// While Served runs, an informer that has listed goes on: the error of its watch is handled, and it lists
// again. Refusals count only after Served.
//
// Proves I3.
func TestServedSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lists, handled atomic.Int64
		var refused atomic.Bool
		refused.Store(true)
		inf := listWatch(func() error { lists.Add(1); return nil }, func(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			switch {
			case opts.SendInitialEvents != nil:
				return nil, errors.New("the server has no watch-list")
			case refused.Load():
				return nil, forbidden("watch")
			}
			return watch.NewFake(), nil
		})
		served := make(chan struct{})
		set := &informer.Set{
			Served:            func(context.Context) error { <-served; return nil },
			WatchErrorHandler: func(context.Context, *cache.Reflector, error) { handled.Add(1) },
		}
		set.Add("widgets", inf)
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- set.Run(ctx) }()
		time.Sleep(time.Minute)
		if lists.Load() < 4 || handled.Load() < 4 || !inf.HasSynced() || set.HasSynced() {
			t.Errorf("before the end of Served: %d lists, %d handled errors, the informer is synced: %t, the Set: %t, want attempts of a synced informer", lists.Load(), handled.Load(), inf.HasSynced(), set.HasSynced())
		}
		refused.Store(false)
		time.Sleep(time.Minute) // client-go's longest pause
		close(served)
		<-set.HasSyncedChecker().Done()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

// While an informer waits for Served, and at once after it, Check does not call it stalled. Another
// one whose list hangs is stalled.
func TestServedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		notServed := roundTripper(func(req *http.Request) (*http.Response, error) {
			status := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
			return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(status)), Request: req}, nil
		})
		hangs := roundTripper(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})
		of := func(transport http.RoundTripper) cache.SharedIndexInformer {
			config := &rest.Config{Host: "http://server", Transport: transport}
			config.Wrap(informer.EndSilentWatches(-1))
			return informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer()
		}
		served := make(chan struct{})
		set := &informer.Set{Timeout: time.Hour, Served: func(context.Context) error { <-served; return nil }}
		set.Add("widgets", of(notServed))
		set.Add("configmaps", of(hangs))
		ctx, cancel := context.WithCancel(quiet(t))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- set.Run(ctx) }()
		want := func() {
			t.Helper()
			synctest.Wait()
			if err := set.Check(); err == nil || !strings.HasPrefix(err.Error(), `informer: "configmaps" is stalled: `) || strings.Contains(err.Error(), "widgets") {
				t.Errorf("Check = %v, want a stall of configmaps", err)
			}
		}
		time.Sleep(time.Hour)
		want()
		close(served)
		want()
		time.Sleep(9 * time.Minute)
		want()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
