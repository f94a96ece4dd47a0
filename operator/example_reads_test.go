package operator_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/crd"
	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// A ConfigMap names a Secret. If the Secret changes, the key of the ConfigMap runs again: it has read the
// Secret. Gadgets are of a kind that not every cluster has.
func ExampleReads() {
	config := &rest.Config{Host: "https://127.0.0.1:6443"} // in a Pod: rest.InClusterConfig()
	op, err := operator.New(config, operator.Options{Name: "secrets"})
	if err != nil {
		fmt.Println(err)
		return
	}
	var secrets *operator.Reader[*corev1.Secret]
	var gadgets *operator.Reader[*Gadget]
	c := operator.Kind(op, corev1.SchemeGroupVersion.WithResource("configmaps"), operator.Reconciler[*corev1.ConfigMap]{
		Reconcile: func(ctx context.Context, cm *corev1.ConfigMap) (reconcile.Result, error) {
			secret, err := secrets.Get(ctx, cm.Namespace, cm.Data["secret"])
			switch {
			case apierrors.IsNotFound(err):
				return reconcile.Result{}, nil // its creation runs the key
			case err != nil:
				return reconcile.Result{}, err
			}
			fmt.Println(secret.Type)
			all, err := gadgets.ByIndex(ctx, "owner", cm.Name)
			if errors.Is(err, crd.ErrNotServed) {
				return reconcile.Result{}, nil // the installation of the kind runs the key
			}
			fmt.Println(len(all))
			return reconcile.Result{}, err
		},
		ReadOnly: true,
	})
	secrets = operator.Reads(c, corev1.SchemeGroupVersion.WithResource("secrets"), operator.Reading[*corev1.Secret]{})
	gadgets = operator.Reads(c, gadgetVersion.WithResource("gadgets"), operator.Reading[*Gadget]{
		Optional: true,
		Indexes:  map[string]func(*Gadget) []string{"owner": func(g *Gadget) []string { return []string{g.Labels["owner"]} }},
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a program runs until SIGTERM
	fmt.Println("stopped:", op.Run(ctx))
	// Output: stopped: <nil>
}
