// Package shutdown starts the parts of a process together, stops them in
// order, and names the part that hangs.
//
// client-go has no counterpart: its programs hand a stop channel to everything
// at once, so that the server that answers the readiness probe, the workers
// and the informers they read from all stop at the same moment. Here a part is
// a func(context.Context) error that blocks until it has stopped, which is the
// shape of every Run method in this library.
//
//	ctx, cancel := shutdown.Context(context.Background())
//	defer cancel()
//
//	group := &shutdown.Group{Delay: 5 * time.Second}
//	group.AddReady("informers", set.Ready)
//	mux.Handle("/readyz", group.Ready())
//	mux.Handle("/livez", group.Live())
//
//	group.Add("health", shutdown.Server(&http.Server{Addr: ":8081", Handler: mux})) // stops last
//	group.Add("informers", set.Run)
//	group.Add("controller", func(ctx context.Context) error { return elector.Run(ctx, c.Run) })
//	group.Add("webhook", shutdown.Server(webhook)) // stops first
//	if err := group.Run(ctx); err != nil {
//		klog.ErrorS(err, "Stopped")
//		os.Exit(1)
//	}
//
// Add parts in the order in which they need each other: what is added last
// stops first. The usual order is the server that answers the probes, then
// informers, then the elector with its controllers, then servers that take
// work in. The package imports only the standard library. It is larger than most
// because signals, probes and servers only make sense in step with the order.
//
// # Guarantees
//
//   - D1: Parts are stopped last-added first, and a part is told to stop only
//     when the one before it has stopped or has used up its time.
//   - D2: A part that fails stops the whole group; Run returns its error wrapped
//     with the part's name. A part that returns nil early is finished and the
//     others go on.
//   - D3: Run returns within GracePeriod of the moment stopping begins, even when
//     a part never stops. Each late part is a [LateError] that holds the stacks
//     of its goroutines, and the parts after it are still stopped.
//   - D4: A part that is late does not take the time of those after it: of n
//     parts that are to be stopped, each has at least 1/(2n) of 99 % of
//     GracePeriod less Delay.
//   - D5: A part's context ends only when that part is told to stop; its cause is
//     the signal, the failure or whatever else ended the group.
//   - D6: The readiness handler answers 503 before all parts are started, while
//     any check fails, and from the moment stopping begins. Its body holds names
//     only, never the text of a check's error.
//   - D7: The first SIGINT or SIGTERM ends [Context] with a cause that names the
//     signal; the second one kills the process by the signal's default action, or,
//     as PID 1 of a container, where the kernel has none, ends it with status 2.
//
// # Caveats
//
//   - A part that ignores its context cannot be ended in Go. After GracePeriod
//     its goroutine is left behind, which LateError.Abandoned says. This is the
//     one place where the library does not wait for what it started, so return
//     from main soon after Run.
//   - A panic in a part ends the process, with its stack. Run does not return before
//     that.
//   - GracePeriod must be shorter than the Pod's terminationGracePeriodSeconds,
//     and a part's own drain time (for example a controller's) shorter than its
//     share of GracePeriod. A Group that is a part of another one does not know the
//     outer time: give it a GracePeriod below its share.
//   - Where there are very many goroutines there may be no time to write a stack.
//     LateError.Stack says so then, and the goroutine that writes it ends a moment
//     after Run.
//   - The stacks are found by the pprof label "shutdown", which parts and the
//     goroutines that they start carry. Code that calls
//     pprof.SetGoroutineLabels with other labels drops out of the report.
package shutdown
