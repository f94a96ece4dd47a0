package operator

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/consistency"
)

// A gate is a controller's [consistency.Store] that logs the keys that wait for long.
type gate struct {
	store   *consistency.Store
	waiting atomic.Int64 // is len(held): a call of a key that need not wait takes no lock

	mu   sync.Mutex // guards the field below
	held map[types.NamespacedName]*hold
}

type hold struct {
	since  time.Time
	logged bool
}

// tooLong is the time after which a held key is logged.
const tooLong = 10 * time.Second

func (g *gate) Begin(ctx context.Context, key types.NamespacedName) context.Context {
	return g.store.Begin(ctx, key)
}

func (g *gate) Ready(key types.NamespacedName, wake func()) bool {
	ready := g.store.Ready(key, wake)
	if ready && g.waiting.Load() == 0 {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if ready {
		delete(g.held, key)
	} else if g.held[key] == nil {
		g.held[key] = &hold{since: time.Now()}
	}
	g.waiting.Store(int64(len(g.held)))
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

// A writer is the transport of one client. It passes requests through the Stores of all
// controllers, of which each records the writes of its own calls.
type writer struct {
	stores *atomic.Pointer[[]*consistency.Store] // nil before Run
	next   http.RoundTripper
	once   sync.Once
	chain  http.RoundTripper
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (w *writer) WrappedRoundTripper() http.RoundTripper { return w.next }

// RoundTrip implements http.RoundTripper.
func (w *writer) RoundTrip(req *http.Request) (*http.Response, error) {
	stores := w.stores.Load()
	if stores == nil {
		return w.next.RoundTrip(req)
	}
	w.once.Do(func() {
		w.chain = w.next
		for _, s := range *stores {
			w.chain = s.Wrap(w.chain)
		}
	})
	return w.chain.RoundTrip(req)
}
