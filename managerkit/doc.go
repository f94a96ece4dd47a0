// Package managerkit brings controllerkit's packages into a manager of controller-runtime, one
// at a time.
//
// The builder, its predicates, the cache, webhooks and the metrics endpoint stay as they are.
// Each line works without the others:
//
//	writes := managerkit.NewWrites(consistency.Config{})
//	err := writes.Install(config, &options)    // a reconcile sees its own writes
//	err = managerkit.Elect(&options, elector)  // hand-over in milliseconds
//	mgr, err := ctrl.NewManager(config, options)
//	...
//	sites, err := managerkit.NewClient[*v1.Website](mgr.GetClient(), mgr.GetAPIReader())
//	...
//	loop := &reconcile.Controller[ctrl.Request]{Workers: 4, Gate: writes.Gate()}
//	err = managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&v1.Website{}), r, loop, controller.Options{})
//
// A [Client] has the methods that the packages finalizer, status, ssa, consistency, owner and
// external want. [Complete] runs the loop of package reconcile, with the queue of package
// queue, in place of controller-runtime's workers. Most callers begin with NewClient, and
// add Complete. Package remember replaces map functions, and package managertest explores a
// manager under faults.
//
// # Guarantees
//
//   - MK1: If the manager's cache is stale, Get and List of a Client, and
//     consistency.ConfirmLive through it, see the API server's state.
//   - MK2: If a run with the Gate Writes has written an object, its key runs again only when
//     the cache shows the write, or MaxWait has passed.
//   - MK3: If Complete has added a controller, events of the builder's sources run its
//     keys in the loop, with its fields and classes of errors.
//   - MK4: If a manager with Elect waits to lead, the informers of a controller of Complete
//     run, except as under Caveats, and its queue is empty. When it leads, the loop gets the
//     keys of all objects, and those of the latest 4096 deletions since the former leader's
//     last renewal.
//   - MK5: If the manager stops, running calls of a loop have its GracePeriod before their
//     contexts end, and Start returns after them.
//   - MK6: If a leading manager with Elect stops, its Lease is released before Start
//     returns, and a standby starts at the watch event.
//   - MK7: If a Runnable still runs after the manager was told to stop, the Lease is renewed
//     until it has returned, or until GracefulShutdownTimeout is over.
//   - MK8: If the response to a renewal is late or lost, the contexts of the leader's
//     Runnables end before another manager with Elect starts its own.
//   - MK9: If leadership is lost, the contexts of Runnables end with a LeadershipLost
//     cause; Start with Elect returns an error, and Run builds a new manager.
//   - MK10: If a manager of Run ends, no goroutine, event handler or metric series of it
//     remains, and a shared cache stays filled.
//   - MK11: A failing key of a loop runs when its delay is over and at each event; failures
//     before that time neither count nor move it.
//
// # Caveats
//
//   - The configuration of ctrl.GetConfig has no client-side limit. In another one, such as that
//     of rest.InClusterConfig, the zero QPS means 5 requests a second: set it to -1.
//   - Options that are replaced after Install or Elect lose them.
//   - Writes does not work with Share.
//   - A request has no object, so an own write runs its key like another's, in spite of R13 of
//     package reconcile.
//   - With EnableWarmup or NeedLeaderElection set to false, or with a WatchesRawSource other than
//     that of package remember, the informers of a controller of Complete start when the process leads.
//   - A standby's handlers call Delete on another goroutine than the leader's, and each predicate
//     of the builder can run on both at once. While the process begins to lead, a handler can get a
//     deletion twice. A Delete that the standby has not reached by then adds no key.
package managerkit
