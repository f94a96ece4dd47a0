// The test files of this package, by what they prove. Tests on the real API server have Server in
// their name. GUARANTEES.md has the tests of each promise.
//
//   - the protocol: decide, model (all states), random (schedules in memory),
//     schedules_server (schedules on the API server), clock, validity, handover, takeover,
//     deleted, edit, outage
//   - the life of lead: leader, drain, fault, process with process_child (frozen and killed
//     processes), since, term, event
//   - the client and the network: client, client_server, dead, server, preflight,
//     manifests_server, interop (beside client-go's elector),
//     coordinated_server (beside the election of the control plane), names_server, printable
//   - the transport: guard
//   - no proof: bench, client_example, event_example, example, guard_example, export,
//     fakelease, helpers, main

package leader_test
