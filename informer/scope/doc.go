// Package scope makes one informer that covers several namespaces and a selector. Both can
// change while a program runs.
//
// It replaces an informer for each namespace with handlers and listers of its own, and the
// restart of the process when the list of namespaces changes:
//
//	pods := scope.New(func(p scope.Part) (cache.SharedIndexInformer, error) {
//		return coreinformers.NewFilteredPodInformer(client, p.Namespace, 0, cache.Indexers{}, p.Options), nil
//	})
//	set.Add("pods", pods) // an informer.Set, which runs it
//	go func() { errs <- set.Run(ctx) }()
//	err := pods.Select(ctx, scope.Selection{Namespaces: []string{"blue", "green"}, LabelSelector: "app=web"})
//
// Select waits until the informer runs and shows the objects; the Set waits for the first
// selection. The [Informer] is a cache.SharedIndexInformer: listers, handlers and package
// consistency use it like any other. Most callers use [Informer.Follow] in place of Select: the
// selection then comes from a ConfigMap, or from labels of Namespaces, on every replica. To a
// handler, an object that leaves the selection is deleted. docs/namespaces.md shows a whole
// operator.
//
// # Guarantees
//
//   - SC1: If Select adds a namespace, the lister shows all of its objects at once, and then
//     the handlers get their additions.
//   - SC2: If a namespace cannot be listed, Select shows the others and returns an error
//     that names it. It is shown later, when a list of it succeeds.
//   - SC3: If a namespace leaves the selection, each handler gets one deletion for each of
//     its objects, and then no event of them.
//   - SC4: If the selection changes while objects change, each handler gets the addition of
//     an object once, then only newer versions, and then its deletion once.
//   - SC5: If a handler blocks or panics, other handlers and Select do not wait for it, and
//     after a panic the handler gets its next event.
//   - SC6: If LastSyncResourceVersion is not empty, the cache of each selected namespace has
//     reached it, and no Select lowers it.
//   - SC7: If informers share a selection, a namespace appears in all of them at once, before
//     their handlers get its events.
//   - SC8: If the function of Follow returns an error or a Selection that is not valid, the
//     selection stays, and without one the informer is not synced.
//   - SC9: If the watch of a namespace dies while an informer.Set runs the informer,
//     LastEvents and the metrics of the Set show it, and the other namespaces go on.
//
// # Caveats
//
//   - A change of the selection causes deletions too. A controller that cleans up must use a
//     finalizer, or read from the API server.
//   - A namespace that cannot be listed, or whose rights are removed, is in the log, and the metric
//     controller_informer_last_event_age_seconds rises.
//   - If all namespaces and some replace each other, one that cannot be listed delays the change.
//   - A changed selector can show an older state in the lister for a moment. Its event follows.
//   - If the API server lists from an old cache, a change of selectors can take a minute, until
//     a bookmark. With informer.ConsistentLists lists are current.
//   - While the lists of new selectors run, the handlers get no event of the replaced parts, for
//     up to 2 minutes. A list that takes longer is repeated, with twice the time.
//   - After consistency's WroteAt, or a write in an unselected namespace, a key waits for all
//     selected namespaces: up to a minute. If no namespace is selected, it waits for MaxWait.
//   - After a change of selectors, a key that has written can wait for a bookmark, too.
//   - Each part costs a watch, and each object an entry of a map in addition to the cache.
//   - Events that a handler has not begun to handle are dropped at the stop.
package scope
