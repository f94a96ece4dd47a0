// Package wire reads from the HTTP requests and responses of the Kubernetes API which
// object a write concerns and which effect it had.
package wire

import (
	"net/http"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// Target is the object that the path of a request names.
type Target struct {
	Resource                     schema.GroupResource
	Namespace, Name, Subresource string
}

// ParseWrite returns the target of a request that can change an object. It is false for
// a read, a dry run and a stream (exec, attach, port-forward, proxy), for a token, which
// is not stored, and for paths outside the resources of the API.
func ParseWrite(req *http.Request) (Target, bool) {
	switch req.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return Target{}, false
	}
	if strings.Contains(req.URL.RawQuery, "dryRun") && req.URL.Query().Has("dryRun") {
		return Target{}, false
	}
	return parsePath(req.URL.Path)
}

// Parse returns the target of a request and its verb in the rules of a Role. It is false for a
// stream, a token and a path outside the resources of the API.
func Parse(req *http.Request) (t Target, verb string, ok bool) {
	t, ok = parsePath(req.URL.Path)
	switch req.Method {
	case http.MethodGet, http.MethodHead:
		switch verb = "get"; {
		case kube.IsWatch(req.URL):
			verb = "watch"
		case t.Name == "":
			verb = "list"
		}
	case http.MethodPost:
		verb = "create"
	case http.MethodPut:
		verb = "update"
	case http.MethodPatch:
		verb = "patch"
	case http.MethodDelete:
		if verb = "delete"; t.Name == "" {
			verb = "deletecollection"
		}
	}
	return t, verb, ok && verb != ""
}

// parsePath parses a path of the Kubernetes API, which may follow a prefix:
//
//	/api/v1/[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]]
//	/apis/GROUP/VERSION/[namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]]
//
// The resource of a binding is pods.
func parsePath(path string) (Target, bool) {
	var t Target
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
				t.Resource.Group, path = group, rest
			}
		}
	}
	var array [5]string // no slice of its own: it would be garbage of every write
	segments := array[:0]
	for more := true; more && len(segments) < len(array); {
		var s string
		s, path, more = strings.Cut(path, "/")
		segments = append(segments, s)
	}
	// A namespace is an object too. Its subresources are not resources in it.
	if n := len(segments); n >= 3 && segments[0] == "namespaces" &&
		!(n == 3 && t.Resource.Group == "" && (segments[2] == "status" || segments[2] == "finalize")) {
		t.Namespace = segments[1]
		segments = segments[2:]
	}
	t.Resource.Resource = segments[0]
	if len(segments) > 1 {
		t.Name = segments[1]
	}
	if len(segments) > 2 {
		t.Subresource = segments[2]
	}
	switch t.Subresource {
	case "exec", "attach", "portforward", "proxy", "log", "token":
		return t, false
	}
	if t.Resource == (schema.GroupResource{Resource: "bindings"}) {
		t.Resource.Resource, t.Subresource = "pods", "binding"
	}
	return t, t.Resource.Resource != ""
}

// Reader reads responses and reuses the memory for them. The zero Reader is ready to
// use. It must not be copied.
type Reader struct {
	buffers sync.Pool // of *[]byte
}

// Effect is the effect of a write on an object.
type Effect struct {
	UID     types.UID // of the object; "" if unknown
	Version string    // the object's resource version after the write; "" if unknown
	Gone    types.UID // the UID of the object that the write removed; "" if it remains
}

// Effect returns the effect of a successful write, and false if the response does not
// show it: it is cut off or unreadable, or, as for an eviction, a binding or the deletion
// of a collection, it has neither a version nor the UID of a removed object.
//
// The caller can still read the whole body.
func (r *Reader) Effect(req *http.Request, resp *http.Response, t Target) (e Effect, known bool) {
	body, complete := r.hold(resp)
	var o object
	if !complete || decode(mediaType(resp.Header), body, &o) != nil {
		return e, false
	}
	m, deletion := &o.Metadata, req.Method == http.MethodDelete
	deleting := m.DeletionTimestamp != nil
	switch {
	case deletion && t.Name == "":
		return e, false // the response lists the objects and not their deletions
	case deleting && t.Subresource == "finalize":
		return e, false // the last one removes the namespace
	case deletion && m.UID == "":
		var status metav1.Status
		if decode(mediaType(resp.Header), body, &status) == nil && status.Details != nil {
			e.Gone = status.Details.UID
		}
	case t.Resource == schema.GroupResource{Resource: "namespaces"}, len(m.Finalizers) > 0,
		m.DeletionGracePeriodSeconds != nil && *m.DeletionGracePeriodSeconds != 0:
		// It remains. A namespace also has finalizers in its spec.
	case deleting, deletion && t.Subresource == "":
		// A deletion returns the object, and so does an update that removes the last
		// finalizer of a deleted object. Its version is then the previous one.
		e.Gone = m.UID
	}
	if _, err := resourceversion.CompareResourceVersion(m.ResourceVersion, m.ResourceVersion); err == nil {
		e.Version = m.ResourceVersion
	}
	e.UID = m.UID
	return e, e.Version != "" || e.Gone != ""
}
