// Command minimal copies the ConfigMap of namespace default that a namespace's label copy-from names.
package main

import (
	"context"
	"log"
	"os"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
	"github.com/controllerkit/controllerkit/ssa"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	check(err)
	op, err := operator.New(config, operator.Options{Name: "minimal"})
	check(err)
	kube := kubernetes.NewForConfigOrDie(op.Config)
	core := informers.NewSharedInformerFactory(kube, 0).Core().V1()
	namespaces, maps := core.Namespaces().Lister(), core.ConfigMaps().Lister()
	c := op.Controller("copies", func(ctx context.Context, key types.NamespacedName) (result reconcile.Result, err error) {
		ns, _ := namespaces.Get(key.Name) // the only error of a cache is NotFound, with nil
		if ns == nil || ns.DeletionTimestamp != nil {
			return result, nil
		}
		source, _ := maps.ConfigMaps("default").Get(ns.Labels["copy-from"])
		if source == nil {
			return result, nil // nothing to copy yet
		}
		live, _ := maps.ConfigMaps(ns.Name).Get(source.Name)
		_, _, err = ssa.ApplyChanged(ctx, "minimal", kube.CoreV1().ConfigMaps(ns.Name).Apply,
			applycorev1.ConfigMap(source.Name, ns.Name).WithData(source.Data), live, applycorev1.ExtractConfigMap)
		return result, err
	})
	operator.For(c, corev1.Resource("namespaces"), core.Namespaces())
	operator.Watches(c, corev1.Resource("configmaps"), core.ConfigMaps(), func(m *corev1.ConfigMap) (keys []types.NamespacedName) {
		all, _ := namespaces.List(labels.SelectorFromSet(labels.Set{"copy-from": m.Name}))
		for _, ns := range all {
			keys = append(keys, types.NamespacedName{Name: ns.Name})
		}
		return keys
	})
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	check(op.Run(ctx))
}
