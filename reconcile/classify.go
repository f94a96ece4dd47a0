package reconcile

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit"
	"github.com/controllerkit/controllerkit/internal/kube"
	"github.com/controllerkit/controllerkit/reconcile/internal/streaks"
)

// class is the result of a call.
type class string

const (
	success     class = controllerkit.ResultSuccess
	requeue     class = controllerkit.ResultRequeue
	conflict    class = controllerkit.ResultConflict
	serverDelay class = controllerkit.ResultServerDelay
	stale       class = controllerkit.ResultStale
	terminal    class = controllerkit.ResultTerminal
	notFound    class = controllerkit.ResultNotFound
	rejected    class = controllerkit.ResultRejected
	forbidden   class = controllerkit.ResultForbidden
	timeout     class = controllerkit.ResultTimeout
	panicked    class = controllerkit.ResultPanic
	cancelled   class = controllerkit.ResultCancelled
	failed      class = controllerkit.ResultError
)

// precedence orders the classes of the parts of a joined error; the first one present
// decides. Loud classes precede quiet ones, so that a conflict hides no other error. The
// server's delay precedes the backoff, so that the retry does not come sooner than the
// server asked. Terminal is last, because it would lose the retry of the other parts. A part that waits is
// requeue: it is no failure, but must run again.
var precedence = []class{ //nolint:gochecknoglobals // a constant table
	panicked, serverDelay, failed, timeout, notFound, rejected, forbidden, conflict, stale, requeue, terminal,
}

// The delays of the classes that do not use the queue's rate limiter.
const (
	conflictMin, conflictMax = 50 * time.Millisecond, 250 * time.Millisecond
	staleMin, staleMax       = 100 * time.Millisecond, 5 * time.Second
	rejectedMin, rejectedMax = time.Second, 10 * time.Minute
	serverMin, serverMax     = time.Second, 5 * time.Minute

	// normalRaces is the number of conflicts and stale results of one streak that are
	// normal. More of them are not a race, and must neither spin nor stay unseen.
	normalRaces = 5

	// loudEvery is the number of rejections of one class in a streak for each logged error.
	loudEvery = 10
)

// again is how a key returns to the queue.
type again int

const (
	never   again = iota // not by this call
	now                  // at once
	after                // after a delay
	limited              // by the rate limiter, which counts a failure
	gated                // by the gate, or after a delay if there is none
)

// verdict has all consequences of one call.
type verdict struct {
	reset   bool // forget the failures counted so far
	attempt bool // a failure that MaxAttempts counts
	again   again
	delay   time.Duration // of after and gated
	counted bool          // the delay, or that of the rate limiter, is a deadline
	quiet   bool          // log at V(4) only
	parked  bool          // not queued again because of MaxAttempts
}

// classify returns the class of a call. stopped means that a stop cancelled it, timedOut
// that its Timeout was over.
func classify(res Result, err error, stopped, timedOut bool) class {
	if err == nil {
		if res.RequeueAfter != 0 {
			return requeue
		}
		return success
	}
	best := len(precedence)
	for _, part := range kube.Parts(err) {
		best = min(best, slices.Index(precedence, classifyPart(part)))
	}
	switch cl := precedence[best]; {
	case stopped && cl != panicked:
		// Any other text of the error can be a consequence of the cancellation.
		return cancelled
	case timedOut && (cl == failed || cl == requeue):
		// Not every function whose context ends returns the error of the context.
		return timeout
	case cl == requeue && kube.Waits(err) == 0:
		// A terminal part has no retry, and the part that waits needs one.
		return failed
	default:
		return cl
	}
}

// Class returns the class of an error by the table of [Result], such as "rejected", and "success"
// for nil. It judges the error alone: Run also classes calls as cancelled, as timeout or as panic
// by how they ended. If a method of err panics, the class is "panic".
func Class(err error) string {
	cl, _ := classOf(Result{}, err, false, false)
	return string(cl)
}

