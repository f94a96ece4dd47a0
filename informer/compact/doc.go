// Package compact makes informers whose cache holds each object as the API server encoded it,
// in a fraction of the memory of Go objects. Each read decodes a new object, which belongs to
// the caller.
//
// It replaces the informer of a generated factory:
//
//	pods, err := compact.New[*corev1.Pod](client.CoreV1().RESTClient(), "pods", compact.Options{})
//	if err != nil {
//		return err
//	}
//	set.Add("pods", pods) // an informer.Set
//	...
//	pod, err := pods.Get(key.Namespace, key.Name)
//	pod.Labels["seen"] = "true" // the cache does not change
//
// An [Informer] is a cache.SharedIndexInformer. Generated listers read its indexer, and
// handlers, indexes and transforms get objects of the Go type. Built-in kinds are stored as
// protobuf, and custom resources as JSON. Use it for kinds with many or large objects. A
// controller that reads all objects again and again is better off with a typed cache:
// docs/memory.md has figures.
//
// # Reads
//
// Get, List and ByIndex decode all that they return. All decodes one object at a time, so that
// a loop over a large cache needs the memory of one object. Header and Headers decode nothing
// but the metadata that is asked for.
//
// # Guarantees
//
//   - CP1: No change of a returned object, or of one that a handler got, changes the cache.
//   - CP2: A read returns what client-go's typed informer would, without the dropped fields.
//   - CP3: If an object does not fit the Go type, the informer goes on without it: Get returns an
//     error that names it. Handlers do not get it. If they have seen the object before, they get
//     an update to its last state that fits, with the new metadata.
//   - CP4: If an index function panics or fails for an object, the process goes on: ByIndex of any
//     value returns the objects that are known to have it, and an error.
//
// # Caveats
//
//   - managedFields are dropped unless Options.ManagedFields is true. Functions that read them from a
//     cached object, such as those that ssa.ApplyChanged takes, need it.
//   - The handlers of an event share its objects, as client-go's do, so they must not change
//     them. An update decodes the old and the new object. Handlers of package enqueue for
//     metav1.Object get metadata instead, and those of operator.Owns and operator.For without
//     predicates; but For decodes the new object if its type has conditions, to count them.
//   - The indexer's List, which generated listers call, logs objects that do not decode and
//     returns the others. It decodes all objects before the lister applies its selector. List
//     of the Informer decodes the selected ones.
//   - Index functions are called once for each state of an object, without the dropped fields.
//     While the values of an object are unknown, ByIndex returns an error for every value.
//   - Over encodes objects that were decoded before: fields that the Go type lacks are lost, and
//     the first list needs the memory of typed objects.
package compact
