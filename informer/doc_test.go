// The test files of this package, by what they prove. Tests on the real API server have Server in
// their name. GUARANTEES.md has the tests of each promise.
//
//   - Set: informer, served, server, diagnosis, conversion_server, check, log, malformed, mutation, parts, outage, patience
//   - lost events: audit, audit_server, relist_server, restore_server
//   - transports: behind, lists, silence, cuts_server
//   - transforms and memory: trim, metadata, guard, memory_server
//   - Index: index
//   - ClientGo: clientgo
//   - no proof: bench, example, export, helpers

package informer_test
