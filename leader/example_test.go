package leader_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/leader"
)

func ExampleElector_Run() {
	ctx, stop := context.WithCancel(context.Background())
	clientset := fake.NewClientset()
	elector := &leader.Elector{
		Leases:    clientset.CoordinationV1().Leases("shop"),
		Namespace: "shop",
		Name:      "shop-controller",
		Identity:  "replica-0",
	}
	err := elector.Run(ctx, func(ctx context.Context) error {
		fmt.Println("leading")
		stop() // as SIGTERM would do
		<-ctx.Done()
		fmt.Println("draining; the Lease is still held:", holder(clientset))
		return nil
	})
	fmt.Println("stopped:", err)
	fmt.Printf("holder now: %q\n", holder(clientset))
	// Output:
	// leading
	// draining; the Lease is still held: replica-0
	// stopped: <nil>
	// holder now: ""
}

func holder(clientset *fake.Clientset) string {
	lease, err := clientset.CoordinationV1().Leases("shop").Get(context.Background(), "shop-controller", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	return *lease.Spec.HolderIdentity
}

// An effect outside of Kubernetes is checked for right before it happens, and
// carries the number of the term so that the receiver can refuse an older one.
func ExampleTerm_Check() {
	elector := &leader.Elector{
		Leases:    fake.NewClientset().CoordinationV1().Leases("shop"),
		Namespace: "shop",
		Name:      "shop-controller",
	}
	var escaped context.Context
	_ = elector.Run(context.Background(), func(ctx context.Context) error {
		term, _ := leader.TermFrom(ctx)
		if err := term.Check(ctx); err != nil {
			return err
		}
		fmt.Println("charge the card, fence", term.Number)
		escaped = ctx
		return nil
	})

	// Work that outlived its term finds out.
	term, _ := leader.TermFrom(escaped)
	err := term.Check(escaped)
	fmt.Println(err, errors.Is(err, leader.ErrLost))
	// Output:
	// charge the card, fence 0
	// leader: no longer the leader true
}

func ExampleTermFrom() {
	_, ok := leader.TermFrom(context.Background())
	fmt.Println("has a term:", ok)
	// Output: has a term: false
}

func ExampleElector_Check() {
	elector := &leader.Elector{
		Leases:    fake.NewClientset().CoordinationV1().Leases("shop"),
		Namespace: "shop",
		Name:      "shop-controller",
	}
	healthz := func(w http.ResponseWriter, r *http.Request) {
		if err := elector.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
	w := httptest.NewRecorder()
	healthz(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	fmt.Println(w.Code)
	// Output: 200
}
