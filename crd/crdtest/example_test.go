package crdtest_test

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/crd/crdtest"
	"github.com/controllerkit/controllerkit/crd/internal/site"
)

// A unit test gives a Fake to the code under test. A write from an old copy is a Conflict,
// as on the API server.
func ExampleNewFake() {
	fake, err := crdtest.NewFake(site.Kind(), "websites", site.New("default", "shop"))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, websites := context.Background(), fake.Namespace("default") // a *crd.Client[*Website]
	shop, err := websites.Get(ctx, "shop", metav1.GetOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	shop.Spec.Replicas = 3
	for range 2 {
		_, err := websites.Update(ctx, shop, metav1.UpdateOptions{})
		fmt.Println(err)
	}
	for _, action := range fake.Actions() {
		fmt.Println(action.GetVerb(), action.GetResource().Resource)
	}
	// Output:
	// <nil>
	// Operation cannot be fulfilled on websites.crd.example.com "shop": the object has been modified; please apply your changes to the latest version and try again
	// get websites
	// update websites
	// update websites
}
