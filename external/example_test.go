package external_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/reconcile"
)

// The response to the first create is lost. The service does not know tokens, so a
// second create would make a second account; Find sees the first.
func ExampleOnce() {
	ctx := context.Background()
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tenant", UID: "c0ffee", ResourceVersion: "1"}})
	service := cloud.New(cloud.Options{})
	lose := true
	account := external.Resource{
		Annotation: "example.com/account",
		Find: func(ctx context.Context, token string) (string, bool, error) {
			found, err := service.List(ctx, token)
			if err != nil || len(found) == 0 {
				return "", false, err
			}
			return found[0].ID, true, nil
		},
		Create: func(ctx context.Context, token string) (string, error) {
			made, err := service.Create(ctx, cloud.Resource{Name: token})
			if lose {
				lose = false
				return "", errors.New("connection reset by peer")
			}
			return made.ID, err
		},
	}
	fn := func(ctx context.Context, key string) (reconcile.Result, error) {
		tenants := client.CoreV1().ConfigMaps("default")
		obj, err := tenants.Get(ctx, key, metav1.GetOptions{}) // or a lister
		if err != nil {
			return reconcile.Result{}, err
		}
		id, wait, err := external.Once(ctx, tenants, obj, account)
		if id == "" {
			return reconcile.Result{RequeueAfter: wait}, err
		}
		fmt.Println("the account is", id)
		return reconcile.Result{}, nil
	}
	for range 3 {
		if _, err := fn(ctx, "tenant"); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(len(service.Resources()), "account")
	// Output:
	// external: example.com/account of default/tenant: create: connection reset by peer
	// the account is id-1
	// the account is id-1
	// 1 account
}

// Cleanup finds what was made although a crash kept its id from being stored.
func ExampleToken() {
	ctx := context.Background()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tenant", UID: "c0ffee"}}
	token := external.Token(obj, "example.com/account")

	service := cloud.New(cloud.Options{})
	_, _ = service.Create(ctx, cloud.Resource{Name: token})

	left, _ := service.List(ctx, token)
	for _, account := range left {
		fmt.Println("delete", account.ID, service.Delete(ctx, account.ID))
	}
	fmt.Println(len(token), len(service.Resources()))
	// Output:
	// delete id-1 <nil>
	// 32 0
}

// The id stands in the object, for its status or for another controller.
func ExampleID() {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tenant", UID: "c0ffee"}}
	fmt.Printf("%q\n", external.ID(obj, "example.com/account"))

	token := external.Token(obj, "example.com/account")
	obj.Annotations = map[string]string{"example.com/account": `{"token":"` + token + `","id":"i-123"}`} // as Once stored it
	fmt.Printf("%q\n", external.ID(obj, "example.com/account"))

	obj.UID = "beef" // of a copied manifest
	fmt.Printf("%q\n", external.ID(obj, "example.com/account"))
	// Output:
	// ""
	// "i-123"
	// ""
}
