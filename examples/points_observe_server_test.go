package examples_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/queue"
)

// dial keeps the connections of the operator.
func (p *point) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conns = append(p.conns, c)
	}
	return c, err
}

// requestHook sees the requests of the operator.
type requestHook struct {
	p    *point
	next http.RoundTripper
}

func (h *requestHook) RoundTrip(req *http.Request) (*http.Response, error) {
	kind := requestKind(req)
	acquires := false
	if kind == "create leases" || kind == "update leases" {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(bytes.NewReader(body))
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, err
		}
		acquires = h.writes(obj.(*coordinationv1.Lease))
	}
	h.p.mu.Lock()
	before := h.p.before
	h.p.mu.Unlock()
	if before {
		h.p.at(kind)
	}
	resp, err := h.next.RoundTrip(req)
	if acquires && err == nil && resp.StatusCode < 300 {
		h.p.mu.Lock()
		if h.p.terms++; h.p.stolen && h.p.terms == h.p.lost+1 {
			close(h.p.again)
		}
		h.p.mu.Unlock()
		h.p.settled()
	}
	if !before {
		h.p.at(kind)
	}
	return resp, err
}

// writes judges a write of the Lease before it is sent, and reports whether it acquires it.
func (h *requestHook) writes(lease *coordinationv1.Lease) (acquires bool) {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if ptr.Deref(lease.Spec.HolderIdentity, "") != "" {
		return lease.Spec.AcquireTime.Equal(lease.Spec.RenewTime)
	}
	for name, n := range h.p.running {
		if n > 0 {
			h.p.faultLocked("the Lease is released while %d calls of %s run", n, name)
		}
	}
	return false
}

func requestKind(req *http.Request) string {
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch"}[req.Method]
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	i := slices.Index(parts, "namespaces")
	if i < 0 || len(parts) < i+3 {
		return "discovery"
	}
	if req.URL.Query().Has("watch") {
		verb = "watch"
	}
	return verb + " " + parts[i+2]
}

// judgedQueue notes the adds, and the keys that a Run takes out at its end.
type judgedQueue struct {
	*queue.Queue[types.NamespacedName]
	p    *point
	name string
}

func (q *judgedQueue) note(keys ...types.NamespacedName) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	for _, key := range keys {
		id := q.name + " " + key.Name
		if q.p.keys[id] == nil {
			q.p.keys[id] = &progress{}
		}
		q.p.keys[id].adds++
	}
}

// Clear is called at the end of each Run: the next one begins with all objects.
func (q *judgedQueue) Clear() []types.NamespacedName {
	left := q.Queue.Clear()
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.p.left[q.name] = left
	return left
}

func (q *judgedQueue) Add(key types.NamespacedName) {
	q.note(key)
	q.Queue.Add(key)
}

func (q *judgedQueue) AddAfter(key types.NamespacedName, d time.Duration) {
	q.note(key)
	q.Queue.AddAfter(key, d)
}

func (q *judgedQueue) AddRateLimited(key types.NamespacedName) {
	q.note(key)
	q.Queue.AddRateLimited(key)
}

func (q *judgedQueue) AddWith(opts controllerkit.AddOptions, keys ...types.NamespacedName) {
	q.note(keys...)
	q.Queue.AddWith(opts, keys...)
}
