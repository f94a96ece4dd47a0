// Package recorder writes Events about objects, deduplicated and bounded, without ever
// blocking the caller.
//
// It replaces the broadcasters of client-go's tools/record and tools/events, which drop
// Events without a count, and at the end of the process lose repetitions that are not yet
// written.
//
//	r := &recorder.Recorder{
//		Controller: "example.com/widgets",
//		Client:     func(namespace string) recorder.Client { return client.EventsV1().Events(namespace) },
//	}
//	// Run it with the controllers, and stop it after them.
//	err := r.Run(ctx)
//
// Most callers set these two fields and share one Recorder among all controllers of a
// process:
//
//	r.Event(recorder.Reference(widget, widgetKind), corev1.ObjectReference{},
//		corev1.EventTypeWarning, "QuotaExceeded", "Copy", "the copy exceeds the quota")
//
// # Limits
//
// Events that differ only in time become one Event, whose series counts them: Run writes
// it at once, and then once per Interval while it is repeated. A series ends after ten
// Intervals without a repetition, or with the process.
//
// An object gets 25 different Events, and then one more every 5 minutes. MaxSeries bounds
// the memory, and QPS the requests. A Recorder drops what exceeds a limit and what the API
// server rejects; it counts the drops and logs at most one line a minute for each reason, and what a
// stop drops.
//
// # Guarantees
//
//   - RE1: If equal Events repeat, Run writes one Event with the right count, also after
//     lost responses and after the Event expired.
//   - RE2: If a Client fails or hangs, or Events arrive too fast, Event does not block.
//   - RE3: Each call of Event is counted once: as written, deduplicated, held, or dropped
//     for a reason.
//   - RE4: If the context of Run is done, Run writes the Events it holds within
//     StopTimeout, and counts and logs the rest as dropped.
//   - RE5: If the Events of one namespace fill a MaxSeries of 2 or more, an Event of another
//     namespace replaces one for which no request is under way.
//
// # Caveats
//
//   - Events are best effort. Do not use them to store state.
//   - A Client that ignores its context delays the return of Run.
package recorder
