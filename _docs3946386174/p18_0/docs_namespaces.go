package page

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/informer/scope"
)
// scoped reconciles Pods and their ConfigMaps in the namespaces of the settings.
type scoped struct {
	pods       corelisters.PodLister
	configMaps corelisters.ConfigMapLister
	reconcile  reconcile.Func[types.NamespacedName] // reads the listers
}

// register adds the controller to the operator. The ConfigMap system/namespaces has the settings.
func (s *scoped) register(op *operator.Operator, system string) error {
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return err
	}
	byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	pods := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		return coreinformers.NewFilteredPodInformer(kube, p.Namespace, 0, byNamespace, p.Options), nil
	})
	configMaps := pods.With(func(p scope.Part) (cache.SharedIndexInformer, error) {
		return coreinformers.NewFilteredConfigMapInformer(kube, p.Namespace, 0, byNamespace, p.Options), nil
	})
	settings := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(system)).Core().V1().ConfigMaps()
	operator.Follow(op, corev1.Resource("configmaps"), settings, pods, func(l corelisters.ConfigMapLister) (scope.Selection, error) {
		list, err := l.ConfigMaps(system).Get("namespaces")
		if err != nil {
			return scope.Selection{}, err // the selection stays
		}
		return scope.Selection{Namespaces: strings.Fields(list.Data["namespaces"])}, nil
	})
	c := op.Controller("pods", s.reconcile)
	s.pods = operator.For(c, corev1.Resource("pods"), informer.With(pods, corelisters.NewPodLister))
	s.configMaps = operator.Owns(c, corev1.Resource("configmaps"), informer.With(configMaps, corelisters.NewConfigMapLister))
	return nil
}
func tenants(op *operator.Operator, factory informers.SharedInformerFactory, pods *scope.Informer) {
	operator.Follow(op, corev1.Resource("namespaces"), factory.Core().V1().Namespaces(), pods, func(l corelisters.NamespaceLister) (scope.Selection, error) {
		all, err := l.List(labels.SelectorFromSet(labels.Set{"tenant": "true"}))
		var names []string
		for _, n := range all {
			names = append(names, n.Name)
		}
		return scope.Selection{Namespaces: names}, err
	})
}
