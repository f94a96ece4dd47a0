package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

// A service that chooses the ids, and knows a create that is repeated by its token.
func ExampleNew() {
	ctx := context.Background()
	service := cloud.New(cloud.Options{Idempotent: true})
	first, _ := service.Create(ctx, cloud.Resource{Name: "account", Token: "uid of the object"})
	again, _ := service.Create(ctx, cloud.Resource{Name: "account", Token: "uid of the object"})
	fmt.Println(first.ID, again.ID)
	if err := service.Delete(ctx, "id-7"); errors.Is(err, cloud.ErrNotFound) {
		fmt.Println(err)
	}
	// Output:
	// id-1 id-1
	// cloud: not found: delete "id-7"
}

// The answer to a create is lost, so a client that does not look makes another one.
func ExampleCloud_Through() {
	ctx := context.Background()
	service := cloud.New(cloud.Options{})
	lossy := service.Through(func(ctx context.Context, name string, call func(context.Context) error) error {
		if err := call(ctx); err != nil {
			return err
		}
		return fmt.Errorf("%s: connection reset by peer", name)
	})
	_, err := lossy.Create(ctx, cloud.Resource{Name: "account"})
	fmt.Println(err)
	fmt.Println(len(service.Resources()))
	// Output:
	// create account: connection reset by peer
	// 1
}

// A controller in a process of its own reaches the service of the test.
func ExampleConnect() {
	service := cloud.New(cloud.Options{ChosenIDs: true})
	server := httptest.NewServer(cloud.Handler(service))
	defer server.Close()

	client := cloud.Connect(server.URL)
	_, _ = client.Create(context.Background(), cloud.Resource{Name: "account"})
	_, err := client.Create(context.Background(), cloud.Resource{Name: "account"})
	fmt.Println(errors.Is(err, cloud.ErrExists), err)
	fmt.Println(service.Resources()[0].ID)
	// Output:
	// true cloud: already exists: create "account"
	// account
}
