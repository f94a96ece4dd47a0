package operator

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/controllerkit/controllerkit/operator/internal/served"
)

// discover waits until the API server serves all resources, and sets the kinds of the
// controllers.
func (op *Operator) discover(ctx context.Context) error {
	var needed []served.Resource
	for _, s := range op.sources {
		needed = append(needed, served.Resource{GroupResource: s.resource, Kind: s.kind, Controller: s.c.Loop.Name})
	}
	for _, resource := range op.writes.Resources() {
		if !strings.HasSuffix(resource.Resource, "/finalizers") { // which is never served
			needed = append(needed, served.Resource{GroupResource: resource})
		}
	}
	found, err := served.Wait(ctx, op.Config, op.options.StartTimeout, needed)
	if err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	for _, c := range op.controllers {
		r := found[c.owner]
		c.kind = schema.GroupVersionKind{Group: c.owner.Group, Version: r.Version, Kind: r.Kind}
		c.namespaced = r.Namespaced
	}
	return nil
}
