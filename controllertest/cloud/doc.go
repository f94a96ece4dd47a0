// Package cloud is a fake of the service that a controller manages outside of
// Kubernetes: accounts, buckets, machines. It has the properties that make such
// services hard: ids that the service chooses, idempotency tokens or none, reads
// that do not show what was just made.
//
// A [Cloud] is one client's handle. Handles made by [Cloud.Through] share what
// there is and differ in what happens to their calls: the handle that
// controllertest gives to a controller passes through the faults of a plan, the
// one that it gives to the user does not.
//
// # Guarantees
//
//   - E1: A call either happens whole or not at all, and calls happen one after the
//     other.
//   - E2: With Idempotent, two Creates with one Token make one resource for as long as
//     it is there; without, they make two.
//   - E3: With ChosenIDs, a second Create of one Name is refused with ErrExists, until
//     the first is deleted.
//   - E4: Without HiddenReads a Get, and a List, shows every Create, Update and Delete
//     before it.
//   - E5: Through a handle made by [Connect] errors keep their identity, calls happen at
//     most once, and a call of which the client learns nothing is an error.
package cloud
