package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// retryPeriod is the time between two discoveries.
const retryPeriod = time.Second

// discover asks the API server for the kinds of all resources and compares them with the
// registrations. For a server that cannot be reached and a resource that is not served
// yet it waits until StartTimeout.
func (op *Operator) discover(ctx context.Context) error {
	client, err := discovery.NewDiscoveryClientForConfig(op.Config)
	if err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	timed, cancel := context.WithTimeout(ctx, op.options.StartTimeout)
	defer cancel()
	for first := true; ; first = false {
		_, lists, err := client.ServerGroupsAndResourcesWithContext(timed)
		partial, isPartial := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err)
		switch {
		case err != nil && !isPartial:
			err = fmt.Errorf("operator: the API server %s cannot tell what it serves: %w", op.Config.Host, err)
		default:
			missing, wrong := op.compare(lists)
			if wrong != nil || missing == nil {
				return wrong
			}
			if err = missing; isPartial { // its group may be one that failed
				err = fmt.Errorf("%w; %w", missing, partial)
			}
		}
		if first {
			klog.FromContext(ctx).Info("Waiting for the API server", "reason", err.Error(), "timeout", op.options.StartTimeout)
		}
		select {
		case <-timed.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w (after %v)", err, op.options.StartTimeout)
		case <-time.After(retryPeriod):
		}
	}
}

// compare returns an error if a resource is missing, for which it is worth to wait, and
// one if a registration is wrong. Without an error it sets the kinds.
func (op *Operator) compare(lists []*metav1.APIResourceList) (missing, wrong error) {
	served := map[schema.GroupResource]metav1.APIResource{}
	for _, list := range lists { // the preferred version of a group comes first
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			name := schema.GroupResource{Group: gv.Group, Resource: r.Name}
			if _, ok := served[name]; !ok {
				r.Group, r.Version = cmp.Or(r.Group, gv.Group), cmp.Or(r.Version, gv.Version)
				served[name] = r
			}
		}
	}
	absent := func(resource schema.GroupResource) error {
		parent, sub, isSub := strings.Cut(resource.Resource, "/")
		if _, ok := served[schema.GroupResource{Group: resource.Group, Resource: parent}]; ok && isSub {
			return fmt.Errorf("operator: %s.%s has no subresource %s: add it to the CustomResourceDefinition, under subresources", parent, resource.Group, sub)
		}
		return fmt.Errorf("operator: the API server does not serve %s: install its CustomResourceDefinition, or check the name", resource)
	}
	for _, s := range op.sources {
		r, ok := served[s.resource]
		if !ok {
			return absent(s.resource), nil
		}
		if kind := s.kindName(); kind != "" && kind != r.Kind {
			return nil, fmt.Errorf("operator: controller %q: the objects of %s are of kind %s, and its informer holds %s: pass the informer of %s", s.c.Loop.Name, s.resource, r.Kind, kind, s.resource)
		}
	}
	for _, resource := range op.written() {
		if _, ok := served[resource]; !ok && !strings.HasSuffix(resource.Resource, "/finalizers") { // which is never served
			return absent(resource), nil
		}
	}
	op.namespaced = map[schema.GroupResource]bool{}
	for _, c := range op.controllers {
		r := served[c.owner]
		c.kind = schema.GroupVersionKind{Group: c.owner.Group, Version: r.Version, Kind: r.Kind}
		op.namespaced[c.owner] = r.Namespaced
	}
	return nil, nil
}

// kindName returns the kind of the objects, which is the name of their Go type, or "" for
// a type of several kinds.
func (s source) kindName() string {
	typ := s.typ
	if s.kind != "" || typ.Kind() != reflect.Pointer {
		return s.kind
	}
	switch typ = typ.Elem(); typ {
	case reflect.TypeFor[unstructured.Unstructured](), reflect.TypeFor[metav1.PartialObjectMetadata]():
		return ""
	}
	return typ.Name()
}

// written returns the resources of Writes, sorted.
func (op *Operator) written() []schema.GroupResource {
	var all []schema.GroupResource
	for resource := range op.writes {
		all = append(all, resource)
	}
	slices.SortFunc(all, func(a, b schema.GroupResource) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
	})
	return all
}
