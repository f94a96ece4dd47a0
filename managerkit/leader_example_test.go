package managerkit_test

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/managerkit"
)

// A manager elects its leader by an Elector. A program makes the Leases with
// leader.NewClient.
func ExampleElect() {
	ctx, cancel := context.WithCancel(context.Background()) // ctrl.SetupSignalHandler()
	defer cancel()
	config := &rest.Config{Host: "shop.example"} // ctrl.GetConfigOrDie()
	elector := &leader.Elector{
		Leases:    fake.NewClientset().CoordinationV1().Leases("shop"),
		Namespace: "shop",
		Name:      "shop-controller",
	}

	options := ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}}
	if err := managerkit.Elect(&options, elector); err != nil {
		fmt.Println(err)
		return
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		term, _ := leader.TermFrom(ctx)
		fmt.Println("this replica leads in term", term.Number)
		cancel()
		return nil
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("stopped:", mgr.Start(ctx))
	// Output:
	// this replica leads in term 0
	// stopped: <nil>
}

// Each term has a new manager. The cache and the client are those of a cluster that runs
// as long as the process.
func ExampleRun() {
	ctx, cancel := context.WithCancel(context.Background()) // ctrl.SetupSignalHandler()
	defer cancel()
	config := &rest.Config{Host: "shop.example"} // ctrl.GetConfigOrDie()
	elector := &leader.Elector{
		Leases:    fake.NewClientset().CoordinationV1().Leases("shop"),
		Namespace: "shop",
		Name:      "shop-controller",
	}

	shared, err := cluster.New(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	stopped := make(chan error)
	go func() { stopped <- shared.Start(ctx) }()

	err = managerkit.Run(ctx, elector, func(options manager.Options) (manager.Manager, error) {
		if err := managerkit.Share(&options, shared); err != nil {
			return nil, err
		}
		mgr, err := ctrl.NewManager(config, options)
		if err != nil {
			return nil, err
		}
		// A program adds its controllers with ctrl.NewControllerManagedBy(mgr).
		return mgr, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			term, _ := leader.TermFrom(ctx)
			fmt.Println("this replica leads in term", term.Number)
			cancel()
			return nil
		}))
	})
	fmt.Println("stopped:", err)
	<-stopped
	// Output:
	// this replica leads in term 0
	// stopped: <nil>
}

// The options of a kubebuilder project name the Lease. In a Pod, LeaderElectionNamespace can be empty.
func ExampleNewElector() {
	config := &rest.Config{Host: "shop.example"} // ctrl.GetConfigOrDie()
	options := ctrl.Options{LeaderElection: true, LeaderElectionID: "shop.example.com", LeaderElectionNamespace: "shop"}
	elector, err := managerkit.NewElector(config, options)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(elector.Namespace, elector.Name, managerkit.Elect(&options, elector))
	// Output: shop shop.example.com <nil>
}
