// Package fleet counts the objects of a resource by their conditions, and knows how long the oldest one has
// not been ready.
//
// It replaces a collector that lists all objects at each scrape, and one series for each object. A [Tracker] is an
// event handler of an informer. A scrape reads its counts:
//
//	websites := &fleet.Tracker{Resource: "websites.example.com", NeedsReady: true}
//	registration, err := informer.AddEventHandler(websites)
//	...
//	websites.Report(m) // a *metrics.Metrics
//
// Most callers use package operator, which does this for the objects of Kind and For.
//
// # Not ready
//
// An object is not ready if its condition Ready is not True, if Ready is about an older generation, or if it is being
// deleted. Its time begins with the lastTransitionTime of Ready, the event that showed the new generation, or
// the deletion. An object whose condition Paused is True waits on purpose, and is not counted here unless it is
// being deleted. An object without the condition Ready is counted here only with NeedsReady, and its time begins with
// its creation.
//
// # Bounds
//
// Authors of objects and of CustomResourceDefinitions can write any type, status and reason. A Tracker has 20
// types of conditions, always with Ready, and 20 pairs of a status and a reason for each type. The others are
// counted as "other". A status is True, False, Unknown or other. The first 100 conditions of an object count: an object
// whose Ready comes after them has no Ready.
//
// # Guarantees
//
//   - FL1: If types, statuses and reasons vary without limit, the number and the length of the counts stay
//     bounded, and each object is counted once for each type of its conditions.
//   - FL2: If events of an informer are repeated, merged or missed until a relist, the counts are
//     those of the objects that it holds.
//
// # Caveats
//
//   - Counts stay, as 0, after the last object with their reason.
//   - A Tracker knows objects by a hash of 64 bits. Two with one hash would count as one: among a
//     million objects there are such two with a chance of 1 in 37 million.
//   - After a restart, the time of an object whose Ready is about an older generation begins again.
package fleet
