// Package scope makes one informer of several namespaces and a selector that change while a
// program runs.
//
// It replaces an informer for each namespace with handlers and listers of its own, and the
// restart of the process when the list of namespaces changes. The informers of the parts come
// from package ondemand:
//
//	informers := &ondemand.Informers[scope.Part]{
//		New: func(p scope.Part) (cache.SharedIndexInformer, error) {
//			return coreinformers.NewFilteredPodInformer(client, p.Namespace, 0, cache.Indexers{}, p.Options), nil
//		},
//	}
//	pods := scope.New(informers.Open)
//	group.Add("watches", informers.Run)
//	set.Add("pods", pods) // an informer.Set, which runs it
//	...
//	err := pods.Select(ctx, scope.Selection{Namespaces: []string{"blue", "green"}, LabelSelector: "app=web"})
//
// The [Informer] is a cache.SharedIndexInformer: listers, handlers and package consistency use
// it like any other. Most callers call Select in the reconcile of a ConfigMap.
//
// # Guarantees
//
//   - SC1: If Select adds a namespace, the lister shows none of its objects before it shows
//     all, and the handlers get their additions after that.
//   - SC2: If Select returns an error, the selection is unchanged, and the handlers have missed
//     no event.
//   - SC3: If a namespace leaves the selection, each handler gets one deletion for each of its
//     objects, and then no event of them.
//   - SC4: If a namespace stays with the same selectors, it is not listed again, and the
//     handlers get each of its events once.
//   - SC5: If the selection changes while objects change, each handler gets an object's
//     addition, updates to newer versions, and its deletion, each once and in this order.
//   - SC6: If the selectors change and select an object before and after, the handlers get at
//     most an update of it, and only if its version has changed.
//   - SC7: If the API server does not list a namespace before the context of Select is done,
//     the error names the namespace and wraps the API server's error.
//   - SC8: If a handler blocks or panics, other handlers get their events, and Select does not
//     wait for it. The panic is logged.
//   - SC9: If the context of RunWithContext is done, a running Select returns [ErrStopped],
//     and RunWithContext returns when the handlers have ended.
//   - SC10: If the Informer has a resource version, the cache of each selected namespace has
//     reached it. A Select never makes it go back.
//
// # Caveats
//
//   - A deletion that Select causes does not mean that the object was deleted. A controller
//     that cleans up must use a finalizer, or read from the API server.
//   - One namespace that does not sync makes Select fail for all. Call Select again without
//     it. A namespace that does not exist has no objects; its objects appear when it is
//     created.
//   - While Select changes selectors, or between all namespaces and some, the handlers get no
//     event of the namespaces concerned until it returns. It can send several changes of an
//     object as one update.
//   - A changed selector can show an older state in the lister for a moment. Its event follows.
//   - If a cache is shared or the API server lists from an old cache, a change of selectors can
//     wait for a bookmark, up to a minute. With informer.ConsistentLists lists are current.
//   - A quiet namespace has an old version until its next bookmark. Package consistency
//     therefore delays the keys of a scope with several namespaces by up to a minute after a
//     write. Without a selected namespace it waits for its MaxWait.
//   - Each part costs a watch, and each object an entry of a map in addition to the cache.
//   - Events that a handler has not begun to handle are dropped at the stop.
package scope
