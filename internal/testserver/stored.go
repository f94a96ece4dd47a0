package testserver

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Stored returns all objects of a namespace, "" for those of the cluster and all namespaces, in JSON, by
// resource/name or resource/namespace/name. The Leases of the API server itself are left out.
func Stored(t testing.TB, config *rest.Config, namespace string) map[string]string {
	t.Helper()
	client := dynamic.NewForConfigOrDie(config)
	kinds := discovery.NewDiscoveryClientForConfigOrDie(config)
	list := kinds.ServerPreferredNamespacedResources
	if namespace == "" {
		list = kinds.ServerPreferredResources
	}
	lists, err := list()
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]string{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") {
				continue
			}
			items, err := client.Resource(gv.WithResource(r.Name)).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				continue // another test has removed the definition
			}
			if err != nil {
				t.Fatal(r.Name, err)
			}
			for _, item := range items.Items {
				text, err := json.Marshal(item.Object)
				if err != nil {
					t.Fatal(err)
				}
				name := r.Name + "/" + item.GetName()
				if namespace == "" && item.GetNamespace() != "" {
					name = r.Name + "/" + item.GetNamespace() + "/" + item.GetName()
				}
				if !strings.HasPrefix(name, "leases/kube-") {
					objects[name] = string(text)
				}
			}
		}
	}
	return objects
}
