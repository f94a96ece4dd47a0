package operator

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/operator/internal/served"
	"github.com/controllerkit/controllerkit/operator/internal/source"
)

// Follow makes the selection of an informer of package scope, and of the informers that its method
// With made, follow the objects of resource:
//
//	settings := factory.Core().V1().ConfigMaps() // of one namespace
//	operator.Follow(op, corev1.Resource("configmaps"), settings, pods, func(l corelisters.ConfigMapLister) (scope.Selection, error) {
//		c, err := l.ConfigMaps("system").Get("namespaces")
//		if err != nil {
//			return scope.Selection{}, err
//		}
//		return scope.Selection{Namespaces: strings.Fields(c.Data["namespaces"])}, nil
//	})
//
// The function is called on every replica, with the lister of from, and again when an object
// changes: see [scope.Informer.Follow]. If it returns an error, the selection stays. A replica is
// not ready and takes no Lease until a selection is shown, at least in part, or is empty. After
// StartTimeout Run returns the reason. from can be another informer of a resource that a
// controller watches, or the same.
//
// Errors, such as a second Follow of an informer, are returned by Run.
func Follow[L any](op *Operator, resource schema.GroupResource, from interface {
	Informer() cache.SharedIndexInformer
	Lister() L
}, of *scope.Informer, which func(L) (scope.Selection, error)) {
	var settings cache.SharedIndexInformer
	if !kube.IsNil(from) {
		settings = from.Informer()
	}
	switch {
	case resource.Resource == "":
		op.fail("Follow: a resource is empty: name it, e.g. corev1.Resource(\"configmaps\")")
		return
	case kube.IsNil(settings):
		op.fail("Follow: the informer of %s is nil", resource)
		return
	case of == nil || which == nil:
		op.fail("Follow of %s: the informer or the function is nil", resource)
		return
	}
	lister := from.Lister()
	settings = op.sources.Known(op.settings, settings)
	if err := of.Follow(settings, func() (scope.Selection, error) { return which(lister) }); err != nil {
		op.fail("Follow of %s: %w", resource, err)
		return
	}
	op.settings = append(op.settings, source.Setting{Resource: served.Resource{GroupResource: resource}, Informer: settings})
}
