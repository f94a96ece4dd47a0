package controllertest

// A Kind is a kind of fault. A process, a network, a proxy, a kube-apiserver or a user
// can cause each of them: requests and streams are delayed or cut, or get a response
// that a server can send. Objects and events are never forged or reordered.
type Kind string

// The kinds. "The operation" is the request or the external call at which the plan
// injects the fault.
const (
	// The process is killed, and another one started.
	CrashBefore Kind = "crash-before" // before the operation
	CrashAfter  Kind = "crash-after"  // after the operation; its response is lost
	TimeTravel  Kind = "time-travel"  // CrashBefore, and the next process gets an old list of one resource if it accepts any version (resourceVersion=0); the events since then come after its first write, or after 2s

	// The network.
	DropRequest  Kind = "drop-request"  // connection reset before the operation
	LostResponse Kind = "lost-response" // connection reset after the operation
	ResetConns   Kind = "reset"         // all connections of the process are reset during the operation
	Slow         Kind = "slow"          // the body of the response arrives slowly
	Truncated    Kind = "truncated"     // the body of the response is cut

	// Responses of the API server or a proxy. The operation has no effect, except with
	// CommitThen503.
	Conflict        Kind = "409" // another writer changes the object right before the operation, which has a resourceVersion
	Forbidden       Kind = "403"
	Invalid         Kind = "422"
	TooManyRequests Kind = "429"        // with Retry-After: 1
	Unavailable     Kind = "503"        // with Retry-After: 1
	CommitThen503   Kind = "commit-503" // with Retry-After: 3 after the operation: client-go then repeats it
	InternalError   Kind = "500"
	Timeout         Kind = "504"

	// The watches of one resource, from the moment before the operation.
	Hold        Kind = "hold"        // deliver no events for some time, so the cache is stale
	HoldRelist  Kind = "hold-relist" // Hold, then 410: the events in between are never delivered
	Gone        Kind = "410"         // end with a 410 event
	GoneAtStart Kind = "410-start"   // are cut, and the next watch request fails with 410
	NoBookmark  Kind = "no-bookmark" // CrashBefore, and the next process's first watch-list gets no bookmark that ends the initial list, and is cut
	Stall       Kind = "stall"       // deliver no events for longer, and are cut then
	NextStep    Kind = "next-step"   // Hold until some time after the next write of the user. The user begins the next step of the script as soon as the operation has ended

	// A paused process. If Replicas is more than 1, another one may become the leader.
	Pause       Kind = "pause"        // the operation arrives late
	Freeze      Kind = "freeze"       // all requests, responses and events of the process are delayed
	SlowRenewal Kind = "slow-renewal" // the response to the next renewal of a Lease is late

	// An action of the user, right before the operation.
	UserDelete   Kind = "user-delete"
	UserEdit     Kind = "user-edit"     // adds an annotation
	UserRecreate Kind = "user-recreate" // deletes the object, waits, and creates it again; before the operation, if nothing delays the deletion

	// The next steps of the script, before the operation: they come between the last read of the
	// controller and its write. Then Hold of all watches, so the next reads do not have the write.
	StepBefore Kind = "step-before"
	TwoSteps   Kind = "two-steps" // two steps, without a pause

	// An outage of the API server from the operation on, for a number of requests or for seconds,
	// of the same verb and resource, of the resource, or of all requests.
	Outage Kind = "outage"

	// An action of another user on an object that the controller has created, right before a
	// write of it, or when the cluster is at rest after a step.
	DriftDelete Kind = "drift-delete"
	DriftEdit   Kind = "drift-edit" // changes a field that the controller has set
)

// AllFaults returns every Kind.
func AllFaults() []Kind {
	return []Kind{
		CrashBefore, CrashAfter, LostResponse, DropRequest, Conflict, InternalError, Timeout, Forbidden, Invalid,
		TooManyRequests, Unavailable, CommitThen503, Slow, Truncated, ResetConns,
		Hold, HoldRelist, Gone, GoneAtStart, Stall, NextStep, NoBookmark, TimeTravel,
		Pause, Freeze, SlowRenewal, UserDelete, UserEdit, UserRecreate, StepBefore, TwoSteps, Outage, DriftDelete, DriftEdit,
	}
}
