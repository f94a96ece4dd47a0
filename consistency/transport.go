package consistency

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// ownerKey is the key of the context value that Begin sets. It holds the store, so
// that reconciles of two stores can be nested.
type ownerKey struct{ store *Store }

// Wrap returns a transport that records the writes made with a context of Begin; it
// has the form rest.Config.Wrap wants. It takes Retry-After out of their 5xx answers:
// client-go repeats such a request unasked, also when it was carried out. All else
// passes through untouched: reads, dry runs, writes of resources without a store, and
// streams (exec, attach, port-forward, proxy). A nil rt means http.DefaultTransport.
func (s *Store) Wrap(rt http.RoundTripper) http.RoundTripper {
	if rt == nil {
		rt = http.DefaultTransport
	}
	return &transport{store: s, next: rt}
}

type transport struct {
	store   *Store
	next    http.RoundTripper
	buffers sync.Pool // of *[]byte, see hold
}

// WrappedRoundTripper lets client-go find the transport below, for example to close
// its idle connections.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	owner, ok := req.Context().Value(ownerKey{t.store}).(types.NamespacedName)
	if !ok || !mutating(req) {
		return t.next.RoundTrip(req)
	}
	target, ok := parsePath(req.URL.Path)
	if !ok {
		return t.next.RoundTrip(req)
	}
	w := write{store: t.store, owner: owner, resource: target.resource}
	if !w.start() || req.Method == http.MethodDelete && dryDelete(req) {
		return t.next.RoundTrip(req)
	}

	resp, err := t.next.RoundTrip(req)
	switch {
	case err != nil:
		// A connection that was never made has carried nothing.
		if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
			w.ambiguous()
		}
	case resp.StatusCode >= http.StatusInternalServerError:
		w.ambiguous()
		// Client-go would send it again by itself, and create twice what has no name yet.
		// A Status tells the delay in its details too, and those stay.
		resp.Header.Del("Retry-After")
	case resp.StatusCode == http.StatusConflict || resp.StatusCode == http.StatusUnprocessableEntity:
		w.refused(req, resp, target)
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		// Of other answers the end is where the connection ended.
		framed := resp.ContentLength >= 0 || len(resp.TransferEncoding) > 0 || resp.ProtoMajor >= 2
		body, complete := t.hold(resp)
		switch a, err := read(resp.Header.Get("Content-Type"), body, framed); {
		case !complete, err != nil:
			w.ambiguous()
		case req.Method == http.MethodDelete && target.name == "":
			w.ambiguous() // the list that was deleted says nothing of the deletions
		default:
			w.recorded(a, gone(req.Method, target, a), target)
		}
	}
	return resp, err
}

// mutating reports whether the request can change something.
func mutating(req *http.Request) bool {
	switch req.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return !strings.Contains(req.URL.RawQuery, "dryRun") || !req.URL.Query().Has("dryRun")
	}
	return false
}

// gone returns the UID of the object that the write has removed, "" if it has not. A
// deletion answers with a Status of it, or with the object; so does an update that
// removes the last finalizer of an object being deleted, and there the version is the
// one from before: only a DELETED event will tell. What waits for its grace period is
// still there. A namespace is too: it has finalizers of its own in its spec.
func gone(method string, t target, a answer) types.UID {
	switch {
	case a.uid == "" && method == http.MethodDelete:
		return a.deleted
	case t.resource == schema.GroupResource{Resource: "namespaces"}, a.finalizers, a.grace:
		return ""
	case a.deleting || method == http.MethodDelete && t.subresource == "":
		return a.uid
	}
	return ""
}

// write is a request that is under way.
type write struct {
	store    *Store
	owner    types.NamespacedName
	resource schema.GroupResource
	started  uint64
}

// start reports whether the resource has a store, and notes when the request began:
// its answer says nothing about writes that are found ambiguous while it is under way.
func (w *write) start() bool {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.clock++
	w.started = w.store.clock
	return w.store.stores[w.resource] != nil
}

func (w *write) recorded(a answer, gone types.UID, t target) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.wroteLocked(w.owner, "", w.resource, a.rv, w.started)
	switch _, ok := w.store.stores[w.resource].(objects); {
	case gone == "":
	case !ok:
		w.store.ambiguousLocked(w.owner, w.resource) // nothing will tell that it is gone
	default:
		w.store.deletedLocked(w.owner, "", w.resource, gone, cache.ObjectName{Namespace: t.namespace, Name: t.name}.String())
	}
}

func (w *write) ambiguous() {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	w.store.ambiguousLocked(w.owner, w.resource)
}

// target is what the path of a request names.
type target struct {
	resource                     schema.GroupResource
	namespace, name, subresource string
}

// parsePath reads a path of the Kubernetes API, which may stand behind a prefix:
//
//	/api/v1/[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]]
//	/apis/GROUP/VERSION/[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]]
//
// It is false for anything else, and for subresources that are streams.
func parsePath(path string) (target, bool) {
	var t target
	path = strings.Trim(path, "/")
	for found := false; !found; {
		var s string
		if s, path, found = strings.Cut(path, "/"); !found {
			return t, false
		}
		switch found = false; s {
		case "api":
			if rest, ok := strings.CutPrefix(path, "v1/"); ok {
				path, found = rest, true
			}
		case "apis":
			group, rest, _ := strings.Cut(path, "/")
			if _, rest, found = strings.Cut(rest, "/"); found {
				t.resource.Group, path = group, rest
			}
		}
	}
	var segments [5]string
	n := 0
	for more := true; more && n < len(segments); n++ {
		segments[n], path, more = strings.Cut(path, "/")
	}
	rest := segments[:n]
	// A namespace is an object too: its own subresources are not resources in it.
	if n >= 3 && rest[0] == "namespaces" &&
		!(n == 3 && t.resource.Group == "" && (rest[2] == "status" || rest[2] == "finalize")) {
		t.namespace = rest[1]
		rest = rest[2:]
	}
	if rest[0] == "" {
		return t, false
	}
	t.resource.Resource = rest[0]
	if len(rest) > 1 {
		t.name = rest[1]
	}
	if len(rest) > 2 {
		t.subresource = rest[2]
	}
	switch t.subresource {
	case "exec", "attach", "portforward", "proxy", "log":
		return t, false
	}
	return t, true
}

// dryDelete reports whether a deletion is a dry run. Its options come in the body.
func dryDelete(req *http.Request) bool {
	media, body := sent(req)
	var options metav1.DeleteOptions
	return decode(media, body, &options) == nil && len(options.DryRun) > 0
}
