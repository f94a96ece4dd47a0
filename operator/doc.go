// Package operator assembles a whole process from the other packages: its controllers,
// their informers and queues, leader election, probes, metrics, Events, and an ordered
// stop.
//
// It corresponds to the manager and the builder of controller-runtime. A resource takes
// one line, which returns its lister:
//
//	op, err := operator.New(config, operator.Options{Name: "widgets", LeaseNamespace: namespace, Listen: ":8080"})
//	if err != nil {
//		return err
//	}
//	r := &reconciler{kube: kubernetes.NewForConfigOrDie(op.Config)} // clients from op.Config
//	factory := informers.NewSharedInformerFactory(r.kube, 0)
//	c := op.Controller("widgets", r.reconcile)
//	r.widgets = operator.For(c, v1.Resource("widgets"), widgets.Informer(0, nil))
//	r.deployments = operator.Owns(c, appsv1.Resource("deployments"), factory.Apps().V1().Deployments())
//	return op.Run(ctx)
//
// Make all clients from [Operator].Config, with which a reconcile waits until the caches
// show the writes of the last one. Most callers leave [Controller].Loop as it is.
//
// # Pieces
//
// The example named pieces is the same program without an Operator.
// [informer.Set] runs the informers, [reconcile.Controller] the loops with a [queue.Queue]
// and a [consistency.Store], [leader.Elector] holds the Lease, [recorder.Recorder] writes
// Events, [metrics.Metrics] counts, [shutdown.Group] stops them. The fields of Operator and
// Controller.Loop are these pieces: change or replace one before Run, or copy the example
// and go on by hand.
//
// # Stop
//
// When the context of Run is done, no call starts, running calls finish, the Lease is
// released, Events are written, informers and server stop. GracePeriod bounds it. With
// its default a call may take 15s, the calls that run have 20s, the election waits 22s for
// them, and the process ends within 28s, before the Pod's 30s. Another GracePeriod scales
// them all.
//
// # Guarantees
//
//   - OP1: If the API server does not serve a resource or subresource within
//     StartTimeout, or as another kind, Run returns an error that names it.
//   - OP2: If an informer of a replica is not synced, the replica takes no Lease
//     and no call runs.
//   - OP3: If a reconcile wrote an object of a registered resource, the next call with
//     the same key sees the write.
//   - OP4: If the context is done and running calls end within their Timeout, Run releases
//     the Lease after these calls and returns nil within GracePeriod.
//   - OP5: If clients of Config send only the requests of registrations and Writes, no
//     request is forbidden under Rules.
//   - OP6: If a replica is not the leader, its informers run, its queues are empty, and no
//     reconcile begins.
//   - OP7: If an informer follows settings, each replica makes its selection, and a replica
//     without a selection takes no Lease.
//
// # Caveats
//
//   - Informers run once, so an Operator does. To run one again in a process, make it
//     again with new informers: of a new factory, or of the same client of package crd.
//     Make the clients that write again, too, because OP3 holds for the clients of the new
//     Config.
//   - Do not call Start of a factory: Run starts the registered informers.
//   - All informers of a resource must be one, also in different controllers, because their
//     scopes could differ. If an informer has a selector, a write that it does not select
//     delays the key until the next bookmark, about a minute, in any controller.
//   - OP3 holds for writes by clients of Config, with the context of the call. After two
//     minutes a key runs although the caches are behind: see MaxWait of [consistency.Config].
//   - Config has no [leader.Guard]. To stop writes of calls that outlive their term, wrap
//     Config with it before you make the clients.
//   - A Go type whose name is not its kind is refused, unless its informer has a method
//     GroupVersionKind.
package operator
