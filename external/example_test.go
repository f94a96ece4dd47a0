package external_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
	"github.com/controllerkit/controllerkit/external"
	"github.com/controllerkit/controllerkit/finalizer"
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
		id, err := external.Once(ctx, tenants, obj, account)
		if err != nil {
			return reconcile.Result{}, err
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

// buckets are at a service that lists its things by name. The object says which tags its bucket has.
func buckets(service *cloud.Cloud, obj *corev1.ConfigMap) external.Resource {
	return external.Resource{
		Annotation: "example.com/bucket",
		Find: func(ctx context.Context, token string) (string, bool, error) {
			found, err := service.List(ctx, token)
			if err != nil || len(found) == 0 {
				return "", false, err
			}
			return found[0].ID, true, nil
		},
		Create: func(ctx context.Context, token string) (string, error) {
			made, err := service.Create(ctx, cloud.Resource{Name: token, Tags: obj.Data})
			return made.ID, err
		},
		Observe: func(ctx context.Context, id string) (external.State, error) {
			bucket, err := service.Get(ctx, id)
			switch {
			case errors.Is(err, cloud.ErrNotFound):
				return external.Gone, nil
			case err != nil:
				return "", err
			case !maps.Equal(bucket.Tags, obj.Data):
				return external.Different, nil
			}
			return external.Current, nil
		},
		Update:   func(ctx context.Context, id string) error { return service.Update(ctx, id, obj.Data) },
		Delete:   func(ctx context.Context, id string) error { return service.Delete(ctx, id) },
		Interval: 10 * time.Minute,
	}
}

// Somebody changes the bucket, and then deletes it.
func ExampleEnsure() {
	ctx := context.Background()
	client := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "photos", UID: "c0ffee", ResourceVersion: "1"},
		Data:       map[string]string{"class": "cold"},
	}).CoreV1().ConfigMaps("default")
	service := cloud.New(cloud.Options{})
	ensure := func() {
		obj, err := client.Get(ctx, "photos", metav1.GetOptions{}) // or a lister
		if err != nil {
			fmt.Println(err)
			return
		}
		result, err := external.Ensure(ctx, client, obj, buckets(service, obj))
		fmt.Println(result.ID, result.State, err, service.Resources()[0].Tags)
	}
	ensure()
	_ = service.Update(ctx, "id-1", map[string]string{"class": "hot"})
	ensure()
	_ = service.Delete(ctx, "id-1")
	ensure() // the new bucket is looked at in the next call
	ensure()
	// Output:
	// id-1 Current <nil> map[class:cold]
	// id-1 Current <nil> map[class:cold]
	// id-2 Busy external: example.com/bucket of default/photos: the service has not finished with id-2 map[class:cold]
	// id-2 Current <nil> map[class:cold]
}

// The cleanup deletes the bucket although a crash kept its id from being stored.
func ExampleDelete() {
	ctx := context.Background()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "photos", UID: "c0ffee", ResourceVersion: "1",
		Finalizers: []string{"example.com/bucket"}, DeletionTimestamp: &metav1.Time{Time: time.Unix(0, 0)},
	}}
	client := fake.NewClientset(obj).CoreV1().ConfigMaps("default")
	service := cloud.New(cloud.Options{})
	_, _ = service.Create(ctx, cloud.Resource{Name: external.Token(obj, "example.com/bucket")})

	_, live, err := finalizer.Ensure(ctx, client, obj, "example.com/bucket", func(ctx context.Context, held finalizer.Held[*corev1.ConfigMap]) error {
		return external.Delete(ctx, client, held.Object(), buckets(service, held.Object()))
	})
	fmt.Println(live, err, len(service.Resources()), "buckets")
	// Output: false <nil> 0 buckets
}

// Two buckets that the operator does not own: it reports on the first, and leaves the second behind.
func ExamplePolicy() {
	ctx := context.Background()
	obj := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "photos", UID: "c0ffee", ResourceVersion: "1"},
		Data:       map[string]string{"class": "cold"},
	}
	client := fake.NewClientset(obj).CoreV1().ConfigMaps("default")
	service := cloud.New(cloud.Options{})
	_, _ = service.Create(ctx, cloud.Resource{Name: external.Token(obj, "example.com/bucket")})

	for _, policy := range []external.Policy{external.ObserveOnly, external.Orphan} {
		bucket := buckets(service, obj)
		bucket.Policy = policy
		result, err := external.Ensure(ctx, client, obj, bucket)
		fmt.Println(result.State, err, external.Delete(ctx, client, obj, bucket), len(service.Resources()))
	}
	// Output:
	// Different <nil> <nil> 1
	// Busy external: example.com/bucket of default/photos: the service has not finished with id-1 <nil> 1
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
