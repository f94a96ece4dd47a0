// The test files of this package, by what they prove. Tests on the real API server have Server in
// their name. GUARANTEES.md has the tests of each promise.
//
//   - the start: server, start, start_server, input, kind, names_server
//   - election: again, standby_server, takeover_server, guard_server
//   - registrations: follow, gate, event, scope_server, malformed_server, stray_server
//   - objects, their status and their children: object_server, children_server, left_server, orphan_server, values_server, panic_server, pause_server, preview_server, explore_server, by_hand_server, saw, fleet_server, clean, judge, with box
//   - what is read: reads_server, single_server, optional, index
//   - the HTTP server: live, live_server, metrics_server, debug, secure, mux
//   - no proof: example, example_kind, example_pieces, example_reads, example_rules, example_scope, example_serve,
//     export, helpers

package operator_test
