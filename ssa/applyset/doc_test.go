// The test files of this package, by what they prove. Tests on the real API server have Server in
// their name. GUARANTEES.md has the tests of each promise.
//
//   - Batch: batch, retry, try, server, crash_server
//   - Set, its rules: set, set_server, set_rules_server, set_edges_server, set_options_server,
//     set_above_server, set_size_server, apply_member, plan, preview_server, prune, delete,
//     memory, create_server, names_server, values_server, versions_server
//   - Set, random objects and crashes: set_property_server
//   - sets of other tools: takeover, takeover_server
//   - the watches of the example: watches_server
//   - no proof: example, example_watches, export, helpers, main

package applyset_test
