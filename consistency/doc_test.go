// The test files of this package, by what they prove. Tests on the real API server have Server in
// their name. GUARANTEES.md has the tests of each promise.
//
//   - recorded writes: transport, fuzz, hostile, hold, cbor_server, subresource_server,
//     several_server
//   - the wait: consistency, gate, ready, wake, server, deleted, parts, remove, restore
//   - conflicts: conflict, conflict_server
//   - live reads: live, apart
//   - a controller without duplicates: proof_server with proof_late (late watches)
//   - no proof: bench, example, live_example, export, helpers, main

package consistency_test
