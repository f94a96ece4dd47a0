package controllertest

import (
	"context"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/controllerkit/controllerkit/controllertest/fault"
)

// reflectorLocked returns the fault of a list or a watch of a cache.
func (i *incarnation) reflectorLocked(op *fault.Op) fault.Fault {
	var f fault.Fault
	watchList := op.Query.Get("sendInitialEvents") == "true"
	switch e := &i.effects; {
	case op.Verb == "watch" && !watchList && i.run.isExpiredLocked(op.Resource, op.Query.Get("resourceVersion")):
		f.Response = &fault.Response{Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version"}
	case watchList && e.noBookmark == op.Resource:
		e.noBookmark = ""
		f.NoBookmark = stallTime
		f.Before = i.run.silence(stallTime) // the cache waits
	case e.travels == op.Resource && watchList:
		// A server without watch-lists responds so, and the client falls back to a list.
		f.Response = &fault.Response{Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"}
	case e.travels == op.Resource && op.Verb == "list":
		if op.Query.Get("resourceVersion") == "0" {
			e.travelled = true
			f.Rewrite = fault.SetQuery("resourceVersion", e.travelTo, "resourceVersionMatch", "Exact")
			i.run.noteLocked("process %d lists %s as of version %s", i.number, op.Resource, e.travelTo)
		}
	case e.travels == op.Resource && op.Verb == "watch":
		e.travels = ""
		f.Delay = holdTime // the watch cache of the old list is late
		if e.travelled {
			rest := func() {}
			f.Before = func() { rest = i.run.begin(); i.awaitWrite() }
			f.Finally = func() { rest() }
		}
	}
	return f
}

// awaitWrite waits until the process has begun to write, or for stallTime. On a busy machine it
// can take longer than holdTime until its workers run.
func (i *incarnation) awaitWrite() {
	timer := time.NewTimer(stallTime)
	defer timer.Stop()
	select {
	case <-i.wrote:
	case <-timer.C:
	case <-i.ctx.Done():
	}
}

// The durations of faults.
const (
	holdTime  = 400 * time.Millisecond
	stallTime = 2 * time.Second
	dripTime  = 600 * time.Millisecond

	commitRetry = 3 * time.Second // the Retry-After of CommitThen503
)

// injectLocked returns the fault of an operation for an injection of the plan. It reports
// whether the fault can happen now.
func (i *incarnation) injectLocked(j injection, o operation) (f fault.Fault, possible bool) {
	r := i.run
	if j.kind.scope() == watchedResource && j.kind != TimeTravel && j.kind != NoBookmark && i.Watches()[j.about] == 0 {
		return f, false
	}
	status := func(code int, reason metav1.StatusReason, retryAfter int) *fault.Response {
		return &fault.Response{Code: code, Reason: reason, RetryAfter: retryAfter, Message: "controllertest: " + string(j.kind)}
	}
	switch j.kind {
	case CrashBefore:
		f.Before = func() { i.crash(effects{}) }
	case CrashAfter:
		f.After = func() { i.crash(effects{}) }
	case TimeTravel:
		version := r.old[j.from]
		if version == "" {
			return f, false
		}
		f.Before = func() { i.crash(effects{travels: j.about, travelTo: version}) }
	case NoBookmark:
		f.Before = func() { i.crash(effects{noBookmark: j.about}) }
	case DropRequest:
		f.Drop = true
	case LostResponse:
		f.Lose = true
	case ResetConns:
		f.After, f.Lose = i.Reset, true
	case Slow:
		f.SlowBody, f.Before = dripTime, r.silence(dripTime)
	case Truncated:
		f.Truncate = true
	case Conflict:
		if !o.conditional {
			return f, false
		}
		f.Before = func() { apart(func() { r.contend(o.object) }) }
	case Forbidden:
		f.Response = status(http.StatusForbidden, metav1.StatusReasonForbidden, 0)
	case Invalid:
		f.Response = status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, 0)
	case TooManyRequests:
		f.Response = status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, 1)
		f.Before = r.silence(time.Second)
	case Unavailable:
		f.Response = status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, 1)
		f.Before = r.silence(time.Second)
	case CommitThen503:
		// Long enough for the next step to begin before client-go repeats the request.
		f.Response, f.Commit = status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, int(commitRetry.Seconds())), true
	case InternalError:
		f.Response = status(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0)
	case Timeout:
		f.Response = status(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, 0)
	case Hold:
		f.Before = func() { r.after(holdTime, i.hold(j.about)) }
	case HoldRelist:
		f.Before = func() {
			release := i.hold(j.about)
			r.after(holdTime, func() { r.expire(j.about); i.cut(j.about, true); release() })
		}
	case Stall:
		f.Before = func() {
			release := i.hold(j.about)
			r.after(stallTime, func() { i.cut(j.about, false); release() })
		}
	case NextStep:
		step := r.step
		if !r.x.hasNext(step, 1) {
			r.soon = true
			return f, false
		}
		f.Before = func() { r.afterUser(step, i.hold(j.about)) }
		f.After = func() { r.hurry(step + 1) }
	case StepBefore, TwoSteps:
		step, steps := r.step, j.kind.steps()
		if !r.x.hasNext(step, steps) {
			r.soon = true
			return f, false
		}
		release := func() {}
		f.Before = func() { release = i.window(step, steps) }
		f.Finally = func() { r.after(holdTime, release) }
	case Outage:
		return r.outageLocked(j.about), true
	case DriftDelete, DriftEdit:
		key, ok := r.driftsLocked(j)
		if !ok {
			return f, false
		}
		f.Before = func() { apart(func() { r.drift(j.kind, key) }) }
	case Gone:
		f.Before = func() { r.expire(j.about); i.cut(j.about, true) }
	case GoneAtStart:
		f.Before = func() { r.expire(j.about); i.cut(j.about, false) }
	case Pause:
		f.Delay = r.x.pause
	case Freeze:
		f.Before = func() {
			thaw, resume := i.Freeze(), i.freezeProcess()
			r.after(r.x.pause, func() { resume(); thaw() })
		}
	case SlowRenewal:
		i.effects.slowRenewal = r.x.pause
	case UserDelete, UserEdit, UserRecreate:
		key, ok := r.ownedLocked(j.about)
		if !ok {
			return f, false
		}
		f.Before = func() { apart(func() { r.interfere(j.kind, key) }) }
	}
	return f, true
}

