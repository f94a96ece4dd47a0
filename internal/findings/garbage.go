package findings

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"

	"github.com/controllerkit/controllerkit/controllertest"
)

// Each ConfigMap owns the Secrets with its name as prefix. The last one exists once the first
// step has created all, and is never deleted.
const (
	ownerForeground = "foreground"
	ownerOrphan     = "orphan"
	ownerReplaced   = "replaced" // with another object of the same name
	ownerOneOfTwo   = "one"      // its Secrets are also owned by ownerLast
	ownerLast       = "last"
	ownerNone       = "none" // owns nothing
)

// replacement is a label of the ConfigMap that replaces ownerReplaced.
const replacement = "replacement"

// garbage deletes owners with each propagation policy. The API server must run without a
// garbage collector of its own.
func garbage() controllertest.Scenario {
	return controllertest.Scenario{
		Name:        "garbagecollector",
		Start:       collect,
		UserObjects: []string{"configmaps/" + ownerNone}, // with another owner its dependents would go
		Script: []controllertest.Step{
			step("create owners and their dependents", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				for _, name := range []string{ownerNone, ownerForeground, ownerOrphan, ownerReplaced, ownerOneOfTwo, ownerLast} {
					owner, err := createOwner(ctx, kube, namespace, name, nil)
					if err == nil && name != ownerNone && name != ownerOneOfTwo {
						err = createDependent(ctx, kube, namespace, name+"-1", owner)
					}
					if err != nil {
						return err
					}
				}
				one, err := kube.CoreV1().ConfigMaps(namespace).Get(ctx, ownerOneOfTwo, metav1.GetOptions{})
				if err != nil {
					return err
				}
				last, err := kube.CoreV1().ConfigMaps(namespace).Get(ctx, ownerLast, metav1.GetOptions{})
				if err != nil {
					return err
				}
				return createDependent(ctx, kube, namespace, ownerOneOfTwo+"-1", one, last)
			}),
			step("add a dependent", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				owner, err := kube.CoreV1().ConfigMaps(namespace).Get(ctx, ownerOrphan, metav1.GetOptions{})
				if err != nil {
					return err
				}
				return createDependent(ctx, kube, namespace, ownerOrphan+"-2", owner)
			}),
			step("orphan the dependents", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return deleteOwner(ctx, kube, namespace, ownerOrphan, metav1.DeletePropagationOrphan)
			}),
			step("delete in the foreground", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return deleteOwner(ctx, kube, namespace, ownerForeground, metav1.DeletePropagationForeground)
			}),
			step("delete one of two owners", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				return deleteOwner(ctx, kube, namespace, ownerOneOfTwo, metav1.DeletePropagationForeground)
			}),
			step("replace an owner", func(ctx context.Context, kube kubernetes.Interface, namespace string) error {
				if err := deleteOwner(ctx, kube, namespace, ownerReplaced, metav1.DeletePropagationBackground); err != nil {
					return err
				}
				owner, err := createOwner(ctx, kube, namespace, ownerReplaced, map[string]string{replacement: ""})
				if err != nil {
					return err
				}
				return createDependent(ctx, kube, namespace, ownerReplaced+"-2", owner)
			}),
		},
		Converged: collected,
		Invariants: []controllertest.Invariant{{Name: "a dependent that blocks goes first", Check: func(s *controllertest.State) error {
			if s.Get("configmaps", ownerLast) != nil && s.Get("configmaps", ownerForeground) == nil && s.Get("secrets", ownerForeground+"-1") != nil {
				return fmt.Errorf("the ConfigMap %s is gone before its Secret", ownerForeground)
			}
			return nil
		}}},
	}
}

// collected is the Converged of garbage.
func collected(s *controllertest.State) error {
	if s.Get("configmaps", ownerLast) == nil {
		return nil // the first step is not at its end
	}
	owners := map[string]bool{} // by uid
	for _, cm := range s.Objects("configmaps") {
		if cm.GetDeletionTimestamp() != nil {
			return fmt.Errorf("the ConfigMap %s has a deletion time and the finalizers %v", cm.GetName(), cm.GetFinalizers())
		}
		owners[string(cm.GetUID())] = true
	}
	for _, secret := range s.Objects("secrets") {
		for _, ref := range secret.GetOwnerReferences() {
			if !owners[string(ref.UID)] {
				return fmt.Errorf("the Secret %s has a reference to a ConfigMap %s that does not exist", secret.GetName(), ref.Name)
			}
		}
	}
	want := []string{ownerOrphan + "-1", ownerOneOfTwo + "-1", ownerLast + "-1"}
	if s.Get("configmaps", ownerOrphan) == nil {
		want = append(want, ownerOrphan+"-2")
	}
	for _, name := range []string{ownerForeground, ownerReplaced} {
		if cm := s.Get("configmaps", name); cm != nil && hasLabel(cm, replacement) {
			want = append(want, name+"-2")
		} else if cm != nil {
			want = append(want, name+"-1")
		}
	}
	for _, name := range want {
		if s.Get("secrets", name) == nil {
			return fmt.Errorf("the Secret %s is gone, and its owner was not deleted or orphaned it", name)
		}
	}
	return nil
}

func hasLabel(obj *unstructured.Unstructured, label string) bool {
	_, ok := obj.GetLabels()[label]
	return ok
}

func createOwner(ctx context.Context, kube kubernetes.Interface, namespace, name string, labels map[string]string) (*corev1.ConfigMap, error) {
	return kube.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
}

func createDependent(ctx context.Context, kube kubernetes.Interface, namespace, name string, owners ...*corev1.ConfigMap) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, owner := range owners {
		secret.OwnerReferences = append(secret.OwnerReferences, metav1.OwnerReference{
			APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: new(true),
		})
	}
	_, err := kube.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{})
	return err
}

func deleteOwner(ctx context.Context, kube kubernetes.Interface, namespace, name string, policy metav1.DeletionPropagation) error {
	return kube.CoreV1().ConfigMaps(namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy})
}

// collect runs the garbage collector of a namespace, which knows ConfigMaps and Secrets only.
func collect(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(env.Namespace))
	partial := metadatainformer.NewFilteredSharedInformerFactory(client, 0, env.Namespace, nil)
	collector, err := garbagecollector.NewGarbageCollector(ctx, kube, client,
		restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kube.Discovery())),
		garbagecollector.DefaultIgnoredResources(), informerfactory.NewInformerFactory(shared, partial), closed())
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { collector.Run(ctx, 2, 30*time.Second) })
	wg.Go(func() { collector.Sync(ctx, mapsAndSecrets{}, 30*time.Second) })
	wg.Wait()
	shared.Shutdown()
	partial.Shutdown()
	return nil
}

// mapsAndSecrets lets the collector discover ConfigMaps and Secrets only, so that a run has few
// informers.
type mapsAndSecrets struct {
	discovery.ServerResourcesInterface
}

func (mapsAndSecrets) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	verbs := metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}
	return []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: verbs},
		{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: verbs},
	}}}, nil
}
