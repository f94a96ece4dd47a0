// Command minimal copies the ConfigMap of namespace default that a namespace's label copy-from names, and
// deletes the copy with its source or the label.
package main

import (
	"context"
	"log"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	check(err)
	op, err := operator.New(config, operator.Options{Name: "minimal"})
	check(err)
	var c *operator.Controller
	var maps *operator.Reader[*corev1.ConfigMap]
	copySource := func(ctx context.Context, ns *corev1.Namespace) (reconcile.Result, error) {
		source, err := maps.Get(ctx, "default", ns.Labels["copy-from"]) // its next change runs this call again
		switch {
		case apierrors.IsNotFound(err):
			_, err = c.Apply(ctx) // no children: Prune deletes the copy
		case err == nil:
			_, err = c.Apply(ctx, applycorev1.ConfigMap(source.Name, ns.Name).WithData(source.Data).WithBinaryData(source.BinaryData))
		}
		return reconcile.Result{}, err
	}
	c = operator.Kind(op, corev1.SchemeGroupVersion.WithResource("namespaces"), operator.Reconciler[*corev1.Namespace]{Reconcile: copySource, ReadOnly: true, Prune: true, PruneAll: true})
	maps = operator.Children(c, corev1.SchemeGroupVersion.WithResource("configmaps"), applycorev1.ExtractConfigMap)
	check(op.Run(ctx))
}
