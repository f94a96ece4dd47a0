// Package ondemand opens, shares and closes client-go's informers while a program runs.
//
// It replaces a hand-written map of informers and cancel functions, for watches whose kind,
// namespace or selector is known only at run time. All users of a key share one informer,
// which stops with the last Close:
//
//	informers := &ondemand.Informers[schema.GroupVersionResource]{
//		New: func(gvr schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
//			return dynamicinformer.NewFilteredDynamicInformer(client, gvr, "", 0, nil, nil).Informer(), nil
//		},
//	}
//	set.AddRun("watches", informers.Run) // an informer.Set, such as Informers of an operator
//	...
//	watch, err := informers.Open(gvr)
//	_, err = watch.AddEventHandler(enqueue.Handler(queue, keys)) // or a Source of the Loop
//	err = watch.WaitForSync(ctx)
//	...
//	err = watch.Close(ctx)
//
// A [Watch] is a cache.SharedIndexInformer: listers, handlers and package consistency use it
// like any other. Most callers set New alone. Informers that live as long as the process
// belong in an informer.Set.
//
// # Guarantees
//
//   - OD1: If Close returns nil, no handler of the Watch is running or will run, and the
//     other Watches of its informer miss no event.
//   - OD2: If several Watches of a key are open, they share an informer. If Close of the
//     last Watch returns nil, the informer has stopped, and Informers has no reference to
//     it.
//   - OD3: If Run returns nil, all informers and handlers have stopped; otherwise its error
//     names the late ones.
//   - OD4: If a handler blocks, other handlers and an Open of its key do not wait for it.
//     Close of its Watch returns when the context of Close is done.
//   - OD5: If a CustomResourceDefinition is deleted and created again, an open Watch
//     reports the deletion of the old objects, and the new objects.
//   - OD6: If an informer.Set calls Run, LastEvents and the metrics of the Set have the oldest
//     of the last events of the informers, and Relist makes each informer list again.
//
// # Caveats
//
//   - A stopped informer's cache stays readable and no longer changes. Its memory is freed
//     when the program drops its Watches and listers of the key.
//   - If a resource is not served, client-go lists it again after pauses of up to 60s. While a
//     definition is deleted, the cache can keep objects that no longer exist.
//   - A Close during client-go's pause after a refused connection or a response 429 takes up
//     to 60s, except with informer.EndSilentWatches. Meanwhile the key can be opened again.
//   - Events that a handler has not begun to handle are dropped at Close.
//   - An index function or a list function that panics ends the process, and a transform
//     without informer.Guard.
package ondemand
