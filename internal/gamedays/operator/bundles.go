package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/controllerkit/controllerkit/enqueue"
	"github.com/controllerkit/controllerkit/informer/compact"
	"github.com/controllerkit/controllerkit/informer/ondemand"
	"github.com/controllerkit/controllerkit/informer/scope"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/queue"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

const (
	bundleFinalizer = "web.example.com/bundle"
	bundleLabel     = "web.example.com/bundle" // of the bundles, and of their members with the name of the bundle
	settingsName    = "settings"               // the ConfigMap whose key namespaces has the namespaces of the bundles
)

// retryPending is how often a bundle is applied again while the API server does not serve a kind of it.
const retryPending = 5 * time.Second

// bundles applies the manifests in Secrets, which can be of any kind. It watches the namespaces of the
// settings, and the kinds that the bundles have.
type bundles struct {
	set     *applyset.Set
	mapper  meta.RESTMapper
	watches *ondemand.Informers[schema.GroupVersionResource]
	queue   *queue.Queue[types.NamespacedName]
	event   func(obj metav1.Object, eventType, reason, action, note string, args ...any)

	mu    sync.Mutex
	open  map[schema.GroupVersionResource]*ondemand.Watch
	kinds map[types.NamespacedName][]schema.GroupVersionResource // of each bundle
}

func addBundles(op *operator.Operator, namespace string) error {
	kube, err := kubernetes.NewForConfig(op.Config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	client, err := dynamic.NewForConfig(op.Config)
	metadataClient, metadataErr := metadata.NewForConfig(op.Config)
	discoveryClient, discoveryErr := discovery.NewDiscoveryClientForConfig(op.Config)
	if err := errors.Join(err, metadataErr, discoveryErr); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	b := &bundles{
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discoveryClient)),
		queue:  queue.New(queue.Config[types.NamespacedName]{Name: "secrets", MetricsProvider: op.Metrics}),
		open:   map[schema.GroupVersionResource]*ondemand.Watch{},
		kinds:  map[types.NamespacedName][]schema.GroupVersionResource{},
	}
	b.watches = &ondemand.Informers[schema.GroupVersionResource]{New: func(gvr schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
		return dynamicinformer.NewFilteredDynamicInformer(client, gvr, "", 0, cache.Indexers{}, func(o *metav1.ListOptions) {
			o.LabelSelector = bundleLabel
		}).Informer(), nil
	}}
	op.Informers.AddRun("members of bundles", b.watches.Run)
	secrets := corev1.SchemeGroupVersion.WithKind("Secret")
	b.set = &applyset.Set{Client: client, Metadata: metadataClient, Mapper: b.mapper, Manager: "web.example.com/bundles", ParentKind: secrets, Finalizer: bundleFinalizer, MaxPrunePercent: 100}

	inScope := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
		return compact.New[*corev1.Secret](kube.CoreV1().RESTClient(), "secrets", compact.Options{Namespace: p.Namespace, Tweak: p.Options, ManagedFields: true})
	})
	settings := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, settingsName).String()
	})).Core().V1().ConfigMaps()
	op.Inform(corev1.Resource("secrets"), inScope)
	operator.Follow(op, corev1.Resource("configmaps"), settings, inScope, func(l corelisters.ConfigMapLister) (scope.Selection, error) {
		c, err := l.ConfigMaps(namespace).Get(settingsName)
		if err != nil {
			return scope.Selection{}, err
		}
		return scope.Selection{Namespaces: strings.Fields(c.Data["namespaces"]), LabelSelector: bundleLabel}, nil
	})
	c := operator.Kind(op, corev1.SchemeGroupVersion.WithResource("secrets"), operator.Reconciler[*corev1.Secret]{
		Reconcile: sleepy(b.reconcile), Finalizer: bundleFinalizer, Cleanup: sleepyCleanup(b.cleanup), ReadOnly: true,
	})
	c.Loop.Queue, b.event = b.queue, c.Event
	// What manifests usually have. The rights for other kinds are given with their definitions.
	for _, resource := range []string{"configmaps", "services"} {
		op.Writes(corev1.Resource(resource), "get", "list", "watch", "create", "patch", "delete")
	}
	op.Writes(corev1.Resource("secrets"), "patch") // the inventory of a set
	return nil
}

