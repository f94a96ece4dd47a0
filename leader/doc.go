// Package leader elects one leader among replicas by a Lease of
// coordination.k8s.io/v1, and runs the work of the leader.
//
// It stands beside client-go's tools/leaderelection: same record, same timing
// rules towards others, so replicas with either may share one Lease during a
// rollout. It differs in what it does for the work. The work is told to stop by
// a clock and not by a network call that may hang, the Lease is kept while the
// work drains and given up only after it has returned, and a loss is not the
// end of the process. For that it needs a loop of its own, which makes this
// package a larger one.
//
//	elector := &leader.Elector{
//		Leases:    clientset.CoordinationV1().Leases(namespace),
//		Namespace: namespace,
//		Name:      "shop-controller",
//	}
//	err := elector.Run(ctx, controller.Run)
//
// Most callers need no more than that, and Elector.Check in a liveness endpoint.
// Work with effects outside of the cluster calls [Term.Check] right before each,
// and hands Term.Number to receivers that can refuse an older one.
//
// # Guarantees
//
//   - L1: One leader: the contexts of two leaders are never both open, and
//     Term.Check never returns nil for two, whatever requests and responses are
//     delayed, lost or stored late. Validity counts from when the last successful
//     renewal was sent and ends RenewDeadline later, by a timer that waits for no
//     call. A candidate takes a Lease that was not released only LeaseDuration
//     (that of the record) after it saw it change last.
//   - L2: A record with the same identity is another's unless this very Run wrote
//     it, so two Electors with one identity never both lead.
//   - L3: A write whose response was lost never prolongs leadership. It is
//     recognised when the Lease is read again, so it does not end leadership
//     either, and an acquisition that was lost like this is made good without
//     waiting for LeaseDuration.
//   - L4: Terms grow: every acquisition raises leaseTransitions.
//   - L5: When ctx is done the Lease is renewed while lead drains, for at most
//     DrainTimeout, and released only after lead returned, only if the record
//     just read is still this Run's, and only over the version read.
//   - L6: lead is never called twice at a time, nor after ctx was done. Run waits
//     for it, except for one that ignores the end of its context and of its
//     leadership: then Run returns an error with its stack.
//   - L7: A foreign holder in the Lease, or its deletion, ends lead's context
//     when the watch tells, and without a watch at the next renewal. The other's
//     record is left alone, and a renewal does not bring a deleted Lease back.
//   - L8: A released Lease is taken when the watch of a standby tells, after at
//     most 50ms of jitter, and without a watch at the next poll.
//   - L9: No call to the API server takes longer than half of RenewDeadline, so
//     one that hangs does not cost leadership.
//   - L10: Term.Check allocates nothing.
//
// # Assumptions
//
//   - The clocks of two replicas may differ by any amount, but must run at nearly
//     the same rate: LeaseDuration - RenewDeadline is the margin, a third of
//     LeaseDuration by default.
//   - The monotonic clock runs on while the process does not. One that was paused
//     learns of its loss from Term.Check at once and from its context as soon as
//     its timers run; on a virtual machine whose clock was stopped as well, it
//     learns of it only from the API server.
//   - Nobody deletes the Lease while a leader is cut off. Candidates that saw it
//     wait its LeaseDuration before they create a new one; one that never saw it
//     cannot know, and does so at once.
//
// # Caveats
//
//   - A write that is on its way when leadership ends may still arrive. No client
//     can prevent that; a receiver can, by the term's number.
//   - client-go's elector takes any record with its own identity for its own. One
//     that has the identity of an Elector leads at once; the Elector then stops.
//   - A process that crashed and comes back with the same identity waits like any
//     other candidate.
//   - The holder of a Lease is also recorded in its annotation
//     controllerkit.github.io/leader-run, which tells apart equal identities. If
//     an admission plugin removes it, each lost response costs leadership.
//   - The API server serves the requests of an Elector at the priority level of
//     its user, which is that of leader elections for service accounts of
//     kube-system only. Where the API server is often busy, add a FlowSchema.
//   - The Role needs get, create, update and watch on leases. Without watch the
//     election works, at the speed of RetryPeriod. A rule for create cannot be
//     limited by resourceNames.
package leader
