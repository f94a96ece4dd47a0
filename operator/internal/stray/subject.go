package stray

import (
	"context"
	"net/http"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/headers"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/internal/wire"
	"github.com/controllerkit/controllerkit/operator/internal/mistakes"
	"github.com/controllerkit/controllerkit/operator/internal/served"
)

// The lines of log about a request of a call.
const (
	Unwatched = "A call wrote an object that its object controls, and no event of which runs the key: call operator.Owns for the resource"
	WrongKind = "An owner reference of a call has the uid of its object and another kind or name, so the garbage collector may delete the child: use owner.SetController with the kind of the object"
	Elsewhere = "An owner reference of a call names an object in another namespace, so the garbage collector deletes the child: use a finalizer, or Reconciler.Elsewhere"
	Unstored  = "The API server ignored a status in a write of the object: write it to the subresource, with UpdateStatus or package status"
)

const (
	maxLooks     = 16  // requests that are read for a resource, per controller, unless there is a line about one
	maxResources = 100 // of a controller
	maxText      = 512 // bytes of a value in a line
)

// A Subject is what the calls of a controller are about. Its field, and Watch, are set before the first
// call.
type Subject struct {
	Kind func() served.Kind // of the objects

	owners  cache.Store
	watched map[schema.GroupResource]bool

	reader wire.Reader
	mu     sync.Mutex // guards the rest
	looks  map[schema.GroupResource]int
	logged map[[2]string]bool // by the line and the resource
}

// Watch notes that events of a resource run keys. own means that its store has the objects of the
// calls.
func (s *Subject) Watch(resource schema.GroupResource, store cache.Store, own bool) {
	if s.watched == nil {
		s.watched = map[schema.GroupResource]bool{}
	}
	s.watched[resource] = true
	if own {
		s.owners = store
	}
}

// Owner returns the metadata of the object of a key in the cache.
func (s *Subject) Owner(key types.NamespacedName) (owner metav1.Object, ok bool) {
	if s.owners == nil {
		return nil, false
	}
	return headers.Get(s.owners, cache.ObjectName(key).String())
}

// mayLook reports whether one more request for a resource is read.
func (s *Subject) mayLook(resource schema.GroupResource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, known := s.looks[resource]
	if n == maxLooks || !known && len(s.looks) == maxResources {
		return false
	}
	if s.looks == nil {
		s.looks = map[schema.GroupResource]int{}
	}
	s.looks[resource] = n + 1
	return true
}

// mistake returns the mistake that a line is about.
func mistake(line string) string {
	switch line {
	case WrongKind:
		return mistakes.WrongKindOfOwner
	case Elsewhere:
		return mistakes.OwnerElsewhere
	case Unstored:
		return mistakes.IgnoredStatus
	default:
		return mistakes.UnwatchedChild
	}
}

// log logs a line once for each resource.
func (s *Subject) log(ctx context.Context, line string, resource schema.GroupResource, obj metav1.Object, values ...any) {
	s.mu.Lock()
	kind := [2]string{line, resource.String()}
	first := !s.logged[kind]
	if s.logged == nil {
		s.logged = map[[2]string]bool{}
	}
	s.logged[kind] = true
	s.mu.Unlock()
	if first {
		mistakes.Note(ctx, mistake(line))
		klog.FromContext(ctx).Info(line, append([]any{"resource", kube.Printable(resource.String(), maxText), "object", kube.Printable(kube.NameOf(obj), maxText)}, values...)...)
	}
}

// look reads a request of a call that succeeded, and its response.
func (s *Subject) look(ctx context.Context, key types.NamespacedName, req *http.Request, resp *http.Response) {
	target, ok := wire.ParseWrite(req)
	if !ok || target.Subresource != "" || req.Method == http.MethodDelete || resp.StatusCode/100 != 2 || !s.mayLook(target.Resource) {
		return
	}
	obj, ok := s.reader.Metadata(resp)
	if !ok {
		return
	}
	if s.reader.Unstored(req, resp) {
		s.log(ctx, Unstored, target.Resource, obj)
	}
	owner, ok := s.Owner(key)
	if !ok {
		return
	}
	refs := obj.GetOwnerReferences()
	i := slices.IndexFunc(refs, func(ref metav1.OwnerReference) bool { return ref.UID == owner.GetUID() })
	if i < 0 {
		return
	}
	kind := s.Kind()
	gv, err := schema.ParseGroupVersion(refs[i].APIVersion)
	switch {
	case err != nil || gv.Group != kind.Group || refs[i].Kind != kind.Kind || refs[i].Name != owner.GetName():
		s.log(ctx, WrongKind, target.Resource, obj, "reference", kube.Printable(refs[i].APIVersion+" "+refs[i].Kind+" "+refs[i].Name, maxText), "kind", kind.GroupVersionKind.String())
	case owner.GetNamespace() != "" && owner.GetNamespace() != obj.GetNamespace():
		s.log(ctx, Elsewhere, target.Resource, obj)
	case obj.GetLabels()["applyset.kubernetes.io/part-of"] != "": // of a set, whose kinds are watched on demand
	case refs[i].Controller != nil && *refs[i].Controller && !s.watched[target.Resource]:
		s.log(ctx, Unwatched, target.Resource, obj)
	}
}
