package operator_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/internal/testlog"
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

// ownHandlers is an informer as of package managerkit/bridge: one of several for a running informer, whose handlers
// get events while it runs itself.
type ownHandlers struct {
	cache.SharedIndexInformer
	handlers *[]func()
}

func newOwnHandlers(of cache.SharedIndexInformer) ownHandlers { return ownHandlers{of, new([]func())} }

func (i ownHandlers) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	r := &lateRegistration{synced: make(chan struct{})}
	*i.handlers = append(*i.handlers, func() {
		added, err := i.SharedIndexInformer.AddEventHandler(handler)
		if err == nil {
			<-added.HasSyncedChecker().Done()
			close(r.synced)
		}
	})
	return r, nil
}

func (ownHandlers) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return nil
}

func (ownHandlers) RemoveEventHandler(cache.ResourceEventHandlerRegistration) error { return nil }

func (i ownHandlers) RunWithContext(ctx context.Context) {
	for _, add := range *i.handlers {
		add()
	}
	<-ctx.Done()
}

type lateRegistration struct{ synced chan struct{} }

func (r *lateRegistration) HasSynced() bool                     { return cache.IsDone(r) }
func (r *lateRegistration) HasSyncedChecker() cache.DoneChecker { return r }
func (*lateRegistration) Name() string                          { return "late" }
func (r *lateRegistration) Done() <-chan struct{}               { return r.synced }

// Selections follow, also if each user of the settings has an informer of its own for one cache, in any order.
func TestFollowOwnHandlers(t *testing.T) {
	for name, order := range map[string][]string{
		"a controller first": {"watch", "follow"}, "a selection first": {"follow", "watch"}, "two selections": {"follow another", "follow"},
		"two controllers": {"watch", "watch in another"}, "all": {"follow another", "watch", "follow", "watch in another"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(testlog.New().Context(t.Context()))
				defer cancel()
				shared := newFactory().Core().V1().ConfigMaps().Informer()
				go shared.RunWithContext(ctx)
				op, err := operator.New(&rest.Config{Host: "http://server", Transport: &slowDiscovery{begin: time.Now(), lists: map[string][]time.Duration{}}}, operator.Options{Name: "follow"})
				if err != nil {
					t.Fatal(err)
				}
				pods := podScope()
				first := op.Controller("first", nothing)
				operator.For(first, corev1.Resource("pods"), informer.With(pods, corelisters.NewPodLister))
				if !slices.Contains(order, "follow") {
					if err := pods.Select(ctx, scope.Selection{}); err != nil {
						t.Fatal(err)
					}
				}
				followed := 0
				for _, register := range order {
					settings := informer.With(newOwnHandlers(shared), corelisters.NewConfigMapLister)
					switch register {
					case "follow another":
						operator.Follow(op, corev1.Resource("configmaps"), settings, podScope(), nothingSelected)
					case "follow":
						operator.Follow(op, corev1.Resource("configmaps"), settings, pods, func(corelisters.ConfigMapLister) (scope.Selection, error) {
							followed++
							return scope.Selection{}, nil
						})
					case "watch":
						operator.Watches(first, corev1.Resource("configmaps"), settings, enqueue.KeyOf[*corev1.ConfigMap])
					default:
						operator.For(op.Controller("second", nothing), corev1.Resource("configmaps"), settings)
					}
				}
				ended := make(chan error, 1)
				go func() { ended <- op.Run(ctx) }()
				time.Sleep(time.Minute)
				cancel()
				if err := <-ended; err != nil {
					t.Errorf("Run() = %v", err)
				}
				if slices.Contains(order, "follow") && followed == 0 {
					t.Error("the selection does not follow")
				}
			})
		})
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
