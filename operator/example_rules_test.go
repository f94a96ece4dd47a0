package operator_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/operator"
	"github.com/controllerkit/controllerkit/reconcile"
)

// Rules are the rights of a program. Watches maps objects without an owner reference.
func ExampleWatches() {
	op, err := operator.New(&rest.Config{Host: "https://127.0.0.1:6443"}, operator.Options{Name: "quotas"})
	if err != nil {
		fmt.Println(err)
		return
	}
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(op.Config), 0)
	c := op.Controller("quotas", func(context.Context, types.NamespacedName) (reconcile.Result, error) {
		return reconcile.Result{}, nil
	})
	operator.For(c, corev1.Resource("namespaces"), factory.Core().V1().Namespaces())
	operator.Watches(c, corev1.Resource("resourcequotas"), factory.Core().V1().ResourceQuotas(), func(quota *corev1.ResourceQuota) []types.NamespacedName {
		return []types.NamespacedName{{Name: quota.Namespace}}
	})
	op.Writes(corev1.Resource("resourcequotas"), "create", "patch")
	rules, _ := op.Rules()
	for _, rule := range rules {
		fmt.Println(rule.APIGroups, rule.Resources, rule.Verbs)
	}
	// Output:
	// [] [namespaces] [list watch]
	// [] [resourcequotas] [create list patch watch]
	// [events.k8s.io] [events] [create patch]
}
