// Package tracing makes OpenTelemetry spans of reconciles, and continues a trace from object
// to object, across controllers and processes.
//
// It replaces hand-made spans in reconcile functions. A reconcile.Hook makes a span of each call
// of Reconcile, and a transport one of each API request:
//
//	config.Wrap(tracing.Transport)
//	op, err := operator.New(config, options)
//	c := op.Controller("websites", r.reconcile)
//	t := &tracing.Controller[types.NamespacedName]{Name: "websites", Provider: provider}
//	c.Loop.Hook = t.Hook
//	operator.For(c, sites, informer, tracing.Events(t, enqueue.KeyOf[*v1.Website]))
//	operator.Owns(c, deployments, from, tracing.Events(t, enqueue.ControllerOf[*appsv1.Deployment](kind)))
//
// An object carries its trace in the annotation traceparent. [Carry] adds it to an apply,
// [Inject] to an object that is created:
//
//	request, config := tracing.Carry(manager, client.Apply, config, live)
//	_, _, err := ssa.ApplyChanged(ctx, manager, request, config, live, extract)
//
// Most callers also add [Flush] to their shutdown.Group, before all other parts.
//
// # Which trace
//
// If the events of a call carry one trace, the call continues it. If they carry several,
// the call begins a trace with links. The annotation stays in the object, so later events
// carry it without being part of its trace. So a trace is continued only for Window after the
// Controller first saw it: in a new object, a changed annotation or a sampled call. Later
// calls begin one with a link.
//
// # Guarantees
//
//   - TR1: If a call is sampled, it has one span, with its controller, triggers, attempt and
//     result, which ends with the call.
//   - TR2: If the events of a call have one trace, which the Controller first saw less than
//     Window ago, the call's span continues it. Otherwise the span begins a trace, with links
//     to their spans, at most 8. For a call of TR3, the call before counts as an event.
//     Resyncs, and events without a sampled trace or that Ratio leaves out, do not count.
//   - TR3: If a sampled call is to be repeated, the key's next call continues its trace,
//     unless an event brings another trace, Window is over, or the error was terminal.
//   - TR4: If an apply would change only the annotation, ApplyChanged after [Carry] does not
//     change it.
//   - TR5: If a call is not sampled, Step and Transport make no span and no header, and
//     Inject and Carry write no new annotation.
//   - TR6: If Keys is not set, no span has the name of an object, except a Lease's in the
//     span of a leader's term.
//   - TR7: A Controller remembers the events of 65,536 keys, and the latest 4,096 traces.
//     A key without an event for 5m makes room for another one. For other keys and traces,
//     TR2 and TR3 do not hold.
//
// # Caveats
//
//   - A user who may write an object can write the annotation, and so choose the trace and
//     that it is sampled. The sampler of the provider decides about sampled remote parents.
//   - A status has no annotation. An event of a changed status counts as part of the
//     trace of the annotation.
//   - If the events of a controller do not pass through Events, all calls but retries and
//     requeues begin a trace, and its applies carry a trace only if they create the object.
//   - Log lines and, with Keys, errors in spans can contain names of objects.
package tracing
