// Package served waits until an API server serves the resources of a program.
package served

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/controllerkit/controllerkit/internal/kube"
)

// retryPeriod is the time between two discoveries.
const retryPeriod = time.Second

// Resource is a resource or subresource that the program needs.
type Resource struct {
	schema.GroupResource
	Kind       string // of the objects that the informer holds; "" fits any
	Namespace  string // of the informer that the operator makes; "" if it has all
	Controller string // names the controller with that informer
}

// Kind is the kind of a resource's objects.
type Kind struct {
	schema.GroupVersionKind
	Namespaced bool
}

// Kinds has the served resources and subresources.
type Kinds map[schema.GroupResource]Kind

// Wait returns when the API server serves all resources. For a server that cannot be
// reached and a resource that is not served yet it waits until the timeout. If a resource
// has objects of another kind or scope, it returns an error at once.
func Wait(ctx context.Context, config *rest.Config, timeout time.Duration, resources []Resource) (Kinds, error) {
	client, err := discovery(config)
	if err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var reason error // of the last attempt that the timeout did not end
	for {
		found, err := discover(timed, client, resources)
		missing, wrong := found.compare(resources)
		switch {
		case wrong != nil:
			return nil, wrong
		case err != nil:
			err = fmt.Errorf("the API server %s cannot tell what it serves: %w", config.Host, err)
		case missing == nil:
			return found, nil
		default:
			err = missing
		}
		if reason == nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Waiting for the API server", "reason", kube.Printable(err.Error(), 4<<10), "timeout", timeout)
		}
		if reason == nil || timed.Err() == nil {
			reason = err
		}
		select {
		case <-timed.Done():
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("%w (after %v)", reason, timeout)
		case <-time.After(retryPeriod):
		}
	}
}

// Asker returns a function that returns the kind of a resource in a version, and "" if the API server does
// not serve it. The objects of the kind are in namespaces if namespaced is true.
func Asker(config *rest.Config) (func(ctx context.Context, version schema.GroupVersion, resource string) (kind string, namespaced bool, err error), error) {
	client, err := discovery(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, version schema.GroupVersion, resource string) (string, bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var list metav1.APIResourceList
		err := client.Get().AbsPath(prefix(version.Group), version.String()).Do(ctx).Into(&list)
		switch {
		case apierrors.IsNotFound(err):
			return "", false, nil
		case err != nil:
			return "", false, fmt.Errorf("%s: %w", version, err)
		}
		for _, r := range list.APIResources {
			if r.Name == resource {
				return r.Kind, r.Namespaced, nil
			}
		}
		return "", false, nil
	}, nil
}

// prefix is the path of the versions of a group.
func prefix(group string) string {
	if group == "" {
		return "/api"
	}
	return "/apis"
}

// discovery returns a client for the documents that tell what the API server serves. client-go's
// own imports the types of every API group.
func discovery(config *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	own := rest.CopyConfig(config)
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	own.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON // which takes longer to decode
	return rest.UnversionedRESTClientFor(own)
}

// discover asks for the groups of the resources only, because the list of all that a
// cluster serves can be megabytes.
func discover(ctx context.Context, client rest.Interface, resources []Resource) (Kinds, error) {
	groups := map[string][]Resource{}
	for _, r := range resources {
		groups[r.Group] = append(groups[r.Group], r)
	}
	var mu sync.Mutex // guards all
	all := Kinds{}
	var g errgroup.Group
	for group, needed := range groups {
		g.Go(func() error {
			found, err := inGroup(ctx, client, group, needed)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, found)
			return err
		})
	}
	return all, g.Wait()
}

// inGroup returns the resources of the group's preferred version. If some of needed are not
// among them, it adds the resources of the other versions.
func inGroup(ctx context.Context, client rest.Interface, group string, needed []Resource) (Kinds, error) {
	versions, found := []string{"v1"}, Kinds{}
	if group != "" {
		var served metav1.APIGroup
		err := client.Get().AbsPath("/apis", group).Do(ctx).Into(&served)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", group, err)
		}
		versions = []string{served.PreferredVersion.GroupVersion}
		for _, v := range served.Versions {
			if v.GroupVersion != versions[0] {
				versions = append(versions, v.GroupVersion)
			}
		}
	}
	var failed error // of versions; another one may have what is needed
	for _, groupVersion := range versions {
		var list metav1.APIResourceList
		err := client.Get().AbsPath(prefix(group), groupVersion).Do(ctx).Into(&list)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", groupVersion, err))
			continue
		}
		for _, r := range list.APIResources {
			name := schema.GroupResource{Group: group, Resource: r.Name}
			if _, ok := found[name]; !ok {
				found[name] = Kind{schema.FromAPIVersionAndKind(groupVersion, r.Kind), r.Namespaced}
			}
		}
		if missing, _ := found.compare(needed); missing == nil {
			return found, nil
		}
	}
	return found, failed
}

// compare returns an error as missing if a resource is absent, which can change, and as wrong
// if it has another kind or scope.
func (found Kinds) compare(resources []Resource) (missing, wrong error) {
	for _, r := range resources {
		switch served, ok := found[r.GroupResource]; {
		case !ok && !strings.HasSuffix(r.GroupResource.Resource, "/finalizers"): // which is never served
			return found.absent(r.GroupResource), nil
		case r.Kind != "" && r.Kind != served.Kind:
			return nil, fmt.Errorf("controller %q: the objects of %s are of kind %s, and its informer holds %s: pass the informer of %[2]s", r.Controller, r.GroupResource, served.Kind, r.Kind)
		case ok && r.Namespace != "" && !served.Namespaced:
			return nil, fmt.Errorf("controller %q: %s is cluster-scoped, and Options.Namespace is %s: leave it empty, or call Inform with an informer of %[2]s", r.Controller, r.GroupResource, r.Namespace)
		}
	}
	return nil, nil
}

func (found Kinds) absent(resource schema.GroupResource) error {
	parent, sub, isSub := strings.Cut(resource.Resource, "/")
	if _, ok := found[schema.GroupResource{Group: resource.Group, Resource: parent}]; ok && isSub {
		return fmt.Errorf("%s.%s has no subresource %s: use one that it has, or add it to the CustomResourceDefinition, under subresources", parent, resource.Group, sub)
	}
	return fmt.Errorf("the API server does not serve %s: install its CustomResourceDefinition, or check the name", resource)
}
