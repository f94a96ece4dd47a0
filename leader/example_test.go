package leader_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

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

// Leading through the restart of an only API server, at the price of waiting
// longer for a leader that crashed.
func ExampleOutageTolerant() {
	elector := &leader.Elector{Name: "shop-controller"}
	elector.LeaseDuration, elector.RenewDeadline, elector.RetryPeriod = leader.OutageTolerant()
	fmt.Println(elector.LeaseDuration, elector.RenewDeadline, elector.RetryPeriod)
	// Output: 2m17s 1m47s 26s
}

// A deadline for the work that goes with the timings.
func ExampleDefaults() {
	leaseDuration, renewDeadline, _ := leader.Defaults()
	fmt.Println("the work has to stop within", leaseDuration-renewDeadline)
	// Output: the work has to stop within 5s
}

// A deployment without the rights it needs says so when it starts.
func ExampleElector_Preflight() {
	clientset := fake.NewClientset()
	clientset.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, a.(clienttesting.CreateAction).GetObject(), nil // status.allowed is false
	})
	elector := &leader.Elector{
		Leases:    clientset.CoordinationV1().Leases("shop"),
		Namespace: "shop",
		Name:      "shop-controller",
	}
	err := elector.Preflight(context.Background(), clientset.AuthorizationV1().SelfSubjectAccessReviews())
	fmt.Println(err)
	// Output: leader: rights on Lease shop/shop-controller are missing: allow in a Role of namespace shop: {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}, {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [shop-controller], verbs: [get, update, watch]}
}

// Informers run on every replica, so that the next leader has warm caches; only
// the leader works. A replica takes part once its caches are filled.
func ExampleElector_Run_warmStandby() {
	ctx, stop := context.WithCancel(context.Background())
	clientset := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "prices"}})
	factory := informers.NewSharedInformerFactory(clientset, 0)
	prices := factory.Core().V1().ConfigMaps().Lister()
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer stop()
	factory.WaitForCacheSync(ctx.Done())

	elector := &leader.Elector{
		Leases:    clientset.CoordinationV1().Leases("shop"),
		Namespace: "shop",
		Name:      "shop-controller",
	}
	_ = elector.Run(ctx, func(context.Context) error {
		found, err := prices.List(labels.Everything())
		fmt.Println("the new leader has", len(found), "in its cache at once")
		return err
	})
	// Output: the new leader has 1 in its cache at once
}
