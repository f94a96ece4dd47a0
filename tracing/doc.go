// Package tracing makes OpenTelemetry spans of reconciles, and continues a trace from object
// to object, across controllers and processes.
//
// It replaces spans by hand in each reconcile function. The spans of a call are a
// reconcile.Hook, those of API requests a transport:
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
// If the events of a call carry one trace, the call continues it. If they carry several, the
// call begins a trace with a link to each. An annotation stays in its object, so a later
// event does not prove that it belongs to that trace. A trace is continued for Window after
// the process first saw it. Later calls begin a trace with a link.
//
// # Guarantees
//
//   - TR1: If a call is sampled, it has one span, with its controller, triggers, attempt and
//     result, which ends with the call.
//   - TR2: If all sampled spans that the events of a call carry are of one trace, and the
//     Controller has known that trace for less than Window, the span of the call continues it.
//     Otherwise the span begins a trace and links to these spans, at most eight. An event
//     that Ratio leaves out counts as absent.
//   - TR3: If a sampled call fails or is requeued, and no event carries another trace, the
//     key's next call within Window continues its trace.
//   - TR4: If an apply would change nothing but the annotation, ApplyChanged after Carry sends
//     no request, or keeps the annotation if live has no managedFields. If it does apply, a call
//     that continues its trace keeps the annotation.
//   - TR5: If a call is not sampled, the span in its context is not sampled, Step and
//     Transport make no span and no header, and Inject and Carry write no new annotation.
//   - TR6: If an annotation is not the traceparent of a sampled span, or is longer than 256
//     bytes, the event counts as one without an annotation. A longer annotation is not read.
//   - TR7: If a request has the context of a sampled call, it has a span and carries the
//     header traceparent. Other requests pass unchanged.
//   - TR8: If Keys is not set, the spans of calls, steps and requests have no name of an
//     object. The span of a term has the name of its Lease.
//   - TR9: If the export takes longer than the timeout of Flush, the context of Shutdown ends,
//     and the part returns nil when Shutdown returns.
//   - TR10: If a call is sampled, its log lines have traceID and spanID, and so does the line
//     of the loop.
//   - TR11: A Controller keeps a bounded number of keys, events and traces.
//
// # Caveats
//
//   - A user who may write an object can write the annotation, and so choose the trace and
//     that it is sampled. The sampler of the provider decides about sampled remote parents.
//   - A status has no annotation. An event that changes only the status of an object counts
//     to the trace of its annotation.
//   - If the events of a controller do not pass through Events, each of its calls begins a
//     trace, and its applies carry a trace only if they create the object.
//   - Log lines can contain names of objects, and so can errors in spans with Keys.
package tracing
