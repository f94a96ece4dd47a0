package informer_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/testserver"
)

// stream is the body of a watch: a byte after each of its pauses, and then nothing until
// the request is ended.
type stream struct {
	ctx    context.Context
	pauses []time.Duration
}

func (s *stream) Read(p []byte) (int, error) {
	if len(s.pauses) == 0 {
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	select {
	case <-time.After(s.pauses[0]):
		s.pauses = s.pauses[1:]
		return copy(p, "x"), nil
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
}

func (s *stream) Close() error { return nil }

// TestEndSilentWatches proves I4.
func TestEndSilentWatches(t *testing.T) {
	const silence = time.Minute
	for _, tc := range []struct {
		name    string
		path    string
		silence time.Duration
		pauses  []time.Duration // of the server
		slow    time.Duration   // the consumer's pause before each Read
		read    int
		after   time.Duration // from the request to the end, 0 if there is none
	}{
		{"silent at once", "/api/v1/pods?watch=true", silence, nil, 0, 0, silence},
		{"events before silence", "/api/v1/pods?watch=true", silence, []time.Duration{silence - 1, silence - 1, 1}, 0, 3, 3*silence - 1},
		{"slow consumer", "/api/v1/pods?watch=1", silence, []time.Duration{1, 1}, 5 * silence, 2, 15*silence + 2 + silence},
		{"default", "/api/v1/pods?watch=true", 0, nil, 0, 0, 3 * time.Minute},
		{"disabled", "/api/v1/pods?watch=true", -1, nil, 0, 0, 0},
		{"list", "/api/v1/pods?limit=500", silence, nil, 0, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				rt := informer.EndSilentWatches(tc.silence)(roundTripper(func(req *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusOK, Body: &stream{req.Context(), tc.pauses}}, nil
				}))
				start := time.Now()
				resp, err := rt.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, tc.path, http.NoBody))
				if err != nil {
					t.Fatal(err)
				}
				read, p := 0, make([]byte, 8)
				for err == nil {
					time.Sleep(tc.slow)
					var n int
					n, err = resp.Body.Read(p)
					read += n
				}
				if err2 := resp.Body.Close(); err2 != nil {
					t.Error(err2)
				}
				wantErr, want := io.EOF, tc.after
				if want == 0 {
					wantErr, want = context.DeadlineExceeded, 24*time.Hour
				}
				if took := time.Since(start); err != wantErr || took != want || read != tc.read {
					t.Errorf("the body ended with %v after %v and %d bytes, want %v after %v and %d", err, took, read, wantErr, want, tc.read)
				}
			})
		})
	}
}

// TestEndSilentWatchesUnanswered proves I4.
func TestEndSilentWatchesUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := informer.EndSilentWatches(time.Minute)(roundTripper(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}))
		start := time.Now()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods?watch=true", http.NoBody)
		resp, err := rt.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		// client-go takes a timeout for a watch that ended, not for a reason to list again.
		if took := time.Since(start); !utilnet.IsTimeout(err) || !strings.HasPrefix(err.Error(), "informer: ") || took != time.Minute {
			t.Errorf("RoundTrip() = %v after %v, want a timeout after 1m", err, took)
		}

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		resp, err = rt.RoundTrip(req.WithContext(ctx))
		if err == nil {
			_ = resp.Body.Close()
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("RoundTrip() = %v after the caller's context ended, want its error", err)
		}
	})
}

func TestEndSilentWatchesClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := informer.EndSilentWatches(time.Minute)(roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: &stream{ctx: req.Context()}}, nil
		}))
		resp, err := rt.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods?watch=true", http.NoBody))
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { _ = resp.Body.Close() })
		start := time.Now()
		if _, err := resp.Body.Read(make([]byte, 8)); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("Read() = %v after %v, want context.Canceled after 1s", err, time.Since(start))
		}
	})
	if w, ok := informer.EndSilentWatches(0)(nil).(interface{ WrappedRoundTripper() http.RoundTripper }); !ok || w.WrappedRoundTripper() != http.DefaultTransport {
		t.Error("nil does not mean http.DefaultTransport")
	}
}

// dying is a network on which the first watch dies: after die is closed it brings nothing
// more, and neither do the next deaf requests to watch. It counts what it sees.
type dying struct {
	next    http.RoundTripper
	die     chan struct{}
	deaf    atomic.Int32
	lists   atomic.Int32 // lists, and watches that begin with one
	watches atomic.Int32
	first   sync.Once
}

func (d *dying) RoundTrip(req *http.Request) (*http.Response, error) {
	query := req.URL.Query()
	if !query.Has("watch") {
		d.lists.Add(1)
		return d.next.RoundTrip(req)
	}
	d.watches.Add(1)
	if query.Has("sendInitialEvents") {
		d.lists.Add(1)
	}
	select {
	case <-d.die:
		if d.deaf.Add(-1) >= 0 {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
	default:
	}
	resp, err := d.next.RoundTrip(req)
	if err == nil {
		d.first.Do(func() { resp.Body = &mortal{resp.Body, req.Context(), d.die} })
	}
	return resp, err
}

func (d *dying) WrappedRoundTripper() http.RoundTripper { return d.next }

type mortal struct {
	io.ReadCloser
	ctx context.Context
	die <-chan struct{}
}

func (m *mortal) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	select {
	case <-m.die: // what arrived is lost, as on a connection that is cut off
		<-m.ctx.Done()
		return 0, m.ctx.Err()
	default:
		return n, err
	}
}

// TestServerSilentWatch proves I4.
func TestServerSilentWatch(t *testing.T) {
	t.Parallel()
	namespace := testserver.Namespace(t)
	config := testserver.Config(t)
	admin := typedClient(t, config)
	network := &dying{die: make(chan struct{})}
	network.deaf.Store(2)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { network.next = next; return network })
	// client-go lists again after a watch without an event that ended within a second.
	config.Wrap(informer.EndSilentWatches(3 * time.Second))

	inf := configMapsOf(t, config, namespace)
	added := make(chan string, 10)
	handler, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { added <- o.(*corev1.ConfigMap).Name }})
	if err != nil {
		t.Fatal(err)
	}
	set := informer.Set{Timeout: time.Minute, StopTimeout: time.Minute}
	set.Add("configmaps", inf, handler)
	ctx, cancel := context.WithCancel(quiet(t))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	select {
	case <-set.HasSyncedChecker().Done():
	case err := <-done:
		t.Fatalf("Run() = %v", err)
	}
	first := network.lists.Load() // a silence during the first list repeats it
	close(network.die)
	if _, err := admin.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "unseen"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	timeout := time.After(2 * time.Minute)
	for seen := false; !seen; {
		select {
		case name := <-added:
			seen = name == "unseen"
		case <-timeout:
			t.Fatal("the informer did not notice that its watch was dead")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if lists, watches := network.lists.Load(), network.watches.Load(); lists != first || watches < 4 {
		t.Errorf("%d lists and %d watches, want the first list only, and a watch after each silence", lists, watches)
	}
}
