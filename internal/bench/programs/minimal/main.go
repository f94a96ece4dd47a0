// Command minimal is the contender of the row footprint/binary that needs no generated clients:
// a controller of package operator with election, probes and metrics, and a client of package
// crd.
package main

import (
	"context"
	"log"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
	"github.com/controllerkit/controllerkit/shutdown"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	op, err := operator.New(config, operator.Options{Name: "minimal", LeaseNamespace: "default", Listen: ":8080"})
	if err != nil {
		return err
	}
	maps, err := crd.New[*corev1.ConfigMap](op.Config, corev1.SchemeGroupVersion.WithKind("ConfigMap"), "configmaps")
	if err != nil {
		return err
	}
	var cached crd.Lister[*corev1.ConfigMap]
	c := op.Controller("minimal", func(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
		m, err := cached.Namespace(key.Namespace).Get(key.Name)
		if apierrors.IsNotFound(err) || err == nil && m.Labels["minimal"] != "" {
			return reconcile.Result{}, nil
		}
		if err == nil {
			patch := []byte(`{"metadata":{"labels":{"minimal":"yes"}}}`)
			_, err = maps.Namespace(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return reconcile.Result{}, err
	})
	cached = operator.For(c, corev1.Resource("configmaps"), maps.Informer(0, nil))
	ctx, cancel := shutdown.Context(context.Background())
	defer cancel()
	return op.Run(ctx)
}