// hold is Hold with a line in the timeline.
func (i *incarnation) hold(resource string) (release func()) {
	i.run.note("watch %s: events are held", resource)
	end := i.Hold(resource)
	return func() {
		i.run.note("watch %s: events are delivered again", resource)
		end()
	}
}

// cut is Cut with a line in the timeline.
func (i *incarnation) cut(resource string, gone bool) {
	i.run.note("watch %s: is cut", resource)
	i.Cut(resource, gone)
}

// expire makes the present and earlier versions of a resource too old to watch from, for
// every process, as a compaction does.
func (r *run) expire(resource string) {
	version := parseRevision(r.revisionNow(context.Background()))
	r.mu.Lock()
	r.expired[resource] = version
	r.mu.Unlock()
}

func (r *run) isExpiredLocked(resource, version string) bool {
	revision := parseRevision(version) // 0 for "" and "0", which mean any version
	return revision > 0 && revision < r.expired[resource]
}

// silence returns a function that postpones rest for a time in which a fault, such as a
// Retry-After, keeps the controller waiting.
func (r *run) silence(d time.Duration) func() {
	return func() { r.after(d+holdTime, func() {}) }
}

// after calls end after a time, and postpones rest until then.
func (r *run) after(d time.Duration, end func()) {
	done := r.begin()
	r.goes(func() {
		defer done()
		defer end()
		time.Sleep(d)
	})
}
