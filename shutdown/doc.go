// Package shutdown starts the parts of a process together, stops them in order within a
// bounded time, and names a part that hangs.
//
// client-go has no counterpart: its programs close one stop channel for everything at
// once. golang.org/x/sync/errgroup also cancels all functions at once and waits without
// limit. Here a part is a func(context.Context) error that blocks until it has stopped,
// which is the shape of every Run method in this library.
//
//	ctx, cancel := shutdown.Context(context.Background())
//	defer cancel()
//	group := &shutdown.Group{}
//	group.AddReady("informers", set.Ready)
//	mux.Handle("/readyz", group.Ready())
//	mux.Handle("/livez", group.Live())
//	group.Add("health", shutdown.Server(&http.Server{Addr: ":8081", Handler: mux}))
//	group.Add("informers", set.Run)
//	group.Add("controller", func(ctx context.Context) error { return elector.Run(ctx, c.Run) })
//	err := group.Run(ctx)
//
// Most callers set no field. Add a part after the parts that it needs: the last added
// part stops first.
//
// # Order and times
//
// The usual order is the server of the probes, then informers, an Event recorder, the
// elector with its controllers, and servers that accept work, such as webhooks. With all
// durations 0, the calls of a controller have 20s, its elector 22s, its part of a Group
// of four at least 23s, the Group 28s and the Pod 30s. If you change one of them, keep
// the order. [Group.Fits] compares the Group with the Pod.
//
// # Guarantees
//
//   - D1: If the group stops, parts stop in the reverse order of Add: a part's context
//     ends when the one before has returned or used its time.
//   - D2: If a part returns an error, the group stops and Run's error names the part; if a
//     part returns nil early, the others continue.
//   - D3: If a part does not stop in time, Run stops the other parts and returns within
//     GracePeriod, with a [LateError] that has the part's stacks.
//   - D4: If parts are starting, a check fails or the stop has begun, the readiness handler
//     responds 503, with the names of the checks but not their errors.
//
// # Caveats
//
//   - Go cannot end a part that ignores its context. After GracePeriod its goroutine is
//     left behind (LateError.Abandoned), so return from main soon after Run.
//   - A panic in a part ends the process. Run does not return before that.
//   - A Group that is a part of another one does not know the outer time: set its
//     GracePeriod below its share.
//   - With very many goroutines there may be no time to write a stack. LateError.Stack
//     then reports that.
//   - Stacks are found by the pprof label "shutdown". Code that calls
//     pprof.SetGoroutineLabels with other labels is missing from them.
package shutdown
