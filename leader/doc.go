// Package leader elects one leader among replicas by a Lease and runs the leader's
// work. It replaces client-go's tools/leaderelection, and can share a Lease with it
// during a rollout.
//
//	leases, err := leader.NewClient(config, namespace)
//	elector := &leader.Elector{Leases: leases, Namespace: namespace, Name: "shop-controller"}
//	err = elector.Run(ctx, controller.Run)
//
// An Elector cancels lead's context by its own clock, keeps the Lease during the drain, and
// campaigns again after a loss. Most callers keep the default durations, run informers on
// every replica, and serve [Elector.Check] as a liveness probe.
//
// A replica leads while [Term.Check] returns nil. The context of lead, the function of Run,
// ends at the latest with the leadership. A process that was suspended sees this only when
// it resumes: call Term.Check before each effect, or use a client with [Guard], which
// checks before each write. A write that was sent in time can arrive later: package
// fence refuses it if it carries its term.
//
// # Guarantees
//
//   - L1: Two replicas never lead at the same time, even with one identity, whatever
//     requests and responses are delayed, lost or reordered, except as under Caveats.
//   - L2: If the response to a write is lost, the write neither prolongs nor ends
//     leadership, except as under Caveats.
//   - L3: If a replica acquires or recreates a Lease, the new leaseTransitions exceeds
//     every one that the replica has seen.
//   - L4: If the context of Run is done, Run renews the Lease until lead has returned, then
//     releases it. If lead has not returned within DrainTimeout, or the release fails, the
//     Lease expires.
//   - L5: If another client deletes the Lease, or changes its holder or leaseTransitions,
//     lead's context ends at the watch event, or at the next renewal if no watch shows it.
//   - L6: If the Lease is released, a standby acquires it at the watch event, or without
//     a watch at its next poll.
//   - L7: If the term is over or the context has no term, a client with [Guard] sends
//     no write.
//   - L8: If lead panics, the process ends with the panic's stack, and the Lease
//     expires.
//   - L9: If a leader crashes and the API server is reachable, a standby leads after at
//     most LeaseDuration + 1.2 RetryPeriod + 250ms.
//   - L10: If the application's rate limiter is exhausted, or connections to the API server die
//     silently, an Elector with a client of [NewClient] keeps the leadership, provided that it
//     can open new connections.
//   - L11: If RenewDeadline has passed since the last renewal, by the monotonic or the wall
//     clock, Term.Check returns ErrLost, also after a suspend.
//   - L12: If a response is not the API server's, such as a proxy's 404, it counts as an
//     outage.
//
// # Caveats
//
//   - Two replicas can lead at the same time if the Lease is deleted or edited, etcd is
//     restored, client-go's elector shares the Lease, the rates of their clocks differ by
//     more than MaxDrift, or a clock misses a suspend: see [Elector].
//   - If an admission plugin removes the annotation leader-run, a lost response costs
//     leadership.
//   - The caches of a new leader can be older than the last leader's writes: see
//     consistency.LiveRead.
//   - An Elector takes no part in coordinated leader election (LeaseCandidate, off by default):
//     Run returns an error for a Lease that the control plane assigns.
//   - The Role needs get, create, update and watch on leases: see manifests/role.yaml.
//   - If the API server is busy, renewals wait behind the other requests of the ServiceAccount,
//     unless a FlowSchema serves them first: see manifests/flowschema.yaml.
package leader
