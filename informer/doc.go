// Package informer starts client-go's informers together, with a deadline, and reports why
// one does not sync.
//
// It replaces SharedInformerFactory.Start and cache.WaitForCacheSync. With those, a program
// waits without limit if an informer may not list its resource, the resource does not
// exist, or the server does not mark the end of the initial events. A [Set] ends with
// an error instead:
//
//	informer: not synced within 20s: "widgets.example.com": forbidden to list: a Role or
//	ClusterRole must allow verbs ["list" "watch"] on resources ["widgets"] ...
//
// The informers are client-go's.
//
//	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(informer.Trim))
//	set := &informer.Set{}
//	set.Add("widgets.example.com", factory.Example().V1().Widgets().Informer())
//	group.AddReady("informers", set.Ready)
//	group.Add("informers", set.Run) // instead of factory.Start
//
// These work with any informer: [Trim] and [KeepMetadata] save memory, [Guard] contains faults
// of a transform, [Index] finds objects by a field, [ConsistentLists] and [EndSilentWatches]
// let informers begin with a current list and notice dead watches: pass them to config.Wrap. [Audit] finds lost events, and [Set.Relist] cures them.
//
// # Guarantees
//
//   - I1: If Run returns nil, ctx is done and all informers have stopped.
//   - I2: If an informer or added handler is not synced within Timeout, Run returns an error
//     that names it and the reason. If the first list still brings data through [EndSilentWatches], or
//     only handlers are late, Run waits longer, with a bound.
//   - I3: If at least three attempts of a synced informer to list and watch end with 403,
//     404 or 405, the last at least 5s after the first, Run returns an error. Attempts before
//     Served returned do not count, nor those that end later than Timeout after Run began,
//     Served returned or Run last waited longer.
//   - I4: If a watch receives no byte for the duration passed to [EndSilentWatches], the
//     informer begins a new watch. An informer of a Set lists if two watches in a row received
//     none since their responses, or if an API server that was unreachable is at an earlier version.
//   - I5: If a cache lost an event, the next complete round of [Audit] reports the object
//     or the cache, if at most 1000 differ.
//   - I6: If [Set.Relist] returns nil, the informer will list again within seconds, also
//     after a restore of etcd, and its handlers get an event for each difference.
//
// # Caveats
//
//   - If etcd is restored from a backup and its new history passes the old resource version
//     before the informers watch again, they miss changes without an error. An Audit reports it.
//   - The Set reads some failures in client-go's log, unless klog's contextual logging is off:
//     a refused connection, a response 429 and, after 10s, a missing end of the initial events.
//     It passes the lines on unchanged.
//   - Without EndSilentWatches, Run can end with an error after StopTimeout.
//   - A panic of a handler or an unguarded transform ends the process.
//   - After Timeout only Metrics and LastEvents show failing watches.
package informer
