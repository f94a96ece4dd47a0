package applyset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/controllerkit/controllerkit/ssa/applyset/internal/inventory"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/parallel"
	"github.com/controllerkit/controllerkit/ssa/applyset/internal/rejection"
)

// maxLists is in how many namespaces a kind is listed one by one. Another user can add
// any number of namespaces to the inventory.
const maxLists = 64

// scope is a kind in namespaces, or in the cluster if it is cluster-scoped.
type scope struct {
	kind       schema.GroupKind
	namespaces sets.Set[string] // "" for the cluster; not to be modified
}

func (s scope) isCluster() bool { return s.namespaces.Has("") }

// namespaces returns the namespaces that can have members.
func (c *setCall) namespaces(i inventory.Inventory) sets.Set[string] {
	namespaces := i.Namespaces.Clone()
	if own := c.parent.GetNamespace(); own != "" {
		namespaces.Insert(own)
	}
	return namespaces
}

// scopes returns where kinds have members. It notes the kinds that the API server does not
// serve.
func (c *setCall) scopes(kinds sets.Set[schema.GroupKind], namespaces sets.Set[string]) ([]scope, error) {
	var scopes []scope
	for kind := range kinds {
		mapping, err := c.mapping(kind)
		switch {
		case meta.IsNoMatchError(err):
			c.memory.unservedKinds.Insert(kind)
		case err != nil:
			return nil, fmt.Errorf("applyset: find the resource of %s, which the inventory has: %w", kind, err)
		case mapping.Scope.Name() == meta.RESTScopeNameRoot:
			scopes = append(scopes, scope{kind, sets.New("")})
		default:
			scopes = append(scopes, scope{kind, namespaces})
		}
	}
	return scopes, nil
}

// mapping finds the resource of a kind in a version that can be served: that of a wanted
// object, the preferred one, or another one. The definition of the wanted version can be
// among the objects that the call has not applied yet.
func (c *setCall) mapping(kind schema.GroupKind) (*meta.RESTMapping, error) {
	if mapping := c.mappings[kind]; mapping != nil && !c.unservedVersions.Has(mapping.GroupVersionKind) {
		return mapping, nil
	}
	var mapping *meta.RESTMapping
	err := error(&meta.NoKindMatchError{GroupKind: kind})
	if version, ok := c.wantedVersions[kind]; ok && !c.unservedVersions.Has(kind.WithVersion(version)) {
		mapping, err = c.batch.mapper.RESTMapping(kind, version)
	}
	if meta.IsNoMatchError(err) {
		mapping, err = c.knownMapping(kind)
	}
	if meta.IsNoMatchError(err) && !c.resetMapper {
		c.resetMapperOnce()
		mapping, err = c.knownMapping(kind)
	}
	if err == nil {
		c.mappings[kind] = mapping
	}
	return mapping, err
}

// knownMapping returns the mapping of a kind that the Mapper prefers. If a list found its version
// unserved, it returns another one.
func (c *setCall) knownMapping(kind schema.GroupKind) (*meta.RESTMapping, error) {
	mapping, err := c.Mapper.RESTMapping(kind)
	if err != nil || !c.unservedVersions.Has(mapping.GroupVersionKind) {
		return mapping, err
	}
	all, err := c.Mapper.RESTMappings(kind)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(m *meta.RESTMapping) bool { return !c.unservedVersions.Has(m.GroupVersionKind) })
	if i < 0 {
		return nil, &meta.NoKindMatchError{GroupKind: kind}
	}
	return all[i], nil
}

// resetMapperOnce resets the Mapper once in a call.
func (c *setCall) resetMapperOnce() {
	if !c.resetMapper {
		c.resetMapper = true
		meta.MaybeResetRESTMapper(c.Mapper)
	}
}

// list reads the metadata of all members in the scopes, whose mappings are known. If a
// version is not served, it reads the kind in another one. It notes the kinds that the API
// server does not serve.
func (c *setCall) list(ctx context.Context, scopes []scope) (map[identity]*metav1.PartialObjectMetadata, error) {
	found := map[identity]*metav1.PartialObjectMetadata{}
	for len(scopes) > 0 {
		kinds, err := c.listVersions(ctx, scopes, found)
		if err != nil {
			return nil, err
		}
		for kind := range kinds {
			c.unservedVersions.Insert(c.mappings[kind].GroupVersionKind)
		}
		again, err := c.scopes(kinds, nil)
		if err != nil {
			return nil, err
		}
		scopes = slices.DeleteFunc(slices.Clone(scopes), func(s scope) bool {
			return !slices.ContainsFunc(again, func(a scope) bool { return a.kind == s.kind })
		})
	}
	return found, nil
}

// listVersions adds the metadata of all members in the scopes to found, and returns the kinds
// whose version is not served. If a kind is in many namespaces, it reads all namespaces at
// once, if it may.
func (c *setCall) listVersions(ctx context.Context, scopes []scope, found map[identity]*metav1.PartialObjectMetadata) (kinds sets.Set[schema.GroupKind], err error) {
	type request struct {
		scope
		namespace string // "" for all, or for the cluster
	}
	single := func(s scope) (requests []request) {
		for namespace := range s.namespaces {
			requests = append(requests, request{s, namespace})
		}
		return requests
	}
	var requests []request
	for _, s := range scopes {
		if len(s.namespaces) > maxLists {
			requests = append(requests, request{s, ""})
		} else {
			requests = append(requests, single(s)...)
		}
	}
	var mu sync.Mutex
	var forbidden []scope
	kinds = sets.New[schema.GroupKind]()
	read := func(r request) error {
		err := c.pages(ctx, r.kind, r.namespace, func(item *metav1.PartialObjectMetadata) {
			if r.namespaces.Has(item.Namespace) {
				mu.Lock()
				defer mu.Unlock()
				found[identity{r.kind, item.Namespace, item.Name}] = item
			}
		})
		mu.Lock()
		defer mu.Unlock()
		switch {
		case rejection.IsUnserved(err):
			kinds.Insert(r.kind)
		case apierrors.IsForbidden(err) && !r.namespaces.Has(r.namespace):
			forbidden = append(forbidden, r.scope)
		case err != nil:
			return fmt.Errorf("applyset: list the members of the kind %s: %w", r.kind, err)
		}
		return nil
	}
	errs := parallel.Each(ctx, c.Concurrency, requests, read)
	for _, s := range forbidden {
		if len(errs) == 0 {
			errs = parallel.Each(ctx, c.Concurrency, single(s), read)
		}
	}
	return kinds, errors.Join(errs...)
}

// pages calls f for each member of a kind in a namespace, also more than once.
func (c *setCall) pages(ctx context.Context, kind schema.GroupKind, namespace string, f func(*metav1.PartialObjectMetadata)) error {
	client := c.Metadata.Resource(c.mappings[kind].Resource).Namespace(namespace)
	opts := metav1.ListOptions{LabelSelector: inventory.PartOf + "=" + c.setID, Limit: 500}
	for {
		list, err := client.List(ctx, opts)
		switch {
		case apierrors.IsResourceExpired(err) && opts.Limit > 0:
			opts.Limit, opts.Continue = 0, "" // from the start, in one page
			continue
		case err != nil:
			return err
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if opts.Continue = list.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}
