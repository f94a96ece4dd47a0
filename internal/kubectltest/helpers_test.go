package kubectltest_test

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/controllerkit/controllerkit/internal/testserver"
	"github.com/controllerkit/controllerkit/ssa/applyset"
)

const (
	manager   = "example.com/colors"
	finalizer = "example.com/colors"
	tooling   = "applyset.kubernetes.io/tooling"
)

// newSet returns a Set with the mapper of a discovery client.
func newSet(t testing.TB, config *rest.Config, parent schema.GroupVersionKind) *applyset.Set {
	t.Helper()
	return &applyset.Set{
		Client: dynamic.NewForConfigOrDie(config), Metadata: metadata.NewForConfigOrDie(config), Mapper: mapper(config),
		Manager: manager, ParentKind: parent, Finalizer: finalizer, MaxPrunePercent: 100, MaxPrune: 1000,
	}
}

func mapper(config *rest.Config) *restmapper.DeferredDiscoveryRESTMapper {
	return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovery.NewDiscoveryClientForConfigOrDie(config)))
}

// world is namespaces with objects, and an administrator's client.
type world struct {
	dynamic.Interface
	one, two, three, four string
}

func newWorld(t testing.TB) world {
	t.Helper()
	return world{dynamic.NewForConfigOrDie(testserver.Config(t)), testserver.Namespace(t), testserver.Namespace(t), testserver.Namespace(t), testserver.Namespace(t)}
}

var resources = []string{"configmaps", "serviceaccounts", "services"}

func resource(name string) schema.GroupVersionResource {
	if name == "clusterroles" {
		return schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: name}
	}
	return schema.GroupVersionResource{Version: "v1", Resource: name}
}

// objects returns members of several kinds in the namespaces and in the cluster, with
// names that begin with "object-".
func (w world) objects(color string, namespaces ...string) []*unstructured.Unstructured {
	var all []*unstructured.Unstructured
	add := func(apiVersion, kind, namespace, name string, rest map[string]any) {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
		for field, value := range rest {
			u.Object[field] = value
		}
		u.SetNamespace(namespace)
		u.SetName(name)
		all = append(all, u)
	}
	for _, namespace := range namespaces {
		for _, name := range []string{"object-a", "object-b"} {
			add("v1", "ConfigMap", namespace, name, map[string]any{"data": map[string]any{"color": color}})
		}
		add("v1", "ServiceAccount", namespace, "object-a", nil)
		add("v1", "Service", namespace, "object-a", map[string]any{"spec": map[string]any{"ports": []any{map[string]any{"port": int64(80), "protocol": "TCP"}}}})
	}
	add("rbac.authorization.k8s.io/v1", "ClusterRole", "", "object-"+w.one, map[string]any{"rules": []any{}})
	return all
}

// found returns the names of the existing objects of [world.objects], and of others with
// names that begin with "object-".
func (w world) found(t testing.TB) []string {
	t.Helper()
	var names []string
	for _, namespace := range []string{w.one, w.two} {
		for _, r := range resources {
			list, err := w.Resource(resource(r)).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list.Items {
				if strings.HasPrefix(o.GetName(), "object-") {
					names = append(names, nameOf(&o))
				}
			}
		}
	}
	if o, err := w.Resource(resource("clusterroles")).Get(t.Context(), "object-"+w.one, metav1.GetOptions{}); err == nil {
		names = append(names, nameOf(o))
	}
	slices.Sort(names)
	return names
}

func nameOf(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

func namesOf(objects []*unstructured.Unstructured) []string {
	var names []string
	for _, o := range objects {
		names = append(names, nameOf(o))
	}
	slices.Sort(names)
	return names
}

// members returns copies of the objects as members. kubectl labels its objects.
func members(objects []*unstructured.Unstructured) []applyset.Member {
	var all []applyset.Member
	for _, o := range objects {
		all = append(all, applyset.Member{Object: o.DeepCopy()})
	}
	return all
}
