// Package scope makes one informer that covers several namespaces and a selector. Both can
// change while a program runs.
//
// It replaces an informer for each namespace with handlers and listers of its own, and the
// restart of the process when the list of namespaces changes. Each namespace is a [Part],
// whose informer comes from package ondemand:
//
//	informers := &ondemand.Informers[scope.Part]{
//		New: func(p scope.Part) (cache.SharedIndexInformer, error) {
//			return coreinformers.NewFilteredPodInformer(client, p.Namespace, 0, cache.Indexers{}, p.Options), nil
//		},
//	}
//	pods := scope.New(informers.Open)
//	group.Add("watches", informers.Run) // a shutdown.Group
//	set.Add("pods", pods)               // an informer.Set, which runs it
//	...
//	err := pods.Select(ctx, scope.Selection{Namespaces: []string{"blue", "green"}, LabelSelector: "app=web"})
//
// The [Informer] is a cache.SharedIndexInformer: listers, handlers and package
// consistency use it like any other. It is synced after the first Select. Most callers
// begin with the zero Selection, which is empty. A controller then calls Select with a
// deadline in the reconcile of a ConfigMap. To a handler, an object that leaves the
// selection is deleted.
//
// # Guarantees
//
//   - SC1: If Select adds a namespace, the lister shows all of its objects at once, and then
//     the handlers get their additions.
//   - SC2: If Select returns an error, the selection is unchanged, and the handlers miss no
//     event.
//   - SC3: If a namespace leaves the selection, each handler gets one deletion for each of
//     its objects, and then no event of them.
//   - SC5: If the selection changes while objects change, each handler gets the addition of
//     an object once, then only newer versions, and then its deletion once.
//   - SC8: If a handler blocks or panics, other handlers and Select do not wait for it, and
//     after a panic the handler gets its next event.
//   - SC10: If LastSyncResourceVersion is not empty, the cache of each selected namespace has
//     reached it, and no Select lowers it.
//
// # Caveats
//
//   - Select causes deletions too. A controller that cleans up must use a finalizer, or read
//     from the API server.
//   - One namespace that does not sync makes Select fail for all. Call Select again without
//     it. A namespace can be created later.
//   - While Select changes selectors, or between all namespaces and some, the handlers get no
//     event of the replaced parts until it returns. It can send several changes of an object
//     as one update.
//   - A changed selector can show an older state in the lister for a moment. Its event follows.
//   - If a cache is shared or the API server lists from an old cache, a Select that changes
//     selectors can take a minute, until a bookmark. With informer.ConsistentLists lists are
//     current.
//   - After consistency's WroteAt, or a write in an unselected namespace, a key waits for all
//     selected namespaces: up to a minute. If no namespace is selected, it waits for MaxWait.
//   - Each part costs a watch, and each object an entry of a map in addition to the cache.
//   - Events that a handler has not begun to handle are dropped at the stop.
package scope
