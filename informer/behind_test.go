package informer_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/informer"
)

// behind is an API server whose watch cache is never as new as etcd: after 3s it ends a watch that
// begins with a list, and serves a list from etcd.
type behind struct {
	*streams
	lists, initial atomic.Int32
}

func (b *behind) RoundTrip(req *http.Request) (*http.Response, error) {
	query := req.URL.Query()
	switch {
	case query.Has("sendInitialEvents"):
		b.initial.Add(1)
		time.Sleep(3 * time.Second)
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: req, Body: io.NopCloser(strings.NewReader(
			`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: Too large resource version: 9, current: 8","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}}` + "\n",
		))}, nil
	case !query.Has("watch"):
		b.lists.Add(1)
		time.Sleep(3 * time.Second)
	}
	return b.streams.RoundTrip(req)
}

// TestWatchCacheBehind: if the API server's watch cache is too old for a streamed list, the informer
// lists, at its start and later, and each time one line of log has the reason.
//
// Proves I6.
func TestWatchCacheBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &behind{streams: newStreams(true)}
		config := &rest.Config{Host: "http://server", Transport: server, QPS: -1}
		config.Wrap(informer.EndSilentWatches(-1))
		inf := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0).Core().V1().ConfigMaps().Informer()
		var lines atomic.Int32
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(_, line string) {
			if strings.Contains(line, "The API server's watch cache is behind, so the informer lists") {
				lines.Add(1)
			}
		}, funcr.Options{})))
		var set informer.Set
		set.Add("configmaps", inf)
		done, began := make(chan error, 1), time.Now()
		go func() { done <- set.Run(ctx) }()
		select {
		case <-set.HasSyncedChecker().Done():
		case err := <-done:
			t.Fatalf("Run() = %v, want an informer that has synced", err)
		}
		if took := time.Since(began); took > 7*time.Second || len(inf.GetStore().List()) != 1 {
			t.Errorf("synced after %v with %d objects, want 1 within 7s", took, len(inf.GetStore().List()))
		}
		if err := set.Relist("configmaps"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if lists, initial, lines := server.lists.Load(), server.initial.Load(), lines.Load(); lists != 2 || initial != 2 || lines != 2 {
			t.Errorf("%d lists after %d watches with a list, and %d lines, want 2 of each", lists, initial, lines)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
