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
	if !w.start() {
		return t.next.RoundTrip(req)
	}
	if options := deleteOptions(req, target); options != nil && len(options.DryRun) > 0 {
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
		body, complete := t.hold(resp)
		var o object
		switch err := decode(mediaType(resp.Header), body, &o); {
		case !complete, err != nil:
			w.ambiguous()
		case req.Method == http.MethodDelete && target.name == "":
			w.ambiguous() // the list that was deleted says nothing of the deletions
		case target.subresource == "finalize" && o.Metadata.DeletionTimestamp != nil:
			w.ambiguous() // of a namespace; the last one ends it, and has the version from before
		default:
			w.recorded(o.Metadata.ResourceVersion, gone(req.Method, target, &o, mediaType(resp.Header), body), target)
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
func gone(method string, t target, o *object, media string, body []byte) types.UID {
	grace := o.Metadata.DeletionGracePeriodSeconds
	switch {
	case o.Metadata.UID == "" && method == http.MethodDelete:
		var status metav1.Status
		if decode(media, body, &status) == nil && status.Details != nil {
			return status.Details.UID
		}
	case t.resource == schema.GroupResource{Resource: "namespaces"}, len(o.Metadata.Finalizers) > 0, grace != nil && *grace != 0:
	case o.Metadata.DeletionTimestamp != nil || method == http.MethodDelete && t.subresource == "":
		return o.Metadata.UID
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

// recorded records a write that was answered with success. A response that has neither
// a version nor the UID of what is gone comes from an eviction, a binding and some
// aggregated servers: there has been a write, and no cache can be compared with it.
func (w *write) recorded(version string, gone types.UID, t target) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	known := w.store.wroteLocked(w.owner, "", w.resource, version, w.started)
	switch _, ok := w.store.objectsLocked(w.resource); {
	case gone != "" && ok:
		w.store.deletedLocked(w.owner, "", w.resource, gone, cache.ObjectName{Namespace: t.namespace, Name: t.name}.String())
	case gone != "" || !known:
		w.store.ambiguousLocked(w.owner, w.resource)
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
// It is false for anything else, for subresources that are streams, and for tokens,
// which are not stored. The resource of a binding is that of the pod.
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
	case "exec", "attach", "portforward", "proxy", "log", "token":
		return t, false
	}
	if t.resource == (schema.GroupResource{Resource: "bindings"}) {
		t.resource.Resource, t.subresource = "pods", "binding"
	}
	return t, true
}

// deleteOptions returns the options of a deletion or an eviction, which come in the
// body; nil for other writes, and if they cannot be read.
func deleteOptions(req *http.Request, t target) *metav1.DeleteOptions {
	var e *eviction
	var into message
	switch {
	case req.Method == http.MethodDelete:
		e = &eviction{}
		into = &e.DeleteOptions
	case req.Method == http.MethodPost && t.subresource == "eviction":
		e = &eviction{}
		into = e
	default:
		return nil
	}
	media, body := sent(req)
	if decode(media, body, into) != nil {
		return nil
	}
	return &e.DeleteOptions
}
