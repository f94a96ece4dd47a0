// Package watcher watches a collection for as long as one wants, through every
// failure, and never in silence.
//
// It stands beside RetryWatcher of k8s.io/client-go/tools/watch, which ends or loops
// for ever when its version has expired, retries each second whatever is wrong, and
// hides bookmarks. A controller that wants a cache uses an informer; a [RetryWatcher]
// is for what needs each event once and little memory beside: feeds to other systems,
// waiting for something to happen, a leader's Lease.
//
//	w := &watcher.RetryWatcher[*corev1.Pod]{
//		Source: watcher.Client[*corev1.Pod](client.CoreV1().Pods("default")),
//	}
//	for event, err := range w.Events(ctx) {
//		if err != nil {
//			return err // ctx is done
//		}
//		switch event.Type {
//		case watch.Added, watch.Modified, watch.Deleted:
//			handle(event.Object)
//		case watcher.Retrying:
//			logger.Info("Watching pods is failing", "err", event.Err, "retryAfter", event.RetryAfter)
//		}
//	}
//
// Most callers need no other field. Without a ResourceVersion the sequence begins with
// a list: Added for every object, then Synced, then what happens. With one, it begins
// with the first event after it.
//
// # What happens when
//
//	connection cut, EOF, 5xx, garbage      Retrying or nothing; watch again from the last event
//	410, in the answer or in the stream    Retrying; list anew, deliver the difference, then Synced
//	"too large resource version"           the same
//	nothing heard for SilenceTimeout       Retrying with ErrStalled; the same
//	404, 405 (a CRD was removed)           Retrying; the same, tried every MaxDelay
//	401, 403                               Retrying; the same position, tried every MaxDelay
//	429, 503 with Retry-After              Retrying; not before that
//	closed within 1s without an event      Retrying; watch again
//	closed otherwise                       nothing; watch again
//	the client returns another type        the error ends the sequence
//	ctx done                               its cause ends the sequence
//
// A pause after n failures in a row is BaseDelay·2ⁿ⁻¹ up to MaxDelay, of which the part
// Jitter is random. Failures are forgotten when a watch has delivered something new or
// has been open for a minute; a list alone forgets nothing, else a server that expires
// every version would be listed without end. The server is asked to end each watch at a
// random time between 5 and 10 minutes.
//
// # Guarantees
//
//   - W1: No event is lost and none repeated across cuts, errors and restarts of
//     the watch: the consumer sees each version the server reports after the
//     start exactly once, in the server's order.
//   - W2: After an expired version the consumer's state is made complete again:
//     Added, Modified and Deleted events, marked Synthetic, for what has changed
//     since, by UID, deletions first; then Synced. Versions in between are not
//     seen: that is what expired means. Lists are read in pages of 500, in one
//     after a list that expired between its pages, and from the storage, never from an
//     older cache.
//   - W3: A watcher that was started from a ResourceVersion does not know the
//     objects that did not change since. Its first list is therefore preceded by
//     Reset: the events up to Synced are all there is.
//   - W4: A server whose versions went back (restored from a backup) is followed:
//     at the list after ErrStalled at the latest the state is the server's, and
//     so is the position. Bookmarks older than the position are no sign of life. A
//     server that has passed the old position again before that is not noticed: no
//     version shows it.
//   - W5: Failures are visible as they happen, as Retrying, whether they came as
//     the answer to a call or in the stream, and are retried with exponential,
//     jittered, capped pauses or later if the server says so.
//   - W6: Resuming from LastResourceVersion in a new watcher delivers every event
//     that was not handled. Bookmarks are delivered too, because they move that
//     position in a quiet collection.
//   - W7: Leaving the loop, or ctx, ends everything: when range is over, the
//     stream is closed and no goroutine is left. Nothing is delivered after ctx is done.
//
// # Assumptions
//
//   - Resource versions are numbers, and events come in their order, as the Kubernetes
//     API demands. Where they are not numbers, repeated events are recognised only if
//     they repeat the last version of an object.
//   - A list has a resource version. Where it has none, each new watch is preceded by a
//     list, and there is nothing to resume from.
//   - A Source returns when its context is done, and its watch closes its channel when
//     stopped. All of client-go's do.
//
// # Caveats
//
//   - The last delivered state of every object is held, to tell what was deleted during a
//     gap. Watch metadata only (client-go's metadata client) where that is too much.
//   - Client-go's watch retries broken connections itself, for up to ten seconds, before
//     it reports anything, and reports them as a watch that ends at once.
//   - A server that sends no bookmarks is silent where nothing happens: set SilenceTimeout
//     accordingly, or see Retrying and a list every three minutes.
//   - A ResourceVersion to start from that the server calls invalid is Retrying again and
//     again, and not given up for a list.
//   - While the loop's body runs nothing is received. A body that takes minutes makes the
//     server drop the watch; nothing is lost by it, but the version may expire.
//
// The package is larger than most of this library because listing, watching and the
// difference between the two share one state and cannot be taken apart.
package watcher
