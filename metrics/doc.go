// Package metrics exports what the other packages do as Prometheus metrics.
//
// It replaces k8s.io/component-base/metrics and uses its names and labels. It sets no
// process-wide hook of client-go: every queue, controller, elector and client gets the
// [Metrics] that it reports to, so that two of them, or two tests, live in one process.
//
//	m, err := metrics.New(registry) // any prometheus.Registerer
//	config.Wrap(m.Transport)
//	q := queue.New(queue.Config[types.NamespacedName]{Name: "widgets", MetricsProvider: m})
//	c := &reconcile.Controller[types.NamespacedName]{Name: "widgets", Queue: q, Metrics: m, ...}
//	e := &leader.Elector{Metrics: m, ...}
//	writes := consistency.New(consistency.Config{Metrics: m})
//	set := &informer.Set{Metrics: m}
//	cleanup := finalizer.Plan[*v1.Widget]{Metrics: m, ...}
//
// Most callers need one Metrics for the process. It is a workqueue.MetricsProvider, so
// client-go's own queues can use it, too.
//
// # Series
//
//	controller_reconcile_total{controller,result}                       counter
//	controller_reconcile_duration_seconds{controller,result}            histogram
//	controller_reconcile_latency_seconds{controller}                    histogram
//	controller_reconcile_held_total{controller}                         counter
//	controller_keys{controller,state}                                   gauge
//	controller_failing_keys{controller,result}                          gauge
//	controller_objects{controller}                                      gauge
//	controller_object_conditions{resource,condition,status,reason}      gauge
//	controller_not_ready_objects{resource}                              gauge
//	controller_not_ready_oldest_seconds{resource}                       gauge
//	controller_paused_objects{resource}                                 gauge
//	controller_writes_total{controller,kind,result}                     counter
//	controller_active_workers{controller}                               gauge
//	controller_workers{controller}                                      gauge
//	controller_consistency_wait_duration_seconds{result}                histogram
//	controller_finalizer_steps_running{finalizer,step}                  gauge
//	controller_finalizer_step_duration_seconds{finalizer,step,result}   histogram
//	controller_finalizer_blocked_age_seconds{finalizer,step}            histogram
//	controller_finalizer_blocked_objects{finalizer,step}                gauge
//	controller_finalizer_blocked_oldest_seconds{finalizer,step}         gauge
//	controller_finalizer_duration_seconds{finalizer}                    histogram
//	controller_leader_seen{name}                                        gauge
//	controller_leader_transitions_total{name}                           counter
//	controller_leader_acquire_duration_seconds{name}                    histogram
//	controller_leader_renewal_duration_seconds{name}                    histogram
//	controller_leader_slow_renewals_total{name}                         counter
//	controller_leader_absent_seconds_total{name}                        counter
//	controller_shards_owned{name}                                       gauge
//	controller_shards_began_total{name}                                 counter
//	controller_shards_ownerless{name}                                   gauge
//	controller_shards_ownerless_seconds_total{name}                     counter
//	controller_shards_surplus{name}                                     gauge
//	controller_events_total{outcome}                                    counter
//	controller_mistakes_total{mistake}                                  counter
//	controller_shutdown_duration_seconds{part,result}                   gauge
//	controller_migration_objects{definition,state}                      gauge
//	controller_migration_complete{definition}                           gauge
//	controller_informer_last_event_age_seconds{name}                    gauge
//	controller_informer_objects{name}                                   gauge
//	controller_informer_bytes{name}                                     gauge
//	controller_informer_mutations_total{name}                           counter
//	controller_informer_malformed_objects{name}                         gauge
//	controller_informer_served{name}                                    gauge
//	informer_queued_items{name,group,version,resource}                  gauge
//	informer_processing_latency_seconds{name,group,version,resource}    histogram
//	informer_store_resource_version{name,group,version,resource}        gauge
//	leader_election_master_status{name}                                 gauge
//	reflector_lists_total{name}                                         counter
//	reflector_list_duration_seconds{name}                               histogram
//	reflector_watches_total{name}                                       counter
//	reflector_watch_duration_seconds{name}                              histogram
//	workqueue_depth{name}                                               gauge
//	workqueue_adds_total{name}                                          counter
//	workqueue_retries_total{name}                                       counter
//	workqueue_queue_duration_seconds{name}                              histogram
//	workqueue_work_duration_seconds{name}                               histogram
//	workqueue_unfinished_work_seconds{name}                             gauge
//	workqueue_longest_running_processor_seconds{name}                   gauge
//	rest_client_requests_total{code,method,host}                        counter
//	rest_client_request_duration_seconds{verb,host}                     histogram
//
// Each histogram is also a native one, which a Prometheus with native histograms reads.
//
// # Guarantees
//
//   - M1: If names, results, methods or codes vary without limit, the number and size of
//     the series stay bounded.
//   - M2: Labels of metrics contain no credentials, and no names of objects except those of
//     Leases.
//
// # Caveats
//
//   - A Prometheus that reads native histograms drops the classic buckets, unless its scrape
//     configuration keeps them. The alerts and the dashboard need them.
//   - client-go's queues do not report their shutdown: their gauges keep the last value
//     until [Metrics.ForgetQueue] or a new queue of the same name.
//   - Two live queues need two names: the gauges of a name belong to the newest queue. Two
//     controllers need two names for the same reason.
//   - An object whose finalizer was removed by hand counts as blocked until ten minutes
//     after twice the delay until its next pass, and for at least two hours unless its term ends.
//   - rest_client_request_duration_seconds ends with the response's headers and counts
//     each attempt. client-go's own metric includes the body and all retries. Neither
//     counts watches.
//   - The series informer_* are for informers that have a cache.InformerName: see the function ClientGo of
//     package informer. reflector_watches_total counts watches at their end.
package metrics
