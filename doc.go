// Package controllerkit maps a library of production primitives for Kubernetes
// controllers, on client-go alone. Import each package alone, into any informer-driven
// controller: a package imports this one and its parent; only the assembly and controllertest
// import others. This package declares the interfaces, errors and results by which packages and
// users work for each other.
//
// # A page
//
//   - [github.com/controllerkit/controllerkit/operator]: a whole process from the packages
//     below: a line for each resource, election, probes, metrics, ordered stop
//
// # Run
//
//   - [github.com/controllerkit/controllerkit/queue]: the work queue: priorities,
//     fairness, delays, drain; rate limiters
//   - [github.com/controllerkit/controllerkit/enqueue]: informer events to keys;
//     predicates
//   - [github.com/controllerkit/controllerkit/enqueue/reads]: what a reconcile has read runs it
//     again, without a mapping function
//   - [github.com/controllerkit/controllerkit/reconcile]: the loop: a key in, a result or
//     a classed error out; panics, timeouts, ordered stop
//   - [github.com/controllerkit/controllerkit/leader]: one leader, by the clock; hand-over
//     in milliseconds
//   - [github.com/controllerkit/controllerkit/leader/fence]: the API server rejects the late
//     writes of an earlier leader
//   - [github.com/controllerkit/controllerkit/shard]: many active replicas: one owner for
//     each shard of the objects, hand-over without overlap
//   - [github.com/controllerkit/controllerkit/shard/filter]: informers that hold the objects of
//     the owned shards alone
//   - [github.com/controllerkit/controllerkit/shutdown]: parts that start together and
//     stop in order; readiness and liveness
//
// # Read
//
//   - [github.com/controllerkit/controllerkit/informer]: informers that start together, or
//     an error that names the late one and the reason
//   - [github.com/controllerkit/controllerkit/informer/compact]: informers whose caches take a
//     fraction of the memory, and whose reads return private copies
//   - [github.com/controllerkit/controllerkit/informer/ondemand]: informers that are opened, shared
//     and closed while the program runs
//   - [github.com/controllerkit/controllerkit/informer/scope]: one informer of namespaces and a selector
//     that change while the program runs
//   - [github.com/controllerkit/controllerkit/watcher]: a watch that survives failures
//     and never fails silently
//   - [github.com/controllerkit/controllerkit/consistency]: read your own writes; confirm
//     an object before a destructive act
//   - [github.com/controllerkit/controllerkit/crd]: client, informer and lister of a custom
//     resource, without generated code; [github.com/controllerkit/controllerkit/crd/crdtest]
//     is its fake
//
// # Write
//
//   - [github.com/controllerkit/controllerkit/finalizer]: stored before work, removed
//     only after a clean cleanup
//   - [github.com/controllerkit/controllerkit/status]: conditions; one write or none
//   - [github.com/controllerkit/controllerkit/status/kstatus]: whether objects of any kinds are
//     ready, by the rules of kstatus; conditions that it reads right
//   - [github.com/controllerkit/controllerkit/ssa]: server-side apply that skips no-ops
//   - [github.com/controllerkit/controllerkit/ssa/applyset]: a set of objects of any kinds:
//     apply in stages, prune, delete
//   - [github.com/controllerkit/controllerkit/owner]: controller references; adopt and
//     release by labels
//   - [github.com/controllerkit/controllerkit/external]: one external thing for each
//     object, across crashes
//   - [github.com/controllerkit/controllerkit/recorder]: Events, deduplicated and bounded
//
// # Observe and test
//
//   - [github.com/controllerkit/controllerkit/metrics]: Prometheus collectors for the
//     packages above
//   - [github.com/controllerkit/controllerkit/debug]: a page that shows why an object does not
//     move
//   - [github.com/controllerkit/controllerkit/serve]: metrics and debug pages only for users
//     who may read them; TLS
//   - [github.com/controllerkit/controllerkit/controllertest]: runs a controller under
//     crashes, lost responses and stale caches, and judges the result
//   - [github.com/controllerkit/controllerkit/controllertest/fault]: the faults alone
//   - [github.com/controllerkit/controllerkit/controllertest/cloud]: a fake external
//     service
//   - [github.com/controllerkit/controllerkit/controllertest/server]: a real API server for
//     tests
//
// Two packages are modules of their own: github.com/controllerkit/controllerkit/managerkit brings
// these packages into a manager of controller-runtime, and
// github.com/controllerkit/controllerkit/tracing makes OpenTelemetry spans of reconciles.
//
// # Guarantees
//
// The packages share these promises, and state their own.
//
//   - CK1: If a package writes an object, it does not modify the caller's copy.
//   - CK2: If an argument is not valid, the error names it and no request is sent.
//   - CK3: If other users write a large or hostile object, a package that reads it stays
//     bounded in time and memory.
//   - CK4: If a process dies at any write of finalizer, status, ssa or applyset, repeated
//     calls lead to the objects of a run without a crash.
//   - CK5: If keys and groups are many or long, the size of a Snapshot stays bounded.
//   - CK6: If a program has the rights that a package documents, the API server forbids
//     none of the package's requests.
//
// # Composition
//
// Everything that runs has a method Run that blocks until everything it started has stopped.
// Where a time limit ends the wait, Run returns an error that names what still runs. There is no
// manager: elector.Run(ctx, controller.Run) is the whole integration. Most functions that write
// take a one-method interface that generated clients already implement. Packages meet by methods with types of the standard library or of
// Kubernetes: a *queue.Queue is a workqueue.TypedRateLimitingInterface, a
// *consistency.Store is a Gate of reconcile, and *metrics.Metrics implements the Metrics
// interface of every package, where nil disables metrics.
//
// examples/tenant is a complete controller, and cmd/newoperator writes the repository of a new one.
// The nested module controlplane is a real API server for tests.
package controllerkit