func (b *bundles) reconcile(ctx context.Context, s *corev1.Secret) (reconcile.Result, error) {
	var members []applyset.Member
	var errs []error
	kinds := map[schema.GroupVersionResource]bool{}
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(s.Data[key], &u.Object); err != nil || u.GetKind() == "" {
			// The text of the error could have parts of the Secret.
			errs = append(errs, fmt.Errorf("key %s is no manifest: %w", key, reconcile.ErrTerminal))
			continue
		}
		u.SetNamespace(s.Namespace)
		u.SetLabels(map[string]string{bundleLabel: s.Name})
		member := applyset.Member{Object: u, Wait: true}
		mapping, err := b.mapper.RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
		switch {
		case err == nil:
			kinds[mapping.Resource] = true
			if live := b.live(mapping.Resource, u); live != nil {
				member.Live = live
			}
		case !meta.IsNoMatchError(err): // Apply reports that one
			errs = append(errs, fmt.Errorf("key %s: %w", key, err))
		}
		members = append(members, member)
	}
	if err := errors.Join(errs...); err != nil {
		return reconcile.Result{}, err // a part of a bundle would prune the rest
	}
	if err := b.watch(ctx, types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, slices.Collect(maps.Keys(kinds))); err != nil {
		return reconcile.Result{}, err
	}
	results, err := b.set.Apply(ctx, s, members...)
	if i := slices.IndexFunc(results, func(r applyset.Result) bool { return r.Action == applyset.Pending }); i >= 0 && err == nil {
		b.event(s, corev1.EventTypeWarning, "Pending", "Apply", "%s %s: %s", results[i].Kind.Kind, results[i].Name, results[i].Reason)
		return reconcile.Result{RequeueAfter: retryPending}, nil
	}
	return reconcile.Result{}, err
}

// live returns the cached object, or nil: then Apply asks the API server.
func (b *bundles) live(kind schema.GroupVersionResource, of *unstructured.Unstructured) *unstructured.Unstructured {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.open[kind]
	if w == nil {
		return nil
	}
	obj, _, _ := w.GetStore().GetByKey(of.GetNamespace() + "/" + of.GetName()) // a cache has no errors
	live, _ := obj.(*unstructured.Unstructured)
	return live
}

func (b *bundles) cleanup(ctx context.Context, s *corev1.Secret) error {
	if _, err := b.set.Delete(ctx, s); err != nil {
		return err
	}
	return b.watch(ctx, types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, nil)
}

// watch makes the kinds those of a bundle, and ends the watches of kinds that no bundle has.
func (b *bundles) watch(ctx context.Context, bundle types.NamespacedName, kinds []schema.GroupVersionResource) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kinds[bundle] = kinds
	if len(kinds) == 0 {
		delete(b.kinds, bundle)
	}
	for _, kind := range kinds {
		if b.open[kind] != nil {
			continue
		}
		w, err := b.watches.Open(kind)
		if err != nil {
			return err
		}
		b.open[kind] = w
		if _, err := w.AddEventHandler(enqueue.Handler(b.queue, func(m *unstructured.Unstructured) []types.NamespacedName {
			return []types.NamespacedName{{Namespace: m.GetNamespace(), Name: m.GetLabels()[bundleLabel]}}
		})); err != nil {
			return err
		}
	}
	used := map[schema.GroupVersionResource]bool{}
	for _, kinds := range b.kinds {
		for _, kind := range kinds {
			used[kind] = true
		}
	}
	for kind, w := range b.open {
		if !used[kind] {
			delete(b.open, kind)
			if err := w.Close(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
