package crdtest

import (
	"fmt"
	"net/http"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/crd/crdtest/internal/store"
	"github.com/controllerkit/controllerkit/internal/kube"
)

// Fake is a [crd.Client] of objects in memory. [NewFake] makes one. Its Client and the
// clients of Client.Namespace share the objects.
//
// client-go's Fake lists the requests in Actions, and its reactors respond instead of the
// memory, if they return true. A reactor for "update" also sees UpdateStatus: see
// GetSubresource of the action. The client receives a reactor's API error as from an API
// server, and any other error as that of a failed connection, inside a *url.Error. The
// client retries as in production, for example after TooManyRequests with RetryAfterSeconds,
// and each attempt is an action.
//
// A Fake differs from an API server as follows:
//
//   - A Fake has no schema. It applies no defaults, checks only that an object fits the Go
//     type, and keeps the fields that T lacks.
//   - An apply treats each list as one value, except metadata.finalizers and
//     metadata.ownerReferences.
//   - No field is nullable: an apply rejects null, and the other requests remove it.
//   - Every resource has a status subresource, so no request for a status returns
//     [crd.ErrNotServed].
//   - A Fake has no garbage collector, admission, conversion or rights. It ignores the
//     propagation policy of a deletion, and accepts writes to namespaces that do not exist.
//   - A List has one page. Field selectors know metadata.name and metadata.namespace.
//   - A Watch ignores selectors and timeouts. It begins with an Added event for each object
//     that is newer than its resourceVersion, and does not report earlier deletions. A
//     Deleted event has the last stored version.
//   - The messages of errors can differ. The codes and reasons are the same.
type Fake[T controllerkit.Object] struct {
	*clienttesting.Fake
	*crd.Client[T]
}

// NewFake returns a Fake with copies of the objects. It gives each a new resourceVersion,
// and a uid and a generation if they are missing. The objects of the caller stay without
// them: read an object before a test writes it.
// It returns the errors of [crd.New], AlreadyExists, and Invalid for an object that no API
// server stores, such as one with an owner reference without a uid.
func NewFake[T controllerkit.Object](kind schema.GroupVersionKind, resource string, objects ...T) (*Fake[T], error) {
	h := &http.Client{} // without a transport until crd has checked the arguments
	client, err := crd.NewForConfigAndClient[T](&rest.Config{Host: "http://crdtest", QPS: -1}, h, kind, resource)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, kind.GroupVersion())
	scheme.AddKnownTypeWithName(kind, reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T))
	scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &crd.List[T]{})
	f, gvr := &clienttesting.Fake{}, kind.GroupVersion().WithResource(resource)
	h.Transport = newTransport(f, kind, gvr, scheme)
	objectStore, err := store.New(scheme, kind, gvr)
	if err != nil {
		return nil, fmt.Errorf("crdtest: %w", err)
	}
	for i, obj := range objects {
		if kube.IsNil(obj) {
			return nil, fmt.Errorf("crdtest: objects[%d] is nil: pass a %T", i, obj)
		}
		if err := objectStore.Add(obj); err != nil {
			return nil, fmt.Errorf("crdtest: objects[%d]: %w", i, err)
		}
	}
	f.AddReactor("*", "*", objectStore.React)
	f.AddWatchReactor("*", objectStore.Watch)
	return &Fake[T]{f, client}, nil
}
