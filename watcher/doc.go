// Package watcher watches a collection of objects for as long as the consumer wants, and
// resumes after failures.
//
// It replaces RetryWatcher of k8s.io/client-go/tools/watch, which cannot continue after an
// expired resource version and hides bookmarks. A controller that needs a cache uses an
// informer. A [RetryWatcher] suits a consumer of events: a feed to another system, or a wait
// for one change.
//
//	w := &watcher.RetryWatcher[*corev1.Pod]{
//		Source: watcher.Client[*corev1.Pod](client.CoreV1().Pods("default")),
//	}
//	for event, err := range w.Events(ctx) {
//		if err != nil {
//			return err // ctx is done, or no retry can help
//		}
//		switch event.Type {
//		case watch.Added, watch.Modified, watch.Deleted:
//			handle(event.Object)
//		case watcher.Retrying:
//			logger.Info("Retrying to watch pods", "err", event.Err, "retryAfter", event.RetryAfter)
//		}
//	}
//
// Most callers set no other field: the sequence begins with Added for each object and
// then Synced.
//
// # Failures
//
//	connection cut, 5xx, invalid data        Retrying; watch again from the last event
//	410, or a version that is too large      Retrying; list
//	no event or bookmark in SilenceTimeout   Retrying with ErrStalled; list
//	storage restored from a backup           Retrying with ErrRestored; list
//	404, 405 (the CRD was removed)           Retrying each MaxDelay; list
//	401, 403                                 Retrying each MaxDelay; the same position
//	429, 5xx with Retry-After                Retrying; the next attempt waits as asked
//	closed within 1s without an event        Retrying; watch again
//	closed later                             watch again
//	400, 422 for the first request           the error ends the sequence
//	the client returns another type          the error ends the sequence
//	ctx done                                 its cause ends the sequence
//
// After a list the watcher delivers the difference and Synced. A difference has the last version
// of each object alone, and skips the versions since the last event.
//
// # Guarantees
//
//   - W1: If watches are cut, fail or restart, the consumer gets each version that the
//     server reports exactly once, in the server's order.
//   - W2: If the resource version has expired, the watcher lists, and delivers the
//     difference by UID as Synthetic events, deletions first, then Synced.
//   - W3: If the server's storage was restored from a backup, the watcher reports
//     ErrRestored and lists before it delivers another event.
//   - W4: If a request or stream fails or is delayed, a Retrying event reports it; pauses
//     grow, are random and bounded, and respect Retry-After.
//   - W5: If a watcher starts from LastResourceVersion, it delivers every event that was not
//     handled, or, if that version has expired, Reset and all objects. If the version is "",
//     the consumer must forget its objects before.
//   - W6: If the consumer leaves the loop or ctx is done, the loop closes its stream and
//     waits for its goroutines before it ends.
//
// # Assumptions
//
//   - Resource versions are numbers, and events come in their order. Otherwise repeated
//     events are recognized only if they repeat the last version of an object.
//   - A Source returns when its context is done, and its watch closes its channel when it
//     is stopped, as in client-go.
//
// # Caveats
//
//   - The watcher keeps the last delivered state of every object. For large objects, watch
//     metadata only, with client-go's metadata client.
//   - A restored server that has passed the old position is not noticed if no watch broke,
//     if list is forbidden, or if the restore lost no delivered event of a collection of
//     more than 100 objects. The same holds for a watcher that resumes from an earlier
//     process.
//   - client-go retries broken connections for up to ten seconds before it returns. The
//     first Retrying event then comes late.
//   - Without bookmarks, a quiet collection is listed each SilenceTimeout.
//   - While the loop's body runs, the watcher receives no event. If that takes minutes, the
//     server closes the watch and its version may expire.
package watcher
