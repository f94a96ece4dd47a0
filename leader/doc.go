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
//	leases, err := leader.NewClient(config, namespace) // its own connections and no limiter
//	elector := &leader.Elector{
//		Leases:    leases,
//		Namespace: namespace,
//		Name:      "shop-controller",
//	}
//	err = elector.Run(ctx, controller.Run)
//
// Informers may run on all replicas, outside of lead, so that the next leader
// starts with warm caches. Elector.Check belongs into a liveness endpoint.
// [Elector.Preflight] says at the start which rights are missing.
//
// # The promise
//
// Guarded work is the time between a successful [Term.Check], or the start of
// lead, and the end of lead's context, while the process runs. That of two
// replicas never overlaps, as long as nobody deletes or edits the Lease.
//
// Five things are outside of it, and the fence narrows what they can do:
//
//	                            guarded work   what is left
//	                            can overlap
//	Lease deleted or edited     yes            until the watch tells the leader, milliseconds;
//	                                           without a watch until its next renewal
//	process frozen              no             what it does between Check and the request,
//	                                           if it is frozen right there
//	write on its way            no             it may arrive while another leads
//	client-go's elector beside  yes            as long as its work outlives its lease (7s with
//	                                           15s, 10s, 2s); the Elector's own does not
//	etcd restored from backup   yes            until the leader's next renewal; and terms repeat:
//	                                           a later leader gets the LeaseUID and Number of an
//	                                           earlier one. Delete the Lease after a restore: the
//	                                           next one has another UID
//
// Work with effects calls Term.Check right before each. A client whose
// transport is wrapped with [Guard] does so for every write. Receivers outside
// of the cluster can refuse a Term.Number lower than one they have seen. For
// receivers inside there is [Fence], by which the API server refuses writes that
// an older term has stamped, those on their way too.
//
// # Guarantees
//
//   - L1: One leader: guarded work of two replicas never overlaps, whatever
//     requests and responses are delayed, lost or stored late. Validity counts from
//     when the last successful renewal was sent and ends RenewDeadline later, by a
//     timer that waits for no call. A candidate takes a Lease that was not released
//     only LeaseDuration (that of the record) after it saw it change last.
//   - L2: A record with the same identity is another's unless this very Run wrote
//     it, so two Electors with one identity never both lead.
//   - L3: A write whose response was lost never prolongs leadership. It is
//     recognised when the Lease is read again, so it does not end leadership
//     either, and an acquisition that was lost like this is made good without
//     waiting for LeaseDuration.
//   - L4: If a replica acquires a Lease, it raises leaseTransitions. If it creates the
//     Lease again, it begins above every number that it has seen.
//   - L5: When ctx is done the Lease is renewed while lead drains, for at most
//     DrainTimeout, and released only after lead returned, only if the record
//     just read is still this Run's, and only over the version read.
//   - L6: lead is never called twice at a time, nor after ctx was done. Run waits
//     for it, except for one that ignores the end of its context and of its
//     leadership: then Run returns an error with its stack.
//   - L7: A foreign holder in the Lease, any edit of its record, or its deletion
//     ends lead's context when the watch tells, and without a watch at the next
//     renewal. The other's record is left alone, and a renewal does not bring a
//     deleted Lease back.
//   - L8: A released Lease is taken when the watch of a standby tells, after at
//     most 50ms of jitter, and without a watch at the next poll.
//   - L9: No call to the API server takes longer than half of RenewDeadline, so
//     one that hangs does not cost leadership.
//   - L10: Term.Check allocates nothing.
//   - L11: A client with [Guard] sends no write once the term is over by the clock,
//     nor one whose context is not a leader's. Repeats by client-go are tested again.
//   - L12: With a [Fence] in force the API server refuses what carries an earlier
//     term: stamped creates, updates, patches and applies, and with GuardAs also
//     status and deletions. It lags by its watch of the Lease, but is exact for an
//     object that a later term has stamped.
//   - L13: A write that was under way when another leader took over is refused by
//     the Fence once the API server knows of that leader.
//   - L14: A process that stood still while another took over acts no more: the
//     first Term.Check after the pause returns ErrLost, lead's context ends, and Run
//     campaigns again.
//   - L15: A panic in lead ends the process with its own stack, after what lead
//     deferred has run. The Lease is not released, neither before nor after, and
//     expires.
//   - L16: When a leader crashes and the API server can be reached, another leads at
//     most LeaseDuration + 1.2 * RetryPeriod + 250ms later.
//   - L17: With a client of [NewClient], neither an application that has used up its
//     rate limiter nor connections that died without a word cost the Lease, as long
//     as new connections work and RetryPeriod is less than half of RenewDeadline.
//   - L18: Validity ends when either the monotonic or the wall clock says so: after
//     the machine was suspended Term.Check fails at once, and lead's context ends
//     before the next renewal. A wall clock that is set back changes nothing; one
//     that is set forward by RenewDeadline costs an election.
//   - L19: If another user writes an object of a [Fence], only a change of a stamp of
//     its Lease is refused. No annotation that another user has written makes the
//     Fence refuse a write of the leader.
//   - L20: If a response does not come from the API server, such as a 404 of a proxy, it
//     counts as an outage. It never ends a term by itself.
//
// # Assumptions
//
//   - The clocks of two replicas may differ by any amount, but must run at nearly
//     the same rate: one may be faster by MaxDrift. LeaseDuration - RenewDeadline is
//     the margin for that and for work to stop.
//   - A virtual machine that is suspended as a whole gets the time from its host
//     when it wakes up. Until it has, it knows of its loss only by the API server.
//   - Nobody deletes the Lease while its leader cannot be told. Candidates that saw
//     it wait its LeaseDuration, unless they were told of the deletion and so know
//     that nobody held it. One that never saw it cannot know, and creates it at once.
//
// A model of the protocol visits all of its states under these assumptions, and
// finds a counter-example for each rule that is left out (model_test.go).
//
// # Caveats
//
//   - client-go's elector takes any record with its own identity for its own. One
//     that has the identity of an Elector leads at once; the Elector then stops.
//   - client-go's elector compares renewTime in whole seconds and may take a Lease
//     up to a second early: while both share one, LeaseDuration - RenewDeadline must
//     be more than a second.
//   - A process that crashed and comes back with the same identity waits like any
//     other candidate.
//   - The holder of a Lease is also recorded in its annotation
//     controllerkit.github.io/leader-run, which tells apart equal identities. If
//     an admission plugin removes it, each lost response costs leadership.
//   - A record that was edited is obeyed by candidates. One with a leaseDurationSeconds
//     of a year bars all for a year; one without, or with 0 or less, counts as
//     having the candidate's own LeaseDuration. A Lease with a strategy is left to
//     coordinated leader election (KEP-4355), and Run returns an error.
//   - The API server serves the requests of an Elector at the priority level of
//     its user, which is that of leader elections for service accounts of
//     kube-system only, and workload-low for yours. manifests/flowschema.yaml
//     changes that.
//   - Leases must be the client of Namespace. One of another namespace is an error of
//     Run, after StartTimeout.
//   - The Role needs get, create, update and watch on leases (manifests/role.yaml).
//     Without watch the election works, at the speed of RetryPeriod. A rule for
//     create cannot be limited by resourceNames.
package leader
