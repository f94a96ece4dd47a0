// Package operator assembles a whole process from the other packages. A controller is a function of an
// object: its children, status, finalizer, election, rights, probes, metrics, Events and ordered stop
// follow from it.
//
// It replaces the manager and builder of controller-runtime:
//
//	op, err := operator.New(config, operator.Options{Name: "widgets", LeaseNamespace: namespace, Listen: ":8080"})
//	if err != nil {
//		return err
//	}
//	c := operator.Kind(op, v1.GroupVersion.WithResource("widgets"), operator.Reconciler[*v1.Widget]{
//		Reconcile: func(ctx context.Context, w *v1.Widget) (reconcile.Result, error) {
//			_, err := r.apply(ctx, newDeployment(w)) // a child
//			w.Status.URL = r.url(w)                  // written after the call
//			return reconcile.Result{}, err
//		},
//	})
//	operator.Children(c, appsv1.SchemeGroupVersion.WithResource("deployments"), applyappsv1.ExtractDeployment)
//	r.apply = c.Apply
//	return op.Run(ctx)
//
// Most callers need no more than [Kind], [Children], [Controller.Apply] and [Reads].
//
// # Pieces
//
// [Operator.Controller] with [For], [Owns] and [Watches] adds a function of a key, with clients
// of [Operator].Config. The fields of Operator and Controller.Loop may change before Run.
//
// # Stop
//
// When the context of Run is done, no call starts, running calls finish, the Lease is
// released, Events are written, informers and server stop. By default a call may take 15s, all
// calls 20s, the election waits 22s, and the process ends within 28s, before the Pod's 30s.
// GracePeriod scales them.
//
// # Guarantees
//
//   - OP1: If the API server does not serve a resource or subresource that is not optional
//     within StartTimeout, or serves another kind, Run returns an error that names it.
//   - OP2: If an informer of a replica is not synced, the replica takes no Lease
//     and no call runs.
//   - OP3: If a reconcile wrote an object of a registered resource, the next call with
//     the same key sees the write.
//   - OP4: If the context is done and running calls end within their Timeout, Run releases
//     the Lease after these calls and returns nil within GracePeriod.
//   - OP5: Rules allow all requests of the operator, and those of clients of Config that
//     registrations and Writes declare.
//   - OP6: If a replica does not lead, its informers run, no reconcile begins, and its queues
//     are empty after the last call.
//   - OP7: If an informer follows settings, each replica makes its selection, and a replica
//     without a selection takes no Lease.
//   - OP8: If an object is being deleted, no function of Kind but Cleanup gets it.
//   - OP9: If there is a Finalizer, it is stored before Reconcile is called.
//   - OP10: If Reconcile changed the status, the call writes it at most once, only over the
//     version that it got, and not after a panic or the loss of leadership.
//   - OP11: If Apply finds an object that is not a child of the call's object, it leaves it
//     alone and returns an error.
//   - OP12: If Reconcile, Apply or a Reader fails, the call prunes no children.
//   - OP13: If a function of Kind changes an object that it got, no cache changes.
//   - OP14: If an object that the last call of a key read by a Reader changes, appears or is
//     deleted, the key runs.
//   - OP15: If an optional resource is not served, its reads return an error, and keys that have
//     read it run when it is.
//   - OP16: While an annotation pauses an object, only Cleanup gets it, if it is being deleted.
//     The end of the pause runs its key.
//
// # Caveats
//
//   - An Operator runs once.
//   - Do not start a factory: Run starts the informers.
//   - A resource has one informer. A write outside of its selector delays the key for a minute.
//   - OP3 is for writes by clients of Config with the call's context, for two minutes: see
//     [consistency.Config].
//   - To stop writes of calls that outlive their term, wrap Config with [leader.Guard] first.
//   - A child created between the read of Apply and its request is adopted.
//   - The kind of a Go type is its name, or its informer's GroupVersionKind.
package operator
