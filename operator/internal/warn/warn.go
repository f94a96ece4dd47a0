// Package warn logs the warnings that the API server adds to its responses, such as one
// about a deprecated version or a finalizer's name. client-go logs them with each response.
package warn

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/internal/kube"
)

const (
	remembered = 1024 // texts, as hashes
	maxText    = 1024 // bytes of a line
)

// Handler is the rest.WarningHandlerWithContext of one process.
type Handler struct {
	mu   sync.Mutex // makes a look at seen and the addition to it one step
	seen *lru.Cache // by the hash of the text
}

// Once returns a handler that logs each text once. It forgets a text after many others.
func Once() *Handler { return &Handler{seen: lru.New(remembered)} }

// HandleWarningHeaderWithContext logs a warning with the values of the request's context.
func (h *Handler) HandleWarningHeaderWithContext(ctx context.Context, code int, _ string, text string) {
	if code != 299 || text == "" || !h.first(sha256.Sum256([]byte(text))) { // 299 has all of them
		return
	}
	klog.FromContext(ctx).Info("The API server returned a warning, which is logged once", "warning", kube.Printable(text, maxText))
}

func (h *Handler) first(text [sha256.Size]byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.seen.Get(text); ok {
		return false
	}
	h.seen.Add(text, nil)
	return true
}

// Mutations returns a function that logs a change of a cache by the program, at most once an hour
// for each informer. The metrics count all changes.
func Mutations(logger klog.Logger) func(informer.Mutation) {
	last := map[string]time.Time{}
	return func(m informer.Mutation) { // called by one goroutine
		if at, ok := last[m.Name]; ok && time.Since(at) < time.Hour {
			return
		}
		last[m.Name] = time.Now()
		const most = 4 << 10
		logger.Error(kube.PrintableError(errors.New(m.String()), most), "The program changed an object in a cache",
			"informer", m.Name, "object", kube.Printable(m.Key, most), "path", kube.Printable(m.Path, most))
	}
}
