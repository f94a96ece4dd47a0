// Package managerkit brings the packages of controllerkit into a manager of
// controller-runtime, one at a time. Nothing of the manager has to be given up: the
// builder, its predicates, the cache, webhooks and the metrics endpoint stay.
//
//	writes := managerkit.NewWrites(consistency.Config{})
//	writes.Install(config, &options)           // a reconcile sees its own writes
//	managerkit.Elect(&options, elector)        // hand-over in milliseconds
//	mgr, err := ctrl.NewManager(config, options)
//	...
//	sites, err := managerkit.NewClient[*v1.Website](mgr.GetClient(), mgr.GetAPIReader())
//	...
//	loop := &reconcile.Controller[ctrl.Request]{Workers: 4, Gate: writes.Gate()}
//	err = managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&v1.Website{}), r, loop, controller.Options{})
//
// Each line works without the others. A [Client] has the methods that the packages
// finalizer, status, ssa, consistency, owner and external want. [Complete] runs the loop of
// package reconcile, with the queue of package queue, in place of the workers of
// controller-runtime. Most callers begin with NewClient, and add Complete. [Start] explores a
// manager under faults.
//
// # Guarantees
//
//   - MK1: If the client, the live reader, T or the kind is unfit, NewClient returns an
//     error of one line that names it and the cure.
//   - MK2: If the manager's cache is stale, Get and List of a Client, and ConfirmLive
//     through it, see the API server's state.
//   - MK3: Each option, selector and subresource of a request through a Client reaches
//     the API server as from a generated client. If it cannot, the method returns an error
//     and sends no request.
//   - MK4: A Client does not modify the objects that it receives, and returns the API
//     server's response.
//   - MK5: If other writers change an object at the same time, finalizer.Ensure and
//     finalizer.Remove through a Client lose no finalizer.
//   - MK6: If a status is equal, package status sends no request through a Client;
//     otherwise it sends one, which does not change the spec.
//   - MK7: If an object has the fields of a configuration, ssa.ApplyChanged through a
//     Client sends no request. If another manager owns a field, the error of ssa.TryApply
//     is an ssa.ConflictError.
//   - MK8: If the manager's client has wrappers, such as a field owner, a dry run or an
//     interceptor, they apply to each write of a Client.
//   - MK9: If a kind is namespaced and the client has no namespace, or a kind is
//     cluster-scoped and the client has one, the method returns an error and sends no
//     request, except that List reads all namespaces.
//   - MK20: If a leading manager with Elect stops, its Lease is released before Start
//     returns, and a standby starts its work at the watch event.
//   - MK21: If a Runnable outlasts the stop of its manager, the Lease is renewed until it
//     has returned. If it outlasts GracefulShutdownTimeout, the Lease is not released.
//   - MK22: If the response to a renewal is late or lost, the contexts of the leading
//     manager's Runnables end before the Runnables of another manager with Elect start.
//   - MK23: If another holder takes the Lease, Start of a manager with Elect returns an
//     error, and the contexts of its Runnables end.
//   - MK24: If a standby with Elect stops, Start returns nil. If its Lease is not usable,
//     Start returns the Elector's error. Then the Elector has ended.
//   - MK25: If a manager with Elect leads, the contexts of its Runnables have the term.
//   - MK26: If leadership is lost, Run ends the contexts of the Runnables with a cause that
//     is LeadershipLost, and builds a new manager in the next term.
//   - MK27: If a manager of Run ends, none of its goroutines, event handlers and metric
//     series accumulate, and a shared cache lists and watches nothing again.
//   - MK28: If a manager of Run must stop before its cache is filled, it stops, and the
//     contexts of its Runnables end before they start.
//   - MK40: If a run of a key gated by Writes has written an object, the key runs again only
//     when the cache shows the write, or when MaxWait has passed.
//   - MK41: Writes records creates, updates, patches, applies, status writes and deletions by
//     each client made from the installed configuration, with the context of the run.
//   - MK42: A key that waits for the cache occupies no worker.
//   - MK43: If several informers of a resource can show an object, a key waits for all of them,
//     also for one that starts later, and not for one that was removed.
//   - MK44: A write in a namespace does not wait for an informer that watches only others.
//   - MK45: If the outcome of a write is unknown, LiveRead is true in the key's next run.
//   - MK46: If no manager was made with the options of Install, Reconciler returns a terminal
//     error, and the context of a gated run is done. The error names Install.
//   - MK47: A key that waits in Reconciler is checked at least once a second. Its priority and
//     the backoff of its failures remain.
//   - MK80: If the context of a process of Start is done, it returns after all Runnables have
//     returned, and leaves no goroutine of the manager.
//   - MK81: Each process of Start has options and a scheme of its own, opens no port, and
//     caches and elects in the namespace of its run. The given options do not change.
//   - MK82: If a loop that Complete made has waiting keys, the explorer reports that the
//     cluster is not at rest.
package managerkit
