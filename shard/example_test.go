package shard_test

import (
	"context"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// The shard of an object, and the selector of the shards of a replica.
func ExampleRanges() {
	ranges := shard.Ranges{N: 4}
	obj := &metav1.ObjectMeta{Name: "web", UID: "0e4362f8-66ea-4ebc-bbd5-7ebb1bd88eff"}
	fmt.Println(ranges.Of(obj))
	fmt.Println(ranges.Selector([]int{0, 1, 3}))
	// Output:
	// 0 <nil>
	// shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000') || shardRange(object.metadata.uid, '0xc000000000000000', '0x10000000000000000') <nil>
}

// Namespaces with similar names: with ranges of equal size all of these are in one shard.
func ExampleRanges_Cut() {
	observed := map[string]int{"tenant-001": 10, "tenant-002": 10, "tenant-003": 10, "tenant-004": 10}
	ranges, err := shard.Ranges{N: 2}.Cut(observed)
	if err != nil {
		fmt.Println(err)
		return
	}
	objects := make([]int, 2)
	for name, n := range observed {
		s, err := ranges.Of(&metav1.ObjectMeta{Namespace: name})
		if err != nil {
			fmt.Println(err)
			return
		}
		objects[s] += n
	}
	fmt.Println(objects)
	// Output: [20 20]
}
