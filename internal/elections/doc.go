// Package elections runs random schedules of an election against a real API
// server and judges them: who led when, who wrote what, and how long the others
// waited. The electors are those of controllerkit and of client-go, under the very
// same schedules.
//
// A [Schedule] is made from a seed: how many replicas there are, when each starts,
// stops or crashes, how long its work drains, what its network does and when, and
// what a stranger does to the Lease. The script is the same each time it is made;
// what comes of it also depends on the machine, so a seed that failed once may
// have to be run some times until it fails again.
//
// The network of a replica is an incarnation of controllertest/fault, for what
// happens to the process and to its watches, and around it a transport of this
// package, for what happens to packets: a request that arrives long after its
// sender gave up or died, or twice, or whose answer does.
//
// # What is judged
//
// Guarded work is what a replica does between the start of lead, or a check that
// succeeded, and the end of lead's context, or the last check that succeeded. It
// ends with the process. Two replicas overlap while both do guarded work. The
// clock is that of the test's process, the same for all.
//
// What is stored is judged by a watch that sees every version of the Lease. Who
// wrote a version is what the API server says in managedFields: each life of a
// replica has a user agent of its own.
package elections
