// Package elections runs random schedules of an election against a real API server and
// judges them: overlaps of leaders, foreign writes, and the time without a leader. It
// runs the electors of controllerkit and of client-go under the same schedules.
//
// A [Schedule] is made from a seed: the number of replicas, their starts, stops and
// crashes, the length of their drains, the faults of their networks, and the acts of a
// stranger on the Lease. The same seed makes the same script. The outcome also depends
// on the machine, so a seed that failed once may need several runs to fail again.
//
// The network of a replica has two layers. An incarnation of controllertest/fault acts
// on the process and its watches. A transport of this package acts on packets: a
// request or its response can arrive twice, or long after its sender gave up or died.
//
// # Judgement
//
// Guarded work begins at the start of lead or at a successful check, and lasts until
// the end of lead's context or the last successful check. It ends with the process. Two
// replicas overlap while both do guarded work. The clock is the test process's, the
// same for all replicas.
//
// Stored records are judged by a watch of every version of the Lease. managedFields
// identify the writer of a version: each life of a replica has its own user agent.
package elections
