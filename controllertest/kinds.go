package controllertest

// A Kind is a kind of fault. Each does only what a process, a network, a proxy, a
// kube-apiserver or a user may do: requests and streams are delayed, cut or
// answered with what a server may answer, never forged or reordered.
type Kind string

// The kinds. "The operation" is the request, or the external call, at which the
// plan injects the fault.
const (
	// The process is killed, and another one started.
	CrashBefore Kind = "crash-before" // before the operation
	CrashAfter  Kind = "crash-after"  // when it has happened; its answer is lost
	TimeTravel  Kind = "time-travel"  // CrashBefore, and the next incarnation's lists of one resource that accept any version (resourceVersion=0) show an old one

	// The network.
	DropRequest  Kind = "drop-request"  // connection reset; it has not happened
	LostResponse Kind = "lost-response" // connection reset; it has happened
	ResetConns   Kind = "reset"         // all connections of the process are reset while it is under way
	Slow         Kind = "slow"          // its answer arrives drop by drop
	Truncated    Kind = "truncated"     // its answer breaks off

	// Answers of the API server, or of what stands before it. It has not happened,
	// but for CommitThen503.
	Conflict        Kind = "409"
	Forbidden       Kind = "403"
	Invalid         Kind = "422"
	TooManyRequests Kind = "429"        // with Retry-After: 1
	Unavailable     Kind = "503"        // with Retry-After: 1
	CommitThen503   Kind = "commit-503" // with Retry-After: 3, although it has happened: client-go then sends it again
	InternalError   Kind = "500"
	Timeout         Kind = "504"

	// The watches of one resource, from the moment before the operation.
	Hold        Kind = "hold"        // deliver nothing for some time: the cache is stale
	HoldRelist  Kind = "hold-relist" // the same, and then end with 410: what was in between is never seen
	Gone        Kind = "410"         // end with 410 Expired in the stream
	GoneAtStart Kind = "410-start"   // are cut, and the next attempt to establish one is answered with 410
	NoBookmark  Kind = "no-bookmark" // CrashBefore, and the next incarnation's first watch-list is never told that the initial list is complete, and is cut in the end
	Stall       Kind = "stall"       // deliver nothing for longer, and are cut then

	// A paused process. With Replicas more than 1 another one may become the leader.
	Pause       Kind = "pause"        // the operation arrives late
	Freeze      Kind = "freeze"       // everything of the process stands still
	SlowRenewal Kind = "slow-renewal" // the answer to the next renewal of a Lease arrives late

	// A user, right before the operation.
	UserDelete   Kind = "user-delete"
	UserEdit     Kind = "user-edit"     // adds an annotation
	UserRecreate Kind = "user-recreate" // deletes the object, waits, and creates it again
)

// AllFaults returns every Kind.
func AllFaults() []Kind {
	return []Kind{
		CrashBefore, CrashAfter, LostResponse, DropRequest, Conflict, InternalError, Timeout, Forbidden, Invalid,
		TooManyRequests, Unavailable, CommitThen503, Slow, Truncated, ResetConns,
		Hold, HoldRelist, Gone, GoneAtStart, Stall, NoBookmark, TimeTravel,
		Pause, Freeze, SlowRenewal, UserDelete, UserEdit, UserRecreate,
	}
}
