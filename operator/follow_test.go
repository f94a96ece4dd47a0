package operator_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/operator"
)

func podScope() *scope.Informer {
	return scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		return coreinformers.NewPodInformer(fake.NewClientset(), p.Namespace, 0, cache.Indexers{}), nil
	})
}

func nothingSelected[L any](L) (scope.Selection, error) { return scope.Selection{}, nil }

// Rules have the rights for the settings, and the informer of settings that a controller watches
// is added once.
func TestFollowRules(t *testing.T) {
	op, err := operator.New(nowhere(), operator.Options{Name: "follow"})
	if err != nil {
		t.Fatal(err)
	}
	core := newFactory().Core().V1()
	pods, secrets := podScope(), podScope()
	operator.Follow(op, corev1.Resource("namespaces"), core.Namespaces(), pods, nothingSelected)
	operator.Follow(op, corev1.Resource("namespaces"), core.Namespaces(), secrets, nothingSelected)
	operator.Follow(op, corev1.Resource("configmaps"), core.ConfigMaps(), podScope(), nothingSelected)
	operator.Follow(op, corev1.Resource("configmaps"), newFactory().Core().V1().ConfigMaps(), podScope(), nothingSelected)
	c := op.Controller("pods", nothing)
	operator.For(c, corev1.Resource("pods"), informer.With(pods, corelisters.NewPodLister))
	operator.Watches(c, corev1.Resource("namespaces"), core.Namespaces(), enqueue.KeyOf[*corev1.Namespace])
	objects, _ := op.Rules()
	var read rbacv1.PolicyRule
	for _, r := range objects {
		if len(r.Resources) == 3 {
			read = r
		}
	}
	if diff := cmp.Diff([]string{"configmaps", "namespaces", "pods"}, read.Resources); diff != "" {
		t.Errorf("rules %v (-want +got):\n%s", objects, diff)
	}
	op.Register()
	names := slices.Sorted(maps.Keys(op.Informers.LastEvents()))
	if diff := cmp.Diff([]string{"configmaps (settings 2)", "configmaps (settings)", "namespaces", "pods"}, names); diff != "" {
		t.Errorf("informers (-want +got):\n%s", diff)
	}
}

func TestFollowInput(t *testing.T) {
	selected := podScope()
	if err := selected.Select(t.Context(), scope.Selection{}); err != nil {
		t.Fatal(err)
	}
	for want, follow := range map[string]func(*operator.Operator, informers.SharedInformerFactory){
		"a resource is empty": func(op *operator.Operator, f informers.SharedInformerFactory) {
			operator.Follow(op, corev1.Resource(""), f.Core().V1().Namespaces(), podScope(), nothingSelected)
		},
		"the informer of pods is nil": func(op *operator.Operator, _ informers.SharedInformerFactory) {
			operator.Follow(op, corev1.Resource("pods"), informer.With(nil, corelisters.NewPodLister), podScope(), nothingSelected)
		},
		"the informer or the function is nil": func(op *operator.Operator, f informers.SharedInformerFactory) {
			operator.Follow(op, corev1.Resource("namespaces"), f.Core().V1().Namespaces(), nil, nothingSelected)
		},
		"Follow of namespaces: scope: Follow was called after Select": func(op *operator.Operator, f informers.SharedInformerFactory) {
			operator.Follow(op, corev1.Resource("namespaces"), f.Core().V1().Namespaces(), selected, nothingSelected)
		},
	} {
		op, err := operator.New(nowhere(), operator.Options{Name: "follow"})
		if err != nil {
			t.Fatal(err)
		}
		operator.For(op.Controller("x", nothing), corev1.Resource("configmaps"), newFactory().Core().V1().ConfigMaps())
		follow(op, newFactory())
		if err := op.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "operator: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("Run = %v, want an error with %q", err, want)
		}
	}
}
