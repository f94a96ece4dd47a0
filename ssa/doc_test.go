// The test files of this package, by what they prove. Tests on the real API server have Server in
// their name. GUARANTEES.md has the tests of each promise.
//
//   - skipped applies: decision, context, untyped, hostile, hostile_names, memory, fuzz
//     (against the API server's algorithm), property_server and families_server (against the
//     API server), schema_server, traps_server, nullable_server (also conflicts),
//     statefulset_server
//   - requests and their errors: ssa, server, strict_server, names_server, rbac_server,
//     dynamic, dynamic_server, values_server
//   - conflicts: conflict, conflict_server, tryapply, tryapply_server
//   - migration: migrate, migrate_server, versions, versions_server
//   - no proof: bench, conflict_example, example, migrate_example, export, helpers, main,
//     race, norace

package ssa_test
