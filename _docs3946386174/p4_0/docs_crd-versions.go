package page

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/crd/migrate"
	"github.com/controllerkit/controllerkit/leader"
	"github.com/controllerkit/controllerkit/operator"
)

var websites = schema.GroupVersionResource{Group: "web.example.com", Version: "v1", Resource: "websites"}

// addMigration lets one replica migrate the stored websites. Call it before op.Run. A preview migrates none.
func addMigration(ctx context.Context, op *operator.Operator, config *rest.Config, namespace string) error {
	config = rest.CopyConfig(config)
	config.QPS = -1 // Migrator.Rate is the limit, not client-go's 5 a second
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	// The error names the versions that the definition serves.
	if err := migrate.Require(ctx, client, websites); err != nil {
		return err
	}
	leases, err := leader.NewClient(config, namespace)
	if err != nil {
		return err
	}
	elector := &leader.Elector{Leases: leases, Namespace: namespace, Name: "websites-migration", Metrics: op.Metrics}
	m := &migrate.Migrator{Client: client, Definition: websites.GroupResource().String(), Metrics: op.Metrics}
	op.Group.Add("migration", func(ctx context.Context) error { return elector.Run(ctx, m.Run) })
	return nil
}
