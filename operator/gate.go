package operator

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/consistency"
)

// A gate is a controller's [consistency.Store]. It lets the operator's transport find the
// store of a call, and logs the keys that wait for long.
type gate struct {
	store *consistency.Store

	mu   sync.Mutex // guards the fields below
	held map[types.NamespacedName]*hold
}

type hold struct {
	since  time.Time
	logged bool
}

// tooLong is the time after which a held key is logged.
const tooLong = 10 * time.Second

// storeKey is the key of the context value that has the store of a call.
type storeKey struct{}

func (g *gate) Begin(ctx context.Context, key types.NamespacedName) context.Context {
	return context.WithValue(g.store.Begin(ctx, key), storeKey{}, g.store)
}

func (g *gate) Ready(key types.NamespacedName, wake func()) bool {
	ready := g.store.Ready(key, wake)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case ready && len(g.held) > 0:
		delete(g.held, key)
	case !ready && g.held[key] == nil:
		g.held[key] = &hold{since: time.Now()}
	}
	return ready
}

func (g *gate) End(key types.NamespacedName) { g.store.End(key) }

// watch logs keys that have waited for too long, each once, until ctx is done.
func (g *gate) watch(ctx context.Context, controller string) {
	ticker := time.NewTicker(tooLong / 10)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, key := range g.late() {
			// The error names the resource and the version that the key waits for.
			if err := g.store.EnsureReady(key); err != nil {
				klog.FromContext(ctx).Error(err, "The informers do not show the writes of a key, which waits for them", "controller", controller, "key", key, "after", tooLong)
			}
		}
	}
}

// late returns the keys that have begun to be late since its last call.
func (g *gate) late() (late []types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, h := range g.held {
		if !h.logged && time.Since(h.since) >= tooLong {
			h.logged = true
			late = append(late, key)
		}
	}
	return late
}

// record passes each request to the store of the call that makes it.
func record(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return &writer{next: next}
}

// A writer is the transport of one client.
type writer struct {
	next   http.RoundTripper
	stores sync.Map // *consistency.Store to http.RoundTripper
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (w *writer) WrappedRoundTripper() http.RoundTripper { return w.next }

// RoundTrip implements http.RoundTripper.
func (w *writer) RoundTrip(req *http.Request) (*http.Response, error) {
	store, ok := req.Context().Value(storeKey{}).(*consistency.Store)
	if !ok {
		return w.next.RoundTrip(req)
	}
	rt, ok := w.stores.Load(store)
	if !ok {
		rt, _ = w.stores.LoadOrStore(store, store.Wrap(w.next))
	}
	return rt.(http.RoundTripper).RoundTrip(req)
}
