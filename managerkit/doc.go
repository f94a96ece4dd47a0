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
//	loop := &reconcile.Controller[ctrl.Request]{Workers: 4, Gate: writes}
//	err = managerkit.Complete(ctrl.NewControllerManagedBy(mgr).For(&v1.Website{}), r, loop)
//
// Each line works without the others. A [Client] has the methods that the packages
// finalizer, status, ssa, consistency, owner and external want. [Complete] runs the loop of
// package reconcile, with the queue of package queue, in place of the workers of
// controller-runtime. Most callers begin with NewClient, and add Complete.
package managerkit
