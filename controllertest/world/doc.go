// Package world has the programs of a cluster that a controller waits for in an exploration:
// a scheduler, a kubelet, the protection of claims and Nodes. controlplane, like envtest, has
// none of them, so that no Pod ever runs.
//
// They replace what tests write by hand, a loop that sets the status of Pods. A Scenario gets
// them in one line:
//
//	World: world.Cluster{}.Run,
//
// A Pod is then bound to a Node, runs, is ready, and has an IP of its own. The annotation
// [Exit] ends it. If it is deleted, its containers end before the object goes. Most callers need only that. Without an
// exploration, call Run with a [controllertest.Env] that has a Namespace.
//
// # Guarantees
//
//   - WD1: A Pod is written by the rules of the API server and the kubelet: bound once, a phase
//     only forward, deleted from the API server after it has ended.
//   - WD2: Running Pods of a run have distinct IPs, the lowest that are free.
//   - WD3: A claim stays while a Pod that is bound uses it.
//   - WD4: While a Node is down, its Pods are not ready. Pods that do not tolerate it without a
//     limit are terminating until the Node is back or deleted.
//
// # Caveats
//
//   - Cluster is for an API server without a scheduler and kubelets. On a cluster with them, both
//     would write the Pods: leave Scenario.World nil.
//   - Pods are bound without a look at resources and affinity, except the affinity by which the
//     controller of DaemonSets names a Node.
//   - Containers do not restart, volumes are not mounted, and probes are not called.
package world
