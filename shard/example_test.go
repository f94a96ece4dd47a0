package shard_test

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/shard"
)

func ExampleGroup() {
	group := &shard.Group{Leases: newStore().Client(), Namespace: "shop", Name: "shop", Ranges: shard.Ranges{N: 4}}
	ctx, cancel := context.WithCancel(context.Background())
	began := make(chan shard.Shard)
	go func() {
		for range group.Ranges.N {
			<-began
		}
		fmt.Println("owned:", len(group.Owned()))
		cancel()
	}()
	err := group.Run(ctx, func(ctx context.Context, s shard.Shard) error {
		began <- s
		<-ctx.Done() // a controller of the objects of this shard
		return nil
	})
	fmt.Println("stopped:", err)
	// Output:
	// owned: 4
	// stopped: <nil>
}

// All shards stop while something changes that concerns them all.
func ExampleGroup_Exclusive() {
	group := &shard.Group{Leases: newStore().Client(), Namespace: "shop", Name: "shop", Ranges: shard.Ranges{N: 4}}
	ctx, cancel := context.WithCancel(context.Background())
	began := make(chan shard.Shard)
	ended := make(chan error)
	go func() {
		ended <- group.Run(ctx, func(ctx context.Context, s shard.Shard) error {
			select {
			case began <- s:
			case <-ctx.Done():
			}
			<-ctx.Done()
			return nil
		})
	}()
	<-began
	err := group.Exclusive(ctx, func(ctx context.Context, s shard.Shard) error {
		fmt.Println("shards that work:", len(group.Owned()))
		return s.Check(ctx)
	})
	fmt.Println("done:", err)
	cancel()
	fmt.Println("stopped:", <-ended)
	// Output:
	// shards that work: 0
	// done: <nil>
	// stopped: <nil>
}

// Work uses a client with Guard, and asks for its shard where it needs it.
func ExampleGuard() {
	config := &rest.Config{Host: "https://127.0.0.1:1"}
	config.Wrap(shard.Guard)
	if _, err := kubernetes.NewForConfig(config); err != nil {
		fmt.Println(err)
	}
	_, err := shard.Guard(http.DefaultTransport).RoundTrip(&http.Request{Method: http.MethodPost})
	fmt.Println(err)
	// Output: shard: the context of a guarded write has no shard: use the context of work, or a client without Guard for the Group and for work outside of shards
}

func ExampleFrom() {
	work := func(ctx context.Context) error {
		s, ok := shard.From(ctx)
		if !ok {
			return fmt.Errorf("not the context of a shard")
		}
		return s.Check(ctx)
	}
	fmt.Println(work(context.Background()))
	// Output: not the context of a shard
}
