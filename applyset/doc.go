// Package applyset applies and deletes sets of objects of any kinds by server-side apply,
// several at a time. Namespaces and CustomResourceDefinitions come first.
//
// It replaces a loop over a dynamic client that applies the files of a release:
//
//	batch := &applyset.Batch{Client: client, Mapper: mapper, Manager: "example.com/widgets"}
//	applied, err := batch.Apply(ctx, objects...)
//
// Most callers call [Batch.Apply] with all objects of a component, and [Batch.Delete]
// with the objects that Apply returned.
//
// # Guarantees
//
//   - AS1: If an object was not applied, the error has its [*ObjectError]. A repeated
//     batch changes no field and no owner.
//   - AS2: If an object of the first stage fails, is being deleted, or is a
//     CustomResourceDefinition not established in time, the second stage does not begin.
//   - AS3: If the context ends, no further request is made. Each object without a
//     request has [ErrNotTried]. At most Concurrency requests run at once.
//   - AS4: If an object has another uid, Delete leaves it alone. It deletes Namespaces
//     and CustomResourceDefinitions once the others' deletion is accepted.
//   - AS5: If an argument or object is not valid, the error names the object and field
//     and comes before any request.
//   - AS6: If a program dies during a batch, a repetition leads to the same objects.
//   - AS7: If Owner is set, the objects are garbage collected after it. An Owner that would
//     have them deleted at once is an error.
//   - AS8: The documented verbs are enough for each method.
//   - AS9: If an apply would change or remove another manager's field, TryApply skips
//     that object, and its error is a Conflict.
//
// # Caveats
//
// Each API server begins to serve a new or changed CustomResourceDefinition a moment after
// the response. A Batch tries objects of such kinds again after a second. If an API server
// is later than that, apply again.
package applyset
