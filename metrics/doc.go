// Package metrics counts what the other packages do, as Prometheus series.
//
// It stands beside k8s.io/component-base/metrics and takes its names and
// labels, but sets none of client-go's process-wide hooks: every queue,
// controller, elector and client is handed the one [Metrics] that it reports to,
// so that two of them, or two tests, live in one process.
//
//	m, err := metrics.New(registry) // any prometheus.Registerer
//	config.Wrap(m.Transport)
//	q := queue.New(queue.Config[types.NamespacedName]{Name: "widgets", MetricsProvider: m})
//	c := &reconcile.Controller[types.NamespacedName]{Name: "widgets", Queue: q, Metrics: m, ...}
//	e := &leader.Elector{Metrics: m, ...}
//	writes := consistency.New(consistency.Config{Metrics: m})
//	cleanup := finalizer.Plan[*v1.Widget]{Metrics: m, ...}
//
// A *Metrics is a workqueue.MetricsProvider, so it also serves client-go's own
// queues, through the MetricsProvider field of their configurations.
//
// # Series
//
//	controller_reconcile_total{controller,result}                       counter
//	controller_reconcile_duration_seconds{controller}                   histogram
//	controller_reconcile_held_total{controller}                         counter
//	controller_active_workers{controller}                               gauge
//	controller_workers{controller}                                      gauge
//	controller_consistency_wait_duration_seconds{result}                histogram
//	controller_finalizer_steps_running{finalizer,step}                  gauge
//	controller_finalizer_step_duration_seconds{finalizer,step,result}   histogram
//	controller_finalizer_blocked_age_seconds{finalizer,step}            histogram
//	controller_finalizer_duration_seconds{finalizer}                    histogram
//	controller_leader_transitions_total{name}                           counter
//	controller_leader_acquire_duration_seconds{name}                    histogram
//	controller_leader_renewal_duration_seconds{name}                    histogram
//	controller_leader_slow_renewals_total{name}                         counter
//	leader_election_master_status{name}                                 gauge
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
// # Guarantees
//
//   - M1: [New] can be called any number of times with one registry: all Metrics
//     then share the series. Where the registry holds a family of the same name
//     with other labels or another help text, New returns an error and leaves the
//     registry as it was.
//   - M2: Every result of a controller is present, as 0, from the moment Run of
//     the controller starts, so that rates see the first error.
//   - M3: The number of series does not depend on objects, keys or errors.
//     Results that are not in the list count as "error", unknown HTTP methods as
//     "other", codes outside of 100-599 as "other"; a Metrics gives at most 1000
//     controllers, 1000 queues, 1000 leases, 1000 finalizers, 1000 steps of them
//     and 100 hosts a label value of their own, and puts the rest together under
//     "other".
//   - M4: No label holds the name of an object, except the Lease's, or
//     credentials.
//   - M5: A queue that is made anew under a name starts its gauges at 0, also
//     when the one before it was shut down with keys in it.
//   - M6: Counting a reconcile allocates nothing.
//
// # Caveats
//
//   - client-go's queues do not say when they are shut down: their gauges keep
//     the last value until [Metrics.ForgetQueue] or a queue of the same name.
//   - Two live queues need two names: gauges of a name belong to the queue that
//     was made last with it. So do two controllers: controller_workers is what the
//     last of them said.
//   - The bounds of M3 are those of one Metrics: make one for a registry.
//   - rest_client_request_duration_seconds ends with the response's headers and
//     counts each attempt; client-go's own metric includes the body and all
//     retries. Neither counts watches.
//   - The metrics of client-go's informers are left out: their interface lives in
//     tools/cache, which would more than double what the package depends on.
package metrics
