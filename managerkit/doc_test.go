// The test files of this package, by what they prove. Tests on the real API server have Server in
// their name. GUARANTEES.md has the tests of each promise.
//
//   - Client: client, client_fits, client_server, client_finalizer_server, client_life_server,
//     client_packages_server, client_writes_server, client_bare_server
//   - Complete: complete_server, complete_queue_server, complete_metrics_server,
//     complete_standby_server, complete_over, deadline_server, generation_server, queue
//   - wrapped clients and transports, and two managers: beside_server
//   - the keys of log lines: log_server
//   - the fields of controller-runtime that are read by reflection: fields
//   - gauges of queues, workers and elections: gauges
//   - UpdateStatus and NewElector: status
//   - Elect and Run: leader, leader_server, loss_server, overlap_server, terms_server
//   - compact.NewInformer in a manager: compact_server
//   - Writes: writes, writes_server, writes_runs_server
//   - the page of the documentation: docs
//   - no proof: client_example, leader_example, writes_example, client_helpers,
//     leader_helpers, managerkit, queue_bench

package managerkit_test
