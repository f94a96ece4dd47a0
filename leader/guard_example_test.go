package leader_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyconfigurationscorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/leader"
)

// The leader's work has a client that writes for the leader alone. The Elector has
// another one.
func ExampleGuard() {
	config := &rest.Config{Host: "https://cluster.example.com"}
	config.Wrap(leader.Guard)
	work, err := kubernetes.NewForConfig(config)
	if err != nil {
		fmt.Println(err)
		return
	}

	elector := &leader.Elector{
		Leases:    fake.NewClientset().CoordinationV1().Leases("shop"),
		Namespace: "shop",
		Name:      "shop-controller",
	}
	var escaped context.Context
	_ = elector.Run(context.Background(), func(ctx context.Context) error {
		escaped = context.WithoutCancel(ctx)
		return nil
	})

	// Work that outlived its term writes no more.
	err = work.CoreV1().ConfigMaps("shop").Delete(escaped, "prices", metav1.DeleteOptions{})
	fmt.Println(err)
	fmt.Println("lost:", errors.Is(err, leader.ErrLost))

	// A write with a context that has no term fails too.
	err = work.CoreV1().ConfigMaps("shop").Delete(context.Background(), "prices", metav1.DeleteOptions{})
	fmt.Println("no term:", strings.Contains(err.Error(), "the context of a guarded write has no term"))
	// Output:
	// Delete "https://cluster.example.com/api/v1/namespaces/shop/configmaps/prices": leader: no longer the leader
	// lost: true
	// no term: true
}

// With the term as an attribute of the user a fence sees deletions and status updates, too.
func ExampleGuardAs() {
	config := &rest.Config{Host: "https://cluster.example.com"}
	config.Wrap(leader.GuardAs("system:serviceaccount:shop:shop-controller"))
	_, err := kubernetes.NewForConfig(config)
	fmt.Println(err)
	// Output: <nil>
}

func ExampleTerm_Stamp() {
	term := leader.Term{LeaseUID: "ed0c47a5", Number: 12} // from TermFrom
	prices := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "prices"}}
	term.Stamp(prices)
	fmt.Println(prices.Annotations)
	// Output: map[controllerkit.github.io/leader-term:ed0c47a5/12]
}

func ExampleTerm_Annotations() {
	term := leader.Term{LeaseUID: "ed0c47a5", Number: 12} // from TermFrom
	prices := applyconfigurationscorev1.ConfigMap("prices", "shop").WithAnnotations(term.Annotations())
	fmt.Println(prices.Annotations)
	// Output: map[controllerkit.github.io/leader-term:ed0c47a5/12]
}
