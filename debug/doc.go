// Package debug serves a page that shows why an object does not move: the keys of each
// controller with the reasons for which they wait, and the story of one key.
//
// client-go has no counterpart. A Page is an http.Handler for /debug/controllers. It is HTML,
// and JSON with ?format=json. Its hooks fit the other packages and remember the last events,
// calls, writes and waits:
//
//	page := &debug.Page{}
//	c := page.Controller("widgets")
//	c.Queue, c.Loop = q, loop
//	loop.Hook, loop.Gate = c.Hook(nil), c.Gate(writes)
//	config.Wrap(page.Transport)
//	handler := enqueue.Handler(c.Source("widgets", loop.Source("widgets")), keys)
//
// [Profiles] serves the profiles of the process. With a Page.Verbosity, such as [Klog], a form of the page
// makes the process log more for a time.
//
// Package operator does this if its Options.Debug has an address. Most callers use that.
// Others pass the Page to package serve, with a Guard or on loopback. docs/debug.md shows how
// to read the page.
//
// # The story of a key
//
// The page has a field for a key, such as default/web. The story of the key has one line for
// its present state and its cause, and then what happened to it, in order of time:
//
//   - event: a Source added the key, with the name and the kind of the event;
//   - call: a reconcile, with its result, attempt, triggers and duration;
//   - write: a request that a call sent, with the object, the status and the resource version;
//   - wait: the Gate delayed the key, with the cause, and the time until it woke it;
//   - blocked: a finalizer waits for the cleanup, with the names of the steps.
//
// # Cost
//
// Without a Page the packages record no history. With it each event, call, write and wait takes a
// lock for a copy of one record.
//
// # Guarantees
//
//   - DB1: If a page is read, it has names of objects, results and causes, but no contents of
//     objects and no text of a call's error.
//   - DB2: If names of objects have any bytes, they are escaped in the HTML, and the page
//     runs only its own script.
//   - DB3: If the keys of a controller are many or their names long, the page, the history
//     and the work of a read stay bounded.
//   - DB4: The story of a key shows its newest events, calls, writes and waits, each up to a
//     bound, and successes displace no failure.
//
// # Caveats
//
//   - Names of objects can be confidential. ServeHTTP does not authenticate: use package serve.
//   - The history is in memory and ends with the process. The page of each replica shows only
//     that replica.
//   - Writes are recorded only with the context of a call or one derived from it. A blocked
//     finalizer is known only if finalizer.Ensure runs its cleanup.
//   - The cause of a wait is the text of the Gate's EnsureReady.
package debug
