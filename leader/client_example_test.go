package leader_test

import (
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/leader"
)

func ExampleNewClient() {
	config := &rest.Config{Host: "https://10.96.0.1"} // in a Pod: rest.InClusterConfig
	leases, err := leader.NewClient(config, "shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	elector := &leader.Elector{Leases: leases, Namespace: "shop", Name: "shop-controller"}
	fmt.Println("healthy:", elector.Check(nil) == nil)

	_, err = leader.NewClient(config, "")
	fmt.Println(err)
	// Output:
	// healthy: true
	// leader: namespace is empty: pass the namespace of the Lease
}
