package consistency

import (
	"errors"
	"net"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/wire"
)

// runKey is the key of the context value that Begin sets. It holds the store, because
// the runs of two stores can be nested.
type runKey struct{ store *Store }

// Wrap returns a transport that records the writes that are made with a context of Begin.
// It has the form of rest.Config.Wrap. From a 5xx response to such a write it removes
// Retry-After: client-go repeats a request with that header, and the API server may have
// carried the first one out. If several Stores wrap one configuration, each records only
// writes with a context of its own Begin.
//
// In a call of a reconcile.Controller, the transport also reports which version each write has made,
// so that the loop knows the events of the call's own writes.
//
// All other requests pass unchanged: reads, dry runs, writes of resources without a
// store, and streams. If rt returns an error with a method NotSent() bool that returns true,
// as leader.Guard does, there was no write. A nil rt means http.DefaultTransport.
func (s *Store) Wrap(rt http.RoundTripper) http.RoundTripper {
	if kube.IsNil(rt) {
		rt = http.DefaultTransport
	}
	return &transport{store: s, next: rt}
}

type transport struct {
	store  *Store
	next   http.RoundTripper
	reader wire.Reader
}

// WrappedRoundTripper returns the inner transport. Client-go uses it, for example to
// close idle connections.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	key, ok := req.Context().Value(runKey{t.store}).(types.NamespacedName)
	if !ok {
		return t.next.RoundTrip(req)
	}
	target, ok := wire.ParseWrite(req)
	if !ok {
		return t.next.RoundTrip(req)
	}
	started, floor, ok := t.store.startWrite(target)
	if !ok || wire.DryRun(req, target) {
		return t.next.RoundTrip(req)
	}
	observer, observed := req.Context().Value(calls.Versions{}).(calls.VersionObserver)
	if observed {
		observer.Sending()
	}

	resp, err := t.next.RoundTrip(req)
	var made calls.Version
	switch {
	case err != nil && !notSent(err):
		t.store.ambiguous(key, target)
	case err != nil:
	case resp.StatusCode >= http.StatusInternalServerError:
		t.store.ambiguous(key, target)
		resp.Header.Del("Retry-After") // the details of the Status also have it, for callers
	case resp.StatusCode == http.StatusConflict || resp.StatusCode == http.StatusUnprocessableEntity:
		if carried, ok := t.reader.Refusal(req, resp, target); ok {
			t.store.refused(key, target, carried)
		}
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		if effect, ok := t.reader.Effect(req, resp, target); ok {
			t.store.wrote(key, target, effect, started)
			made = madeBy(effect, target, floor)
		} else {
			t.store.ambiguous(key, target)
		}
	}
	if observed {
		observer.Answered(made)
	}
	return resp, err
}

// madeBy returns the version that a write has made. A write that changed nothing has made none:
// its response has the version that another write has made. It is told by its version, which the
// store has reached before the request. If the store had not, the version passes for the write's.
func madeBy(e wire.Effect, t wire.Target, floor string) calls.Version {
	made := calls.Version{UID: e.UID, Version: e.Version, Status: t.Subresource == "status"}
	switch {
	case e.Gone != "":
		made = calls.Version{UID: e.Gone} // the version in the response is the one before
	case reached(floor, e.Version):
		made = calls.Version{}
	}
	return made
}

// notSent reports whether the API server cannot have received the request: the connection
// was never made, or a transport below, such as leader.Guard, refused to send it.
func notSent(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op == "dial"
	}
	var refused controllerkit.UnsentError
	return errors.As(err, &refused) && refused.NotSent()
}

// startWrite reports whether the resource has a store, and returns the time of the
// store's clock and the version that the store has reached. The response settles only ambiguous
// writes from before that time.
func (s *Store) startWrite(t wire.Target) (started uint64, floor string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	store := s.cachedLocked(s.partLocked(t.Resource, t.Namespace))
	if store == nil {
		return s.clock, "", false
	}
	return s.clock, store.version(), true
}

// wrote records a successful write.
func (s *Store) wrote(key types.NamespacedName, t wire.Target, e wire.Effect, started uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stores[t.Resource] == nil {
		return // RemoveInformer was called after the start of the write
	}
	p := s.partLocked(t.Resource, t.Namespace)
	s.wroteLocked(key, "", p, e.Version, started)
	switch _, ok := s.objectsLocked(t.Resource); {
	case e.Gone == "":
	case ok:
		s.deletedLocked(key, "", objectRef{t.Resource, nameOf(t)}, e.Gone)
	default:
		s.ambiguousLocked(key, p) // the store cannot show that the object is absent
	}
}

// refused records a write that was rejected because of a conflict.
func (s *Store) refused(key types.NamespacedName, t wire.Target, carried wire.Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusedLocked(key, "", objectRef{t.Resource, nameOf(t)}, refusal{uid: carried.UID, rv: carried.Version})
}

// ambiguous records a write whose outcome is unknown.
func (s *Store) ambiguous(key types.NamespacedName, t wire.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ambiguousLocked(key, s.partLocked(t.Resource, t.Namespace))
}

// nameOf returns the target's key in an informer's store.
func nameOf(t wire.Target) string {
	return cache.ObjectName{Namespace: t.Namespace, Name: t.Name}.String()
}
