// Package controllerkit is the map of a library of production primitives for
// Kubernetes controllers, built on client-go alone. It declares nothing: each
// package is imported by itself, into any controller driven by informers, and
// none imports another.
//
// # What runs
//
//   - [github.com/controllerkit/controllerkit/queue]: the work queue: priorities,
//     fairness, delays, a drain that drains; rate limiters
//   - [github.com/controllerkit/controllerkit/enqueue]: the events of informers as
//     keys of a queue: typed handlers and predicates
//   - [github.com/controllerkit/controllerkit/reconcile]: the loop: a key in, a
//     result or a classed error out; panics, timeouts, an orderly stop
//   - [github.com/controllerkit/controllerkit/leader]: one leader, by the time at
//     which the last renewal was sent; hand-over by watch
//   - [github.com/controllerkit/controllerkit/informer]: informers that start
//     together, or say which does not and why
//   - [github.com/controllerkit/controllerkit/watcher]: a watch that survives what
//     ends watches, and never fails silently
//   - [github.com/controllerkit/controllerkit/shutdown]: parts that start together
//     and stop in order, readiness and liveness
//
// # What writes
//
//   - [github.com/controllerkit/controllerkit/finalizer]: stored before work,
//     removed only when clean
//   - [github.com/controllerkit/controllerkit/status]: conditions, one write or none
//   - [github.com/controllerkit/controllerkit/ssa]: server-side apply that knows
//     when there is nothing to apply
//   - [github.com/controllerkit/controllerkit/owner]: controller references, and
//     ownership that follows labels
//   - [github.com/controllerkit/controllerkit/external]: one external thing for each
//     object, across crashes
//   - [github.com/controllerkit/controllerkit/recorder]: Events, deduplicated and
//     bounded
//
// # What watches over both
//
//   - [github.com/controllerkit/controllerkit/consistency]: whether the caches show
//     yet what was written
//   - [github.com/controllerkit/controllerkit/metrics]: Prometheus collectors for
//     all of the above
//
// # What proves it
//
//   - [github.com/controllerkit/controllerkit/controllertest]: runs a controller
//     under every crash, lost answer and stale cache, and judges what comes out
//   - [github.com/controllerkit/controllerkit/controllertest/fault]: the faults
//     alone, for tests without an explorer
//   - [github.com/controllerkit/controllerkit/controllertest/cloud]: a fake of an
//     external service
//
// # How they fit
//
// Everything that runs is a func(context.Context) error that blocks until all
// that it started has stopped. There is no manager: elector.Run(ctx,
// controller.Run) is the whole integration. Everything that talks to the API
// server takes an interface with one method that the generated clients already
// have. Packages meet by methods whose types are the standard library's or
// Kubernetes': a *queue.Queue is a workqueue.TypedRateLimitingInterface, a
// *consistency.Store is a gate for reconcile, and *metrics.Metrics is what each
// of them reports to.
//
// examples/tenant is a complete controller. controlplane, a module of its own,
// is a real API server for tests.
package controllerkit
