// Package stray finds mistakes in the writes of a controller's calls: writes that no client of the
// operator's Config sent, so that the Store of the controller has not recorded them, owner references
// that do not work, and a status that the API server ignores.
//
// A client of another cluster writes no object that the operator's informers hold. So a stray
// write is one whose response is an object, by its UID, that an informer holds. The packages of the
// library report their responses. Of another client only the path of a request is known, and the API
// server that it is for.
package stray

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/internal/calls"
	"github.com/controllerkit/controllerkit/internal/wire"
)

const (
	maxNew = 16          // written objects that no informer holds yet
	maxAge = time.Minute // of them
)

// A Finder finds the first stray write of the calls of an operator. Its fields are set before the
// first call.
type Finder struct {
	// Holds reports whether an informer of the operator holds the object. Required.
	Holds func(obj metav1.Object) bool

	// Found is called once, with the context of a call, and with the Go type or the resource of the
	// object. The name of an object that is created can be "". Required.
	Found func(ctx context.Context, of, namespace, name string)

	// Host is the address of the API server of Config, as Host returns it. "" means that requests of other clients are
	// not noted.
	Host string

	// Holding reports whether an informer of the operator holds objects of the resource. Required
	// with Host.
	Holding func(resource schema.GroupResource) bool

	once  sync.Once
	probe context.Context //nolint:containedctx // its only value has the key of a trace

	mu    sync.Mutex
	found bool
	new   []written
}

// written is an object that a stray write has made, or an object of another cluster.
type written struct {
	metav1.Object
	at time.Time
}

// Host returns the host of the API server of config with the path before /api, "" if it has none. A proxy can have
// several clusters on one host, each with a path of its own.
func Host(config *rest.Config) string {
	u, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return ""
	}
	return u.Host + strings.TrimSuffix(path.Join("/", u.Path), "/") // as client-go joins it
}

type callKey struct{}

// A call has the names of the objects that its requests through Wrap were for. It is the context of the
// call: two contexts with a value each would be a tenth of the allocations of a call without work.
type call struct {
	context.Context //nolint:containedctx // it is that context

	finder  *Finder
	subject *Subject
	key     types.NamespacedName

	mu    sync.Mutex // guards the fields below
	sent  []types.NamespacedName
	trace *trace // nil until a request asks for it
}

// A trace is the context of a call with a trace of its requests.
type trace struct {
	context.Context //nolint:containedctx // it is that context

	head header // guarded by the call's mu
}

// A header has the pseudo-headers of a request of HTTP/2. A connection writes those of one request
// after those of another.
type header struct{ authority, method, path string }

// Begin returns the context of a call with a key. If subject is nil, the call's requests through Wrap are
// only noted.
func (f *Finder) Begin(ctx context.Context, subject *Subject, key types.NamespacedName) context.Context {
	f.once.Do(func() { f.probe = httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{}) })
	c := &call{Context: ctx, finder: f, subject: subject, key: key}
	f.check(c)
	return c
}

// Value implements context.Context.
func (c *call) Value(key any) any {
	switch key {
	case callKey{}:
		return c
	case calls.Written{}:
		return c.written
	}
	if c.finder.Host != "" && c.finder.probe.Value(key) != nil {
		return c.traced().Value(key)
	}
	return c.Context.Value(key)
}

// traced returns a context with a trace of the call's requests, of any client.
func (c *call) traced() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trace == nil {
		c.trace = &trace{Context: httptrace.WithClientTrace(c.Context, &httptrace.ClientTrace{WroteHeaderField: c.wrote})}
	}
	return c.trace.Context
}

// wrote is called for each header of a request.
func (c *call) wrote(name string, values []string) {
	if !strings.HasPrefix(name, ":") || len(values) != 1 {
		return
	}
	c.mu.Lock()
	switch name {
	case ":authority":
		c.trace.head.authority = values[0]
	case ":method":
		c.trace.head.method = values[0]
	case ":path":
		c.trace.head.path = values[0]
	}
	h := c.trace.head
	if h.authority == "" || h.method == "" || h.path == "" {
		c.mu.Unlock()
		return
	}
	c.trace.head = header{}
	c.mu.Unlock()
	if u, err := url.Parse(h.path); err == nil && c.finder.serves(h.authority+u.Path) {
		target, ok := wire.ParseWrite(&http.Request{Method: h.method, URL: u})
		if ok && !c.has(types.NamespacedName{Namespace: target.Namespace, Name: target.Name}) && c.finder.Holding(target.Resource) {
			c.finder.mu.Lock()
			defer c.finder.mu.Unlock()
			c.finder.foundLocked(c, target.Resource.String(), target.Namespace, target.Name)
		}
	}
}

// serves reports whether an address is one of the API server of Config.
func (f *Finder) serves(address string) bool {
	after, ok := strings.CutPrefix(address, f.Host)
	return ok && (strings.HasPrefix(after, "/api/") || strings.HasPrefix(after, "/apis/"))
}

// foundLocked calls Found, unless a stray write was found before.
func (f *Finder) foundLocked(ctx context.Context, of, namespace, name string) {
	if !f.found {
		f.found = true
		f.Found(ctx, of, namespace, name)
	}
}

// written notes the response of a write.
func (c *call) written(obj metav1.Object) {
	if obj.GetUID() != "" && !c.has(types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}) {
		c.finder.add(obj)
		c.finder.check(c)
	}
}

// add stores an object, in place of the oldest one if there are too many.
func (f *Finder) add(obj metav1.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.new) == maxNew {
		f.new = slices.Delete(f.new, 0, 1)
	}
	f.new = append(f.new, written{obj, time.Now()})
}

// check calls Found if an informer holds one of the objects.
func (f *Finder) check(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.new = slices.DeleteFunc(f.new, func(w written) bool { return f.found || time.Since(w.at) > maxAge })
	if i := slices.IndexFunc(f.new, func(w written) bool { return f.Holds(w.Object) }); i >= 0 {
		obj := f.new[i].Object
		f.foundLocked(ctx, fmt.Sprintf("%T", obj), obj.GetNamespace(), obj.GetName())
	}
}

// Wrap returns a transport that notes the objects of the requests of calls.
func (f *Finder) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{next} }

type transport struct{ next http.RoundTripper }

// WrappedRoundTripper returns the inner transport, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c, ok := req.Context().Value(callKey{}).(*call)
	if !ok || req.Method == http.MethodGet {
		return t.next.RoundTrip(req)
	}
	if target, _, ok := wire.Parse(req); ok {
		c.add(types.NamespacedName{Namespace: target.Namespace, Name: target.Name})
	}
	resp, err := t.next.RoundTrip(req)
	if err == nil && c.subject != nil {
		c.subject.look(req.Context(), c.key, req, resp)
	}
	return resp, err
}

func (c *call) add(object types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, object)
}

// has reports whether a request was for the object. A request to create it may have no name.
func (c *call) has(object types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.sent, object) || slices.Contains(c.sent, types.NamespacedName{Namespace: object.Namespace})
}
