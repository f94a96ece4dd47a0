package debug

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/wire"
)

// Hook returns a Hook for a reconcile.Controller that records the calls, and calls next if it
// is not nil.
func (c *Controller) Hook(next func(ctx context.Context, key types.NamespacedName) (context.Context, func(result string, err error))) func(ctx context.Context, key types.NamespacedName) (context.Context, func(result string, err error)) {
	return func(ctx context.Context, key types.NamespacedName) (context.Context, func(string, error)) {
		made := &callContext{Context: ctx, c: c, key: key, began: time.Now()}
		made.attempt, _ = ctx.Value(calls.Attempt{}).(int)
		made.triggers, _ = ctx.Value(calls.Triggers{}).([]string)
		if next == nil {
			return made, made.end
		}
		ctx, end := next(made, key)
		if end == nil {
			return ctx, made.end
		}
		return ctx, func(result string, err error) {
			defer made.end(result, err)
			end(result, err)
		}
	}
}

// callContext is the context of a call, by which the writes and the cleanups of the call are
// found.
type callContext struct {
	context.Context
	c        *Controller
	key      types.NamespacedName
	began    time.Time
	attempt  int
	triggers []string

	mu      sync.Mutex
	blocked *holding // by a finalizer
}

// callKey is the key of the context value that is the callContext.
type callKey struct{ page *Page }

// Value implements context.Context.
func (m *callContext) Value(key any) any {
	switch key {
	case callKey{m.c.page}, calls.Cleanup{}:
		return m
	}
	return m.Context.Value(key)
}

// Blocked implements calls.CleanupObserver.
func (m *callContext) Blocked(finalizer string, steps []string, since time.Time) {
	what := finalizer
	if len(steps) > 0 {
		what += ": " + strings.Join(steps[:min(len(steps), maxTriggers)], ", ")
	}
	held := &holding{what: kube.Printable(what, maxCause), since: since}
	m.mu.Lock()
	m.blocked = held
	m.mu.Unlock()
	m.c.history.add(record{at: time.Now(), key: m.key, kind: blocked, what: held.what, took: -1})
}

// end records the end of the call. The text of the error is not recorded: it can have
// contents of objects.
func (m *callContext) end(result string, err error) {
	if err != nil {
		if reason := apierrors.ReasonForError(err); isWord(string(reason)) {
			result += " (" + string(reason) + ")"
		}
	}
	r := record{
		at: m.began, key: m.key, kind: call, took: time.Since(m.began), what: result,
		attempt: m.attempt, triggers: m.triggers[:min(len(m.triggers), maxTriggers)],
	}
	m.c.history.add(r)
	if failed(result) {
		r.kind = failure
		m.c.history.add(r)
	}
	m.mu.Lock()
	held := m.blocked
	m.mu.Unlock()
	if held != nil {
		held.last, held.final = time.Now(), strings.HasPrefix(result, controllerkit.ResultTerminal)
	}
	m.c.history.hold(m.key, held)
}

// isWord reports whether text is a short word, as the reasons of the API server are.
func isWord(text string) bool {
	return text != "" && len(text) <= 64 && strings.IndexFunc(text, func(r rune) bool { return (r|0x20) < 'a' || (r|0x20) > 'z' }) < 0
}

// failed reports whether a call with the result did not succeed.
func failed(result string) bool {
	return result != controllerkit.ResultSuccess && result != controllerkit.ResultRequeue
}

type gate struct {
	controllerkit.Gate[types.NamespacedName]
	c *Controller
}

// Ready implements controllerkit.Gate.
func (g *gate) Ready(key types.NamespacedName, wake func()) bool { return g.ready(key, wake, nil) }

func (g *gate) ready(key types.NamespacedName, wake func(), reasons controllerkit.ReadyEnsurer[types.NamespacedName]) bool {
	began := time.Now()
	if g.Gate.Ready(key, func() {
		if wake != nil {
			wake() // before the record, because a page must not delay it
		}
		g.c.history.add(record{at: time.Now(), key: key, kind: woken, what: "the wait is over", took: time.Since(began)})
	}) {
		return true
	}
	r := record{at: began, key: key, kind: wait, took: -1}
	if reasons != nil {
		if err := reasons.EnsureReady(key); err != nil {
			r.what = kube.Printable(err.Error(), maxCause)
		}
	}
	g.c.history.add(r)
	return false
}

type reasonedGate struct {
	gate
	reasons controllerkit.ReadyEnsurer[types.NamespacedName]
}

// Ready implements controllerkit.Gate.
func (g *reasonedGate) Ready(key types.NamespacedName, wake func()) bool {
	return g.ready(key, wake, g.reasons)
}

// EnsureReady implements controllerkit.ReadyEnsurer.
func (g *reasonedGate) EnsureReady(key types.NamespacedName) error { return g.reasons.EnsureReady(key) }

type source struct {
	c    *Controller
	name string
	next controllerkit.EventAdder[types.NamespacedName]
}

// Add implements controllerkit.Adder.
func (s *source) Add(key types.NamespacedName) {
	s.record(s.name, key)
	s.next.Add(key)
}

// AddEvent implements controllerkit.EventAdder.
func (s *source) AddEvent(e controllerkit.Event, opts controllerkit.AddOptions, keys ...types.NamespacedName) {
	s.record(s.event(e.Kind), keys...)
	s.next.AddEvent(e, opts, keys...)
}

// event returns the name and the kind of an event, which are bounded.
func (s *source) event(kind string) string {
	if kind == "" {
		return s.name
	}
	return s.name + " " + kube.Printable(kind, maxName)
}

// record records an event of the keys, or of the last ones of very many.
func (s *source) record(what string, keys ...types.NamespacedName) {
	now := time.Now()
	for _, key := range keys[max(0, len(keys)-event.capacity()):] {
		s.c.history.add(record{at: now, key: key, kind: event, what: what, took: -1})
	}
}

// Transport returns a transport that records the writes of the calls: the requests with the
// context of a Hook. It has the form of rest.Config.Wrap. Dry runs and streams are not
// recorded. A nil next means http.DefaultTransport.
func (p *Page) Transport(next http.RoundTripper) http.RoundTripper {
	if kube.IsNil(next) {
		next = http.DefaultTransport
	}
	return &transport{page: p, next: next}
}

type transport struct {
	page *Page
	next http.RoundTripper
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	made, ok := req.Context().Value(callKey{t.page}).(*callContext)
	if !ok {
		return t.next.RoundTrip(req)
	}
	target, ok := wire.ParseWrite(req)
	if !ok || wire.DryRun(req, target) {
		return t.next.RoundTrip(req)
	}
	began := time.Now()
	resp, err := t.next.RoundTrip(req)
	r := record{at: began, key: made.key, kind: write, took: time.Since(began), what: request(req, target)}
	if err == nil {
		r.status = resp.StatusCode
		if resp.StatusCode >= 200 && resp.StatusCode < 300 {
			if effect, ok := t.page.reader.Effect(req, resp, target); ok {
				r.version = kube.Printable(effect.Version, maxName)
			}
		}
	}
	made.c.history.add(r)
	return resp, err
}

// request returns the verb and the object of a write.
func request(req *http.Request, t wire.Target) string {
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[req.Method]
	if strings.HasPrefix(req.Header.Get("Content-Type"), "application/apply-patch") {
		verb = "apply"
	}
	resource := t.Resource.String()
	if t.Subresource != "" {
		resource += "/" + t.Subresource
	}
	return kube.Printable(verb+" "+resource+" "+types.NamespacedName{Namespace: t.Namespace, Name: t.Name}.String(), 2*maxName)
}
