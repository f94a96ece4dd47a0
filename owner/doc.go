// Package owner keeps controller references: it makes an object the controller of
// another, and makes ownership follow a label selector.
//
// It replaces the helpers in controllerutil of controller-runtime and the unexported
// controller_ref_manager of Kubernetes' own controllers. Each function takes the clients
// that client-gen makes.
//
//	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: widget.Namespace, Name: widget.Name}}
//	if err := owner.SetController(widget, widgetKind, child); err != nil {
//		return err
//	}
//	_, err = configMaps.Create(ctx, child, metav1.CreateOptions{})
//
// Most callers need [SetController] alone. [Claim] is for controllers whose objects
// select their children by labels, as a ReplicaSet selects Pods.
//
// # Errors
//
// An error that no retry can cure, such as an owner in another namespace, has a method
// Terminal() bool that returns true. The error about a stale owner in the cache has a
// method Stale() bool that returns true. A reconcile.Controller finds both.
//
// # Guarantees
//
//   - OW1: If a child's UID, labels, owner references or deletion differ from the copy,
//     Claim's write fails with a Conflict.
//   - OW2: If the API server has no such owner or is deleting it, Claim sends no write.
//
// # Caveats
//
//   - The API server accepts owner references to objects that do not exist, and lets
//     anyone who may write a child name any owner. Check what a child is before you
//     trust a reference.
//   - Claim can adopt a child of an owner that is deleted right after Claim read it. The
//     garbage collector then deletes the child.
package owner
