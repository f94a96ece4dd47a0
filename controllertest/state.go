package controllertest

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

// A State is a run's part of the cluster at one moment: the objects in its namespace, its
// cluster-scoped objects, and its cloud. A cluster-scoped object belongs to a run that
// created it or whose namespace is part of its name. The objects in a namespace whose
// name contains the run's namespace belong to the run too. Objects must not be modified.
//
// A State has no Events, Leases and bindings. It has the objects of another resource only after the
// controller, the user or the World of a run has written an object of that resource.
type State struct {
	namespace string
	objects   map[objectKey]*unstructured.Unstructured
	cloud     []cloud.Resource
}

// An objectKey names an object: its resource as plural[.group], without version.
type objectKey struct {
	resource, namespace, name string
}

// Namespace returns the namespace of the run, as in Env.
func (s *State) Namespace() string { return s.namespace }

// Objects returns the objects of a resource in the order of namespace and name. The
// resource is its plural and, unless empty, its group: "configmaps",
// "deployments.apps". A resource that is not in the State has none.
func (s *State) Objects(resource string) []*unstructured.Unstructured {
	var found []*unstructured.Unstructured
	for key, obj := range s.objects {
		if key.resource == resource {
			found = append(found, obj)
		}
	}
	slices.SortFunc(found, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return found
}

// Get returns the object with the name in the run's namespace or, if it is absent, the
// cluster-scoped object with the name. If both are absent, or the resource is not in the State,
// Get returns nil.
func (s *State) Get(resource, name string) *unstructured.Unstructured {
	if obj := s.objects[objectKey{resource, s.namespace, name}]; obj != nil {
		return obj
	}
	return s.objects[objectKey{resource, "", name}]
}

// Cloud returns the resources of the run's cloud in the order of their creation.
func (s *State) Cloud() []cloud.Resource { return s.cloud }

func (s *State) clone() *State {
	c := *s
	c.objects = make(map[objectKey]*unstructured.Unstructured, len(s.objects))
	for k, v := range s.objects {
		c.objects[k] = v
	}
	c.cloud = slices.Clone(s.cloud)
	return &c
}
