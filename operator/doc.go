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
// Most callers need only [Kind], [Children], [Controller.Apply] and [Reads].
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
// calls 20s, the election 22s, and the process 28s of the Pod's 30s. GracePeriod scales them.
//
// # Guarantees
//
//   - OP1: If a required resource or subresource is not served within StartTimeout, or has another
//     kind, Run returns an error that names it.
//   - OP2: If an informer of a replica is not synced, the replica takes no Lease
//     and no call runs.
//   - OP3: If a reconcile wrote an object of a registered resource, the next call with
//     the same key sees the write.
//   - OP4: If the context is done and running calls end within their Timeout, Run releases
//     the Lease after these calls and returns nil within GracePeriod.
//   - OP5: Rules allow all requests of the operator, and each request of a client of Config that a
//     registration or Writes declares.
//   - OP6: While a replica does not lead, its informers run, no reconcile begins, and its queues are
//     empty once the last call of its term has ended.
//   - OP7: If an informer follows settings, each replica makes its selection, and a replica
//     without a selection takes no Lease.
//   - OP8: If an object is being deleted, no function of Kind but Cleanup gets it.
//   - OP9: If there is a Finalizer, it is stored before Reconcile is called.
//   - OP10: What Reconcile changed in the status is written at most once, only over the version that
//     Reconcile got, and not after a panic or the loss of leadership.
//   - OP11: If Apply finds an object that is not a child of the call's object, it leaves it
//     alone and returns an error.
//   - OP12: If Reconcile, Apply or a Reader fails, the call prunes no children.
//   - OP13: If a function of Kind changes an object that it got, no cache changes.
//   - OP14: If the last call of a key has read or listed an object by a Reader, the key runs when it
//     changes, appears or is deleted.
//   - OP15: If an optional resource is not served, its reads return an error. Once it is served, the
//     keys run whose last call has read it.
//   - OP16: Reconcile does not get an object that an annotation pauses. Cleanup does, if it is being
//     deleted. The end of the pause runs the key.
//
// # Caveats
//
//   - An Operator runs once, and starts the informers: do not start a factory.
//   - A resource has one informer. A write outside of its selector delays the key for a minute.
//   - OP3 is for writes by clients of Config with the call's context, for two minutes: see
//     [consistency.Config].
//   - To stop writes of calls that outlive their term, wrap Config with [leader.Guard] first.
//   - A child created between Apply's read and request is adopted.
//   - A Go type's kind is its name, or its informer's GroupVersionKind.
package operator
