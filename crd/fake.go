package crd

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/gentype"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit/crd/internal/store"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Fake is a [Client] of objects in memory, for unit tests. [NewFake] makes one. Its Client
// and the clients of Client.Namespace share the objects; client-go's Fake adds reactors
// and lists the requests. Unlike the fakes of client-gen it has the resource versions,
// uids, generations, conflicts and finalizers of the API server, a status that only
// requests for the status change, and managed fields.
//
// It has no schema: it applies no defaults, validation and pruning, an apply treats each
// list as one value, and every resource has a status. It has no garbage collector,
// admission, conversion, rights and paging, and accepts writes to namespaces that do not
// exist. A Watch ignores selectors and reports deletions with the last stored version.
// Field selectors know metadata.name and metadata.namespace. If a watcher leaves 100
// events unread, client-go's fake panics.
type Fake[T Object] struct {
	*clienttesting.Fake
	*Client[T]
}

// NewFake returns a Fake with copies of the objects. It gives each a new
// resourceVersion, and a uid and a generation if they are missing: read an object
// before a test writes it. It returns the errors of [New], and AlreadyExists.
func NewFake[T Object](kind schema.GroupVersionKind, resource string, objects ...T) (*Fake[T], error) {
	k, err := newKind[T](kind, resource)
	if err != nil {
		return nil, err
	}
	f := &clienttesting.Fake{}
	k.in = func(namespace string) requests[T] {
		return gentype.NewFakeClientWithList(f, namespace, k.resource, k.GroupVersionKind, k.new, k.newList,
			func(to, from *List[T]) { to.ListMeta = from.ListMeta },
			func(list *List[T]) []T { return list.Items },
			func(list *List[T], items []T) { list.Items = items })
	}
	objectStore := store.New(k.scheme, k.GroupVersionKind, k.resource)
	for i, obj := range objects {
		if kube.IsNil(obj) {
			return nil, fmt.Errorf("crd: objects[%d] is nil: pass a %T", i, obj)
		}
		if err := objectStore.Add(obj); err != nil {
			return nil, fmt.Errorf("crd: objects[%d]: %w", i, err)
		}
	}
	f.AddReactor("*", "*", objectStore.React)
	f.AddWatchReactor("*", objectStore.Watch)
	return &Fake[T]{f, k.client("")}, nil
}
