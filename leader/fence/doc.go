// Package fence makes the API server refuse the late writes of an earlier leader: of a
// process that was paused after its last check, or of a request that was delayed.
//
//	policy, binding, err := fence.Fence{
//		Name:           "shop-controller",
//		LeaseNamespace: "shop", LeaseName: "shop-controller",
//		Users:          []string{"system:serviceaccount:shop:shop-controller"},
//		Resources:      []schema.GroupResource{{Group: "apps", Resource: "deployments"}},
//	}.Policy()
//
// A [Fence] is a ValidatingAdmissionPolicy (Kubernetes 1.30) that compares the term of a
// write with the Lease. Apply policy and binding when the controller is installed, and
// again if the Fence has changed. A write carries its term by a stamp, the annotation
// leader.TermAnnotation that leader.Term.Stamp sets, or as an attribute of the user that a
// client of leader.GuardAs impersonates:
//
//	          create  update, patch  apply  status  delete  connect
//	Stamp     yes     yes            yes    no      no      no
//	GuardAs   yes     yes            yes    yes     yes     yes
//
// Status stands for all subresources, connect for exec, attach, port-forward and proxied
// writes. With GuardAs the stamp is not needed.
//
// # Which writes are refused
//
// The fence refuses a write of Users, or a connection, that carries a term
//
//   - if the term is of another Lease, or of a deleted one with the same name,
//   - if its number is lower than the Lease's, or is equal and the Lease was released.
//     A higher number passes, because its leader may be ahead of the API server's view,
//   - if the stored object has a stamp of the same Lease with a higher number. This check
//     reads the replaced object, so it is exact, even if the API server's view of the
//     Lease is up to 16 terms old,
//   - if the term is malformed.
//
// A malformed term is Invalid, the others are Forbidden. Writes of Users without a term
// pass. The fence judges the object that will be stored: a patch without a stamp keeps the
// stamp of the stored object as its term. An unchanged annotation is no term if it is malformed
// or of another Lease. If a write has a stamp and the term of GuardAs, the latter counts.
//
// Writes of other users pass unless they set, change or remove a stamp of this Lease, or set
// the annotation by a Binding.
//
// # Guarantees
//
//   - L13: If a [Fence] is in force and the API server has seen the new term, it refuses
//     every write with an earlier term.
//   - L14: While a [Fence] is in force, only Fence.Users can set, change or remove a stamp of
//     its Lease on Fence.Resources, except by deleting the object. No annotation that
//     others write meanwhile makes the fence refuse the leader.
//
// # Caveats
//
//   - The API server learns of a new leader by a watch. For some milliseconds, writes of
//     the earlier leader pass, except by the check of the stored object. The leader of a
//     new Lease can be refused as long.
//   - A Fence is in force some seconds after its creation, while its Lease exists.
//     Test it with a dry-run create with the stamp "x", by one of Users without GuardAs: each
//     API server answers "it must be <Lease UID>/<number>".
//   - Each of these rights can disable a Fence, or make it refuse all: to write the policy
//     or its binding, to write or delete the Lease, and to act as one of Users. A forged
//     term of one of Users is not detected.
//   - Without GuardAs, each patch must set the annotation.
//   - An open connection outlives its term.
//   - Omit a resource into which another controller copies the annotations of stamped
//     objects, e.g. ReplicaSets with Deployments: the fence refuses the copies.
//   - A restore from a backup must leave out the annotation while the Lease exists.
//   - Apply manifests/keep-leases.yaml once to each cluster: see [Fence]. manifests/fence.yaml
//     has a Fence.
package fence
