// Package informer starts client-go's informers together, with a deadline, and
// says why one does not sync.
//
// It stands beside SharedInformerFactory.Start and cache.WaitForCacheSync. With
// those, an informer that may not list its resource, whose resource does not
// exist, or whose server never marks the end of the initial events keeps the
// program waiting for ever, and only a log line, if that, says so. A [Set] ends
// with an error instead:
//
//	informer: not synced within 20s: "widgets.example.com": forbidden: a Role or
//	ClusterRole must allow verbs ["list" "watch"] on resources ["widgets"] in
//	apiGroups ["example.com"]: failed to list ...
//
// The informers stay client-go's: typed factories', dynamic ones or hand-made.
//
//	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(informer.Trim))
//	widgets := factory.Example().V1().Widgets().Informer()
//	handler, err := widgets.AddEventHandler(...)
//	...
//	set := &informer.Set{}
//	set.Add("widgets.example.com", widgets, handler)
//	group.AddReady("informers", set.Ready)
//	group.Add("informers", set.Run) // instead of factory.Start
//
// A third of the package is the diagnosis, which makes it larger than most.
//
// Name an informer by its resource, as kubectl and a CustomResourceDefinition
// write it: errors name it that way.
//
// # Guarantees
//
//   - I1: Run starts all informers together and returns nil only when ctx is done
//     and all of them have stopped.
//   - I2: When an informer, or a handler given to Add, is not synced within
//     Timeout, Run ends with an error for each that names it and the reason:
//     forbidden (with the rule that is missing), not served (missing CRD),
//     unreachable, the end of the initial events never marked, or a handler that
//     is too slow.
//   - I3: When an informer has synced, but is then refused twice within Timeout
//     of the start, Run ends too: it may list and not watch, and client-go would
//     list anew for ever.
//   - I4: [Set.Ready] and [Set.HasSyncedChecker] report synced only when every
//     informer and every given handler is. Nothing polls.
//   - I5: Run waits for stopping informers for at most StopTimeout, and an
//     informer that is still running then is an error that names it.
//   - I6: Whoever made the context's logger gets the same lines of client-go's as
//     without the Set.
//   - I7: [Trim] never touches resourceVersion, and writes nothing to an object
//     that is trimmed already.
//
// # Caveats
//
//   - client-go reports some failures only to its log: a refused connection, an
//     answer 429 and the missing end of the initial events. The Set reads these
//     from the lines themselves, through the logger in the informers' context.
//     Should client-go word them differently, the error lists what it may be. Only
//     lines in which the reflector names itself count; with klog's contextual logging
//     turned off there are none.
//   - The missing end of the initial events is noticed after 10s. With a shorter
//     Timeout the error names it only as a possibility.
//   - client-go pauses for up to 60s between tries without looking at its context
//     while the server refuses connections or answers 429. Such an informer is
//     left behind after StopTimeout; it ends by itself when the pause is over.
//   - client-go has one handler for watch errors per informer and nobody can read
//     which. Run replaces it: give yours to [Set].WatchErrorHandler.
//   - After the start Run only keeps the informers going. A watch that is refused
//     or dies later is retried by client-go and not reported here.
//   - Do not use Trim on objects whose field ownership is read from the cache:
//     extracting applied fields (ssa.ApplyChanged's extract, the generated
//     Extract functions) needs managedFields. Nor where the cached object itself is
//     written back to the status of a built-in kind (UpdateStatus): the API server
//     stores the annotations that come with it, and the trimmed one would be gone.
package informer
