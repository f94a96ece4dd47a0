// Package served waits until an API server serves the resources of a program.
package served

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// retryPeriod is the time between two discoveries.
const retryPeriod = time.Second

// Resource is a resource or subresource that the program needs.
type Resource struct {
	schema.GroupResource
	Kind       string // of the objects that the informer holds; "" fits any
	Controller string // names the controller with that informer
}

// Resources are the served resources, in the preferred version of their groups.
type Resources map[schema.GroupResource]metav1.APIResource

// Wait returns when the API server serves all resources. For a server that cannot be
// reached and a resource that is not served yet it waits until the timeout. If a resource
// has objects of another kind, it returns an error at once.
func Wait(ctx context.Context, config *rest.Config, timeout time.Duration, resources []Resource) (Resources, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for first := true; ; first = false {
		_, lists, err := client.ServerGroupsAndResourcesWithContext(timed)
		partial, isPartial := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err)
		switch {
		case err != nil && !isPartial:
			err = fmt.Errorf("the API server %s cannot tell what it serves: %w", config.Host, err)
		default:
			found := byName(lists)
			missing, wrong := found.compare(resources)
			if wrong != nil || missing == nil {
				return found, wrong
			}
			if err = missing; isPartial { // its group may be one that failed
				err = fmt.Errorf("%w; %w", missing, partial)
			}
		}
		if first {
			klog.FromContext(ctx).Info("Waiting for the API server", "reason", err.Error(), "timeout", timeout)
		}
		select {
		case <-timed.Done():
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("%w (after %v)", err, timeout)
		case <-time.After(retryPeriod):
		}
	}
}

func byName(lists []*metav1.APIResourceList) Resources {
	found := Resources{}
	for _, list := range lists { // the preferred version of a group comes first
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			name := schema.GroupResource{Group: gv.Group, Resource: r.Name}
			if _, ok := found[name]; !ok {
				r.Group, r.Version = cmp.Or(r.Group, gv.Group), cmp.Or(r.Version, gv.Version)
				found[name] = r
			}
		}
	}
	return found
}

// compare returns an error if a resource is missing, for which it is worth to wait, or one
// if it has another kind.
func (found Resources) compare(resources []Resource) (missing, wrong error) {
	for _, r := range resources {
		switch served, ok := found[r.GroupResource]; {
		case !ok:
			return found.absent(r.GroupResource), nil
		case r.Kind != "" && r.Kind != served.Kind:
			return nil, fmt.Errorf("controller %q: the objects of %s are of kind %s, and its informer holds %s: pass the informer of %[2]s", r.Controller, r.GroupResource, served.Kind, r.Kind)
		}
	}
	return nil, nil
}

func (found Resources) absent(resource schema.GroupResource) error {
	parent, sub, isSub := strings.Cut(resource.Resource, "/")
	if _, ok := found[schema.GroupResource{Group: resource.Group, Resource: parent}]; ok && isSub {
		return fmt.Errorf("%s.%s has no subresource %s: add it to the CustomResourceDefinition, under subresources", parent, resource.Group, sub)
	}
	return fmt.Errorf("the API server does not serve %s: install its CustomResourceDefinition, or check the name", resource)
}
