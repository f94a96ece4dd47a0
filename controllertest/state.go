package controllertest

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/controllerkit/controllerkit/controllertest/cloud"
)

// A State is what a run's part of the cluster looks like at one moment: the
// objects in its namespace, the cluster-scoped objects that it created or whose name
// contains that of its namespace, the objects in namespaces named so, and its cloud.
// Its objects must not be modified.
type State struct {
	namespace string
	objects   map[objectKey]*unstructured.Unstructured
	cloud     []cloud.Resource
}

// An objectKey names an object: its resource as plural[.group], without version.
type objectKey struct {
	resource, namespace, name string
}

// Namespace is that of the run, as in Env.
func (s *State) Namespace() string { return s.namespace }

// Objects returns the objects of a resource, given as its plural and, unless it
// is empty, its group: "configmaps", "deployments.apps". They are ordered by
// namespace and name.
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

// Get returns the object of that name in the run's namespace or, if there is
// none, the cluster-scoped one; nil if there is neither.
func (s *State) Get(resource, name string) *unstructured.Unstructured {
	if obj := s.objects[objectKey{resource, s.namespace, name}]; obj != nil {
		return obj
	}
	return s.objects[objectKey{resource, "", name}]
}

// Cloud returns what the run's cloud holds, in the order in which it was made.
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
