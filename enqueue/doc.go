// Package enqueue turns the events of informers into keys of a work queue.
//
// It takes the place of a handwritten cache.ResourceEventHandler: its handlers
// are typed, handle the deletions that an informer missed, and give the initial
// list a low priority if the queue has priorities.
//
//	informer.AddEventHandler(enqueue.Handler(q, enqueue.KeyOf[*v1.Widget]))
//	pods.AddEventHandler(enqueue.Handler(q, enqueue.ControllerOf[*corev1.Pod](widgetKind)))
//
// Most callers need [Handler] with [KeyOf] for the reconciled objects, and with
// [ControllerOf] for their children. The queue can be any type with an Add
// method: a queue of client-go, a queue of package queue, or a Source of package
// reconcile.
//
// Most controllers need no [Filter]: the queue merges the changes of one key,
// and a reconcile that finds nothing to do is cheap. A filtered event does not
// come again. The comment of [GenerationChanged] lists the changes that it does
// not see.
//
// # Guarantees
//
//   - EQ1: If an informer missed a deletion, Handler adds the keys of the tombstone's
//     object, or of an empty one with its namespace and name.
//   - EQ2: GenerationChanged and ResourceVersionChanged pass each creation, deletion and
//     replacement, and objects that lack the compared field.
package enqueue
