// Package bridge runs package operator inside a manager of controller-runtime. Both have one cache.
//
// A function that adds controllers to an operator.Operator works in a program of its own and in a manager:
//
//	err := bridge.Add(mgr, operator.Options{Name: "websites"}, func(op *operator.Operator) error {
//		c := operator.Kind(op, v1.GroupVersion.WithResource("websites"), operator.Reconciler[*v1.Website]{Reconcile: r.reconcile})
//		r.secrets = operator.Reads(c, corev1.SchemeGroupVersion.WithResource("secrets"), operator.Reading[*corev1.Secret]{})
//		return nil
//	})
//
// The manager elects the leader, runs the informers, and serves probes and metrics. Most callers need
// [Add] alone. [Informer] is for operator.For, Owns and Watches, and for any controller on client-go: with it,
// informers and listers of client-go read the manager's cache.
//
// # Guarantees
//
//   - BR1: If a kind of operator.Kind, Children or Reads is in the manager's cache, the operator opens no
//     watch of it, except as under Caveats.
//   - BR2: If a manager with LeaderElection waits to lead, no reconcile of Add begins.
//   - BR3: If the manager stops, running calls of Add end within the operator's GracePeriod, and Start returns
//     after them.
//   - BR4: If an operator of Add or a Set that runs an Informer ends, its event handlers are removed from the
//     manager's cache.
//
// # Caveats
//
//   - Writes go through mgr.GetConfig(). A client of options.NewClient, such as one with an interceptor, does not see
//     them. A transport of config.Wrap does.
//   - Optional and single kinds of operator.Reading have watches of their own, and optional ones watch all
//     namespaces.
//   - If the cache has DefaultNamespaces, or Namespaces of ByObject, call [Prepare] before the manager is made.
//     Without it, lists of the cache can be older than the writes of the last leader.
//   - controller-runtime waits without a limit until its cache has each kind. Until then no controller starts, the
//     error of a webhook server that cannot start is not reported, and the process stops only when it is killed.
//     A readiness check of Add names the kind.
//   - A deletion while this process does not lead runs no key when it leads. A controller of
//     Operator.Controller that must see deletions needs a finalizer.
//   - If a transform of the cache strips managedFields, each Apply of a child is a request.
//   - An object that a selector of the cache leaves out is absent for the operator.
package bridge
