package rights

import (
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/wire"
)

// Verbs returns the verbs that requests for resources have.
func Verbs() []string {
	return []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
}

const (
	maxUndeclared = 100 // kinds of requests that are logged
	maxName       = 512 // bytes of a name in the log
)

// Undeclared returns a function that wraps transports, which log the first request of each kind that
// the Set lacks, and pass it to found. With the Role of Rules the API server would refuse it.
func (s Set) Undeclared(found func(verb, resource string)) func(http.RoundTripper) http.RoundTripper {
	logged := &logged{kinds: map[use]bool{}}
	return func(next http.RoundTripper) http.RoundTripper { return &transport{s, next, logged, found} }
}

type use struct {
	schema.GroupResource
	verb string
}

type transport struct {
	set    Set
	next   http.RoundTripper
	logged *logged
	found  func(verb, resource string)
}

type logged struct {
	mu    sync.Mutex
	kinds map[use]bool
}

// WrappedRoundTripper returns the inner transport, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if target, verb, ok := wire.Parse(req); ok {
		resource := target.Resource
		if target.Subresource != "" {
			resource.Resource += "/" + target.Subresource
		}
		if !t.set.allows(resource, verb) && t.logged.add(use{resource, verb}) {
			name := kube.Printable(resource.String(), maxName)
			t.found(verb, name)
			klog.FromContext(req.Context()).Info("A request is not declared, so the Role of Rules does not allow it: call Writes", "verb", verb, "resource", name)
		}
	}
	return t.next.RoundTrip(req)
}

// add reports whether the request is the first of its kind.
func (l *logged) add(u use) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds[u] || len(l.kinds) == maxUndeclared {
		return false
	}
	l.kinds[u] = true
	return true
}
