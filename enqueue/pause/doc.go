// Package pause lets users stop the reconciles of one object, and ask for one now, by two annotations.
//
// If a user must repair something by hand, the controller would undo it. Without this package the user stops the
// controller for all objects. With it, the annotation of one object is enough:
//
//	kubectl annotate website/blog controllerkit.github.io/paused="incident 42"
//	kubectl annotate website/blog controllerkit.github.io/paused-
//	kubectl annotate website/blog --overwrite controllerkit.github.io/requested-at="$(date -Is)"
//
// Package operator obeys them for the objects of Kind. Other controllers call [Annotations.Paused] after the
// code for a deletion, write [Annotations.Condition], and return. A controller that filters events adds [Changed]:
//
//	pass := enqueue.Or(enqueue.GenerationChanged[*v1.Website], pause.Changed[*v1.Website](pause.Annotations{}))
//
// # A paused object
//
// Its deletion is still cleaned up: a finalizer that waits for the end of the pause blocks the namespace. Its
// status keeps observedGeneration, Ready and all else, and gets the condition Paused. A running call
// ends as if there were no pause. The end of the pause is an event, which runs the key at once.
//
// The annotation of a child stops only a controller of the child itself, not that of its owner, which goes on to
// apply the child. To change a child by hand, pause its owner.
//
// # A request
//
// A request is any new value. Its event runs the key without the delay of its retries, after the keys of the
// same priority that are ready already. A controller stores [Annotations.Request] in the status
// once it has handled it, and a user or a program waits until they are equal. The value is compared, not
// read: it need not be a time. After a restart, an old request is no event, so it adds no call to the calls of
// the first list. While an object is paused, its request waits.
//
// # Guarantees
//
//   - PA1: If an annotation's value is long or unprintable, the message of the condition Paused, the
//     result of Request, and what a [Set] stores of the object stay bounded.
//   - PA2: If events of an informer are repeated, merged or missed until a relist, a Set has the paused objects
//     that it holds.
package pause