// judge returns the consequences of a call of class cl, which st counts already. With
// classify it implements the table in the comment of Result.
func judge(cl class, st *streaks.Streak, res Result, err error) verdict {
	var v verdict
	switch cl {
	case success, requeue:
		v.reset, v.quiet = true, true
	case cancelled:
		v.again, v.quiet = now, true
		return v // the next Run need not wait
	case terminal:
		v.reset = true
	case serverDelay:
		v.again, v.delay, v.counted = after, max(suggestedDelay(err), res.RequeueAfter, st.Left), true
		return v // RequeueAfter must not make the retry come sooner
	case rejected, forbidden:
		own, loud := st.Rejected, 1
		if cl == forbidden {
			own = st.Forbidden
		} else if kube.OnlyNamespaceTerminating(err) { // each deletion of a namespace with objects gets here, and few are stuck
			loud = 0
		}
		d := min(rejectedMin<<min(max(st.Refusals-1, 0), 10), rejectedMax)
		v.again, v.delay, v.quiet, v.counted = after, between(d, d+d/2), own%loudEvery != loud, true
		// The arrival of a role is no event, nor is room in a quota, so they must not park the key.
		v.attempt = cl == rejected && !slices.ContainsFunc(kube.Parts(err), kube.IsDenied)
	case conflict:
		v.again, v.delay, v.quiet = gated, between(conflictMin, conflictMax), st.Races <= normalRaces
		if !v.quiet {
			v.again = limited
		}
	case stale:
		d := min(staleMin<<min(st.Races-1, 10), staleMax)
		v.again, v.delay, v.quiet = gated, between(d, d+d/2), st.Races <= normalRaces
	default:
		v.again = limited
	}
	v.attempt, v.counted = v.attempt || v.again == limited, v.counted || v.again == limited
	switch {
	case res.RequeueAfter > 0 || cl == requeue:
		v.again, v.delay, v.attempt, v.counted = after, max(res.RequeueAfter, 0), false, false
	case v.counted && st.Left > 0:
		v.again, v.delay, v.attempt, v.counted = after, st.Left, false, false
	}
	return v
}

// classifyPart returns the class of an error that is not joined. If two classes fit, a mark
// by the caller precedes a response of the API server.
func classifyPart(err error) class {
	var outdated controllerkit.StaleError
	var final controllerkit.TerminalError
	var refused controllerkit.RejectedError
	_, delayed := apierrors.SuggestsClientDelay(err)
	switch {
	case errors.As(err, new(*PanicError)):
		return panicked
	case kube.Waits(err) > 0:
		return requeue
	case errors.Is(err, ErrTerminal), errors.As(err, &final) && final.Terminal():
		return terminal
	case errors.As(err, &outdated) && outdated.Stale():
		return stale
	case errors.Is(err, ErrRejected), errors.As(err, &refused) && refused.Rejected():
		return rejected
	case delayed:
		return serverDelay
	case apierrors.IsConflict(kube.AsConflict(err)) && !apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		// A conflict of server-side apply is not a race: it lasts until another manager
		// gives up the field.
		return conflict
	case kube.IsDenied(err):
		// No role is missing: the object does not fit, or its user deletes the namespace.
		return rejected
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return forbidden
	case isRejected(err), kube.IsUnstorable(err):
		return rejected
	case apierrors.IsNotFound(err):
		return notFound
	case errors.Is(err, context.DeadlineExceeded):
		return timeout
	default:
		return failed
	}
}

// isRejected reports whether err is a response of the API server that the same request
// gets again until something else changes.
func isRejected(err error) bool {
	return apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsNotAcceptable(err) ||
		apierrors.IsAlreadyExists(err) || apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsUnsupportedMediaType(err) ||
		apierrors.IsInvalid(err)
}

// classed is an error that is known as the sentinel of its class.
type classed struct {
	error
	sentinel error
}

func (c classed) Is(target error) bool { return target == c.sentinel }
func (c classed) Unwrap() error        { return c.error }

// asClassed makes the class of err known to errors.Is.
func asClassed(cl class, err error) error {
	var sentinel error
	switch cl {
	case terminal:
		sentinel = ErrTerminal
	case rejected, forbidden:
		sentinel = ErrRejected
	}
	if sentinel == nil || errors.Is(err, sentinel) {
		return err
	}
	return classed{err, sentinel}
}

// suggestedDelay returns the longest delay that a part of err requests, within bounds. It
// adds up to a fifth, so that the keys of one overload do not return together.
func suggestedDelay(err error) time.Duration {
	d := serverMin
	for _, part := range kube.Parts(err) {
		if seconds, ok := apierrors.SuggestsClientDelay(part); ok {
			d = max(d, time.Duration(seconds)*time.Second)
		}
	}
	d = min(d, serverMax)
	return between(d, d+d/5)
}

// between returns a random duration in [low, high).
func between(low, high time.Duration) time.Duration { return low + rand.N(high-low) }
